"""`run.json`: what it remembers, and the lock on a run's folder."""

from __future__ import annotations

import pytest

from dspark_hf.pipeline.state import RunFolder


def test_a_finished_stage_is_found_under_its_own_settings_only(tmp_path):
    run = RunFolder(tmp_path)
    assert run.finished("train", "a") is None
    run.finish("train", "a", {"steps": 3}, seconds=1.26)
    assert RunFolder(tmp_path).finished("train", "a") == {"steps": 3}
    assert run.finished("train", "b") is None
    assert run.seconds("train") == 1.3
    assert run.result("train") == {"steps": 3}
    assert run.fingerprint("train") == "a"


def test_a_stage_that_never_finished_is_an_error_with_its_name(tmp_path):
    with pytest.raises(ValueError, match="'train' has not finished"):
        RunFolder(tmp_path).result("train")


def test_a_second_process_is_kept_out(tmp_path):
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    with first.locked(), pytest.raises(ValueError, match="Another process works in"), second.locked():
        pass
    with second.locked():
        pass


def test_a_file_in_place_of_the_folder_is_an_error(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(ValueError, match="is a file"), RunFolder(tmp_path / "run").locked():
        pass


def test_a_damaged_record_names_its_file(tmp_path):
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run\.json is damaged"):
        RunFolder(tmp_path).finished("train", "a")

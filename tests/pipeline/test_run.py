"""A whole run: what it leaves, what a second one skips, and that a killed one ends with the same weights."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dspark_hf import DSparkDrafter
from dspark_hf.pipeline import run_pipeline
from dspark_hf.pipeline.run import STAGE_NAMES, fingerprints
from dspark_hf.training.recipe import load_recipe


def test_a_run_leaves_a_drafter_with_everything_a_repo_needs(finished_run):
    folder, told, results = finished_run
    files = {str(path.relative_to(folder / "drafter")) for path in (folder / "drafter").rglob("*") if path.is_file()}
    assert {
        "README.md",
        "config.json",
        "model.safetensors",
        "eval_results.json",
        "training_recipe.yaml",
        "provenance.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "cost_curves/cost_curve.json",
        "plots/accepted_length.png",
        "plots/acceptance_by_slot.png",
        "plots/cost_curve.png",
        "plots/reliability_temperature_0.png",
        "plots/reliability_temperature_1.png",
    } <= files
    assert told.ran == list(STAGE_NAMES)
    assert any("accepted length" in note for note in told.notes)
    assert results["evaluate"]["suites"][0]["mismatches"] == 0


def test_the_exported_drafter_opens_and_is_calibrated_for_both_regimes(finished_run):
    folder, *_ = finished_run
    drafter = DSparkDrafter.from_pretrained(folder / "drafter")
    assert set(drafter.config.confidence_calibration) == {"temperature=0", "temperature=1"}
    assert drafter.config.target_layer_ids == [0, 1]


def test_no_published_text_names_a_folder_of_this_machine(finished_run):
    folder, *_ = finished_run
    for path in (folder / "drafter").rglob("*"):
        if path.suffix in (".json", ".md", ".yaml", ".jsonl"):
            assert os.environ["HF_HOME"] not in path.read_text(), path
            assert str(folder) not in path.read_text(), path


def test_a_finished_run_is_not_computed_again(finished_run, tiny_recipe, told):
    folder, _, results = finished_run
    before = (folder / "drafter" / "model.safetensors").stat().st_mtime_ns
    assert run_pipeline(load_recipe(tiny_recipe), folder, reporter=told) == results
    assert told.ran == []
    assert told.reused == list(STAGE_NAMES)
    assert (folder / "drafter" / "model.safetensors").stat().st_mtime_ns == before


def test_a_changed_section_redoes_what_depends_on_it_and_nothing_else(tiny_recipe):
    recipe, changed = load_recipe(tiny_recipe), load_recipe(tiny_recipe, {"calibrate.prompts": 5})
    first, second = fingerprints(recipe), fingerprints(changed)
    assert [name for name in STAGE_NAMES if first[name] != second[name]] == [
        "calibrate",
        "profile",
        "evaluate",
        "assemble",
    ]


def test_running_up_to_a_stage_stops_there(tiny_recipe, tmp_path, told):
    results = run_pipeline(load_recipe(tiny_recipe), tmp_path / "run", until="prepare", reporter=told)
    assert told.ran == ["target", "prepare"]
    assert results["prepare"]["rows"] == len(list_rows(tmp_path / "run"))


def test_an_unknown_stage_is_an_error(tiny_recipe, tmp_path):
    with pytest.raises(ValueError, match="until must be one of"):
        run_pipeline(load_recipe(tiny_recipe), tmp_path / "run", until="bake")
    assert not (tmp_path / "run").exists()


def test_several_processes_only_train_and_want_rows_first(tiny_recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="Several processes train together"):
        run_pipeline(load_recipe(tiny_recipe), tmp_path / "run")
    with pytest.raises(ValueError, match="No rows for this recipe"):
        run_pipeline(load_recipe(tiny_recipe), tmp_path / "run", until="train")


def test_a_run_killed_in_training_goes_on_and_ends_with_the_same_weights(finished_run, tiny_recipe, tmp_path, told):
    unbroken, *_ = finished_run
    folder = tmp_path / "killed"
    code = (
        "from dspark_hf.pipeline import run_pipeline; from dspark_hf.training.recipe import load_recipe; import sys, time\n"
        "from transformers import Trainer\n"
        "step = Trainer.training_step\n"
        "def slow(*given, **named):\n    time.sleep(0.3)\n    return step(*given, **named)\n"
        "Trainer.training_step = slow\n"
        "run_pipeline(load_recipe(sys.argv[1]), sys.argv[2], until='train')"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tiny_recipe), str(folder)], stderr=subprocess.PIPE)
    try:
        wait_for_checkpoint(folder, process)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert not (folder / "drafter").exists()
    assert "train" not in json.loads((folder / "run.json").read_text())["stages"]

    results = run_pipeline(load_recipe(tiny_recipe), folder, until="train", reporter=told)
    assert told.ran == ["train"]
    assert results["train"]["seconds"] is None
    first, second = (load_file(path / "drafter" / "model.safetensors") for path in (unbroken, folder))
    assert set(first) == set(second)
    assert all(torch.equal(first[name], second[name]) for name in first)


def wait_for_checkpoint(folder: Path, process: subprocess.Popen) -> None:
    """Until the first checkpoint is whole; the training is then in its middle."""
    for _ in range(3000):
        if list(folder.glob("training/*/checkpoint-2/trainer_state.json")):
            return
        assert process.poll() is None, process.stderr.read().decode()
        time.sleep(0.1)
    pytest.fail("no checkpoint within 5 minutes")


def list_rows(folder: Path) -> list:
    from dspark_hf.training.rows import RowStore

    (rows,) = (folder / "rows").glob("training-*")
    return RowStore(rows).read()

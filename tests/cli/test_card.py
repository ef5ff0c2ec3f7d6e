"""`dspark-hf card`, as a user types it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from dspark_hf.cli import cli
from dspark_hf.dev.tiny import tiny_drafter, tiny_target


@pytest.fixture
def folder(tmp_path):
    tiny_drafter(tiny_target()).save_pretrained(tmp_path / "drafter")
    return tmp_path / "drafter"


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["card", *words])


def test_card_prints_the_readme(folder):
    result = run(str(folder), "--repo-id", "me/d", "--license", "mit")
    assert result.exit_code == 0
    assert "# d" in result.stdout
    assert "License: mit" in result.stdout
    assert not (folder / "README.md").exists()


def test_write_keeps_what_a_person_wrote_and_overwrite_does_not(folder):
    run(str(folder), "--write")
    readme = folder / "README.md"
    readme.write_text(readme.read_text() + "\nMine.\n")
    run(str(folder), "--write", "--license", "mit")
    assert "Mine." in readme.read_text()
    assert "License: mit" in readme.read_text()
    run(str(folder), "--write", "--overwrite")
    assert "Mine." not in readme.read_text()


def test_json_splits_metadata_and_body(folder):
    answer = json.loads(run(str(folder), "--json").stdout)
    assert answer["metadata"]["library_name"] == "dspark-hf"
    assert answer["body"].lstrip().startswith("<!-- dspark-hf:begin summary -->")


def test_a_folder_of_nothing_is_one_line_and_exit_code_2(tmp_path):
    result = run(str(tmp_path))
    assert result.exit_code == 2
    assert "holds neither config.json" in result.stderr

"""`dspark-hf push`, as a user types it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from dspark_hf.cli import cli
from dspark_hf.dev.tiny import tiny_drafter, tiny_target


@pytest.fixture
def folder(tmp_path):
    tiny_drafter(tiny_target()).save_pretrained(tmp_path / "drafter")
    return str(tmp_path / "drafter")


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["push", *words])


def test_push_prints_where_it_went(hub, folder):
    result = run(folder, "tester/d")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == f"{hub.endpoint}/tester/d"
    assert set(hub.repos["tester/d"].refs) == {"main", "deepspec"}


def test_a_second_push_says_that_nothing_had_changed(hub, folder):
    run(folder, "tester/d")
    result = run(folder, "tester/d")
    assert "nothing had changed" in result.stderr


def test_json_names_commit_and_repo(hub, folder):
    result = run(folder, "d", "--json", "--no-engine-branch", "--private")
    answer = json.loads(result.stdout)
    assert answer["repo_id"] == "tester/d"
    assert answer["commit"] == hub.repos["tester/d"].refs["main"]
    assert answer["changed"] is True
    assert hub.repos["tester/d"].private


def test_a_dry_run_lists_files_and_shows_the_card_without_a_hub(hub, folder):
    result = run(folder, "tester/d", "--dry-run")
    assert "model.safetensors" in result.stdout
    assert "## Use it" in result.stdout
    assert hub.requests == []


def test_rows_are_recognised_and_go_to_a_dataset(hub, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"turns": ["a"]}\n')
    assert run(str(tmp_path), "tester/rows").exit_code == 0
    assert "datasets/tester/rows" in hub.repos


@pytest.mark.parametrize("kind", ["empty", "token", "foreign"])
def test_a_mistake_is_one_line_and_exit_code_2(hub, folder, tmp_path, kind, monkeypatch):
    words = {"empty": (str(tmp_path), "tester/d"), "token": (folder, "tester/d"), "foreign": (folder, "nobody/d")}[
        kind
    ]
    if kind == "token":
        monkeypatch.setattr("dspark_hf.hub.commit.get_token", lambda: None)
    result = run(*words)
    assert result.exit_code == 2
    expected = {"empty": "holds neither", "token": "needs an access token", "foreign": "may not write there"}[kind]
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert expected in errors[0]
    assert "Traceback" not in result.output

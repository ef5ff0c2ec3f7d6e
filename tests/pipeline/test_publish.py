"""From a finished run to the Hub and back, for a drafter, its rows, and an adapter on it."""

from __future__ import annotations

import pytest
import torch

from dspark_hf import DSparkDrafter
from dspark_hf.evaluation import EvalResults
from dspark_hf.hub.errors import HubError
from dspark_hf.pipeline import run_pipeline
from dspark_hf.pipeline.publish import check_destination, publish
from dspark_hf.pipeline.standalone import open_pair
from dspark_hf.pipeline.state import RunFolder
from dspark_hf.pipeline.workspace import Workspace
from dspark_hf.training.recipe import build_recipe, load_recipe
from dspark_hf.training.rows import RowStore


def test_a_run_is_published_in_one_commit_and_loads_back(finished_run, tiny_recipe, hub):
    folder, _, results = finished_run
    recipe = load_recipe(tiny_recipe, {"hub.push_rows": True})
    sent = publish(folder / "drafter", "tester/tiny", recipe=recipe, rows_folder=results["prepare"]["folder"])
    files = hub.repos["tester/tiny"].files("main")
    assert {"README.md", "config.json", "model.safetensors", "training_recipe.yaml"} <= set(files)
    assert any(path.endswith(".parquet") for path in hub.repos["datasets/tester/tiny-rows"].files("main"))
    assert sent.rows is not None
    opened, drafter = open_pair("tester/tiny", results["target"]["name"])
    ids = torch.tensor([[5, 6, 7, 8]])
    plain = opened.model.generate(ids, max_new_tokens=8, do_sample=False)
    assert torch.equal(opened.model.generate(ids, max_new_tokens=8, do_sample=False, assistant_model=drafter), plain)
    again = publish(folder / "drafter", "tester/tiny", recipe=load_recipe(tiny_recipe))
    assert not again.drafter.changed


@pytest.mark.parametrize("account", [False, True])
@pytest.mark.parametrize(
    ("recipe", "call", "expected"),
    [(None, None, None), (True, None, True), (False, None, False), (True, False, False)],
)
def test_visibility_follows_the_call_then_the_recipe_then_the_account(
    finished_run, tiny_recipe, hub, monkeypatch, account, recipe, call, expected
):
    monkeypatch.setattr(hub, "private_by_default", account)
    folder, *_ = finished_run
    name = f"tester/seen-{account}-{recipe}-{call}"
    publish(folder / "drafter", name, recipe=load_recipe(tiny_recipe, {"hub.private": recipe}), private=call)
    assert hub.repos[name].private is (account if expected is None else expected)


def test_no_published_row_names_a_folder_of_this_machine(finished_run):
    *_, results = finished_run
    rows = RowStore(results["prepare"]["folder"]).read()
    assert {row.generator for row in rows} == {"the toy target of dspark-hf"}


def test_a_target_in_a_folder_is_published_by_the_name_of_the_folder(tmp_path):
    for name, expected in {str(tmp_path): tmp_path.name, "owner/name": "owner/name"}.items():
        recipe = build_recipe({"target": {"name_or_path": name}})
        assert Workspace(recipe=recipe, folder=RunFolder(tmp_path)).public_target == expected


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # peft asks for it
def test_an_adapter_is_trained_measured_before_and_after_and_published(finished_run, write_recipe, tmp_path, hub):
    folder, *_ = finished_run
    changed = {"drafter": {"start_from": str(folder / "drafter"), "lora_rank": 2}, "train": {"max_steps": 2}}
    path = write_recipe(tmp_path, **changed)
    run_pipeline(load_recipe(path), tmp_path / "run")
    adapter = tmp_path / "run" / "drafter"
    assert {"adapter_config.json", "adapter_model.safetensors", "dspark_calibration.json", "README.md"} <= {
        file.name for file in adapter.iterdir()
    }
    for results in (EvalResults.load(adapter), EvalResults.load(adapter / "before")):
        assert {suite.temperature for suite in results.suites} == {0.0, 1.0}
    assert DSparkDrafter.from_pretrained(adapter).config.confidence_calibration is not None
    # what would outweigh a few percent of weights stays with the run, or with the base
    assert not (adapter / "plots").exists()
    assert not (adapter / "tokenizer.json").exists()
    assert list((tmp_path / "run" / "plots").glob("reliability_*.png"))
    publish(adapter, "tester/adapter", recipe=load_recipe(path))
    assert "adapter_model.safetensors" in hub.repos["tester/adapter"].files("main")


def test_a_destination_is_looked_for_in_the_recipe_too(tiny_recipe):
    recipe = load_recipe(tiny_recipe, {"hub.repo_id": "me/there"})
    assert check_destination(recipe, None) == "me/there"
    assert check_destination(recipe, "me/here") == "me/here"


def test_no_destination_and_no_token_are_told(tiny_recipe, monkeypatch):
    with pytest.raises(ValueError, match="Where to push"):
        check_destination(load_recipe(tiny_recipe), None)
    monkeypatch.setattr("dspark_hf.pipeline.publish.get_token", lambda: None)
    with pytest.raises(HubError, match="needs an access token"):
        check_destination(load_recipe(tiny_recipe), "me/there")

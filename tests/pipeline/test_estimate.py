"""What a dry run says, against what the run then makes."""

from __future__ import annotations

import pytest

from dspark_hf import DSparkDrafter
from dspark_hf.pipeline.estimate import estimate
from dspark_hf.training.recipe import build_recipe, load_recipe


def test_sizes_are_those_of_the_drafter_that_is_trained(finished_run, tiny_recipe):
    folder, _, results = finished_run
    plan = estimate(load_recipe(tiny_recipe), folder)
    drafter = DSparkDrafter.from_pretrained(folder / "drafter")
    assert (
        plan.drafter["parameters"]
        == sum(weight.numel() for weight in drafter.parameters()) + drafter.lm_head.weight.numel()
    )
    assert plan.target["parameters"] == results["target"]["parameters"]
    assert plan.data["training_rows"] == results["prepare"]["rows"]
    assert plan.data["answer_tokens_at_most"] >= results["prepare"]["answer_tokens"]


def test_a_target_on_the_hub_that_cannot_be_reached_is_planned_from_known_sizes(tmp_path):
    recipe = build_recipe({"target": {"name_or_path": "Qwen/Qwen3-4B"}, "data": {"prompts": "some/dataset"}})
    plan = estimate(recipe, tmp_path)
    assert plan.target["layers"] == 36
    assert plan.target["parameters"] == 4_022_468_096
    assert plan.drafter["target_layers"] == [1, 9, 17, 25, 33]
    assert plan.data["training_rows"] is None
    assert plan.data["figures_are_for_rows"] == 1_000_000
    assert "known when the run has read its prompts" in plan.text()


def test_an_unknown_target_that_cannot_be_reached_is_an_error(tmp_path):
    recipe = build_recipe({"target": {"name_or_path": "no/such-model"}, "data": {"prompts": "builtin"}})
    with pytest.raises(OSError, match="no/such-model"):
        estimate(recipe, tmp_path)


def test_a_feature_cache_takes_the_bytes_of_its_layers(tiny_recipe, tmp_path):
    plain = estimate(load_recipe(tiny_recipe), tmp_path).disk_gib
    rows = {
        "data.max_rows": 1500,
        "data.features": "cache",
        "data.max_prompt_tokens": 2048,
        "data.max_new_tokens": 2048,
    }
    cached = estimate(load_recipe(tiny_recipe, {**rows, "train.max_row_tokens": 4096}), tmp_path)
    assert "feature cache" not in plain
    # two layers of width 32 and the last hidden state, in bfloat16
    expected = cached.data["tokens_at_most"] * 2 * 3 * 32 / 2**30
    assert cached.disk_gib["feature cache"] == pytest.approx(expected, rel=0.01)


def test_minutes_of_the_recipe_are_taken_as_they_are(tiny_recipe, tmp_path):
    overrides = {"train.max_minutes": 7.0, "train.max_steps": None, "data.max_minutes": 3.0}
    minutes = estimate(load_recipe(tiny_recipe, overrides), tmp_path).minutes
    assert (minutes["answers"], minutes["training"]) == (3.0, 7.0)

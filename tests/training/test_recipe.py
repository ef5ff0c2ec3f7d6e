"""Recipes: defaults, overrides, and every way a value can be wrong."""

import pytest
import yaml

from dspark_hf.training.recipe import Recipe, build_recipe, load_recipe


TARGET = {"target": {"name_or_path": "some/model"}}


def test_defaults_are_the_papers_settings():
    recipe = build_recipe(TARGET)
    assert (recipe.drafter.block_size, recipe.drafter.num_hidden_layers, recipe.drafter.markov_rank) == (7, 5, 256)
    assert (recipe.train.anchors_per_row, recipe.train.learning_rate, recipe.train.epochs) == (512, 6e-4, 10)
    weights = (recipe.train.ce_weight, recipe.train.l1_weight, recipe.train.confidence_weight, recipe.train.loss_decay)
    assert weights == (0.1, 0.9, 1.0, 4.0)


def test_a_recipe_survives_the_round_trip_through_yaml(tmp_path):
    recipe = build_recipe(TARGET, {"train.learning_rate": 1e-3, "drafter.target_layer_ids": [1, 3]})
    (tmp_path / "r.yaml").write_text(recipe.to_yaml())
    assert load_recipe(tmp_path / "r.yaml") == recipe


def test_yaml_numbers_such_as_6e_4_are_numbers(tmp_path):
    (tmp_path / "r.yaml").write_text("target: {name_or_path: a/b}\ntrain:\n  learning_rate: 6e-4\n")
    assert load_recipe(tmp_path / "r.yaml").train.learning_rate == 6e-4


def test_overrides_are_read_as_yaml():
    recipe = build_recipe(TARGET, ["train.max_steps=12", "train.bf16=true", "drafter.target_layer_ids=[0, 2]"])
    assert (recipe.train.max_steps, recipe.train.bf16, recipe.drafter.target_layer_ids) == (12, True, [0, 2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"train": {"learning_rte": 1}},
            "'learning_rte' in section 'train'; the nearest known one is 'learning_rate'",
        ),
        ({"trian": {}}, "'trian' in a recipe; the nearest known one is 'train'"),
        ({"train": {"learning_rate": "fast"}}, "train.learning_rate must be a number, not 'fast'"),
        ({"train": {"learning_rate": -1.0}}, "train.learning_rate must be at least 0"),
        ({"train": {"max_steps": 1.5}}, "train.max_steps must be a whole number or empty"),
        ({"train": {"bf16": "yes please"}}, "train.bf16 must be true or false"),
        ({"train": {"max_tokens": None}}, "train.max_tokens must be a whole number; it is empty"),
        ({"drafter": {"markov_head_type": "vanila"}}, "must be one of vanilla, gated, rnn"),
        ({"drafter": {"target_layer_ids": [1, "x"]}}, r"target_layer_ids\[1\] must be a whole number"),
        ({"drafter": {"lora_rank": 4}}, "needs drafter.start_from"),
        ({"train": {"ce_weight": 0, "l1_weight": 0}}, "All loss weights are 0"),
        ({"target": {"name_or_path": "a", "gguf": "b"}}, "named twice"),
        ({"target": {}}, "No target"),
        ({"train": 3}, "Section 'train' must hold"),
    ],
)
def test_bad_values_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        build_recipe(TARGET | change)


def test_a_missing_file_and_broken_yaml_are_told_apart(tmp_path):
    with pytest.raises(FileNotFoundError, match="No recipe at"):
        load_recipe(tmp_path / "none.yaml")
    (tmp_path / "r.yaml").write_text("a: [")
    with pytest.raises(ValueError, match="not valid YAML"):
        load_recipe(tmp_path / "r.yaml")


def test_fingerprint_depends_on_the_chosen_sections_only():
    one, two = build_recipe(TARGET), build_recipe(TARGET, {"hub.private": True})
    assert one.fingerprint("train", "data") == two.fingerprint("train", "data")
    assert one.fingerprint() != two.fingerprint()


def test_every_default_value_is_itself_admissible():
    resolved = yaml.safe_load(build_recipe(TARGET).to_yaml())
    assert build_recipe(resolved) == build_recipe(TARGET)
    assert Recipe().hub.language == ["en"]

"""Baselines that are configurations: only what defines them differs."""

from dspark_hf.baselines import dflash_recipe, mtp1_recipe
from dspark_hf.training.recipe import build_recipe


RECIPE = {
    "target": {"name_or_path": "some/target"},
    "drafter": {"block_size": 5, "markov_rank": 64},
    "train": {"ce_weight": 0.5},
}


def differences(one, two):
    one, two = one.to_dict(), two.to_dict()
    return {f"{section}.{key}" for section in one for key in one[section] if one[section][key] != two[section][key]}


def test_dflash_differs_in_its_heads_alone():
    recipe = build_recipe(RECIPE)
    assert differences(recipe, dflash_recipe(recipe)) == {
        "drafter.markov_rank",
        "drafter.enable_confidence_head",
        "drafter.confidence_head_with_markov",
        "train.confidence_weight",
    }


def test_dflash_as_published_is_trained_on_cross_entropy_alone():
    train = dflash_recipe(build_recipe(RECIPE), ce_only=True).train
    assert (train.ce_weight, train.l1_weight, train.confidence_weight) == (1.0, 0.0, 0.0)


def test_mtp1_drafts_one_token():
    drafter = mtp1_recipe(build_recipe(RECIPE)).drafter
    assert (drafter.block_size, drafter.markov_rank) == (1, 0)

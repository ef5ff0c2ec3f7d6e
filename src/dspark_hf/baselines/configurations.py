"""Baselines that are configurations of the drafter itself, so that they share data, trainer and `generate` with it.

    DFlash   no Markov head, no confidence head, cross entropy alone: slots do not see each other's tokens
    MTP-1    a block of one: a single token drafted from the features and the token before it

Takes and returns recipes; knows nothing of how they are run.
"""

from __future__ import annotations

from dspark_hf.training.recipe import Recipe, build_recipe


def dflash_recipe(recipe: Recipe, *, ce_only: bool = False) -> Recipe:
    """
    The recipe of a DFlash drafter with everything else alike.

    Args:
        recipe ([`Recipe`]): of the DSpark drafter.
        ce_only (`bool`): also drop the distance to the target's distribution, as DeepSpec trains its DFlash; by default the
            loss stays, so that the heads are the only difference.
    """
    overrides = {
        "drafter.markov_rank": 0,
        "drafter.enable_confidence_head": False,
        "drafter.confidence_head_with_markov": False,
        "train.confidence_weight": 0.0,
    }
    if ce_only:
        overrides |= {"train.ce_weight": 1.0, "train.l1_weight": 0.0, "train.kl_weight": 0.0, "train.tau_weight": 0.0}
    return build_recipe(recipe.to_dict(), overrides)


def mtp1_recipe(recipe: Recipe) -> Recipe:
    """The recipe of a drafter of one token with everything else alike; a single slot has no slot before it, so no Markov head."""
    return build_recipe(dflash_recipe(recipe).to_dict(), {"drafter.block_size": 1})

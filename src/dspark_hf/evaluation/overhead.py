"""
What a drafted round costs besides the two forwards, measured in the decode loop itself, for the cost curve.

On a small target the host's share decides whether drafting pays. Knows the loop only through `generate` and its statistics.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from dspark_hf.generation.dispatch import generate
from dspark_hf.scheduling import CostCurve


if TYPE_CHECKING:
    from transformers import PreTrainedModel


ROUNDS = 48


@torch.no_grad()
def with_overhead(curve: CostCurve, target: PreTrainedModel, drafter: Any, input_ids: torch.Tensor) -> CostCurve:
    """
    The curve with `overhead_seconds`: how much longer a drafted round takes than a plain one, beyond T(B) and the draft.

    Args:
        curve (`CostCurve`): measured for this target and drafter.
        target (`PreTrainedModel`), drafter (`DSparkDrafter`): its policy and cost curve are put back afterwards.
        input_ids (`torch.Tensor`): `[R, L]`, one prompt or more.
    """
    policy, kept = dict(drafter.policy), drafter.cost_curve
    # A draft that seems to take an hour: after one round every row decodes plainly, but for rare probes.
    never_pays = CostCurve(tokens=[1], seconds=[1.0], draft_seconds=3600.0)
    rounds = {}
    try:
        for name, own in (("full", curve), ("auto", never_pays)):
            drafter.set_policy(name)
            drafter.cost_curve = own
            for tokens in (4, ROUNDS):  # the first call warms up
                generate(target, drafter, input_ids=input_ids, do_sample=False, max_new_tokens=tokens)
            rounds[name] = drafter.last_generation
    finally:
        drafter.set_policy(**policy)
        drafter.cost_curve = kept
    drafted = rounds["full"]
    host = {name: stats.host_seconds / max(stats.target_forwards, 1) for name, stats in rounds.items()}
    draft = drafted.draft_seconds / max(drafted.target_forwards, 1)
    expected = curve.draft_seconds + curve.draft_row_seconds * (len(input_ids) - 1)
    return replace(curve, overhead_seconds=max(draft - expected + host["full"] - host["auto"], 0.0))

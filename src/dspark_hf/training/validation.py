"""Validation on held-out rows: the loss terms at fixed anchors, and the accepted length of real greedy drafts.

Drafts come from `draft_block` with a context cache that grows from anchor to anchor, which is exactly what happens at inference; a
block counts as accepted up to its first token that differs from what the target itself wrote there. It knows nothing of the
trainer.
"""

# N blocks, K slots, S context tokens

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import DynamicCache

from dspark_hf.models import DSparkDrafter

from .anchors import spread_anchors
from .features import RowFeatures
from .losses import DSparkLoss
from .rows import Row


SUMS = ("ce_num", "l1_num", "confidence_num", "kl_num", "tau_num", "slot_den", "block_den", "whole_blocks", "tau_sum")
PER_SLOT = ("count_K", "accept_K", "confidence_K")


def pack_sums(result: DSparkLoss) -> torch.Tensor:
    """All sums of a loss as one float64 vector, to add up over micro-batches and ranks."""
    values = result._asdict()
    scalars = torch.stack([values[name].double() for name in SUMS])
    return torch.cat([scalars, *(values[name].double() for name in PER_SLOT)])


def metrics_from_sums(sums: torch.Tensor) -> dict[str, float]:
    """Plain floats to log: loss terms, acceptance a slot, expected accepted length, confidence bias, anchors used."""
    scalars = dict(zip(SUMS, sums[: len(SUMS)].tolist(), strict=True))
    count_K, accept_K, confidence_K = sums[len(SUMS) :].view(len(PER_SLOT), -1).tolist()
    slots = max(scalars["slot_den"], 1e-30)
    metrics = {f"loss_{name}": scalars[f"{name}_num"] / slots for name in ("ce", "l1", "confidence")}
    metrics["tau"] = scalars["tau_sum"] / max(scalars["whole_blocks"], 1.0)
    for slot, (count, accepted) in enumerate(zip(count_K, accept_K, strict=True), start=1):
        metrics[f"acceptance_{slot}"] = accepted / max(count, 1.0)
    metrics["confidence_bias"] = (sum(confidence_K) - sum(accept_K)) / max(sum(count_K), 1.0)
    metrics["anchors"] = scalars["block_den"]
    return metrics


@torch.no_grad()
def accepted_lengths(
    drafter: DSparkDrafter, rows: Sequence[Row], features: Sequence[RowFeatures], *, anchors_per_row: int
) -> list[int]:
    """Tokens a round commits, bonus included, for greedy drafts at evenly spread anchors.

    Only blocks that lie wholly inside the row are drafted, so no length is cut by the row's end.

    Args:
        drafter ([`DSparkDrafter`]): in eval mode.
        rows, features: held-out rows and their features.
        anchors_per_row (`int`): at most.

    Returns:
        `list[int]`: one length in `[1, K + 1]` a block.
    """
    num_slots = drafter.config.num_slots
    device = drafter.device
    lengths = []
    for row, each in zip(rows, features, strict=True):
        tokens = torch.tensor(row.token_ids, device=device)
        context = each.context.to(device)
        anchors = spread_anchors(len(row.prompt_ids), len(tokens), count=anchors_per_row, num_slots=num_slots)
        cache, seen = DynamicCache(), 0
        for anchor in anchors.tolist():
            if anchor + num_slots >= len(tokens):
                break
            block = drafter.draft_block(tokens[anchor : anchor + 1], context[None, seen:anchor], cache=cache)
            seen = anchor
            equal_K = block.tokens[0] == tokens[anchor + 1 : anchor + 1 + num_slots]
            lengths.append(1 + int(equal_K.long().cumprod(0).sum()))
    return lengths

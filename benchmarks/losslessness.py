"""Greedy texts against plain decoding: equal, different from a near-tie on, or different without excuse.

Two forwards of other widths round differently, so where two tokens are equally likely to within rounding, either may be
chosen. A difference counts as a near-tie when the target's own logits of the two tokens, at the first position that differs, are
closer than the rounding of its dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from benchmarks.paired import Record
from benchmarks.prompts import Prompt


# units in the last place of the larger logit; sums in another order move a logit by about one
ALLOWED_ULPS = 4.0


@dataclass
class Comparison:
    """Counts of compared rows."""

    identical: int = 0
    near_ties: int = 0
    mismatches: int = 0


@torch.no_grad()
def compare(
    target: PreTrainedModel, records: Sequence[Record], groups: Sequence[Sequence[Prompt]], method: str
) -> Comparison:
    """Greedy records of `method` against those of `"plain"` on the same prompts."""
    plain = {record.group: record for record in records if record.method == "plain" and record.temperature == 0}
    found = Comparison()
    for record in records:
        if record.method != method or record.temperature != 0 or record.group not in plain:
            continue
        for prompt, ours, theirs in zip(
            groups[record.group], record.outputs, plain[record.group].outputs, strict=True
        ):
            if ours == theirs:
                found.identical += 1
            elif _is_near_tie(target, prompt, ours, theirs):
                found.near_ties += 1
            else:
                found.mismatches += 1
    return found


def _is_near_tie(target: PreTrainedModel, prompt: Prompt, ours: list[int], theirs: list[int]) -> bool:
    if min(len(ours), len(theirs)) == 0:
        return False
    first = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    if first is None:
        return False
    ids = torch.tensor([list(prompt.ids) + theirs[:first]], device=target.device)
    logits_V = target(ids, logits_to_keep=1).logits[0, -1].float()
    pair = logits_V[[ours[first], theirs[first]]]
    unit = torch.finfo(target.dtype).eps * pair.abs().max()
    return bool((pair[0] - pair[1]).abs() <= ALLOWED_ULPS * unit)

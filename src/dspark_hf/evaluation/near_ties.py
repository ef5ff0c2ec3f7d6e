"""Tells a near-tie of the target's own logits from a wrong token, where two greedy texts part.

A forward over several tokens rounds differently from one over a single token, so in bfloat16 two tokens whose logits lie
within rounding of each other can change places. That is no error of the drafting; anything wider is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


# Rounding steps, at the size of the largest logit, that two logits may lie apart and still count as tied: the errors of
# some tens of roundings on the way to a logit add up.
TIE_STEPS = 8.0


def tie_width(logits_V: torch.Tensor, dtype: torch.dtype) -> float:
    """How far apart two logits may lie to count as tied: `TIE_STEPS` rounding steps at the size of the largest."""
    largest = float(logits_V[torch.isfinite(logits_V)].abs().max())
    return TIE_STEPS * torch.finfo(dtype).eps * max(largest, 1.0)


def first_difference(
    target: Any,
    prompt_1L: torch.Tensor,
    plain_ids: Sequence[int],
    drafted_ids: Sequence[int],
    generate_options: Mapping[str, Any],
) -> dict[str, Any] | None:
    """
    Where two greedy continuations of one prompt part, judged by the target's scores there; `None` if they are equal.

    Returns:
        `{"position": tokens in common, "gap": difference of the two scores or None, "near_tie": bool}`. A text that merely
        ends earlier is no near-tie.
    """
    if list(plain_ids) == list(drafted_ids):
        return None
    common = next((i for i, (a, b) in enumerate(zip(plain_ids, drafted_ids, strict=False)) if a != b), None)
    if common is None:
        return {"position": min(len(plain_ids), len(drafted_ids)), "gap": None, "near_tie": False}
    prefix = torch.cat([prompt_1L[0], torch.tensor(plain_ids[:common], dtype=torch.long, device=prompt_1L.device)])[
        None
    ]
    options = {**generate_options, "max_new_tokens": 1, "output_scores": True, "return_dict_in_generate": True}
    scores_V = target.generate(prefix, **options, attention_mask=torch.ones_like(prefix)).scores[0][0].float()
    gap = float((scores_V[plain_ids[common]] - scores_V[drafted_ids[common]]).abs())
    return {"position": common, "gap": gap, "near_tie": gap <= tie_width(scores_V, target.dtype)}

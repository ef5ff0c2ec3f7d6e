"""Anchors: which tokens of a row start a block, drawn from (seed, epoch, row id) and from nothing else.

An anchor is an answer token that is followed by another answer token, because at inference the first token to anchor a block
is the first one the target wrote. Slot k of anchor a predicts the token at a + k; slots beyond the row's end do not exist, so
a block near the end is short and the last token of a turn is predicted by the blocks before it. The draw happens in the
collator: it does not change with world size, micro-batching, packing or a restart.

It knows nothing of models. Sizes: N anchors, K slots.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np


def sample_anchors(
    row_id: str, prompt_length: int, total_length: int, *, count: int, seed: int, epoch: int = 0
) -> np.ndarray:
    """Draw anchors of one row without replacement.

    Args:
        row_id (`str`): with `seed` and `epoch` the only source of randomness.
        prompt_length (`int`): tokens before the answer.
        total_length (`int`): tokens of prompt and answer.
        count (`int`): anchors wanted; a short row has fewer candidates and returns them all.

    Returns:
        `np.ndarray`: `[N]` int64 positions in the row, ascending, `N <= count`.
    """
    candidates = np.arange(prompt_length, max(total_length - 1, prompt_length))
    if len(candidates) <= count:
        return candidates
    return np.sort(row_generator(row_id, seed=seed, epoch=epoch).choice(candidates, size=count, replace=False))


def spread_anchors(prompt_length: int, total_length: int, *, count: int, num_slots: int) -> np.ndarray:
    """Evenly spread anchors whose blocks are whole where the answer is long enough: the deterministic choice for validation."""
    last = total_length - 1 - num_slots
    if last < prompt_length:
        last = max(total_length - 2, prompt_length - 1)
    candidates = np.arange(prompt_length, last + 1)
    if len(candidates) <= count:
        return candidates
    return candidates[np.linspace(0, len(candidates) - 1, count).round().astype(np.int64)]


def row_generator(row_id: str, *, seed: int, epoch: int) -> np.random.Generator:
    """A generator of its own for a row in an epoch."""
    key = int.from_bytes(hashlib.sha256(row_id.encode()).digest()[:8], "little")
    return np.random.default_rng(np.random.SeedSequence([seed, epoch, key]))


@dataclass(frozen=True)
class Slots:
    """Per anchor and slot: the token before it, the token it predicts, and whether that token exists.

    Attributes:
        previous_NK: `[N, K]` int64, token at `anchor + k - 1` (slot k counts from 1); 0 where `valid_NK` is false.
        labels_NK: `[N, K]` int64, token at `anchor + k`; 0 where `valid_NK` is false.
        valid_NK: `[N, K]` bool, a contiguous prefix of every row.
    """

    previous_NK: np.ndarray
    labels_NK: np.ndarray
    valid_NK: np.ndarray


def slots_of(token_ids: np.ndarray, anchors_N: np.ndarray, num_slots: int) -> Slots:
    """Slots of blocks that start at `anchors_N` in one row of tokens, all of which up to the end are supervised."""
    positions_NK = anchors_N[:, None] + np.arange(1, num_slots + 1)
    valid_NK = positions_NK < len(token_ids)
    inside_NK = np.minimum(positions_NK, len(token_ids) - 1)
    labels_NK = np.where(valid_NK, token_ids[inside_NK], 0)
    previous_NK = np.where(valid_NK, token_ids[inside_NK - 1], 0)
    return Slots(previous_NK=previous_NK, labels_NK=labels_NK, valid_NK=valid_NK)


def slot_weights(num_slots: int, decay: float) -> np.ndarray:
    """`[K]` float32: slot k weighs `exp(-(k - 1) / decay)` (paper section 3.1)."""
    return np.exp(-np.arange(num_slots) / decay).astype(np.float32)

"""
The policies of `scheduler.py` for one row, on Python floats: tens of microseconds, for the host budget of a decode loop.

Must decide exactly as the tensors do; a test holds the two together. Knows nothing of tensors, models or rounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Sequence


# In every function: survival[k] is a_{k+1}; seconds[B] is T(B); tier_of[l] is the length verified when l is wanted.


def early_stop_one(survival: Sequence[float], seconds: Sequence[float], tier_of: Sequence[int]) -> int:
    """Algorithm 1 with one request."""
    tau, rate, length = 1.0, 1.0 / seconds[1], 0
    for slot, chance in enumerate(survival):
        tau += chance
        next_rate = tau / seconds[1 + tier_of[slot + 1]]
        if next_rate <= rate:
            break
        rate, length = next_rate, slot + 1
    return tier_of[length]


def optimal_one(
    survival: Sequence[float], seconds: Sequence[float], draft_seconds: float, tier_of: Sequence[int]
) -> int:
    """The length of the highest rate in hindsight; the shortest of equals."""
    tau, best_rate, best = 1.0, 1.0 / (draft_seconds + seconds[1]), 0
    for slot, chance in enumerate(survival):
        tau += chance
        rate = tau / (draft_seconds + seconds[1 + tier_of[slot + 1]])
        if rate > best_rate:
            best_rate, best = rate, slot + 1
    return tier_of[best]


def lookahead_one(
    survival: Sequence[float],
    seconds: Sequence[float],
    draft_seconds: float,
    tier_of: Sequence[int],
    rates: Sequence[float],
) -> int:
    """A slot is taken if it pays alone or with slots behind it, whose acceptance is guessed from `rates`."""
    slots = len(survival)
    tau, length = 1.0, 0
    while length < slots:
        worth = draft_seconds + seconds[1 + tier_of[length]]  # of the expected tokens, in seconds at the rate so far
        gain, pays = survival[length] * (worth / tau), False
        for ahead in range(length + 1, slots + 1):
            worth += gain
            if worth > draft_seconds + seconds[1 + tier_of[ahead]]:
                pays = True
                break
            if ahead < slots:
                gain *= rates[ahead]
        if not pays:
            break
        tau += survival[length]
        length += 1
    return tier_of[length]


def threshold_one(confidences: Sequence[float], threshold: float, tier_of: Sequence[int]) -> int:
    """The slots before the first whose own confidence is below the threshold (DeepSpec's rule)."""
    for slot, confidence in enumerate(confidences):
        if confidence < threshold:
            return tier_of[slot]
    return tier_of[len(confidences)]

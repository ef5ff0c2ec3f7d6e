"""
What is expected of a row before its first round: the survival that calibration saw in typical rounds, at this machine's prices.

Fixed numbers of the drafter's configuration, so nothing here can anticipate a token. Arithmetic on Python floats; knows no rows.
"""

# groups: survival by slot of some typical rounds, equally likely; seconds[B] is T(B); tier_of[l] is the length verified for l

from __future__ import annotations

from typing import TYPE_CHECKING

from .single import lookahead_one


if TYPE_CHECKING:
    from collections.abc import Sequence


# A slot that never stood in calibration may stand now.
LEAST_ACCEPTANCE = 1e-3


def mean_survival(groups: Sequence[Sequence[float]]) -> list[float]:
    """Survival by slot over all groups; empty without any."""
    return [sum(column) / len(groups) for column in zip(*groups, strict=True)]


def conditional_rates(survival: Sequence[float]) -> list[float]:
    """P(slot k stands | slots before it stood) behind a survival, in (0, 1]."""
    rates, before = [], 1.0
    for chance in survival:
        rates.append(max(chance / before, LEAST_ACCEPTANCE) if before > 0 else LEAST_ACCEPTANCE)
        before = chance
    return rates


def expected_gain(
    groups: Sequence[Sequence[float]], seconds: Sequence[float], draft_seconds: float, tier_of: Sequence[int]
) -> float:
    """
    Tokens that a drafted round under `lookahead` gains over a plain one, on average; negative where drafting loses.

    A round of a poor group costs its draft and verifies little, so a few good groups can pay for many poor ones.
    """
    rates, total = conditional_rates(mean_survival(groups)), 0.0
    for survival in groups:
        length = lookahead_one(survival, seconds, draft_seconds, tier_of, rates)
        total += sum(survival[:length]) - (draft_seconds + seconds[1 + length] - seconds[1]) / seconds[1]
    return total / len(groups)

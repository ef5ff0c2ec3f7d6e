"""
What a policy may remember about rows: past acceptance by slot, and confidences of older rounds.

Everything in here is about rounds that are over, so using it can never anticipate a token. Knows no policy.
"""

# R rows, K slots

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


# A prompt that was never seen drafts: high enough to start on any machine where a good drafter pays,
# light enough that two or three rejected blocks undo it. What calibration saw takes more to undo.
PRIOR_ACCEPTANCE = 0.8
PRIOR_STRENGTH = 1.5
CALIBRATED_STRENGTH = 4.0
# Older rounds fade with a half-life of about 14 observations of a slot, so a topic change shows within a paragraph.
DECAY = 0.95


@dataclass
class History:
    """
    Input of [`schedule`] for the policies that look back.

    Args:
        acceptance (`torch.Tensor`, *optional*): `[R, K]` or `[K]`, past conditional acceptance rate of each slot, in [0, 1]
            (`lookahead`, `auto`). Default: `PRIOR_ACCEPTANCE` everywhere.
        lagged_survival (`torch.Tensor`, *optional*): `[R, K]`, survival of the round before the previous one (`lagged_topk`).
        new_rows (`torch.Tensor`, *optional*): `[R]` bool, rows without such a round; they verify everything. Default: none if
            `lagged_survival` is given, else all.
    """

    acceptance: torch.Tensor | None = None
    lagged_survival: torch.Tensor | None = None
    new_rows: torch.Tensor | None = None


@dataclass
class AcceptanceHistory:
    """
    Fading counts of how often slot k of one row was accepted, given that the slots before it were.

    A slot without observations borrows from the slot before it, so a drafter that fails at slot 1 is not believed at slot 5.

    Args:
        prior (`list[float]`, *optional*): acceptance expected of each slot before any observation, in (0, 1], as calibration saw it;
            default: `PRIOR_ACCEPTANCE` everywhere, and soon undone.
    """

    num_slots: int
    prior: list[float] = field(default_factory=list)
    tried: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._strength = CALIBRATED_STRENGTH if self.prior else PRIOR_STRENGTH
        self.prior = self.prior or [PRIOR_ACCEPTANCE] * self.num_slots
        self.tried = self.tried or [0.0] * self.num_slots
        self.accepted = self.accepted or [0.0] * self.num_slots

    def record(self, verified: int, accepted: int) -> None:
        """Adds one round: `accepted` of the `verified` tokens stood; slots after the first rejection tell nothing."""
        for slot in range(min(accepted + 1, verified)):
            self.tried[slot] = self.tried[slot] * DECAY + 1.0
            self.accepted[slot] = self.accepted[slot] * DECAY + (slot < accepted)

    def rates(self) -> list[float]:
        """Conditional acceptance of each slot, in (0, 1]."""
        rates, surprise = [], 1.0
        for prior, tried, accepted in zip(self.prior, self.tried, self.accepted, strict=True):
            belief = min(prior * surprise, 1.0)
            belief = (belief * self._strength + accepted) / (self._strength + tried)
            surprise = belief / prior
            rates.append(belief)
        return rates


def survival_of(rates: Sequence[float]) -> list[float]:
    """Running product of conditional rates: the chance that slot 1..k all stand."""
    survival, product = [], 1.0
    for rate in rates:
        product *= rate
        survival.append(product)
    return survival

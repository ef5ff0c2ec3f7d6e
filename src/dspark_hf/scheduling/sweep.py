"""
A policy that only measuring uses: every width of the block in turn, so that a decode loop shows what each of them costs.

Has the methods of `DecodingPolicy` that a loop calls. Knows neither clocks nor costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch


if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence


SWEEP = "sweep"


class Sweep:
    """
    K + 2 kinds of round by turns: without a draft, and with 0, 1, .. K drafted tokens of every row verified.

    Args:
        num_slots (`int`): K, drafted tokens per round.
    """

    tiers = None
    kernel = None

    def __init__(self, num_slots: int):
        self.num_slots = num_slots
        self.turn = 0

    @property
    def length(self) -> int:
        """Drafted tokens to verify this round."""
        return max(self.turn - 1, 0)

    def should_draft(self, row_ids: Sequence[Hashable], *, context: int | None = None) -> list[bool]:
        """See `DecodingPolicy`."""
        return [self.turn > 0] * len(row_ids)

    def held(self, rows: int) -> int | None:
        """See `DecodingPolicy`."""
        return None

    def __call__(
        self,
        confidence_logits: torch.Tensor | None,
        row_ids: Sequence[Hashable],
        *,
        plain_rows: int = 0,
        context: int | None = None,
    ) -> torch.Tensor:
        """See `DecodingPolicy`."""
        return torch.full((len(row_ids),), self.length, dtype=torch.int64)

    def length_of_one(
        self, confidence_logits: Sequence[float] | None, row_id: Hashable, *, context: int | None = None
    ) -> int:
        """See `DecodingPolicy`."""
        return self.length

    def observe(
        self,
        row_ids: Sequence[Hashable],
        drafted: Sequence[int],
        verified: Sequence[int],
        accepted: Sequence[int],
        *,
        context: int | None = None,
    ) -> None:
        """The round is over; the next one is one token wider."""
        self.turn = (self.turn + 1) % (self.num_slots + 2)

    def forget(self, row_id: Hashable) -> None:
        """Nothing is remembered."""

"""
A policy that only measuring uses: every width of the block in turn, so that a decode loop shows what each of them costs.

Knows neither clocks nor costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .policy import DecodingPolicy


if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence


SWEEP = "sweep"


class Sweep(DecodingPolicy):
    """
    K + 2 kinds of round by turns: without a draft, and with 0, 1, .. K drafted tokens of every row verified.

    Args:
        num_slots (`int`): K, drafted tokens per round.
    """

    def __init__(self, num_slots: int):
        super().__init__({"name": "full"}, None, num_slots=num_slots, sampling=False)
        self.turn = 0

    @property
    def length(self) -> int:
        """Drafted tokens to verify this round."""
        return max(self.turn - 1, 0)

    def should_draft(self, row_ids: Sequence[Hashable], **_: Any) -> list[bool]:
        """All rows or none."""
        return [self.turn > 0] * len(row_ids)

    def __call__(self, confidence_logits: torch.Tensor | None, row_ids: Sequence[Hashable], **_: Any) -> torch.Tensor:
        """The same for every row."""
        return torch.full((len(row_ids),), self.length, dtype=torch.int64)

    def length_of_one(self, *_: Any, **__: Any) -> int:
        """Whatever the confidences."""
        return self.length

    def observe(self, *_: Any, **__: Any) -> None:
        """The round is over; the next one is one token wider."""
        self.turn = (self.turn + 1) % (self.num_slots + 2)

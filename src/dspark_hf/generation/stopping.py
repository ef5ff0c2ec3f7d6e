"""Exact stopping inside a block: every criterion is asked about every committed prefix, as plain decoding would.

End tokens and lengths are compared on the host, where the tokens are needed anyway; all other criteria (stop strings, time,
the user's own) are called once per prefix and row. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList


class StopRule:
    """
    Args:
        criteria (`StoppingCriteriaList`): as `generate` prepared them.

    Attributes:
        max_length (`int`): columns at which every row ends.
        eos_ids (`frozenset[int]`): tokens that end a row.
    """

    def __init__(self, criteria: StoppingCriteriaList):
        lengths, eos_ids = [], set()
        self.others = []
        for criterion in criteria:
            if type(criterion) is MaxLengthCriteria:
                lengths.append(criterion.max_length)
            elif type(criterion) is EosTokenCriteria:
                eos_ids.update(criterion.eos_token_id.flatten().tolist())
            else:
                self.others.append(criterion)
        if not lengths:
            raise ValueError("generation needs a length limit: set max_new_tokens or max_length")
        self.max_length = min(lengths)
        self.eos_ids = frozenset(eos_ids)

    def cut(
        self,
        tokens: list[int],
        length: int,
        prefix: Callable[[int], torch.Tensor],
        scores: Callable[[int], tuple[torch.Tensor, ...] | None],
    ) -> tuple[int, bool]:
        """
        How many of the new tokens of a row stay, and whether the row ends with them.

        Args:
            tokens: new tokens in order.
            length: committed columns before them.
            prefix: columns -> `[1, columns]` ids of the row.
            scores: number of new tokens -> all scores of the row up to there, or `None` where they are not kept.
        """
        kept = min(len(tokens), self.max_length - length)
        finished = length + kept >= self.max_length
        for position, token in enumerate(tokens[:kept], start=1):
            if token in self.eos_ids or (self.others and self._met(prefix(length + position), scores(position))):
                return position, True
        return kept, finished

    def _met(self, ids_1n: torch.Tensor, scores: tuple[torch.Tensor, ...] | None) -> bool:
        # no short circuit: plain decoding asks all of them at every step
        met = [bool(torch.as_tensor(criterion(ids_1n, scores)).all()) for criterion in self.others]
        return any(met)

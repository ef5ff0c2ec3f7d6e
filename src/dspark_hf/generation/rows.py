"""The tokens of the rows being decoded: one buffer that holds committed tokens and, behind them, the current draft.

Knows nothing of models. A prefix of a row is a slice of the buffer, so nothing is concatenated per round.
"""

# R rows still decoding, C columns, K drafted tokens, Q = tokens of one verification

from __future__ import annotations

import torch


class TokenRows:
    """
    Args:
        input_ids_RL (`[R, L]`): padded prompts.
        origins (`list[int]`): index of each row in the original batch.
        capacity (`int`): columns to reserve; the buffer grows if more are needed.
    """

    def __init__(self, input_ids_RL: torch.Tensor, origins: list[int], capacity: int):
        rows, width = input_ids_RL.shape
        self.ids_RC = input_ids_RL.new_zeros(rows, max(capacity, width))
        self.ids_RC[:, :width] = input_ids_RL
        self.lengths = [width] * rows
        self.prompt_width = width
        self.origins = list(origins)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def generated(self) -> list[int]:
        """Tokens committed so far, per row."""
        return [length - self.prompt_width for length in self.lengths]

    @property
    def anchors_R(self) -> torch.Tensor:
        """Last committed token of each row `[R]`."""
        if len(self) == 1:
            return self.ids_RC[:, self.lengths[0] - 1]
        return self.window(1)[:, 0]

    def window(self, width: int) -> torch.Tensor:
        """The last committed token of each row and what was drafted behind it, `[R, width]`."""
        if len(self) == 1:
            return self.ids_RC[:, self.lengths[0] - 1 : self.lengths[0] - 1 + width]
        return self.ids_RC.gather(1, self._index(width, -1))

    def write(self, tokens_RK: torch.Tensor, offset: int = 0) -> None:
        """Puts tokens `offset` columns behind the committed ones without committing them."""
        width = tokens_RK.shape[1]
        missing = max(self.lengths) + offset + width - self.ids_RC.shape[1]
        if missing > 0:
            grown = self.ids_RC.new_zeros(len(self), max(missing, self.ids_RC.shape[1]))
            self.ids_RC = torch.cat([self.ids_RC, grown], dim=1)
        if len(self) == 1:
            first = self.lengths[0] + offset
            self.ids_RC[:, first : first + width] = tokens_RK
        else:
            self.ids_RC.scatter_(1, self._index(width, offset), tokens_RK.to(self.ids_RC.device))

    def advance(self, counts: list[int]) -> None:
        """Commits tokens already written."""
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]

    def select(self, rows: list[int]) -> None:
        """Keeps some rows only."""
        self.ids_RC = self.ids_RC[torch.tensor(rows, dtype=torch.long, device=self.ids_RC.device)]
        self.lengths = [self.lengths[row] for row in rows]
        self.origins = [self.origins[row] for row in rows]

    def _index(self, width: int, shift: int) -> torch.Tensor:
        first_R1 = torch.tensor(self.lengths, device=self.ids_RC.device)[:, None] + shift
        return first_R1 + torch.arange(width, device=self.ids_RC.device)

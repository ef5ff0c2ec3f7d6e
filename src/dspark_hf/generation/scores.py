"""Scores of all positions of one verification, rows end to end or padded to the longest; the other form is made when asked for.

Positions behind a row's own are unread and hold zeros. Knows nothing of who made the scores.
"""

# R rows, Q positions of the longest row, M positions of all rows, V vocabulary

from __future__ import annotations

import torch


class RowScores:
    """
    Args:
        scores: `[R, Q, V]`; or `[M, V]` with `lengths`.
        lengths (`list[int]`, *optional*): drafted tokens of each row, which owns one position more.
    """

    def __init__(self, scores: torch.Tensor, lengths: list[int] | None = None):
        self.lengths = lengths
        self._flat_MV = None if lengths is None else scores
        self._padded_RQV = scores if lengths is None else None

    @property
    def padded_RQV(self) -> torch.Tensor:
        if self._padded_RQV is None:
            assert self._flat_MV is not None
            assert self.lengths is not None
            self._padded_RQV = pad_rows(self._flat_MV, self.lengths)
        return self._padded_RQV

    def flat_MV(self, lengths: list[int]) -> torch.Tensor:
        """The first `lengths[r] + 1` positions of every row, end to end."""
        if self._flat_MV is not None and lengths == self.lengths:
            return self._flat_MV
        padded_RQV = self.padded_RQV
        flat_MV = padded_RQV.flatten(0, 1)
        index = _places(lengths, padded_RQV.shape[1])
        if len(index) == len(flat_MV):
            return flat_MV
        return flat_MV[torch.tensor(index, device=flat_MV.device)]


def pad_rows(flat: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """Rows of `lengths[r] + 1` entries, from end to end `[M, ..]` to `[R, Q, ..]` with zeros behind the shorter ones."""
    rows, width = len(lengths), 1 + max(lengths)
    if len(flat) == rows * width:
        return flat.unflatten(0, (rows, width))
    padded = flat.new_zeros(rows * width, *flat.shape[1:])
    padded[torch.tensor(_places(lengths, width), device=flat.device)] = flat
    return padded.unflatten(0, (rows, width))


def _places(lengths: list[int], width: int) -> list[int]:
    return [row * width + slot for row, length in enumerate(lengths) for slot in range(length + 1)]

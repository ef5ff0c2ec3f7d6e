"""Key/value buffers that every row writes at columns of its own.

A row that rejects tokens simply writes over their columns in the next round, so rolling back costs nothing and rows may
advance by different lengths. Knows nothing of attention masks or of models.
"""

# R rows, H heads, C columns, S new tokens, E head dimension

from __future__ import annotations

from dataclasses import dataclass

import torch


SMALLEST_BUFFER = 64


@dataclass
class Columns:
    """
    Where the next write goes.

    Args:
        width (`int`): columns visible after the write.
        start (`int`, *optional*): first column, where all rows write the same `start..width`.
        index_RS (`torch.LongTensor` `[R, S]`, *optional*): columns of each row otherwise.
    """

    width: int
    start: int | None = None
    index_RS: torch.Tensor | None = None


class ColumnStore:
    """Growing `[R, H, C, E]` buffers for keys and values."""

    def __init__(self) -> None:
        self.keys: torch.Tensor | None = None
        self.values: torch.Tensor | None = None

    def write(
        self, keys_RHSE: torch.Tensor, values_RHSE: torch.Tensor, columns: Columns
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Stores the new tokens and returns all visible columns, `[R, H, width, E]` each."""
        self.keys = _stored(self.keys, keys_RHSE, columns)
        self.values = _stored(self.values, values_RHSE, columns)
        return self.keys[:, :, : columns.width], self.values[:, :, : columns.width]

    def select(self, rows: list[int]) -> None:
        """Keeps some rows only."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = kept_rows(self.keys, rows), kept_rows(self.values, rows)


def kept_rows(buffer_Rx: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """
    Some rows of a buffer that nobody else reads, in the order given.

    Rows that only move forward move in place and a view comes back: one row that leaves costs one copied row, not all of them.
    """
    if any(row < place for place, row in enumerate(rows)):
        return buffer_Rx[torch.tensor(rows, dtype=torch.long, device=buffer_Rx.device)]
    for place, row in enumerate(rows):
        if row != place:
            buffer_Rx[place] = buffer_Rx[row]
    return buffer_Rx[: len(rows)]


def _stored(buffer: torch.Tensor | None, new_RHSE: torch.Tensor, columns: Columns) -> torch.Tensor:
    rows, heads, _, size = new_RHSE.shape
    held = 0 if buffer is None else buffer.shape[2]
    if held < columns.width:
        grown = new_RHSE.new_zeros(rows, heads, max(columns.width, 2 * held, SMALLEST_BUFFER), size)
        if buffer is not None:
            grown[:, :, :held] = buffer
        buffer = grown
    assert buffer is not None
    if columns.index_RS is None:
        buffer[:, :, columns.start : columns.width] = new_RHSE
    else:
        row_R1 = torch.arange(rows, device=new_RHSE.device)[:, None]
        buffer[row_R1, :, columns.index_RS.to(new_RHSE.device)] = new_RHSE.transpose(1, 2)
    return buffer

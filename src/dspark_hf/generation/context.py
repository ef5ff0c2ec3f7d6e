"""What the drafter knows of each row: keys and values of the committed context, and features that wait to join them.

Only context is kept; a block's own keys and values are never stored, so a rejected draft leaves nothing behind. Column =
position in the row (padding does not count). Knows nothing of tokens or of the target.
"""

# R rows, S new context tokens, C context columns, F features, Q block rows

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from .columns import Columns, ColumnStore, kept_rows


class ContextCache:
    """The drafter's cache: `update` receives the context's keys and values of one layer."""

    def __init__(self) -> None:
        self.layers: dict[int, ColumnStore] = {}
        self.columns = Columns(width=0, start=0)
        self.held = 0

    def get_seq_length(self) -> int:
        return self.held

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.layers.setdefault(layer_idx, ColumnStore()).write(keys, values, self.columns)


@dataclass
class DraftInputs:
    """
    What one draft pass reads.

    Attributes:
        features_RSF: features of the context tokens that the cache does not hold yet.
        position_ids_RT (`[R, S + Q]`): positions of those tokens, then of the block.
        mask (`[R, 1, 1, C + Q]` bool, *optional*): `True` = visible; `None` where everything is.
    """

    features_RSF: torch.Tensor
    position_ids_RT: torch.Tensor
    mask: torch.Tensor | None


@dataclass
class DraftContext:
    """
    Args:
        first (`list[int]`): position of the first context token whose features will arrive, per row.
    """

    first: list[int]
    cache: ContextCache = field(default_factory=ContextCache)
    pending: list[tuple[torch.Tensor, list[int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.known = list(self.first)  # position after the last context token in the cache

    def add(self, features_RSF: torch.Tensor, counts: list[int]) -> None:
        """Features of newly committed tokens: the first `counts[r]` of each row are valid."""
        self.pending.append((features_RSF, counts))

    def prepare(self, block_rows: int) -> DraftInputs:
        """Moves the pending features into the next pass and points the cache at their columns."""
        features_RSF, counts = self._gathered()
        self.pending = []
        new = features_RSF.shape[1]
        device = features_RSF.device
        ends = [known + count for known, count in zip(self.known, counts, strict=True)]
        if len(ends) == 1:
            # one row: columns follow each other, even where the context before `first` is unknown
            self.cache.columns = Columns(width=self.cache.held + new, start=self.cache.held)
            position_ids_RT = torch.arange(self.known[0], ends[0] + block_rows, device=device)[None]
            inputs = DraftInputs(features_RSF, position_ids_RT, None)
        else:
            width = max(self.known) + new
            known_R1 = torch.tensor(self.known, device=device)[:, None]
            end_R1 = torch.tensor(ends, device=device)[:, None]
            index_RS = known_R1 + torch.arange(new, device=device)
            self.cache.columns = Columns(width=width, index_RS=index_RS)
            position_ids_RT = torch.cat([index_RS, end_R1 + torch.arange(block_rows, device=device)], dim=1)
            visible_RC = torch.arange(width, device=device) < end_R1
            block_RQ = visible_RC.new_ones(len(ends), block_rows)
            inputs = DraftInputs(
                features_RSF, position_ids_RT, torch.cat([visible_RC, block_RQ], dim=1)[:, None, None]
            )
        self.known = ends
        return inputs

    def settle(self) -> None:
        """The pass is over: its columns are now held."""
        self.cache.held = self.cache.columns.width

    def select(self, rows: list[int]) -> None:
        """Keeps some rows only."""
        for store in self.cache.layers.values():
            store.select(rows)
        self.known = [self.known[row] for row in rows]
        self.pending = [
            (kept_rows(features, rows), [counts[row] for row in rows]) for features, counts in self.pending
        ]
        if len(rows) == 1:
            # a single row writes behind the columns it holds; stale ones beyond are dropped
            self.cache.held = self.known[0]

    def crop(self, position: int) -> bool:
        """Forgets what lies at or behind a position of the only row; `False` where the context does not reach it."""
        total = self.known[0] + sum(counts[0] for _, counts in self.pending)
        if position > total or position < self.first[0]:
            return False
        if position <= self.known[0]:
            self.cache.held -= self.known[0] - position
            self.known, self.pending = [position], []
            return True
        room = position - self.known[0]
        kept = []
        for features, counts in self.pending:
            kept.append((features, [min(counts[0], room)]))
            room -= kept[-1][1][0]
        self.pending = [entry for entry in kept if entry[1][0] > 0]
        return True

    def _gathered(self) -> tuple[torch.Tensor, list[int]]:
        """All pending features, valid ones first in every row."""
        if len(self.known) == 1:
            parts = [features[:, : counts[0]] for features, counts in self.pending]
            features_RSF = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
            return features_RSF, [features_RSF.shape[1]]
        if len(self.pending) == 1:
            return self.pending[0]
        totals = [sum(counts) for counts in zip(*(counts for _, counts in self.pending), strict=True)]
        joined_RTF = torch.cat([features for features, _ in self.pending], dim=1)
        if min(totals) == joined_RTF.shape[1]:
            # rounds without drafts: every row took every token
            return joined_RTF, totals
        kept: list[list[int]] = [[] for _ in totals]
        start = 0
        for features, counts in self.pending:
            for columns, count in zip(kept, counts, strict=True):
                columns.extend(range(start, start + count))
            start += features.shape[1]
        width = max(totals)
        index_RT = torch.tensor([columns + [0] * (width - len(columns)) for columns in kept], device=joined_RTF.device)
        return joined_RTF.gather(1, index_RT[..., None].expand(-1, -1, joined_RTF.shape[2])), totals

"""Micro-batches: which rows come next, their anchors, and how documents are laid end to end without padding.

The stream of micro-batches is endless and a function of the seed alone: the k-th one is the same for any world size, and a
resumed run skips to it by index lists, without reading a row. Nothing here is padded and there are no dummy blocks: a row
with three possible anchors contributes three.

It knows nothing of models; features are joined to a batch later, by row id.
"""

# R rows of a batch, N blocks of a batch, K slots, S context tokens of a pack, T supervised positions of a batch

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch

from .anchors import sample_anchors, slot_weights, slots_of, spread_anchors
from .rows import Row


@dataclass(frozen=True)
class Pack:
    """Documents laid end to end; blocks of one see nothing of another.

    A document's context is all its tokens but the last, whose features nobody may see.

    Attributes:
        rows: indices into the batch's rows, in order.
        context_positions_S: `[S]` int64, position of each context token in its document.
        anchor_ids_N: `[N]` int64, token at the anchor.
        anchors_N: `[N]` int64, position of the anchor in the pack.
        anchor_positions_N: `[N]` int64, position of the anchor in its document.
        starts_N: `[N]` int64, where the anchor's document starts in the pack.
    """

    rows: list[int]
    context_positions_S: torch.Tensor
    anchor_ids_N: torch.Tensor
    anchors_N: torch.Tensor
    anchor_positions_N: torch.Tensor
    starts_N: torch.Tensor


@dataclass(frozen=True)
class TrainingBatch:
    """One micro-batch.

    Attributes:
        rows: the R rows.
        packs: every row is in exactly one.
        previous_NK, labels_NK, valid_NK: slots of all blocks, in the order of the packs; see `anchors.Slots`.
        teacher_NK: `[N, K]` int64, index of the supervised position that predicts the slot's token, among the T supervised
            positions of all rows (`prompt_length .. L - 2` of each, in order); 0 where `valid_NK` is false.
        weight_sum: sum of slot weights over valid slots, the denominator of the per-slot losses.
        epoch: of the first row.
    """

    rows: list[Row]
    packs: list[Pack]
    previous_NK: torch.Tensor
    labels_NK: torch.Tensor
    valid_NK: torch.Tensor
    teacher_NK: torch.Tensor
    weight_sum: float
    epoch: int = 0

    @property
    def num_blocks(self) -> int:
        return self.valid_NK.shape[0]

    @property
    def num_tokens(self) -> int:
        return sum(len(row.token_ids) for row in self.rows)

    def to(self, device: torch.device | str) -> TrainingBatch:
        """The same batch with every tensor on `device`."""
        return replace(self, **{item.name: _moved(self.__dict__[item.name], device) for item in fields(self)})


def _moved(value, device):
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Pack):
        return replace(value, **{item.name: _moved(value.__dict__[item.name], device) for item in fields(value)})
    if isinstance(value, list):
        return [_moved(entry, device) for entry in value]
    return value


class Collator:
    """Draws the anchors of rows and lays them out as a `TrainingBatch`.

    Args:
        anchors_per_row (`int`): at most this many blocks a document.
        num_slots (`int`): K.
        decay (`float`): of the slot weights.
        seed (`int`): of the anchors.
        one_pack (`bool`): see `lay_out`.
        deterministic (`bool`): evenly spread anchors instead of drawn ones; for validation.
    """

    def __init__(
        self,
        *,
        anchors_per_row: int,
        num_slots: int,
        decay: float,
        seed: int = 0,
        one_pack: bool = False,
        deterministic: bool = False,
    ):
        self.anchors_per_row = anchors_per_row
        self.num_slots = num_slots
        self.decay = decay
        self.seed = seed
        self.one_pack = one_pack
        self.deterministic = deterministic

    def __call__(self, items: Sequence[tuple[Row, int]]) -> TrainingBatch:
        rows = [row for row, _ in items]
        anchors = [self._anchors(row, epoch) for row, epoch in items]
        batch = lay_out(rows, anchors, num_slots=self.num_slots, decay=self.decay, one_pack=self.one_pack)
        return replace(batch, epoch=items[0][1])

    def _anchors(self, row: Row, epoch: int) -> np.ndarray:
        prompt, total = len(row.prompt_ids), len(row.token_ids)
        if self.deterministic:
            return spread_anchors(prompt, total, count=self.anchors_per_row, num_slots=self.num_slots)
        return sample_anchors(row.id, prompt, total, count=self.anchors_per_row, seed=self.seed, epoch=epoch)


def lay_out(
    rows: Sequence[Row], anchors: Sequence[np.ndarray], *, num_slots: int, decay: float, one_pack: bool = False
) -> TrainingBatch:
    """Rows and their anchors as one micro-batch.

    Args:
        rows: R rows.
        anchors: positions in each row, `[N_r]` int64, ascending.
        num_slots (`int`): K.
        decay (`float`): of the slot weights.
        one_pack (`bool`): all rows in one pack (one forward pass; what flex attention and sharded training want), or one
            pack a row (dense attention then never pays for the square of several documents).
    """
    tokens = [np.asarray(row.token_ids, dtype=np.int64) for row in rows]
    slots = [slots_of(ids, chosen, num_slots) for ids, chosen in zip(tokens, anchors, strict=True)]
    teacher, offset = [], 0
    for row, ids, chosen, each in zip(rows, tokens, anchors, slots, strict=True):
        first = len(row.prompt_ids)
        positions_NK = chosen[:, None] + np.arange(num_slots)
        teacher.append(np.where(each.valid_NK, positions_NK - first + offset, 0))
        offset += max(len(ids) - 1 - first, 0)
    valid_NK = np.concatenate([each.valid_NK for each in slots])
    groups = [list(range(len(rows)))] if one_pack else [[index] for index in range(len(rows))]
    return TrainingBatch(
        rows=list(rows),
        packs=[_pack(group, tokens, anchors) for group in groups],
        previous_NK=torch.from_numpy(np.concatenate([each.previous_NK for each in slots])),
        labels_NK=torch.from_numpy(np.concatenate([each.labels_NK for each in slots])),
        valid_NK=torch.from_numpy(valid_NK),
        teacher_NK=torch.from_numpy(np.concatenate(teacher)),
        weight_sum=float((valid_NK * slot_weights(num_slots, decay)).sum()),
    )


def _pack(group: list[int], tokens: list[np.ndarray], anchors: Sequence[np.ndarray]) -> Pack:
    starts = np.cumsum([0, *(len(tokens[index]) - 1 for index in group)])[:-1]
    positions = [np.arange(len(tokens[index]) - 1) for index in group]
    chosen = [anchors[index] for index in group]
    return Pack(
        rows=group,
        context_positions_S=torch.from_numpy(np.concatenate(positions)),
        anchor_ids_N=torch.from_numpy(np.concatenate([tokens[index][anchors[index]] for index in group])),
        anchors_N=torch.from_numpy(np.concatenate([each + start for each, start in zip(chosen, starts, strict=True)])),
        anchor_positions_N=torch.from_numpy(np.concatenate(chosen)),
        starts_N=torch.from_numpy(np.repeat(starts, [len(each) for each in chosen])),
    )


class RowDataset(torch.utils.data.Dataset):
    """Rows addressed by `(index, epoch)`, so that the collator knows the epoch in any worker process."""

    def __init__(self, rows: Sequence[Row]):
        self.rows = rows

    def __getitem__(self, key: tuple[int, int]) -> tuple[Row, int]:
        index, epoch = key
        return self.rows[index], epoch


class BatchStream:
    """Endless batch sampler: rows in a new order each epoch, greedily filled micro-batches, every `world_size`-th for a rank.

    Args:
        lengths (`list[int]`): tokens of each row.
        max_tokens (`int`): of one micro-batch; a row longer than that is alone.
        rows_per_batch (`int`): at most this many rows in one.
        seed (`int`): of the order.
        rank, world_size (`int`): this process takes micro-batches `rank, rank + world_size, ...`.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        max_tokens: int,
        rows_per_batch: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ):
        self.lengths = lengths
        self.max_tokens = max_tokens
        self.rows_per_batch = rows_per_batch
        self.seed = seed
        self.rank = rank
        self.world_size = world_size

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        stream = (batch for epoch in itertools.count() for batch in self.epoch_batches(epoch))
        return itertools.islice(stream, self.rank, None, self.world_size)

    def epoch_batches(self, epoch: int) -> Iterator[list[tuple[int, int]]]:
        """All micro-batches of one epoch, for all ranks."""
        order = np.random.default_rng(np.random.SeedSequence([self.seed, epoch])).permutation(len(self.lengths))
        batch: list[tuple[int, int]] = []
        filled = 0
        for index in order.tolist():
            if batch and (len(batch) == self.rows_per_batch or filled + self.lengths[index] > self.max_tokens):
                yield batch
                batch, filled = [], 0
            batch.append((index, epoch))
            filled += self.lengths[index]
        yield batch

    def batches_per_epoch(self) -> int:
        """Micro-batches of the first epoch; later ones may differ by a few."""
        return sum(1 for _ in self.epoch_batches(0))

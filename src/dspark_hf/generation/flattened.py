"""Many rows in one verification, end to end: the target runs over `[1, M]` tokens, the admitted ones of all rows.

A token that a policy trimmed is not there, so it costs nothing in the layers' MLPs or in the head; attention works row by row
over the row's own slot of the cache. Slots are filled from their first column: the prompt's left padding is squeezed out
once, so a row's keys are a prefix of its slot and the causal rule is all the mask there is. Which targets qualify is decided
in `layouts.py`; knows nothing of drafting, sampling or stopping.
"""

# R rows, L prompt columns, M tokens of all rows, C columns of a slot, H heads, E head dimension, F features

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch

from .attention import RaggedLayout, release_attention, take_attention
from .batched import RaggedCache, RaggedLayer, RaggedRows
from .columns import SMALLEST_BUFFER, ColumnStore, kept_rows
from .request import GenerationRequest
from .rows import TokenRows
from .scores import RowScores, pad_rows
from .target import TargetOutput


@dataclass
class Places:
    """Where the tokens of one verification go: row and column of the slot, `[M]` each."""

    row_M: torch.Tensor
    column_M: torch.Tensor


class SlotLayer(RaggedLayer):
    """
    Keys and values of one layer: columns while the prompt is read, then `[R, C, H, E]` slots.

    In that order all slots together are `[R * C, H, E]` without a copy, as ragged attention wants them.
    """

    owner: SlotCache

    def __init__(self, owner: SlotCache, *, sliding: bool):
        super().__init__(owner, sliding=sliding)
        self.slots: list[torch.Tensor] = []

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any):
        if self.owner.places is None:
            return super().update(key_states, value_states, *args, **kwargs)
        self.slots = [
            _written(slots, new_1HME, self.owner)
            for slots, new_1HME in zip(self.slots, (key_states, value_states), strict=True)
        ]
        keys, values = (slots.flatten(0, 1).transpose(0, 1)[None] for slots in self.slots)
        return keys, values

    def settle(self, order_RL: torch.Tensor | None) -> None:
        """Moves the prompt into slots, real tokens first."""
        width = self.owner.columns.width
        for states in (self.store.keys, self.store.values):
            assert states is not None
            states_RCHE = states[:, :, :width].transpose(1, 2)
            if order_RL is not None:
                index = order_RL.to(states.device)[..., None, None].expand(-1, -1, *states_RCHE.shape[2:])
                states_RCHE = states_RCHE.gather(1, index)
            slots = states_RCHE.new_zeros(len(states_RCHE), self.owner.capacity, *states_RCHE.shape[2:])
            slots[:, :width] = states_RCHE
            self.slots.append(slots)
        self.store = ColumnStore()

    def select(self, rows: list[int]) -> None:
        self.slots = [kept_rows(slots, rows) for slots in self.slots]


class SlotCache(RaggedCache):
    """
    Args:
        layer_types (`list[str]`): of the target; see `ragged_layer_types`.
    """

    layer_class = SlotLayer

    def __init__(self, layer_types: list[str]):
        super().__init__(layer_types)
        self.capacity = 0
        self.places: Places | None = None

    def settle(self, order_RL: torch.Tensor | None) -> None:
        """The prompt is read: from here on rows are slots."""
        self.reserve(self.columns.width)
        for layer in self.layers:
            if isinstance(layer, SlotLayer):
                layer.settle(order_RL)

    def reserve(self, columns: int) -> None:
        """Makes slots at least so long; layers grow when they are next written."""
        if columns > self.capacity:
            self.capacity = max(columns, 2 * self.capacity, SMALLEST_BUFFER)

    def select(self, rows: list[int]) -> None:
        for layer in self.layers:
            if isinstance(layer, SlotLayer):
                layer.select(rows)


class FlattenedRows(RaggedRows):
    """Several rows in one [`SlotCache`], verified end to end."""

    layout = "ragged"
    cache: SlotCache
    cache_class = SlotCache

    def __init__(self, request: GenerationRequest, origins: list[int], layer_types: list[str]):
        super().__init__(request, origins, layer_types)
        text = request.target.config.get_text_config()
        kinds = list(text.layer_types) if hasattr(text, "layer_types") else layer_types
        self.windows = [self.window if kind == "sliding_attention" else None for kind in kinds]
        self.holds_attention = False

    def prefill(self, input_ids_RL: torch.Tensor) -> TargetOutput:
        output = super().prefill(input_ids_RL)
        order_RL = None
        self.prompt_lengths = [self.prompt_columns] * len(output.features_RSF)
        if self.mask_RL is not None:
            # the order of real tokens is theirs; what was padding lies behind them and is written over
            order_RL = self.mask_RL.argsort(dim=1, descending=True, stable=True)
            self.prompt_lengths = self.mask_RL.sum(dim=1).tolist()
        self.cache.settle(order_RL)
        take_attention(self.model, self.request.attention_implementation)
        self.holds_attention = True
        return output

    def verify(self, rows: TokenRows, lengths: list[int]) -> TargetOutput:
        device = rows.ids_RC.device
        first = [prompt + generated - 1 for prompt, generated in zip(self.prompt_lengths, rows.generated, strict=True)]
        used = [column + length + 1 for column, length in zip(first, lengths, strict=True)]
        tokens = [
            (row, slot, first[row] + slot, rows.generated[row] - 1 + slot)
            for row, length in enumerate(lengths)
            for slot in range(length + 1)
        ]
        # one transfer for all that the device must know of a token
        row_M, slot_M, column_M, step_M = torch.tensor(tokens, device=device).unbind(1)
        self.cache.reserve(max(used))
        self.cache.places = Places(row_M, column_M)
        starts_q = [0, *itertools.accumulate(length + 1 for length in lengths)]
        starts_k = range(0, (len(lengths) + 1) * self.cache.capacity, self.cache.capacity)
        layout = RaggedLayout(
            torch.tensor(starts_q, dtype=torch.int32, device=device),
            torch.tensor(starts_k, dtype=torch.int32, device=device),
            torch.tensor(used, dtype=torch.int32, device=device),
            1 + max(lengths),
            max(used),
            self.windows,
        )
        kwargs = dict(self.step_kwargs)
        if "logits_to_keep" in kwargs:
            kwargs["logits_to_keep"] = len(tokens)
        assert self.next_position is not None
        # no mask: ragged attention knows what each token sees, and any other attention fails on this one
        nothing = torch.zeros(1, 1, 1, 0, dtype=torch.bool, device=device)
        output = self._forward(
            rows.window(1 + max(lengths))[row_M, slot_M][None],
            attention_mask=nothing if self.mask_kinds is None else dict.fromkeys(self.mask_kinds, nothing),
            is_first_iteration=False,
            position_ids=(self.next_position[row_M, 0] + step_M)[None],
            ragged_layout=layout,
            **kwargs,
        )
        return self._read_rows(output, lengths)

    def select(self, rows: list[int]) -> None:
        super().select(rows)
        self.prompt_lengths = [self.prompt_lengths[row] for row in rows]

    def close(self) -> None:
        if self.holds_attention:
            release_attention(self.model)

    def _read_rows(self, output: Any, lengths: list[int]) -> TargetOutput:
        flat = self._read(output, output.logits.shape[1])
        logits_MV = flat.logits.padded_RQV[0]
        return TargetOutput(RowScores(logits_MV, lengths), pad_rows(flat.features_RSF[0], lengths), output)


def _written(slots_RCHE: torch.Tensor, new_1HME: torch.Tensor, cache: SlotCache) -> torch.Tensor:
    missing = cache.capacity - slots_RCHE.shape[1]
    if missing > 0:
        slots_RCHE = torch.nn.functional.pad(slots_RCHE, (0, 0, 0, 0, 0, missing))
    places = cache.places
    assert places is not None
    row_M, column_M = places.row_M.to(new_1HME.device), places.column_M.to(new_1HME.device)
    slots_RCHE[row_M, column_M] = new_1HME[0].transpose(0, 1)
    return slots_RCHE

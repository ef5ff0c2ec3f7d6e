"""A dynamic key/value cache that writes into spare columns instead of copying itself at every token.

`torch.cat` moves a whole batch's cache once a step: 96 rows of up to 304 tokens were answered in 0.9 of the time without it (two
CPU cores, SmolLM2-135M). Buffers here double when they are full. Knows nothing of drafting; plain `generate` takes it in place of its own.
"""

# R rows, H heads, S new tokens, E head dimension

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from .columns import Columns, ColumnStore


class GrowingLayer(DynamicLayer):
    """A full-attention layer. `keys` and `values` are views of the columns in use, so cropping costs nothing."""

    store: ColumnStore
    keys: torch.Tensor
    values: torch.Tensor

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any):
        """Stores `[R, H, S, E]` keys and values; returns all columns."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.store = ColumnStore()
        held = self.get_seq_length()
        if held and not _shares_memory(self.keys, self.store.keys):
            # rows were reordered or chosen since: a new buffer starts from what they left
            self.store = ColumnStore()
            self.store.write(self.keys, self.values, Columns(width=held, start=0))
        self.keys, self.values = self.store.write(
            key_states, value_states, Columns(width=held + key_states.shape[2], start=held)
        )
        return self.keys, self.values


class GrowingSlidingLayer(DynamicSlidingWindowLayer):
    """A sliding layer that forgets nothing but shows its window only. It cannot be cropped beyond it, nor reordered."""

    store: ColumnStore
    keys: torch.Tensor
    values: torch.Tensor
    cumulative_length: int

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any):
        """Stores `[R, H, S, E]` keys and values; returns the columns that the new tokens see."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.store = ColumnStore()
        held = self.cumulative_length
        self.cumulative_length = end = held + key_states.shape[2]
        keys, values = self.store.write(key_states, value_states, Columns(width=end, start=held))
        first, kept = (max(count - self.sliding_window + 1, 0) for count in (held, end))
        self.keys, self.values = keys[:, :, kept:], values[:, :, kept:]
        return keys[:, :, first:], values[:, :, first:]


def growing_cache(config: PreTrainedConfig) -> DynamicCache | None:
    """
    An empty cache for a target.

    Args:
        config (`PreTrainedConfig`): of the target's text model.

    Returns:
        `DynamicCache`, or `None` where the target has layers of other kinds (recurrent, indexed).
    """
    cache = DynamicCache(config=config)
    kinds = {type(layer) for layer in cache.layers}
    if not kinds or not kinds <= {DynamicLayer, DynamicSlidingWindowLayer}:
        return None
    cache.layers = [
        GrowingSlidingLayer(layer.sliding_window) if type(layer) is DynamicSlidingWindowLayer else GrowingLayer()
        for layer in cache.layers
    ]
    return cache


def _shares_memory(view: torch.Tensor, buffer: torch.Tensor | None) -> bool:
    return buffer is not None and view.data_ptr() == buffer.data_ptr() and view.stride() == buffer.stride()

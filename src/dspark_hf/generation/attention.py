"""The attention implementation `dspark_ragged` of transformers: rows end to end where a call says so, else exactly `sdpa`.

Registered through the public interfaces, see https://huggingface.co/docs/transformers/attention_interface. A target runs on it
only while rows are verified end to end; other forwards of the same model meanwhile, in other threads too, are those of `sdpa`.
"""

# M tokens of all rows, H heads, T keys of all slots, E head dimension, R rows

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from dspark_hf import ops
from dspark_hf.ragged_attention import causal_window


RAGGED_ATTENTION = "dspark_ragged"


@dataclass
class RaggedLayout:
    """
    Which tokens and keys belong to which row.

    Attributes:
        cu_seq_q, cu_seq_k (int32 `[R + 1]`): where each row's tokens, and its slot among the keys, begin.
        seqused_k (int32 `[R]`): keys of each row, its own new tokens included.
        max_q, max_k (`int`): of the longest row.
        windows (`list`): sliding window of each layer, or `None`.
    """

    cu_seq_q: torch.Tensor
    cu_seq_k: torch.Tensor
    seqused_k: torch.Tensor
    max_q: int
    max_k: int
    windows: list[int | None]

    def at(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """`cu_seq_q, cu_seq_k, seqused_k` where a layer runs."""
        return self.cu_seq_q.to(device), self.cu_seq_k.to(device), self.seqused_k.to(device)


def ragged_attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    ragged_layout: RaggedLayout | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """
    Args:
        query (`[1, H, M, E]`), key, value (`[1, H, T, E]`): with a layout; as for `sdpa` without.
        ragged_layout (`RaggedLayout`, *optional*): handed through the model's forward.

    Returns:
        `[1, M, H, E]` and no weights.

    Raises:
        RuntimeError: the model kept the layout from its attention.
    """
    if ragged_layout is None:
        if attention_mask is not None and attention_mask.shape[-1] == 0:
            raise RuntimeError(
                f"{type(module).__name__} does not get the keyword arguments of its model's forward, so rows cannot be verified "
                "end to end; set DSPARK_HF_LAYOUT=padded"
            )
        return AttentionInterface()["sdpa"](
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    layer: Any = module
    cu_seq_q, cu_seq_k, seqused_k = ragged_layout.at(query.device)
    output_MHE = ops.attend_ragged(
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        cu_seq_q,
        cu_seq_k,
        ragged_layout.max_q,
        ragged_layout.max_k,
        scale=scaling,
        window_size=causal_window(ragged_layout.windows[layer.layer_idx]),
        enable_gqa=query.shape[1] != key.shape[1],
        seqused_k=seqused_k,
    )
    return output_MHE[None], None


AttentionInterface.register(RAGGED_ATTENTION, ragged_attention_forward)
AttentionMaskInterface.register(RAGGED_ATTENTION, sdpa_mask)

# model -> (calls that hold it, what it ran on before)
_held: weakref.WeakKeyDictionary[PreTrainedModel, tuple[int, str]] = weakref.WeakKeyDictionary()
_guard = threading.Lock()


def take_attention(model: PreTrainedModel, present: str) -> None:
    """Lets a model run on `dspark_ragged` until as many calls have released it as took it."""
    with _guard:
        calls, before = _held.get(model, (0, present))
        if calls == 0:
            model.set_attn_implementation(RAGGED_ATTENTION)
        _held[model] = (calls + 1, before)


def release_attention(model: PreTrainedModel) -> None:
    """The counterpart of `take_attention`."""
    with _guard:
        calls, before = _held.pop(model)
        if calls > 1:
            _held[model] = (calls - 1, before)
        else:
            model.set_attn_implementation(before)

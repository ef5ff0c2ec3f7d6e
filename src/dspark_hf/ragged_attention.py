"""Attention of rows of unequal length end to end, in plain torch: the signature and meaning of torch's `varlen_attn`.

Row r owns queries `cu_seq_q[r]..cu_seq_q[r + 1]` and the first `seqused_k[r]` keys of its slot, which begins at `cu_seq_k[r]`.
A window `(left, 0)` is causal and aligned to the end: the last query of a row sees its last key. This is the definition,
row by row, where no fused kernel runs; `dspark_hf.ops.attend_ragged` chooses. Knows nothing of models or caches.
https://docs.pytorch.org/docs/main/nn.attention.varlen.html
"""

# M queries of all rows, T keys of all slots, H heads (query: Hq, key and value: Hk), E head dimension

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch


CAUSAL = (-1, 0)
LARGEST_FUSED_HEAD = 256  # of flash attention, which varlen_attn runs on
FUSED_DTYPES = (torch.float16, torch.bfloat16)


def causal_window(sliding_window: int | None) -> tuple[int, int]:
    """`window_size` of a layer: a query sees itself and the `sliding_window - 1` keys before it, or all before it."""
    return CAUSAL if sliding_window is None else (sliding_window - 1, 0)


def attend_ragged(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: torch.Tensor | None = None,
) -> torch.Tensor:
    """
    Args:
        query (`torch.Tensor`): `[M, Hq, E]`.
        key, value (`torch.Tensor`): `[T, Hk, E]`.
        cu_seq_q, cu_seq_k (`torch.Tensor`): int32 `[R + 1]`, running sums; where each row's queries and slot begin.
        max_q, max_k (`int`): of the longest row; sizes for a kernel, unused here.
        scale (`float`, *optional*): of the scores; `E ** -0.5` by default.
        window_size (`tuple[int, int]`): keys seen to the left and right of the query's own, -1 for all.
        enable_gqa (`bool`): `Hq` is a multiple of `Hk`.
        seqused_k (`torch.Tensor`, *optional*): int32 `[R]`, keys of each slot that count; all by default.

    Returns:
        `torch.Tensor`: `[M, Hq, E]`.
    """
    starts_q, starts_k = cu_seq_q.tolist(), cu_seq_k.tolist()
    used_k = [end - start for start, end in zip(starts_k, starts_k[1:], strict=False)]
    if seqused_k is not None:
        used_k = seqused_k.tolist()
    outputs = []
    for row, keys in enumerate(used_k):
        row_query = query[starts_q[row] : starts_q[row + 1]].transpose(0, 1)[None]
        owned = slice(starts_k[row], starts_k[row] + keys)
        output_1HQE = torch.nn.functional.scaled_dot_product_attention(
            row_query,
            key[owned].transpose(0, 1)[None],
            value[owned].transpose(0, 1)[None],
            attn_mask=_visible(row_query.shape[2], keys, window_size, query.device),
            scale=scale,
            enable_gqa=enable_gqa,
        )
        outputs.append(output_1HQE[0].transpose(0, 1))
    return torch.cat(outputs)


def _visible(queries: int, keys: int, window_size: tuple[int, int], device: torch.device) -> torch.Tensor:
    left, right = window_size
    own_Q1 = torch.arange(keys - queries, keys, device=device)[:, None]
    key_K = torch.arange(keys, device=device)
    visible_QK = torch.ones(queries, keys, dtype=torch.bool, device=device)
    if left >= 0:
        visible_QK &= key_K >= own_Q1 - left
    if right >= 0:
        visible_QK &= key_K <= own_Q1 + right
    return visible_QK


@cache
def fused_attention() -> Callable[..., Any] | None:
    """torch's `varlen_attn`, where it takes slots that are partly filled."""
    if importlib.util.find_spec("torch.nn.attention.varlen") is None:
        return None
    function = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    parameters = inspect.signature(function).parameters
    return function if {"window_size", "enable_gqa", "seqused_k"} <= set(parameters) else None


def is_fused(device: torch.device, dtype: torch.dtype, head_sizes: set[int]) -> bool:
    """
    Whether `varlen_attn` runs here.

    Args:
        head_sizes (`set[int]`): of query, key and value; it needs a single one.
    """
    sizes_fit = len(head_sizes) == 1 and all(size % 8 == 0 and size <= LARGEST_FUSED_HEAD for size in head_sizes)
    return device.type == "cuda" and dtype in FUSED_DTYPES and sizes_fit and fused_attention() is not None

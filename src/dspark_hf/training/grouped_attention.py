"""Decoding with grouped queries without copying keys and values, for answering many prompts at once on a CPU.

transformers repeats keys and values for every query of a group whenever there is a padding mask. One token at a time that
copy is most of the attention: 64 rows of SmolLM2-135M took 386 ms of CPU a step with it and about half without. Here the
queries of a group become rows of one attention call instead. It knows nothing of rows, prompts or sampling.
"""

# B rows, H query heads, G key heads, Q query tokens, S keys, E head dimension

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask


NAME = "grouped_sdpa"


def grouped_sdpa(
    module: torch.nn.Module,
    query_BHQE: torch.Tensor,
    key_BGSE: torch.Tensor,
    value_BGSE: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    """SDPA as transformers calls it; with one query token per row, heads of a group share one read of their keys."""
    rows, heads, tokens, _ = query_BHQE.shape
    groups = key_BGSE.shape[1]
    if tokens != 1 or heads == groups:
        return sdpa_attention_forward(
            module, query_BHQE, key_BGSE, value_BGSE, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    if attention_mask is not None:
        attention_mask = attention_mask[..., : key_BGSE.shape[2]].expand(rows, 1, heads // groups, -1)
    attended_BGJE = scaled_dot_product_attention(
        query_BHQE.view(rows, groups, heads // groups, -1),
        key_BGSE,
        value_BGSE,
        attn_mask=attention_mask,
        dropout_p=dropout,
        scale=scaling,
    )
    return attended_BGJE.reshape(rows, 1, heads, -1), None


AttentionInterface.register(NAME, grouped_sdpa)
AttentionMaskInterface.register(NAME, sdpa_mask)


@contextmanager
def grouped_decoding(target: PreTrainedModel) -> Iterator[None]:
    """Inside, a target on a CPU that uses SDPA decodes with `grouped_sdpa`; anything else is left as it is."""
    before = target.config.get_text_config()._attn_implementation
    if before != "sdpa" or target.device.type != "cpu":
        yield
        return
    target.set_attn_implementation(NAME)
    try:
        yield
    finally:
        target.set_attn_implementation(before)

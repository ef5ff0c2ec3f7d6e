"""Picks the Triton kernels for CUDA and ROCm tensors and the torch reference for all others."""

from __future__ import annotations

from .reference import MarkovDraft


def markov_draft(base_logits, anchor_ids, **options) -> MarkovDraft:
    """See [`reference.markov_draft`] for every argument."""
    if base_logits.is_cuda:
        from . import draft as implementation
    else:
        from . import reference as implementation
    return implementation.markov_draft(base_logits, anchor_ids, **options)

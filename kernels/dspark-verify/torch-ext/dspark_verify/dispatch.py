"""Picks the Triton kernels for CUDA and ROCm tensors and the torch reference for all others."""

from __future__ import annotations

from .reference import Verification


def verify_ragged(target_logits, draft_tokens, cu_seqlens, **options) -> Verification:
    """See [`reference.verify_ragged`] for every argument."""
    if target_logits.is_cuda:
        from . import ragged as implementation
    else:
        from . import reference as implementation
    return implementation.verify_ragged(target_logits, draft_tokens, cu_seqlens, **options)

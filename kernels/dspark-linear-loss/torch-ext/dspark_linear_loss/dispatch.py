"""Picks the Triton row arithmetic for CUDA and ROCm tensors and the torch one for all others."""

from __future__ import annotations

from . import chunked
from .reference import LinearLoss


def linear_loss(hidden, latent, teacher, lm_head, w2, teacher_head, labels, **options) -> LinearLoss:
    """See [`chunked.linear_loss`] for every argument."""
    rows = chunked.loss_rows
    if hidden.is_cuda:
        from .rows_triton import loss_rows as rows
    return chunked.linear_loss(hidden, latent, teacher, lm_head, w2, teacher_head, labels, rows=rows, **options)

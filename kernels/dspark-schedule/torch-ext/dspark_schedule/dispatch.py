"""Picks the Triton kernels for CUDA and ROCm tensors and the torch reference for all others."""

from __future__ import annotations

from .reference import PrefixSchedule


def schedule_prefix(survival, seconds, **options) -> PrefixSchedule:
    """See [`reference.schedule_prefix`] for every argument."""
    if survival.is_cuda:
        from . import prefix as implementation
    else:
        from . import reference as implementation
    return implementation.schedule_prefix(survival, seconds, **options)

"""Lossless verification of ragged drafts: Triton on CUDA and ROCm tensors, torch elsewhere.

Triton is imported by the first call that needs it, never by importing the package.
"""

from . import layers
from .dispatch import verify_ragged
from .reference import Verification


__all__ = ["Verification", "layers", "verify_ragged"]

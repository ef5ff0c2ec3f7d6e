"""Markov drafting of a DSpark block: bias, sampling, log q, confidence and survival: Triton on CUDA and ROCm tensors, torch elsewhere.

Triton is imported by the first call that needs it, never by importing the package.
"""

from . import layers
from .dispatch import markov_draft
from .reference import MarkovDraft


__all__ = ["MarkovDraft", "layers", "markov_draft"]

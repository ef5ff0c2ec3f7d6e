"""Training loss from hidden states without full logits: Triton rows on CUDA and ROCm tensors, torch elsewhere.

Triton is imported by the first call that needs it, never by importing the package.
"""

from . import layers
from .dispatch import linear_loss
from .reference import LinearLoss


__all__ = ["LinearLoss", "layers", "linear_loss"]

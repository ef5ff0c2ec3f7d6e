"""Hardware-aware prefix lengths from survival and a cost table: Triton on CUDA and ROCm tensors, torch elsewhere.

Triton is imported by the first call that needs it, never by importing the package.
"""

from . import layers
from .dispatch import schedule_prefix
from .reference import PrefixSchedule


__all__ = ["PrefixSchedule", "layers", "schedule_prefix"]

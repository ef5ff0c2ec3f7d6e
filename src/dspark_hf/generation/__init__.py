"""Decoding with a drafter: `generate`, the decode loop behind it, and what it reports."""

from .dispatch import generate, install, is_drafter
from .processors import register_stateless
from .stats import GenerationStats, RoundRecord, recording


__all__ = ["GenerationStats", "RoundRecord", "generate", "install", "is_drafter", "recording", "register_stateless"]

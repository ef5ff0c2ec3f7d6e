"""Remembers the drafter's context between calls that share a target cache, so that a next turn drafts with all of it.

A wrong memory could only cost acceptance, never change text; still, tokens are compared where both sides are known. An entry
lives as long as the target's cache object and dies with it.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch

from .context import DraftContext


@dataclass
class Memory:
    """The drafter's context of one conversation and the tokens behind it `[n]`."""

    drafter: weakref.ref
    context: DraftContext
    tokens: torch.Tensor


_memories: weakref.WeakKeyDictionary[Any, Memory] = weakref.WeakKeyDictionary()


def remember(cache: Any, drafter: Any, context: DraftContext, tokens: torch.Tensor) -> None:
    """Keeps the context of a finished call under the target cache that belongs to it."""
    _memories[cache] = Memory(weakref.ref(drafter), context, tokens)


def recall(cache: Any, drafter: Any, position: int, text: torch.Tensor | None) -> DraftContext | None:
    """
    The remembered context of the first `position` tokens, or `None`.

    Args:
        cache: the target cache of the new call.
        position: tokens it holds.
        text (`[n]`, *optional*): the whole new text, where the caller has it.
    """
    memory = _memories.pop(cache, None)
    if memory is None or memory.drafter() is not drafter or position == 0:
        return None
    if text is not None:
        length = min(position, len(memory.tokens), len(text))
        if not torch.equal(memory.tokens[:length], text[:length].to(memory.tokens.device)):
            return None
    return memory.context if memory.context.crop(position) else None

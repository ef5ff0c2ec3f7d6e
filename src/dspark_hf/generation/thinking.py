"""Notices a prompt whose thinking mode is not the one the drafter was trained for; acceptance then collapses silently.

Reads the end of the prompt only and says nothing where that is ambiguous. Changes nothing.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from transformers import AutoTokenizer
from transformers.utils import logging


logger = logging.get_logger(__name__)

OPEN, CLOSE = "<think>", "</think>"
# an empty think block and the turn marker before it take about eight tokens
TAIL = 16
_checked: weakref.WeakSet[Any] = weakref.WeakSet()


def warn_if_mode_differs(drafter: Any, target: Any, input_ids_BL: torch.Tensor, tokenizer: Any) -> None:
    """
    Warns once per drafter if the first prompt opens (or closes) a think block and `config.target_thinking` says otherwise.

    Args:
        tokenizer (*optional*): the target's; looked up beside the target's local files if not given.
    """
    trained = drafter.config.target_thinking
    if trained is None or drafter in _checked or input_ids_BL.shape[1] == 0:
        return
    tokenizer = tokenizer or _local_tokenizer(target.name_or_path)
    if tokenizer is None:
        return
    found = thinks(tokenizer.decode(input_ids_BL[0, -TAIL:].tolist()))
    if found is None or found == trained:
        return
    _checked.add(drafter)
    modes = {True: "with thinking on", False: "with thinking off"}
    logger.warning(
        f"this drafter was trained on answers {modes[trained]}, the prompt asks for answers {modes[found]}: the text stays "
        "exactly the target's, but fewer drafted tokens are accepted"
    )


def thinks(tail: str) -> bool | None:
    """Whether a prompt that ends like this asks for thinking; `None` where it does not say."""
    opened, closed = tail.rfind(OPEN), tail.rfind(CLOSE)
    if opened < 0 and closed < 0:
        return None
    return opened > closed


def _local_tokenizer(name: str) -> Any:
    if not name:
        return None
    try:
        return AutoTokenizer.from_pretrained(name, local_files_only=True)
    except (OSError, ValueError):
        return None

"""Puts prompts into long contexts: other prompts of the same suite come first, as material to skip.

Acceptance that falls with depth shows only there. Knows prompts and token counts, no model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import cycle, islice

from dspark_hf.training.data import Conversation
from dspark_hf.training.rendering import Renderer

from .suites import Suite


INTRODUCTION = "Here are some other questions. Do not answer them, answer only the last one.\n\n"


def lengthen(suite: Suite, tokens: int, renderer: Renderer) -> Suite:
    """
    The suite with every first turn preceded by other turns until its prompt holds at least `tokens` tokens.

    Args:
        tokens (`int`): of the rendered prompt, template included; prompts that are longer already stay as they are.

    Returns:
        [`Suite`]: named `"<name> at <tokens>"`, ids changed alike.
    """
    first_turns = [item.user_turns[0] for item in suite.conversations]
    items = [_lengthened(item, index, first_turns, tokens, renderer) for index, item in enumerate(suite.conversations)]
    return Suite(f"{suite.name} at {tokens}", suite.domain, items)


def _lengthened(
    item: Conversation, index: int, first_turns: Sequence[str], tokens: int, renderer: Renderer
) -> Conversation:
    system, turns = item.system, item.user_turns
    question = turns[0]
    bare = len(renderer.prompt_ids([*system, {"role": "user", "content": question}]))
    missing = tokens - bare
    if missing > 0:
        # The suite's own prompts in turn, starting behind this one; it comes round to itself where there are few.
        others = islice(cycle(first_turns), index + 1, None)
        parts: list[str] = []
        while missing > 0:
            parts.append(next(others))
            missing -= len(renderer.tokenizer(parts[-1] + "\n\n", add_special_tokens=False)["input_ids"])
        question = INTRODUCTION + "\n\n".join([*parts, question])
    messages = [*system, *({"role": "user", "content": text} for text in [question, *turns[1:]])]
    return dataclasses.replace(item, id=f"{item.id}@{tokens}", messages=tuple(messages))

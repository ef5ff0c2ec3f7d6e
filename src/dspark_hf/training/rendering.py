"""From messages to token ids, the way inference does it.

A prompt is the history rendered with the generation prompt, so an earlier turn looks exactly as it will look when a user
sends it back, with whatever the template drops or rewrites. Ready answers become a completion only if the rendered prompt is a
token-exact prefix of the rendered conversation; everything else is refused with a reason, never repaired.

It knows nothing of models, sampling or training.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase


class RenderingError(ValueError):
    """A conversation that cannot become rows; the message is the reason, fit for counting."""


class Renderer:
    """Renders with a tokenizer's chat template, or joins plain text where it has none.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): of the target.
        thinking (`bool`, *optional*): passed to the template as `enable_thinking`; `None` leaves the template's default.
        end_ids (sequence of `int`): tokens that end a turn, the target's `eos_token_id`s.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *, thinking: bool | None = None, end_ids: Sequence[int] = ()
    ):
        self.tokenizer = tokenizer
        self.thinking = thinking
        self.end_ids = frozenset(end_ids)

    @property
    def has_template(self) -> bool:
        return self.tokenizer.chat_template is not None

    @property
    def template_hash(self) -> str:
        """Digest (16 hex digits) of the chat template; empty where there is none."""
        if not self.has_template:
            return ""
        return hashlib.sha256(str(self.tokenizer.chat_template).encode()).hexdigest()[:16]

    def prompt_text(self, messages: Sequence[dict[str, Any]]) -> str:
        """The prompt as text, generation prompt included."""
        if self.has_template:
            return self._template(messages, add_generation_prompt=True)
        return "\n".join(message["content"] for message in messages)

    def prompt_ids(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """Token ids of history and generation prompt.

        Raises:
            RenderingError: the template refuses the messages, or leaves a think block open or orphaned in the history.
        """
        text = self.prompt_text(messages)
        if messages[-1]["role"] == "user" and _think_balance(text) not in (0, 1):
            raise RenderingError("history with an unbalanced think block")
        return self._encode(text)

    def answer_message(self, prompt_text: str, completion: str) -> dict[str, str]:
        """The assistant message that stands for a generated completion in the next turn's history.

        A generation prompt may open the think block; the stored answer then has only its end, and the opening tag is put back
        so that the template sees one whole block instead of wrapping a second one around it.
        """
        opened = prompt_text.rstrip().endswith("<think>") and "<think>" not in completion
        return {"role": "assistant", "content": ("<think>\n" if opened else "") + completion}

    def ready_answer(self, history: Sequence[dict[str, Any]], answer: dict[str, Any]) -> tuple[list[int], list[int]]:
        """`(prompt ids, completion ids)` of an answer that came with the data.

        The completion ends with the token that ends the turn, whatever it is called; what a template puts after it (a line
        break) is never generated and is left out.

        Raises:
            RenderingError: no template, or the prompt is no token-exact prefix of the whole, or nothing is left to learn.
        """
        if not self.has_template:
            raise RenderingError("ready answers need a chat template")
        whole_text = self._template([*history, answer], add_generation_prompt=False)
        if _think_balance(whole_text) != 0 or re.search(r"<think>\s*</think>\s*<think>", whole_text):
            raise RenderingError("answer with an unbalanced think block")
        prompt, whole = self.prompt_ids(history), self._encode(whole_text)
        if whole[: len(prompt)] != prompt:
            raise RenderingError("rendered prompt is not a token-exact prefix of the rendered conversation")
        completion = self._trim(whole[len(prompt) :])
        if not completion:
            raise RenderingError("template that renders no answer text")
        return prompt, completion

    def _trim(self, ids: list[int]) -> list[int]:
        """Cut after the first token that ends a turn; else drop trailing white space after the last special token."""
        for index, token in enumerate(ids):
            if token in self.end_ids:
                return ids[: index + 1]
        special = set(self.tokenizer.all_special_ids) | set(self.tokenizer.get_added_vocab().values())
        end = max((index for index, token in enumerate(ids) if token in special), default=None)
        if end is not None and not self.tokenizer.decode(ids[end + 1 :]).strip():
            return ids[: end + 1]
        return ids

    def _encode(self, text: str) -> list[int]:
        # a template writes its own special tokens
        return list(self.tokenizer(text, add_special_tokens=not self.has_template)["input_ids"])

    def _template(self, messages: Sequence[dict[str, Any]], *, add_generation_prompt: bool) -> str:
        from jinja2 import TemplateError

        switches = {} if self.thinking is None else {"enable_thinking": self.thinking}
        try:
            return self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=add_generation_prompt, **switches
            )
        except TemplateError as error:
            raise RenderingError(f"template refuses the conversation: {error}") from error


def _think_balance(text: str) -> int:
    """Opening minus closing think tags; -1 as soon as one closes that was never opened."""
    depth = 0
    for tag in re.findall(r"</?think>", text):
        depth += -1 if tag[1] == "/" else 1
        if depth < 0:
            return -1
    return depth

"""Answers one conversation with a drafter and, on the same prompts, without: what both wrote and how long it took.

Knows one conversation; which ones, and what the figures add up to, is decided elsewhere.
"""

# L prompt tokens, N new tokens

from __future__ import annotations

import hashlib
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from dspark_hf.generation.dispatch import generate
from dspark_hf.training.data import Conversation
from dspark_hf.training.rendering import Renderer

from .near_ties import first_difference


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen: `temperature` 0 is greedy; nothing of the target's own sampling defaults gets in."""

    temperature: float = 0.0
    top_p: float = 1.0
    max_new_tokens: int = 256
    seed: int = 0

    def generate_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"max_new_tokens": self.max_new_tokens, "do_sample": self.temperature > 0}
        if self.temperature > 0:
            return options | {"temperature": self.temperature, "top_p": self.top_p, "top_k": 0, "min_p": None}
        return options | {"temperature": None, "top_p": None, "top_k": None, "min_p": None}


@dataclass
class TurnRecord:
    """
    One assistant turn.

    Args:
        prompt_tokens, new_tokens (`int`): L; N with the drafter.
        seconds (`float`): wall time of `generate` with the drafter.
        plain_tokens, plain_seconds (*optional*): the same without; `None` where plain was not run.
        rounds (`list[list[int]]`): `[drafted, verified, accepted, cut]` per round, `cut` 1 where the end cut it.
        difference (`dict`, *optional*): greedy only, where the two texts part: `{"position", "gap", "near_tie"}`.
    """

    prompt_tokens: int
    new_tokens: int
    seconds: float
    plain_tokens: int | None = None
    plain_seconds: float | None = None
    rounds: list[list[int]] = field(default_factory=list)
    difference: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@torch.no_grad()
def answer(
    target: Any,
    renderer: Renderer,
    drafter: Any,
    conversation: Conversation,
    sampling: Sampling,
    *,
    with_plain: bool = True,
    plain_first: bool = False,
    max_prompt_tokens: int | None = None,
) -> list[TurnRecord]:
    """
    All turns of a conversation, each on the history of the drafter's own answers.

    Args:
        with_plain (`bool`): also run each turn without the drafter, for the ratio and, if greedy, the comparison of texts.
        plain_first (`bool`): which of the two goes first; alternate it, so that neither always finds a warm machine.
        max_prompt_tokens (`int`, *optional*): a longer prompt ends the conversation.
    """
    messages, records = conversation.system, []
    for number, turn in enumerate(conversation.user_turns):
        messages.append({"role": "user", "content": turn})
        prompt_ids = renderer.prompt_ids(messages)
        if max_prompt_tokens is not None and len(prompt_ids) > max_prompt_tokens:
            break
        prompt_1L = torch.tensor([prompt_ids], device=target.device)
        seed = _seed(sampling.seed, conversation.id, number)
        plain = _timed(target, None, prompt_1L, sampling, seed) if with_plain and plain_first else None
        drafted = _timed(target, drafter, prompt_1L, sampling, seed)
        stats = drafter.last_generation
        if with_plain and plain is None:
            plain = _timed(target, None, prompt_1L, sampling, seed)
        record = TurnRecord(prompt_1L.shape[1], len(drafted.new_ids), drafted.seconds)
        record.rounds = [[*entry[1:], int(index in stats.cut_rounds)] for index, entry in enumerate(stats.rounds)]
        if plain is not None:
            record.plain_tokens, record.plain_seconds = len(plain.new_ids), plain.seconds
            if sampling.temperature == 0:
                options = sampling.generate_options()
                record.difference = first_difference(target, prompt_1L, plain.new_ids, drafted.new_ids, options)
        records.append(record)
        text = str(renderer.tokenizer.decode(drafted.new_ids, skip_special_tokens=True))
        messages.append(renderer.answer_message(renderer.prompt_text(messages), text))
    return records


@dataclass(frozen=True)
class _Run:
    new_ids: list[int]
    seconds: float


def _timed(target: Any, drafter: Any, prompt_1L: torch.Tensor, sampling: Sampling, seed: int) -> _Run:
    options = sampling.generate_options() | {"attention_mask": torch.ones_like(prompt_1L)}
    devices = [target.device] if target.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        _wait_for(target.device)
        start = time.perf_counter()
        ids = (
            target.generate(prompt_1L, **options)
            if drafter is None
            else generate(target, drafter, prompt_1L, **options)
        )
        _wait_for(target.device)
        seconds = time.perf_counter() - start
    return _Run(ids[0, prompt_1L.shape[1] :].tolist(), seconds)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _seed(seed: int, conversation_id: str, turn: int) -> int:
    digest = hashlib.sha256(f"{seed}/{conversation_id}/{turn}".encode()).digest()
    return int.from_bytes(digest[:6], "little")

"""Paired timing: every prompt goes through every method, in an order that turns from prompt to prompt, after a warm-up.

A slow minute of the machine then hits all methods alike, and a ratio of two methods is a ratio over the same prompts. Returns
plain records; `summary.py` makes figures of them.
"""

# B rows, L prompt columns

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from benchmarks.methods import Method
from benchmarks.prompts import Prompt


@dataclass
class Record:
    """
    One method on one batch of prompts, once.

    Attributes:
        suite (`str`), group (`int`): set of the prompts; the batch, alike for all methods of a pair.
        weight (`float`): held-out prompts of the set that each of these stands for.
        new_tokens (`int`), seconds (`float`): tokens up to and with each row's end, wall time of the whole call.
        rounds (`list`): `(drafted, verified, accepted)` per full round of a drafter of this package.
        bypassed (`int`): rounds decoded without a draft by choice of the policy.
        draft_seconds, verify_seconds, host_seconds (`float`): of those rounds.
        outputs (`list[list[int]]`): generated ids per row; not written to the report.
    """

    method: str
    suite: str
    group: int
    temperature: float
    batch: int
    new_tokens: int
    seconds: float
    weight: float = 1.0
    rounds: list[tuple[int, int, int]] = field(default_factory=list)
    bypassed: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    host_seconds: float = 0.0
    outputs: list[list[int]] = field(default_factory=list, repr=False)

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self)
        del values["outputs"]
        return values


def batches(prompts: Sequence[Prompt], size: int) -> list[list[Prompt]]:
    """Groups of `size` prompts of one set, as alike in length as possible; an incomplete last group is dropped."""
    groups = []
    for suite in sorted({prompt.suite for prompt in prompts}):
        chosen = sorted((prompt for prompt in prompts if prompt.suite == suite), key=lambda prompt: len(prompt.ids))
        groups += [chosen[start : start + size] for start in range(0, len(chosen) - size + 1, size)]
    return groups


def measure(
    target: PreTrainedModel,
    methods: Sequence[Method],
    groups: Sequence[Sequence[Prompt]],
    *,
    temperature: float,
    max_new_tokens: int,
    pad_id: int,
    seed: int = 0,
    warm_up: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> list[Record]:
    """
    Args:
        groups: batches of prompts; a method that takes fewer rows at once sits those out.
        temperature (`float`): 0 is greedy.
        warm_up (`int`): groups that every method decodes once without being timed; the longest ones.
    """
    size = len(groups[0])
    fitting = [method for method in methods if method.max_batch >= size]
    sampling: dict[str, Any] = {"max_new_tokens": max_new_tokens, "pad_token_id": pad_id, "do_sample": temperature > 0}
    if temperature > 0:
        sampling |= {"temperature": temperature, "top_k": 0, "top_p": 1.0}
    longest = sorted(groups, key=lambda group: max(len(prompt.ids) for prompt in group))[-warm_up:] if warm_up else []
    for group in longest:
        for method in fitting:
            _run(target, method, group, -1, temperature, sampling, pad_id, seed)
    order = random.Random(seed)
    records = []
    for number, group in enumerate(groups):
        for method in order.sample(fitting, len(fitting)):
            records.append(_run(target, method, group, number, temperature, sampling, pad_id, seed + number))
        if progress is not None:
            progress(number + 1, len(groups))
    return records


def _run(target, method, group, number, temperature, sampling, pad_id, seed) -> Record:
    inputs = padded(group, pad_id, target.device)
    if method.prepare is not None:
        method.prepare()
    torch.manual_seed(seed)
    _synchronize(target)
    started = time.perf_counter()
    output_BL = method.run(target, inputs, **sampling)
    _synchronize(target)
    seconds = time.perf_counter() - started
    width = inputs["input_ids"].shape[1]
    ends = _end_ids(target)
    outputs = [_until_end(row, ends) for row in output_BL[:, width:].tolist()]
    record = Record(
        method.name,
        group[0].suite,
        number,
        temperature,
        len(group),
        sum(map(len, outputs)),
        seconds,
        weight=group[0].weight,
        outputs=outputs,
    )
    stats = None if method.drafter is None else method.drafter.last_generation
    if stats is not None:
        record.rounds = [tuple(entry[1:]) for entry in stats.full_rounds]
        record.bypassed = stats.bypassed
        record.draft_seconds, record.verify_seconds = stats.draft_seconds, stats.verify_seconds
        record.host_seconds = stats.host_seconds
    return record


def padded(group: Sequence[Prompt], pad_id: int, device) -> dict[str, torch.Tensor]:
    """Prompts padded on the left, with their mask."""
    longest = max(len(prompt.ids) for prompt in group)
    ids = [[pad_id] * (longest - len(prompt.ids)) + list(prompt.ids) for prompt in group]
    mask = [[0] * (longest - len(prompt.ids)) + [1] * len(prompt.ids) for prompt in group]
    return {
        "input_ids": torch.tensor(ids, device=device),
        "attention_mask": torch.tensor(mask, device=device),
    }


def _end_ids(target: PreTrainedModel) -> set[int]:
    ends = target.generation_config.eos_token_id
    return set(ends) if isinstance(ends, list) else {ends}


def _until_end(ids: list[int], ends: set[int]) -> list[int]:
    for index, token in enumerate(ids):
        if token in ends:
            return ids[: index + 1]
    return ids


def _synchronize(target: PreTrainedModel) -> None:
    if target.device.type == "cuda":
        torch.cuda.synchronize()

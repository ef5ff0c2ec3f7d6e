"""
Throughput under load: the same prompts decoded 1, 2, 4, .. rows at a time, plainly and under several policies.

    points = measure_load(target, drafter, prompts, rows=(1, 2, 4, 8))
    plot_load([point.to_dict() for point in points], "load.png")

Real batched decoding through `generate`, in turns so that a slow moment of the machine touches all policies alike. Knows prompts as
token ids; draws and writes nothing.
"""

# R rows, L prompt columns

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from tqdm.auto import tqdm

from dspark_hf.generation.dispatch import generate

from .rollouts import new_tokens_by_row, padded_prompts


if TYPE_CHECKING:
    from transformers import PreTrainedModel


ROWS = (1, 2, 4, 8, 16, 32)
POLICIES = ("plain", "full", {"name": "threshold", "threshold": 0.5}, "auto")


@dataclass
class LoadPoint:
    """
    One policy at one load.

    Args:
        policy (`str`): `"plain"` is the target without a drafter; `"full:3"` drafts three tokens.
        rows (`int`): prompts decoded together.
        tokens_per_second (`float`): of all rows, median of the repeats.
        tokens_per_second_per_user (`float`): the same divided by rows.
        verified_length (`float`, *optional*): drafted tokens verified per row and round; `None` for plain decoding.
        accepted_length (`float`, *optional*): tokens per row and full round, bonus token included.
        bypassed (`float`, *optional*): share of row-rounds that took a plain step.
        samples (`list[float]`): tokens per second of each repeat.
    """

    policy: str
    rows: int
    tokens_per_second: float
    tokens_per_second_per_user: float
    verified_length: float | None = None
    accepted_length: float | None = None
    bypassed: float | None = None
    samples: list[float] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@torch.no_grad()
def measure_load(
    target: Any,
    drafter: Any,
    prompts: Sequence[Sequence[int]],
    *,
    rows: Sequence[int] = ROWS,
    policies: Sequence[str | Mapping[str, Any]] = POLICIES,
    max_new_tokens: int = 96,
    temperature: float = 0.0,
    repeats: int = 3,
    seed: int = 0,
    progress: bool = True,
) -> list[LoadPoint]:
    """
    Runs every load under every policy.

    Args:
        target (`PreTrainedModel`), drafter (`DSparkDrafter`): with a cost curve, or `auto` is `full`; its policy comes back.
        prompts (`Sequence[Sequence[int]]`): token ids, domains mixed; used in turn, repeated if there are fewer than rows.
        rows (`Sequence[int]`): loads.
        policies (`Sequence`): `"plain"`, a policy's name, or `{"name": ..., **knobs}`; the knob `tokens` shortens the draft, so
            `{"name": "full", "tokens": 3}` always verifies three.
        max_new_tokens (`int`, *optional*, defaults to 96), temperature (`float`, *optional*, defaults to 0): of every row.
        repeats (`int`, *optional*, defaults to 3): of every point, on other prompts each time; the median counts.

    Returns:
        `list[LoadPoint]`: by rows, then policy.

    Raises:
        ValueError: no prompt, or a load below 1.
    """
    if not prompts or min(rows) < 1:
        raise ValueError(f"a load needs prompts and rows >= 1, got {len(prompts)} prompts and rows {list(rows)}")
    chosen = [{"name": policy} if isinstance(policy, str) else dict(policy) for policy in policies]
    own = dict(drafter.policy)
    points = []
    try:
        with tqdm(total=len(rows) * repeats * len(chosen), desc="load", disable=not progress) as bar:
            for count in rows:
                runs: dict[str, list[_Run]] = {_label(policy): [] for policy in chosen}
                _run(target, drafter, chosen[-1], _batch(target, prompts, count, 0), 4, temperature, seed)  # warm-up
                for repeat in range(repeats):
                    inputs = _batch(target, prompts, count, repeat)
                    # The order turns, so that no policy always runs on a cold or a hot machine.
                    for policy in chosen[repeat % len(chosen) :] + chosen[: repeat % len(chosen)]:
                        run = _run(target, drafter, policy, inputs, max_new_tokens, temperature, seed + repeat)
                        runs[_label(policy)].append(run)
                        bar.update()
                points += [_point(name, count, of_policy) for name, of_policy in runs.items()]
    finally:
        drafter.set_policy(**own)
    return points


@dataclass
class _Run:
    tokens: int
    seconds: float
    stats: Any


def _run(
    target: Any,
    drafter: Any,
    policy: Mapping[str, Any],
    inputs: dict[str, torch.Tensor],
    max_new_tokens: int,
    temperature: float,
    seed: int,
) -> _Run:
    options: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "do_sample": temperature > 0,
        "top_k": None,
        "top_p": None,
    }
    options |= {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature > 0 else {"temperature": None}
    plain = policy["name"] == "plain"
    if not plain:
        drafter.set_policy(**{key: value for key, value in policy.items() if key != "tokens"})
        options |= {"num_assistant_tokens": policy["tokens"]} if "tokens" in policy else {}
    with torch.random.fork_rng(devices=[target.device] if target.device.type == "cuda" else []):
        torch.manual_seed(seed)
        _wait_for(target.device)
        start = time.perf_counter()
        output = target.generate(**inputs, **options) if plain else generate(target, drafter, **inputs, **options)
        _wait_for(target.device)
        seconds = time.perf_counter() - start
    counts = new_tokens_by_row(target, output[:, inputs["input_ids"].shape[1] :])
    return _Run(sum(counts), seconds, None if plain else drafter.last_generation)


def _batch(
    target: PreTrainedModel, prompts: Sequence[Sequence[int]], rows: int, repeat: int
) -> dict[str, torch.Tensor]:
    return padded_prompts(target, [prompts[(repeat * rows + row) % len(prompts)] for row in range(rows)])


def _label(policy: Mapping[str, Any]) -> str:
    return f"{policy['name']}:{policy['tokens']}" if "tokens" in policy else str(policy["name"])


def _point(name: str, rows: int, runs: Sequence[_Run]) -> LoadPoint:
    samples = [run.tokens / run.seconds for run in runs]
    speed = median(samples)
    point = LoadPoint(name, rows, speed, speed / rows, samples=samples)
    if name != "plain":
        rounds = [entry for run in runs for entry in run.stats.rounds]
        full = [entry for run in runs for entry in run.stats.full_rounds]
        point.verified_length = sum(verified for _, _, verified, _ in rounds) / max(len(rounds), 1)
        point.accepted_length = sum(1 + accepted for *_, accepted in full) / max(len(full), 1)
        point.bypassed = sum(run.stats.bypassed for run in runs) / max(len(rounds), 1)
    return point


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

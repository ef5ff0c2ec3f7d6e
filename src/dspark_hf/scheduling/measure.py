"""
Timing of T(B) and D on the machine at hand: whole rounds of the decode loop, or without a drafter forwards of the target alone.

A round costs more than its forward: masks, cache, the head's logits and the host's own work all grow with rows and width. So the
loop itself is timed, through the public `generate`, with every width in turn. Keeps the median of repeats and smooths nothing.
Imports no model: target and drafter are whatever is passed in.
"""

# R rows, K slots of a draft

from __future__ import annotations

import time
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from transformers import DynamicCache

from .cost import CostCurve
from .store import fingerprint_of
from .sweep import SWEEP


if TYPE_CHECKING:
    from collections.abc import Callable

    # seconds of every repeat, by (rows, tokens of each row)
    Samples = dict[tuple[int, int], list[float]]


MIN_REPEATS, MAX_REPEATS = 3, 25
SHORTEST = 1e-6
# A repetitive text is accepted in long drafts and makes few rounds; then another text is decoded.
MAX_TEXTS = 4


@torch.no_grad()
def measure_cost(
    target: Any,
    drafter: Any = None,
    *,
    context: int = 128,
    deep_context: int | None = None,
    rows: int = 1,
    num_slots: int | None = None,
    budget_seconds: float = 5.0,
) -> CostCurve:
    """
    Times every size that a scheduler can choose.

    Args:
        target (`PreTrainedModel`): a causal LM.
        drafter (`DSparkDrafter`, *optional*): random text is decoded with it, every width in turn, and whole rounds are timed: D is
            what a draft adds to a plain round. Its policy and curve come back. Without one forwards of the target are timed,
            called as `target(input_ids=..., cache=..., use_cache=True)`, and D is 0.
        context (`int`, *optional*, defaults to 128): cached tokens per row.
        deep_context (`int`, *optional*): a second depth, for the term of context length.
        rows (`int`, *optional*, defaults to 1): the largest batch; 1, 2, 4, .. rows are timed, each at widths 1..K+1.
        num_slots (`int`, *optional*): K, at most the drafter's. Default: the drafter's, or 7.
        budget_seconds (`float`, *optional*, defaults to 5): repeats go on until then (at least 3, at most 25 a size).

    Returns:
        `CostCurve`: with the fingerprint of this machine and target in `meta`.
    """
    if rows < 1 or context < 1:
        raise ValueError(f"rows and context must be >= 1, got {rows} and {context}")
    own = 7 if drafter is None else drafter.config.num_slots
    num_slots = own if num_slots is None else num_slots
    num_slots = num_slots if drafter is None else min(num_slots, own)
    counts = sorted({min(2**power, rows) for power in range(rows.bit_length() + 1)})
    depths = [context] if deep_context is None else [context, deep_context]
    share = budget_seconds / len(depths)
    samples, draft = [], (0.0, 0.0)
    for depth in depths:
        rounds: list[Round] = []
        if drafter is not None:
            rounds = _rounds(target, drafter, counts, num_slots, depth, share)
        if rounds and depth == context:
            draft = _draft_seconds(rounds, on_cpu=target.device.type == "cpu")
        samples.append(
            _without_draft(rounds, *draft) if rounds else _forward_seconds(target, counts, num_slots, depth, share)
        )
    curves = [_by_size(each) for each in samples]
    shapes = samples[0]
    return CostCurve(
        tokens=list(curves[0]),
        seconds=list(curves[0].values()),
        draft_seconds=draft[0],
        draft_row_seconds=draft[1],
        context=context,
        deep_context=deep_context,
        deep_seconds=None if deep_context is None else [curves[1][size] for size in curves[0]],
        row_seconds={
            count: [median(shapes[count, width]) for width in range(1, num_slots + 2)]
            for count in counts
            if (count, 1) in shapes
        },
        meta=fingerprint_of(target),
    )


# whole rounds


class Round(NamedTuple):
    """As `GenerationStats.round_seconds` tells it."""

    rows: int
    width: int
    draft_seconds: float | None
    seconds: float


def _rounds(target: Any, drafter: Any, counts: list[int], num_slots: int, context: int, budget: float) -> list[Round]:
    """
    Rounds of every kind: without a draft and of every width, for every number of rows.

    Empty where the target does not decode with drafts; a number of rows is missing where the target decodes them one by one.
    """
    policy, curve = dict(drafter.policy), drafter.cost_curve
    try:
        drafter.policy, drafter.cost_curve = {"name": SWEEP}, None
        share = budget / len(counts)
        return [each for count in counts for each in _rounds_of(target, drafter, count, num_slots, context, share)]
    finally:
        drafter.policy, drafter.cost_curve = policy, curve


def _rounds_of(target: Any, drafter: Any, rows: int, num_slots: int, context: int, budget: float) -> list[Round]:
    """Rounds with all rows, until each kind was seen often enough."""
    kinds = num_slots + 2  # without a draft, and with 0, 1, .. K drafted tokens verified
    found: list[Round] = []
    repeats = 0
    end = time.perf_counter() + budget
    for text in range(MAX_TEXTS):
        ids = _random_text(target, rows, context, seed=text)
        target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            assistant_model=drafter,
            num_assistant_tokens=num_slots,
            # a round adds one token and what is accepted; the first of each kind is a warm-up
            max_new_tokens=3 * kinds * (MIN_REPEATS + 1) // 2,
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            # an id that no token has: every row goes on to the end
            eos_token_id=target.config.get_text_config().vocab_size,
            pad_token_id=0,
        )
        told = [Round(*entry) for entry in drafter.last_generation.round_seconds[kinds:]]
        found += [each for each in told if each.rows == rows]
        seen = Counter((each.width, each.draft_seconds is None) for each in found)
        repeats = min(seen.values(), default=0) if len(seen) == kinds else 0
        if not found or repeats >= MAX_REPEATS or (repeats >= MIN_REPEATS and time.perf_counter() > end):
            break
    return found if repeats else []


def _draft_seconds(rounds: list[Round], *, on_cpu: bool) -> tuple[float, float]:
    """
    Seconds of a draft for one row, and for each row more.

    On a CPU the draft's own clock tells them; on an accelerator, where work is queued, what a draft adds to a round of width 1.
    """
    added = {}
    for rows in sorted({each.rows for each in rounds}):
        here = [each for each in rounds if each.rows == rows]
        added[rows] = median(each.draft_seconds for each in here if each.draft_seconds is not None)
        if not on_cpu:
            narrow = [each for each in here if each.width == 1]
            drafted = median(each.seconds for each in narrow if each.draft_seconds is not None)
            added[rows] = max(drafted - median(each.seconds for each in narrow if each.draft_seconds is None), 0.0)
    first, last = min(added), max(added)
    slope = 0.0 if first == last else max((added[last] - added[first]) / (last - first), 0.0)
    return max(added[first] - slope * (first - 1), 0.0), slope


def _without_draft(rounds: list[Round], one: float, more: float) -> Samples:
    """Seconds of a round but for its draft, by `(rows, width)`; with the draft's they add up to what was measured."""
    samples: Samples = {}
    for each in rounds:
        if each.draft_seconds is None:
            samples.setdefault((each.rows, 1), []).append(each.seconds)
        elif each.width > 1:
            left = max(each.seconds - one - more * (each.rows - 1), SHORTEST)
            samples.setdefault((each.rows, each.width), []).append(left)
    return samples


# forwards of the target alone


def _forward_seconds(target: Any, counts: list[int], num_slots: int, context: int, budget: float) -> Samples:
    calls: dict[tuple[int, int], Callable[[], None]] = {}
    for rows in counts:
        cache = DynamicCache(config=target.config.get_text_config())
        cache.activate_past_recording()
        ids = _random_text(target, rows, context, seed=0)
        target(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1)
        # A round's last row is the bonus token, so K drafted tokens make a forward of K + 1.
        for width in range(1, num_slots + 2):
            calls[rows, width] = _forward(target, cache, ids[:, :1].repeat(1, width))
    return dict(zip(calls, _timed(list(calls.values()), target.device, budget), strict=True))


def _forward(target: Any, cache: DynamicCache, ids: torch.Tensor) -> Callable[[], None]:
    def call() -> None:
        target(input_ids=ids, cache=cache, use_cache=True)
        cache.crop(-ids.shape[1])

    return call


def _timed(calls: list[Callable[[], None]], device: torch.device, budget: float) -> list[list[float]]:
    """Seconds of each call. Calls take turns, so that a slow moment of the machine touches all sizes alike."""
    samples: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()  # warm-up: allocations, autotuning
    end = time.perf_counter() + budget
    for repeat in range(MAX_REPEATS):
        if repeat >= MIN_REPEATS and time.perf_counter() > end:
            break
        for call, seconds in zip(calls, samples, strict=True):
            _wait_for(device)
            start = time.perf_counter()
            call()
            _wait_for(device)
            seconds.append(time.perf_counter() - start)
    return samples


def _by_size(samples: Samples) -> dict[int, float]:
    """Median seconds by total tokens; shapes of the same total (1 x 8, 2 x 4) share one entry."""
    seconds: dict[int, list[float]] = {}
    for (rows, width), timed in samples.items():
        seconds.setdefault(rows * width, []).extend(timed)
    return {size: median(seconds[size]) for size in sorted(seconds)}


def _random_text(target: Any, rows: int, length: int, *, seed: int) -> torch.Tensor:
    """Token ids `[rows, length]` on the target's device; the global random state is left alone."""
    vocabulary = target.config.get_text_config().vocab_size
    ids = torch.randint(vocabulary, (rows, length), generator=torch.Generator().manual_seed(seed))
    return ids.to(target.device)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

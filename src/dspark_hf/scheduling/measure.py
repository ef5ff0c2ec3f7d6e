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
from typing import TYPE_CHECKING, Any

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
        plain: dict[int, list[float]] = {}
        if drafter is not None:
            drafted, plain = _round_seconds(target, drafter, counts, num_slots, depth, share)
            draft = _draft_seconds(drafted, plain) if depth == context else draft
        samples.append(
            _without_draft(drafted, plain, *draft)
            if plain
            else _forward_seconds(target, counts, num_slots, depth, share)
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


def _round_seconds(
    target: Any, drafter: Any, counts: list[int], num_slots: int, context: int, budget: float
) -> tuple[Samples, dict[int, list[float]]]:
    """
    Seconds of rounds with a draft by `(rows, width)`, and of rounds without one by rows.

    Empty where the target does not decode with drafts; a count of rows is missing where the target decodes them one by one.
    """
    drafted: Samples = {}
    plain: dict[int, list[float]] = {}
    share = budget / sum(counts)
    policy, curve = dict(drafter.policy), drafter.cost_curve
    try:
        drafter.policy, drafter.cost_curve = {"name": SWEEP}, None
        for count in counts:
            rounds = _rounds_of(target, drafter, count, num_slots, context, share * count)
            for width, with_draft, seconds in rounds:
                if with_draft:
                    drafted.setdefault((count, width), []).append(seconds)
                else:
                    plain.setdefault(count, []).append(seconds)
    finally:
        drafter.policy, drafter.cost_curve = policy, curve
    return drafted, plain


def _rounds_of(
    target: Any, drafter: Any, rows: int, num_slots: int, context: int, budget: float
) -> list[tuple[int, bool, float]]:
    """`(width, drafted, seconds)` of rounds with all rows, until each kind was seen often enough."""
    vocabulary = target.config.get_text_config().vocab_size
    kinds = num_slots + 2  # without a draft, and with 0, 1, .. K drafted tokens verified
    found: list[tuple[int, bool, float]] = []
    repeats = 0
    end = time.perf_counter() + budget
    for text in range(MAX_TEXTS):
        ids = torch.randint(vocabulary, (rows, context), generator=torch.Generator().manual_seed(text))
        ids = ids.to(target.device)
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
            eos_token_id=vocabulary,
            pad_token_id=0,
        )
        rounds = drafter.last_generation.round_seconds
        found += [entry[1:] for entry in rounds[kinds:] if entry[0] == rows]
        seen = Counter((width, with_draft) for width, with_draft, _ in found)
        repeats = min(seen.values(), default=0) if len(seen) == kinds else 0
        if not found or repeats >= MAX_REPEATS or (repeats >= MIN_REPEATS and time.perf_counter() > end):
            break
    return found if repeats else []


def _draft_seconds(drafted: Samples, plain: dict[int, list[float]]) -> tuple[float, float]:
    """What a draft of which nothing is verified adds to a round: for one row, and for each row more."""
    added = {rows: max(median(drafted[rows, 1]) - median(plain[rows]), 0.0) for rows in plain}
    first, last = min(added), max(added)
    slope = 0.0 if first == last else (added[last] - added[first]) / (last - first)
    slope = max(slope, 0.0)
    return max(added[first] - slope * (first - 1), 0.0), slope


def _without_draft(drafted: Samples, plain: dict[int, list[float]], one: float, more: float) -> Samples:
    """Seconds of a round but for its draft, by `(rows, width)`; with the draft's they add up to what was measured."""
    samples: Samples = {(rows, 1): seconds for rows, seconds in plain.items()}
    for (rows, width), seconds in drafted.items():
        if width > 1:
            draft = one + more * (rows - 1)
            samples[rows, width] = [max(each - draft, SHORTEST) for each in seconds]
    return samples


# forwards of the target alone


def _forward_seconds(target: Any, counts: list[int], num_slots: int, context: int, budget: float) -> Samples:
    vocabulary = target.config.get_text_config().vocab_size
    calls: dict[tuple[int, int], Callable[[], None]] = {}
    for rows in counts:
        cache = DynamicCache(config=target.config.get_text_config())
        cache.activate_past_recording()
        ids = torch.randint(vocabulary, (rows, context), generator=torch.Generator().manual_seed(0))
        ids = ids.to(target.device)
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


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

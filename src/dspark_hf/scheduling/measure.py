"""
Timing of T(B) and D on the machine at hand, through the public `forward` and `generate` of a target and `draft_block` of a drafter.

Keeps the median of interleaved repeats and smooths nothing. Imports no model: target and drafter are whatever is passed in.
"""

# R rows, S new context tokens, F target layers, D hidden

from __future__ import annotations

import time
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache

from .cost import CostCurve
from .store import fingerprint_of


if TYPE_CHECKING:
    from collections.abc import Callable


MIN_REPEATS, MAX_REPEATS = 3, 25
# Tokens decoded to find what a drafted round costs on the host; fewer than the first say nothing.
MIN_TOKENS, MAX_TOKENS = 8, 48
# New context tokens that an average round hands to the drafter; its cost is nearly flat in this number.
NEW_CONTEXT = 3


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
    Times target forwards over every size that a scheduler can choose, and drafts.

    Args:
        target (`PreTrainedModel`): a causal LM; called as `target(input_ids=..., cache=..., use_cache=True)`.
        drafter (`DSparkDrafter`, *optional*): its `draft_block` is timed for D, and a few tokens are decoded with it for the
            host's share of a round, which decides on small targets; its policy comes back. Without one both are 0.
        context (`int`, *optional*, defaults to 128): cached tokens per row.
        deep_context (`int`, *optional*): a second depth, for the term of context length.
        rows (`int`, *optional*, defaults to 1): the largest batch; 1, 2, 4, .. rows are timed, each at widths 1..K+1.
        num_slots (`int`, *optional*): K. Default: the drafter's, or 7.
        budget_seconds (`float`, *optional*, defaults to 5): repeats go on until then (at least 3, at most 25 a size).

    Returns:
        `CostCurve`: with the fingerprint of this machine and target in `meta`.
    """
    if rows < 1 or context < 1:
        raise ValueError(f"rows and context must be >= 1, got {rows} and {context}")
    if num_slots is None:
        num_slots = drafter.config.num_slots if drafter is not None else 7
    counts = sorted({min(2**power, rows) for power in range(rows.bit_length() + 1)})
    depths = [context] if deep_context is None else [context, deep_context]
    share = budget_seconds / (len(depths) + 2 * (drafter is not None))
    shapes = [_target_seconds(target, counts, num_slots, depth, share) for depth in depths]
    curves = [_by_size(samples) for samples in shapes]
    curve = CostCurve(
        tokens=list(curves[0]),
        seconds=list(curves[0].values()),
        context=context,
        deep_context=deep_context,
        deep_seconds=None if deep_context is None else list(curves[1].values()),
        row_seconds={
            count: [median(shapes[0][count, width]) for width in range(1, num_slots + 2)] for count in counts
        },
        meta=fingerprint_of(target),
    )
    if drafter is None:
        return curve
    first, last = _draft_seconds(drafter, target.device, sorted({1, rows}), context, share)
    curve = replace(curve, draft_seconds=first, draft_row_seconds=max(last - first, 0.0) / max(rows - 1, 1))
    return replace(curve, overhead_seconds=_overhead_seconds(target, drafter, curve, share))


def _target_seconds(
    target: Any, counts: list[int], num_slots: int, context: int, budget: float
) -> dict[tuple[int, int], list[float]]:
    """Samples of every shape `(rows, width)`."""
    vocabulary = target.config.get_text_config().vocab_size
    calls: dict[tuple[int, int], Callable[[], None]] = {}
    for rows in counts:
        cache = DynamicCache(config=target.config.get_text_config())
        cache.activate_past_recording()
        ids = torch.randint(vocabulary, (rows, context), device=target.device)
        target(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1)
        # A round's last row is the bonus token, so K drafted tokens make a forward of K + 1.
        for width in range(1, num_slots + 2):
            calls[rows, width] = _forward(target, cache, ids[:, :1].repeat(1, width))
    return dict(zip(calls, _timed(list(calls.values()), target.device, budget), strict=True))


def _by_size(samples: dict[tuple[int, int], list[float]]) -> dict[int, float]:
    """Median seconds by total tokens; shapes of the same total (1 x 8, 2 x 4) share one entry."""
    seconds: dict[int, list[float]] = {}
    for (rows, width), timed in samples.items():
        seconds.setdefault(rows * width, []).extend(timed)
    return {size: median(seconds[size]) for size in sorted(seconds)}


def _forward(target: Any, cache: DynamicCache, ids: torch.Tensor) -> Callable[[], None]:
    def call() -> None:
        target(input_ids=ids, cache=cache, use_cache=True)
        cache.crop(-ids.shape[1])

    return call


def _draft_seconds(
    drafter: Any, device: torch.device, counts: list[int], context: int, budget: float
) -> tuple[float, float]:
    """Median seconds of one draft, for the smallest and the largest batch."""
    config = drafter.config
    width = len(config.target_layer_ids) * config.target_hidden_size
    calls = []
    for rows in counts:
        features_RSD = torch.randn(rows, context, width, device=device, dtype=drafter.dtype)
        anchors_R = torch.zeros(rows, dtype=torch.int64, device=device)
        cache = DynamicCache()
        drafter.draft_block(anchors_R, features_RSD, cache=cache)
        calls.append(_draft(drafter, cache, anchors_R, features_RSD[:, :NEW_CONTEXT]))
    samples = _timed(calls, device, budget)
    return median(samples[0]), median(samples[-1])


def _draft(
    drafter: Any, cache: DynamicCache, anchors_R: torch.Tensor, features_RSD: torch.Tensor
) -> Callable[[], None]:
    def call() -> None:
        drafter.draft_block(anchors_R, features_RSD, cache=cache)
        cache.crop(-features_RSD.shape[1])

    return call


def _overhead_seconds(target: Any, drafter: Any, curve: CostCurve, budget: float) -> float:
    """How much longer a drafted round takes in the decode loop than a plain one, beyond T(B) and the draft measured alone."""
    tokens = min(int(budget / (3 * (curve.seconds[0] + curve.draft_seconds))), MAX_TOKENS)
    if tokens < MIN_TOKENS:
        return 0.0  # the target is so slow that the host's share is lost in it
    ids = torch.randint(target.config.get_text_config().vocab_size, (1, 16), device=target.device)
    # A draft that seems to take an hour: after its first round the row decodes plainly, but for rare probes.
    never_pays = CostCurve(tokens=[1], seconds=[1.0], draft_seconds=3600.0)
    policy, kept, rounds = dict(drafter.policy), drafter.cost_curve, {}
    try:
        for name, own in (("full", curve), ("auto", never_pays)):
            drafter.set_policy(name)
            drafter.cost_curve = own
            for count in (2, tokens):  # the first call warms up
                settings = {
                    "max_new_tokens": count,
                    "do_sample": False,
                    "temperature": None,
                    "top_p": None,
                    "top_k": None,
                }
                target.generate(ids, attention_mask=torch.ones_like(ids), assistant_model=drafter, **settings)
            rounds[name] = drafter.last_generation
    finally:
        drafter.set_policy(**policy)
        drafter.cost_curve = kept
    host = {name: stats.host_seconds / max(stats.target_forwards, 1) for name, stats in rounds.items()}
    draft = rounds["full"].draft_seconds / max(rounds["full"].target_forwards, 1)
    return max(draft - curve.draft_seconds + host["full"] - host["auto"], 0.0)


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


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

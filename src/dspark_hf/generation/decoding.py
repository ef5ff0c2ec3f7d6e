"""One whole call: checks it, decodes all rows together or one after another, and leaves the statistics on the drafter.

Calls on one drafter take turns, so two threads never mix. Knows nothing of how `generate` was reached.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import DynamicCache
from transformers.utils import logging

from .checks import check_pair, check_request
from .layouts import rows_together
from .loop import DecodeLoop
from .outputs import Collector
from .processors import ScorePlan
from .request import GenerationRequest
from .stats import GenerationStats
from .stopping import StopRule
from .target import SingleRow, Target


logger = logging.get_logger(__name__)

_locks: weakref.WeakKeyDictionary[Any, threading.RLock] = weakref.WeakKeyDictionary()
_locks_guard = threading.Lock()


def lock_of(drafter: Any) -> threading.RLock:
    """The lock that makes calls on one drafter take turns; kept outside the module so that it stays copyable."""
    with _locks_guard:
        return _locks.setdefault(drafter, threading.RLock())


def decode(request: GenerationRequest, plain: Callable[[], Any]) -> Any:
    """
    Runs a call with the drafter.

    Args:
        request: the call.
        plain: the same call without the drafter, for what drafting cannot do exactly.

    Raises:
        ValueError: before any token, for combinations that have no meaning or no exact implementation.
    """
    check_pair(request.target, request.drafter)
    check_request(request)
    batch = len(request.input_ids_BL)
    plan = ScorePlan(list(request.processors), batch)
    stats = GenerationStats(num_rows=batch)
    request.drafter.last_generation = stats
    started = time.perf_counter()
    if batch > 1 and plan.unknown:
        names = ", ".join(sorted({type(processor).__name__ for processor in plan.unknown}))
        reason = f"{names} may keep state for the whole batch, so {batch} rows are decoded without drafting"
        logger.warning_once(f"{reason}; declare pure processors with dspark_hf.generation.register_stateless")
        stats.bypasses.append(reason)
        output = plain()
        sequences = output if isinstance(output, torch.Tensor) else output.sequences
        stats.new_tokens = batch * (sequences.shape[1] - request.input_ids_BL.shape[1])
    else:
        output = _decode_rows(request, plan, stats)
    stats.total_seconds = time.perf_counter() - started
    return output


def _decode_rows(request: GenerationRequest, plan: ScorePlan, stats: GenerationStats) -> Any:
    rule = StopRule(request.criteria)
    request.eos_ids = rule.eos_ids
    collector = Collector(request)
    parts: dict[str, Any] = {"rule": rule, "plan": plan, "collector": collector, "stats": stats}
    batch = len(request.input_ids_BL)
    text = request.target.config.get_text_config()
    together = rows_together(request, list(range(batch))) if batch > 1 else None
    cache = request.cache if batch == 1 else None
    groups: list[tuple[list[int], Callable[[], Target]]]
    if batch == 1:
        groups = [([0], lambda: SingleRow(request, [0], request.cache))]
    elif together is not None:
        groups = [(list(range(batch)), lambda: together)]
    else:
        groups = [([row], partial(SingleRow, request, [row], DynamicCache(config=text))) for row in range(batch)]
    for origins, build in groups:
        loop = DecodeLoop(request, target := build(), origins, **parts)
        try:
            loop.run()
        finally:
            target.close()
    stats.new_tokens = sum(len(row.tokens) for row in collector.rows)
    return collector.result(cache)

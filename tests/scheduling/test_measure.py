"""Measuring: every size a scheduler can choose, the median of repeats, and a cache that comes back as it was."""

import pytest
import torch

from dspark_hf.dev.tiny import tiny_drafter, tiny_target
from dspark_hf.scheduling import CostCurve, measure


class Clock:
    """A clock that only target forwards move: 1 s for each token of the forward, 10 s for the very slow third repeat."""

    def __init__(self):
        self.now = 0.0
        self.calls = 0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(measure.time, "perf_counter", clock)
    return clock


@pytest.fixture
def target(clock):
    target = tiny_target("qwen3")

    def advance(module, args, kwargs):
        clock.calls += 1
        clock.now += kwargs["input_ids"].numel() + (50.0 if clock.calls % 11 == 0 else 0.0)

    target.register_forward_pre_hook(advance, with_kwargs=True)
    return target


def test_every_size_is_measured_and_outliers_do_not_count(target):
    curve = CostCurve.measure(target, context=8, rows=3, num_slots=3, budget_seconds=1e6)
    assert curve.tokens == [1, 2, 3, 4, 6, 8, 9, 12]
    assert curve.seconds == [float(size) for size in curve.tokens]
    assert curve.row_seconds == {rows: [float(rows * width) for width in (1, 2, 3, 4)] for rows in (1, 2, 3)}
    assert curve.draft_seconds == 0.0
    assert curve.context == 8


def test_two_depths_are_measured(target):
    curve = CostCurve.measure(target, context=4, deep_context=16, num_slots=2, budget_seconds=1e6)
    assert (curve.context, curve.deep_context) == (4, 16)
    assert curve.deep_seconds == curve.seconds


@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
def test_a_real_model_and_its_drafter_are_timed(family):
    target = tiny_target(family)
    drafter = tiny_drafter(target)
    curve = CostCurve.measure(target, drafter, context=24, rows=2, budget_seconds=0.1)
    assert curve.tokens[0] == 1
    assert curve.tokens[-1] == 2 * (1 + drafter.config.num_slots)
    assert 0 < curve.draft_seconds < 5
    assert curve.meta["dtype"] == "float32"


def test_the_hosts_share_of_a_drafted_round_is_part_of_its_price():
    target = tiny_target()
    drafter = tiny_drafter(target)
    drafter.set_policy("threshold", threshold=0.7)
    drafter.cost_curve = before = CostCurve(tokens=[1], seconds=[1.0])
    free_draft = CostCurve(tokens=[1, 6], seconds=[0.01, 0.01])
    assert 0 < measure._overhead_seconds(target, drafter, free_draft, budget=2.0) < 1
    assert drafter.policy == {"name": "threshold", "threshold": 0.7}
    assert drafter.cost_curve is before


def test_a_target_too_slow_to_decode_in_time_has_no_measured_host_share():
    slow = CostCurve(tokens=[1], seconds=[10.0])
    assert measure._overhead_seconds(None, None, slow, budget=2.0) == 0.0


def test_the_cache_is_as_deep_after_a_timed_call_as_before():
    target = tiny_target("gemma3")  # a sliding window of 16
    cache = measure.DynamicCache(config=target.config)
    cache.activate_past_recording()
    target(input_ids=torch.ones(1, 24, dtype=torch.int64), cache=cache, use_cache=True)
    measure._forward(target, cache, torch.ones(1, 3, dtype=torch.int64))()
    assert cache.get_seq_length() == 24


def test_no_rows_or_no_context_raises(target):
    with pytest.raises(ValueError, match="rows and context"):
        CostCurve.measure(target, context=0)

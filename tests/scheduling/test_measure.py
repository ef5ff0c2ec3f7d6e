"""Measuring: every size a scheduler can choose, the median of repeats, and a cache that comes back as it was."""

import pytest
import torch

from dspark_hf.dev.tiny import tiny_drafter, tiny_target
from dspark_hf.generation import decoding
from dspark_hf.generation.verification import Verifier
from dspark_hf.scheduling import CostCurve, measure


class Clock:
    """A clock that only target forwards move: 1 s for each token of the forward, 50 s more for one forward in 11."""

    def __init__(self):
        self.now = 0.0
        self.calls = 0
        self.slow_every = 11

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
        clock.now += kwargs["input_ids"].numel() + (50.0 if clock.calls % clock.slow_every == 0 else 0.0)

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
    drafter.set_policy("threshold", threshold=0.7)
    drafter.cost_curve = before = CostCurve(tokens=[1], seconds=[1.0])
    curve = CostCurve.measure(target, drafter, context=24, rows=2, budget_seconds=0.1)
    assert curve.tokens[0] == 1
    assert curve.tokens[-1] == 2 * (1 + drafter.config.num_slots)
    assert 0 <= curve.draft_seconds < 5
    assert curve.meta["dtype"] == "float32"
    assert drafter.policy == {"name": "threshold", "threshold": 0.7}
    assert drafter.cost_curve is before


def add_cost(drafter, clock, *, first: float, more: float) -> None:
    """A draft takes `first` seconds, and `more` for each row but the first."""

    def advance(module, arguments, kwargs):
        clock.now += first + more * (len(arguments[0]) - 1)

    drafter.register_forward_pre_hook(advance, with_kwargs=True)


def test_with_a_drafter_whole_rounds_are_timed(target, clock, monkeypatch):
    """The host's work grows with rows and width, and a draft is what it adds to a plain round."""
    clock.slow_every = 10**9
    drafter = tiny_drafter(target)
    add_cost(drafter, clock, first=7.0, more=2.0)
    judge = Verifier.judge

    def slow_judge(self, logits, rows, draft, lengths):
        clock.now += 0.25 * len(rows) * (1 + max(lengths))
        return judge(self, logits, rows, draft, lengths)

    monkeypatch.setattr(Verifier, "judge", slow_judge)
    curve = CostCurve.measure(target, drafter, context=8, rows=4, num_slots=3, budget_seconds=1e-3)
    assert curve.row_seconds == {rows: [1.25 * rows * width for width in (1, 2, 3, 4)] for rows in (1, 2, 4)}
    assert (curve.draft_seconds, curve.draft_row_seconds) == (7.0, 2.0)


def test_two_depths_of_whole_rounds_are_timed(target, clock):
    clock.slow_every = 10**9
    drafter = tiny_drafter(target)
    curve = CostCurve.measure(target, drafter, context=4, deep_context=16, num_slots=2, budget_seconds=1e-3)
    assert curve.deep_seconds == curve.seconds == [1.0, 2.0, 3.0]


def test_a_target_that_decodes_its_rows_one_by_one_has_a_curve_of_one_row(target, clock, monkeypatch):
    monkeypatch.setattr(decoding, "rows_together", lambda request, origins: None)
    drafter = tiny_drafter(target)
    curve = CostCurve.measure(target, drafter, context=8, rows=2, num_slots=2, budget_seconds=1e-3)
    assert list(curve.row_seconds) == [1]


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


def test_on_an_accelerator_a_draft_costs_what_it_adds_to_a_narrow_round():
    """Its own clock stops when the work is queued."""
    queued = 1e-4
    rounds = [
        measure.Round(rows, width, draft, seconds)
        for rows, plain, added in [(1, 5.0, 2.0), (3, 6.0, 4.0)]
        for width, draft, seconds in [(1, None, plain), (1, queued, plain + added), (2, queued, plain + added + 1)]
    ]
    assert measure._draft_seconds(rounds, on_cpu=False) == (2.0, 1.0)
    assert measure._draft_seconds(rounds, on_cpu=True) == (queued, 0.0)
    assert measure._without_draft(rounds, 2.0, 1.0) == {(1, 1): [5.0], (1, 2): [6.0], (3, 1): [6.0], (3, 2): [7.0]}

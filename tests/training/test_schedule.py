"""Learning rate: never above the peak, down after it, zero warm-up allowed, and by the clock if asked."""

import pytest

from dspark_hf.training import schedule
from dspark_hf.training.schedule import StepCosine, TimeCosine, warmup_steps


@pytest.mark.parametrize("warmup", [0, 1, 5, 20])
def test_the_rate_never_passes_its_peak_and_falls_to_the_floor(warmup):
    factors = [StepCosine(50, warmup, 0.1)(step) for step in range(51)]
    assert max(factors) == pytest.approx(1.0)
    assert all(factor <= 1.0 for factor in factors)
    assert all(0 < one < two for one, two in zip(factors[:warmup], factors[1:warmup], strict=False))
    assert all(one >= two for one, two in zip(factors[warmup:], factors[warmup + 1 :], strict=False))
    assert factors[-1] == pytest.approx(0.1)


def test_warm_up_has_a_minimum_and_never_takes_more_than_half():
    assert warmup_steps(1000, fraction=0.04, minimum=20) == 40
    assert warmup_steps(100, fraction=0.04, minimum=20) == 20
    assert warmup_steps(10, fraction=0.04, minimum=20) == 5
    assert warmup_steps(10, fraction=0.0, minimum=0) == 0


def test_a_run_by_the_clock_counts_its_own_time_and_goes_on_with_the_rest(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(schedule.time, "monotonic", lambda: now[0])
    cosine = TimeCosine(seconds=100, warmup=2)
    factors = []
    for step in range(12):
        factors.append(cosine(step))
        now[0] += 10
    assert factors[0] == 0.5
    assert factors[1] == pytest.approx(cosine.__class__(100, 0)(0) * 0.97553, abs=1e-3)
    assert factors == [factors[0], *sorted(factors[1:], reverse=True)]
    assert factors[-1] == 0.0
    resumed = TimeCosine(seconds=100, warmup=2)
    resumed.__dict__.update(spent=50.0, last=9999.0)
    resumed.pause()
    now[0] = 7.0
    assert resumed.tick() == 0.5
    now[0] += 25
    assert resumed.tick() == 0.75

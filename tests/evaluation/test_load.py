"""Load curves: every policy at every load, on real batched decoding."""

import pytest

from dspark_hf.evaluation.load import measure_load
from dspark_hf.scheduling import CostCurve


PROMPTS = [[5, 9, 14, 3], [7, 7], [20, 4, 11]]


def test_every_policy_is_measured_at_every_load(target, drafter):
    drafter.cost_curve = CostCurve(tokens=[1, 12], seconds=[1.0, 1.2], draft_seconds=0.1)
    points = measure_load(target, drafter, PROMPTS, rows=(1, 4), max_new_tokens=12, repeats=2, progress=False)
    assert [(point.rows, point.policy) for point in points] == [
        (rows, policy) for rows in (1, 4) for policy in ("plain", "full", "threshold", "auto")
    ]
    for point in points:
        assert len(point.samples) == 2
        assert point.tokens_per_second_per_user == point.tokens_per_second / point.rows
    plain, full = points[0], points[1]
    assert plain.verified_length is None
    assert 4 < full.verified_length <= 5
    assert full.accepted_length > 1
    assert drafter.policy == {"name": "full"}


def test_a_steep_curve_makes_auto_verify_less_than_full(target, drafter):
    drafter.cost_curve = CostCurve(tokens=[1, 12], seconds=[1.0, 12.0], draft_seconds=0.5)
    full, auto = measure_load(
        target, drafter, PROMPTS, rows=(2,), policies=("full", "auto"), max_new_tokens=30, repeats=1, progress=False
    )
    assert auto.verified_length < full.verified_length / 2
    assert auto.bypassed > 0.3
    assert full.bypassed == 0


def test_a_fixed_length_is_a_policy_too(target, drafter):
    options = {"max_new_tokens": 12, "repeats": 1, "progress": False}
    [point] = measure_load(target, drafter, PROMPTS, rows=(1,), policies=({"name": "full", "tokens": 2},), **options)
    assert point.policy == "full:2"
    assert 1 < point.verified_length <= 2


def test_sampling_loads_run_too(target, drafter):
    [point] = measure_load(
        target,
        drafter,
        PROMPTS,
        rows=(2,),
        policies=("full",),
        temperature=1.0,
        max_new_tokens=8,
        repeats=1,
        progress=False,
    )
    assert point.tokens_per_second > 0


@pytest.mark.parametrize(("prompts", "rows"), [([], (1,)), (PROMPTS, (0,))])
def test_impossible_loads_raise(target, drafter, prompts, rows):
    with pytest.raises(ValueError, match="prompts and rows >= 1"):
        measure_load(target, drafter, prompts, rows=rows)

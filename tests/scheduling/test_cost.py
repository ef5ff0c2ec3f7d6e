"""What a cost curve says between, beyond and at the points that were measured."""

import pytest
import torch

from dspark_hf.scheduling import CostCurve


def test_measured_points_are_kept_exactly_staircase_and_all():
    curve = CostCurve(tokens=[1, 2, 3, 4, 8], seconds=[0.096, 0.191, 0.262, 0.162, 0.155])
    assert [curve.seconds_at(size) for size in curve.tokens] == curve.seconds


def test_between_points_it_is_linear_and_beyond_it_follows_the_last_slope():
    curve = CostCurve(tokens=[2, 4, 8], seconds=[1.0, 2.0, 4.0])
    assert curve.seconds_at(3) == 1.5
    assert curve.seconds_at(10) == 5.0
    assert curve.seconds_at(1) == 1.0
    assert curve.seconds_at(0) == 0.0


def test_beyond_a_falling_last_step_it_stays_level():
    assert CostCurve(tokens=[1, 2], seconds=[2.0, 1.0]).seconds_at(50) == 1.0
    assert CostCurve(tokens=[4], seconds=[2.0]).seconds_at(50) == 2.0


def test_depth_of_context_is_a_linear_term():
    curve = CostCurve(tokens=[1, 2], seconds=[1.0, 1.5], context=100, deep_context=300, deep_seconds=[2.0, 3.5])
    assert curve.seconds_at(2) == 1.5
    assert curve.seconds_at(2, context=200) == 2.5
    assert curve.seconds_at(1, context=500) == 3.0


def test_a_deep_measurement_below_the_shallow_one_changes_nothing():
    curve = CostCurve(tokens=[1], seconds=[1.0], context=100, deep_context=300, deep_seconds=[0.9])
    assert curve.seconds_at(1, context=100_000) == 1.0


def test_drafting_costs_by_rows():
    curve = CostCurve(tokens=[1], seconds=[1.0], draft_seconds=0.3, draft_row_seconds=0.05)
    assert curve.draft_seconds_at(0) == 0.0
    assert curve.draft_seconds_at(3) == pytest.approx(0.4)


def test_the_table_holds_the_same_numbers_and_grows_on_demand():
    curve = CostCurve(tokens=[1, 3, 9], seconds=[1.0, 0.5, 2.0])
    assert curve.table(4).tolist() == [curve.seconds_at(size) for size in range(5)]
    assert curve.table(200).tolist() == [curve.seconds_at(size) for size in range(201)]
    assert curve.table(4).dtype == torch.float64


SHAPES = CostCurve(
    tokens=[1, 2, 4, 8],
    seconds=[1.0, 1.1, 2.0, 3.0],
    row_seconds={1: [1.0, 1.1, 1.2, 1.3], 4: [2.0, 2.4, 3.2, 3.0]},
    context=100,
    deep_context=200,
    deep_seconds=[2.0, 2.1, 3.0, 4.0],
)


@pytest.mark.parametrize(
    ("rows", "tokens", "seconds"),
    [
        (None, 4, 2.0),  # by size alone
        (1, 4, 1.3),
        (4, 4, 2.0),  # the same size, four rows of one token
        (4, 10, 2.8),  # two and a half tokens a row
        (2, 4, 1.1 + (2.4 - 1.1) / 3),  # between two row counts
        (8, 8, 4.0),  # twice the largest
        (1, 6, 1.5),  # along the last slope
        (4, 24, 3.0),  # which never falls
    ],
)
def test_rows_have_a_price_of_their_own(rows, tokens, seconds):
    assert SHAPES.seconds_at(tokens, rows=rows) == pytest.approx(seconds)
    assert SHAPES.table(tokens, rows=rows)[tokens].item() == pytest.approx(seconds)


def test_depth_costs_the_same_whatever_the_rows():
    assert SHAPES.seconds_at(4, context=150, rows=4) == pytest.approx(2.5)


def test_row_counts_read_from_json_are_numbers_again():
    curve = CostCurve(tokens=[1], seconds=[1.0], row_seconds={"2": [1, 2]})
    assert curve.row_seconds == {2: [1.0, 2.0]}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tokens": [], "seconds": []}, "at least one"),
        ({"tokens": [1, 2], "seconds": [1.0]}, "as many seconds as tokens"),
        ({"tokens": [2, 1], "seconds": [1.0, 1.0]}, "strictly ascending"),
        ({"tokens": [0], "seconds": [1.0]}, ">= 1"),
        ({"tokens": [1], "seconds": [0.0]}, "positive"),
        ({"tokens": [1], "seconds": [float("nan")]}, "positive"),
        ({"tokens": [1], "seconds": [1.0], "draft_seconds": -1.0}, "draft_seconds"),
        ({"tokens": [1], "seconds": [1.0], "deep_context": 9}, "come together"),
        ({"tokens": [1], "seconds": [1.0], "row_seconds": {0: [1.0]}}, "rows >= 1"),
        ({"tokens": [1], "seconds": [1.0], "row_seconds": {2: [0.0]}}, "positive"),
        ({"tokens": [1], "seconds": [1.0], "context": 9, "deep_context": 9, "deep_seconds": [1.0]}, "depth above 9"),
    ],
)
def test_impossible_curves_raise(fields, message):
    with pytest.raises(ValueError, match=message):
        CostCurve(**fields)


def test_a_negative_size_raises():
    with pytest.raises(ValueError, match="tokens must be >= 0"):
        CostCurve(tokens=[1], seconds=[1.0]).seconds_at(-1)

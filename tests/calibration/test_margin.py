"""The logistic on the top-2 margin, and its comparison with the head."""

import numpy as np
import pytest

from dspark_hf.calibration import Calibration, MarginModel, compare_predictors, fit_margin
from dspark_hf.calibration.margin import LARGEST_MARGIN
from dspark_hf.calibration.reliability import sigmoid


def test_slope_and_intercept_are_found():
    rng = np.random.default_rng(0)
    margins = rng.gamma(2.0, 1.5, (20_000, 2))
    stood = rng.random((20_000, 2)) < sigmoid(margins * [0.8, 1.5] + [-1.0, -2.0])
    fitted = fit_margin(margins, stood)
    assert fitted.slopes == pytest.approx([0.8, 1.5], rel=0.1)
    assert fitted.intercepts == pytest.approx([-1.0, -2.0], rel=0.1)


def test_separable_rounds_stay_finite():
    margins = np.repeat([[0.0], [9.0]], 100, axis=0)
    fitted = fit_margin(margins, margins > 1)
    assert np.isfinite(fitted.slopes).all()
    assert fitted.confidence_logits([[9.0]])[0, 0] > 3


def test_a_slot_that_few_rounds_reach_repeats_the_one_before():
    rng = np.random.default_rng(0)
    margins = rng.random((300, 2))
    stood = np.stack([rng.random(300) < 0.1, np.ones(300, dtype=bool)], axis=1)
    fitted = fit_margin(margins, stood)
    assert fitted.slopes[1] == fitted.slopes[0]


def test_the_better_predictor_wins_on_held_out_rounds(make_records):
    records = make_records([1.0, 1.0, 1.0])
    comparison = compare_predictors(fit_margin(records.margins, records.accepted), Calibration([1.0] * 3), records)
    assert comparison["head"]["auroc"] > comparison["margin"]["auroc"] > 0.5
    assert comparison["head"]["brier"] < comparison["margin"]["brier"]
    assert len(comparison["head"]["auroc_by_slot"]) == 3


def test_margins_feed_a_policy_as_logits():
    assert MarginModel([2.0, 1.0], [0.0, -1.0]).confidence_logits([[1.0, 3.0]]).tolist() == [[2.0, 2.0]]


def test_an_infinite_margin_counts_as_a_large_one():
    rng = np.random.default_rng(0)
    margins = rng.gamma(2.0, 1.5, (500, 1))
    margins[::10] = np.inf
    fitted = fit_margin(margins, rng.random((500, 1)) < sigmoid(np.minimum(margins, 30.0) - 2.0))
    assert np.isfinite([fitted.slopes, fitted.intercepts]).all()
    assert fitted.confidence_logits([[np.inf]]) == fitted.confidence_logits([[LARGEST_MARGIN]])


def test_margins_of_another_shape_raise():
    with pytest.raises(ValueError, match="margins and accepted"):
        fit_margin(np.zeros((3, 2)), np.zeros((3, 4)))

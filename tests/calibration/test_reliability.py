"""Calibration figures against hand computations and known cases."""

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from dspark_hf.calibration.reliability import (
    auroc,
    brier_score,
    expected_calibration_error,
    reliability_by_slot,
    reliability_curve,
    survival_from_logits,
)


def test_error_by_hand():
    predicted, observed = [0.11, 0.13, 0.92, 0.94], [0, 1, 1, 1]
    # bins 2 and 18 of twenty: |0.12 - 0.5| and |0.93 - 1|, half of the rounds each
    assert expected_calibration_error(predicted, observed) == pytest.approx(0.5 * 0.38 + 0.5 * 0.07)


def test_certain_predictions_fall_into_the_last_bin():
    assert expected_calibration_error([1.0, 1.0], [1, 1]) == 0.0
    assert reliability_curve([1.0, 0.0], [1, 0])[[0, -1], 2].tolist() == [1.0, 1.0]


def test_perfectly_calibrated_rounds_have_nearly_no_error():
    rng = np.random.default_rng(0)
    predicted = rng.random(200_000)
    assert expected_calibration_error(predicted, rng.random(200_000) < predicted) < 0.005


def test_auroc_counts_ties_half_and_agrees_with_mann_whitney():
    rng = np.random.default_rng(1)
    observed = rng.random(500) < 0.4
    predicted = np.round(rng.random(500) + 0.3 * observed, 1)
    statistic = mannwhitneyu(predicted[observed], predicted[~observed]).statistic
    assert auroc(predicted, observed) == pytest.approx(statistic / (observed.sum() * (~observed).sum()))
    assert auroc([0.5, 0.5], [0, 1]) == 0.5


def test_figures_without_rounds_or_with_one_outcome_are_not_a_number():
    assert np.isnan(auroc([0.1, 0.2], [1, 1]))
    assert np.isnan(expected_calibration_error([], []))
    assert np.isnan(brier_score([], []))


def test_survival_is_the_product_of_calibrated_confidences():
    survival = survival_from_logits([[0.0, 2.0]], temperatures=[1.0, 2.0], biases=[0.0, 1.0])
    assert survival[0].tolist() == pytest.approx([0.5, 0.5 / (1 + np.exp(-2.0))])


def test_each_slot_reports_survival_counts_and_its_curve():
    logits = np.log([[3.0, 1.0], [3.0, 1.0], [1 / 3, 1.0], [1 / 3, 1.0]])
    accepted = [[True, True], [True, False], [True, False], [False, True]]
    first, second = reliability_by_slot(logits, accepted)
    assert (first.records, first.reached, second.records, second.reached) == (4, 4, 4, 3)
    assert first.observed == 0.75
    assert second.observed == 0.25  # what follows a rejection does not count
    assert first.predicted == pytest.approx(0.5)
    assert second.predicted == pytest.approx(0.25)
    assert sum(count for _, _, count in first.curve) == 4
    # three accepted against one rejected: two rank above it, one ties
    assert first.auroc == pytest.approx(2.5 / 3)


def test_no_rounds_give_a_report_without_numbers():
    report = reliability_by_slot(np.zeros((0, 3)), np.zeros((0, 3)))
    assert [slot.ece for slot in report] == [None] * 3
    assert [slot.records for slot in report] == [0] * 3

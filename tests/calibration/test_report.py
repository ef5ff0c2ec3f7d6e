"""The report of a fit, judged on held-out prompts."""

import json

import numpy as np
import pytest

from dspark_hf.calibration import RolloutRecords, calibrate, fit_margin, threshold_sweep
from dspark_hf.calibration.reliability import reliability_by_slot, sigmoid
from dspark_hf.calibration.report import conditional_acceptance, fit_survival_margin


def test_a_report_has_every_figure_of_every_slot_and_is_json(make_records):
    result = calibrate(make_records([3.0, 0.5, 2.0]))
    assert result.calibration.regime == "temperature=1"
    assert len(result.calibration.temperatures) == 3
    assert [slot["slot"] for slot in result.report["slots"]] == [1, 2, 3]
    for slot in result.report["slots"]:
        assert slot["ece_after"] < slot["ece_before"]
        assert slot["auroc"] >= 0.7
        assert slot["overlap"] == pytest.approx(0.6, abs=0.25)
    assert result.report["held_out_rounds"] + result.report["fitted_rounds"] == 6000
    json.dumps(result.report)


def test_greedy_records_have_no_overlap(make_records):
    records = make_records([1.0, 1.0], rounds=500)
    records.overlap[:] = np.nan
    assert [slot["overlap"] for slot in calibrate(records).report["slots"]] == [None, None]


def test_sweep_goes_from_the_whole_block_to_plain_decoding(make_records):
    records = make_records([1.0, 1.0, 1.0])
    sweep = threshold_sweep(records)
    assert sweep[0]["threshold"] == 0.0
    assert sweep[0]["verified"] == 3.0
    assert sweep[0]["tokens_per_round"] == pytest.approx(1 + records.accepted_count.mean())
    assert sweep[-1]["threshold"] == 1.0
    assert sweep[-1]["tokens_per_round"] == pytest.approx(1.0, abs=0.01)
    rates = [point["acceptance_rate"] for point in sweep]
    assert rates[15] > rates[0]
    for point in sweep:
        assert point["accepted"] + point["rejected"] == pytest.approx(point["verified"])


def test_conditional_acceptance_by_hand():
    assert conditional_acceptance([0, 1, 2, 2], 3) == [0.75, pytest.approx(2 / 3), 0.0]
    assert conditional_acceptance([0, 0], 3) == [0.0, None, None]


def test_the_margin_feeds_the_scheduler_where_it_is_asked_for_or_better(make_records):
    records = make_records([1.0, 1.0, 1.0])
    by_head, by_margin, by_best = (calibrate(records, survival=name) for name in ("confidence", "margin", "best"))
    assert by_head.calibration.margin is None
    assert by_head.report["survival"] == by_best.report["survival"] == "confidence"
    assert by_margin.report["survival"] == "margin"
    assert by_margin.calibration.margin is not None
    for slot in by_margin.report["slots"]:
        assert slot["temperature"] is None
        assert slot["ece_after"] < 0.1  # no logistic in the absolute value of a logit is exact
    # a head that knows nothing
    records.confidence_logits[:] = np.random.default_rng(7).normal(0, 1, records.confidence_logits.shape)
    assert calibrate(records, survival="best").report["survival"] == "margin"


def test_the_margin_holds_for_the_product_although_slots_rise_and_fall_together():
    # every slot of a round is as hard as the round, and a margin shows that only roughly
    rng = np.random.default_rng(0)
    ease_N1 = rng.normal(0.5, 2.0, (12_000, 1))
    margins = np.maximum(ease_N1 + rng.normal(0, 1.5, (12_000, 4)), 0.0)
    stood = np.logical_and.accumulate(rng.random((12_000, 4)) < sigmoid(ease_N1), axis=1)
    records = RolloutRecords(
        regime="temperature=0",
        prompt=np.arange(12_000) % 40,
        confidence_logits=np.zeros((12_000, 4), dtype=np.float32),
        tokens=np.zeros((12_000, 4), dtype=np.int64),
        accepted_count=stood.sum(1),
        margins=margins.astype(np.float32),
        overlap=np.ones((12_000, 4), dtype=np.float32),
    )
    fitting, judging = records.split()
    errors = []
    for model in (fit_margin(fitting.margins, fitting.accepted), fit_survival_margin(fitting)):
        slots = reliability_by_slot(model.confidence_logits(judging.margins), judging.accepted)
        errors.append([slot.ece for slot in slots])
    alone, together = np.array(errors)
    assert alone[1:].mean() > 0.05
    assert together[1:].mean() < 0.8 * alone[1:].mean()


def test_a_slot_with_too_few_rounds_is_told_once(make_records, monkeypatch):
    told = []
    monkeypatch.setattr("dspark_hf.calibration.temperature.logger.warning", told.append)
    calibrate(make_records([1.0, 0.05, 1.0], rounds=300, biases=[0.0, -1e3, 0.0]), survival="best")
    assert len(told) == len(set(told)) > 0


def test_a_drafter_without_a_head_is_calibrated_by_the_margin_alone(make_records):
    records = make_records([1.0, 1.0], rounds=2000)
    records.confidence_logits[:] = np.nan
    with pytest.raises(ValueError, match="does the drafter have a confidence head"):
        calibrate(records)
    for survival in ("margin", "best"):
        result = calibrate(records, survival=survival)
        assert result.calibration.to_dict().keys() >= {"temperatures", "margin_slopes", "margin_intercepts"}
        assert set(result.report["predictors"]) == {"margin"}
        assert [slot["ece_before"] for slot in result.report["slots"]] == [None, None]
        json.dumps(result.report, allow_nan=False)


def test_an_unknown_source_of_survival_is_refused(make_records):
    with pytest.raises(ValueError, match="'confidence', 'margin', 'best', got 'head'"):
        calibrate(make_records([1.0], rounds=200), survival="head")


def test_expected_survival_is_what_happened_to_drafts_of_different_promise(make_records):
    records = make_records([1.0, 1.0, 1.0])
    result = calibrate(records)
    groups = np.array(result.calibration.expected_survival)
    assert groups.shape == (5, 3)
    assert (np.diff(groups[:, 0]) > 0).all()
    assert (np.diff(groups, axis=1) <= 0).all()
    assert groups.mean(axis=0) == pytest.approx(records.accepted.mean(axis=0), abs=1e-3)
    assert result.calibration.to_dict()["expected_survival"] == groups.tolist()

"""Sequential temperature scaling finds known temperatures, and keeps 1 where the data cannot say."""

import logging
import math

import numpy as np
import pytest
import torch

from dspark_hf.calibration import fit_calibration, fit_temperatures, reliability_by_slot


@pytest.fixture
def warnings(caplog):
    logger = logging.getLogger("dspark_hf.calibration.temperature")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


def errors(records, temperatures=None, biases=None) -> list[float]:
    return [
        slot.ece for slot in reliability_by_slot(records.confidence_logits, records.accepted, temperatures, biases)
    ]


def test_known_temperatures_are_found(make_records):
    records = make_records([2.5, 0.6, 1.7], rounds=20_000)
    temperatures = fit_temperatures(records.confidence_logits, records.accepted)
    assert temperatures == pytest.approx([2.5, 0.6, 1.7], rel=0.2)


def test_held_out_error_falls_to_two_percent_in_every_slot(make_records):
    fitting, judging = make_records([3.0, 2.0, 0.5, 1.0], rounds=30_000).split()
    temperatures = fit_temperatures(fitting.confidence_logits, fitting.accepted)
    assert max(errors(judging)) > 0.05
    assert max(errors(judging, temperatures)) <= 0.02


def test_the_order_within_a_slot_is_kept(make_records):
    records = make_records([3.0, 0.5])
    fitted = fit_calibration(records.confidence_logits, records.accepted, bias="always")
    before = reliability_by_slot(records.confidence_logits, records.accepted)[0].auroc
    after = reliability_by_slot(records.confidence_logits, records.accepted, fitted.temperatures, fitted.biases)[
        0
    ].auroc
    assert before == after
    assert min(fitted.temperatures) > 0


def test_tensors_of_any_float_type_are_taken(make_records):
    records = make_records([2.0, 2.0], rounds=1000)
    logits, accepted = torch.from_numpy(records.confidence_logits), torch.from_numpy(records.accepted)
    assert fit_temperatures(logits, accepted) == fit_temperatures(records.confidence_logits, records.accepted)
    assert len(fit_temperatures(logits.bfloat16(), accepted)) == 2


def test_verdicts_behind_the_first_rejection_are_ignored(make_records):
    records = make_records([2.0, 0.7, 1.5], rounds=2000)
    noise = np.random.default_rng(1).random(records.accepted.shape) < 0.5
    behind = np.arange(3) > records.accepted_count[:, None]
    noisy = np.where(behind, noise, records.accepted)
    assert fit_temperatures(records.confidence_logits, noisy) == fit_temperatures(
        records.confidence_logits, records.accepted
    )


def test_a_slot_that_few_rounds_reach_keeps_one_and_says_so(warnings):
    # a deep slot with one record, and one that nothing ever reached
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(400, 3))
    accepted = np.zeros((400, 3), dtype=bool)
    accepted[:200, 0] = rng.random(200) < 0.999
    accepted[0, 1] = accepted[0, 0] = True
    temperatures = fit_temperatures(logits, accepted)
    assert temperatures[2] == 1.0
    assert all(math.isfinite(value) for value in temperatures)
    assert "slot 3 keeps temperature 1: 1 rounds reached it" in warnings.text


@pytest.mark.parametrize("outcome", [True, False])
def test_a_slot_with_one_outcome_only_keeps_one(warnings, outcome):
    temperatures = fit_temperatures(np.random.default_rng(0).normal(size=(500, 2)), np.full((500, 2), outcome))
    assert temperatures == [1.0, 1.0]
    assert "slot 1 keeps temperature 1" in warnings.text


def test_an_empty_set_keeps_ones():
    assert fit_temperatures(np.zeros((0, 7)), np.zeros((0, 7), dtype=bool)) == [1.0] * 7


def test_every_slot_of_the_block_gets_a_temperature(make_records):
    records = make_records([1.5] * 7, rounds=3000)
    assert len(fit_temperatures(records.confidence_logits, records.accepted)) == 7


@pytest.mark.parametrize(
    ("logits", "accepted", "message"),
    [
        (np.zeros((4, 2)), np.zeros((4, 3)), r"\[4, 2\] and \[4, 3\]"),
        (np.zeros(4), np.zeros(4), "rounds, slots"),
        (np.full((4, 2), np.nan), np.zeros((4, 2)), "must be finite"),
    ],
)
def test_impossible_input_raises(logits, accepted, message):
    with pytest.raises(ValueError, match=message):
        fit_temperatures(logits, accepted)


def test_a_bias_is_fitted_where_the_data_ask_for_it(make_records):
    # under-confident everywhere, as a head trained on the overlap at temperature 1 is under greedy decoding
    fitting, judging = make_records([1.5, 1.5, 1.5], rounds=8000, biases=[2.0, 1.5, 1.0]).split()
    fitted = fit_calibration(fitting.confidence_logits, fitting.accepted, regime="temperature=0")
    assert fitted.biases is not None
    assert fitted.regime == "temperature=0"
    assert fitted.biases == pytest.approx([2.0, 1.5, 1.0], abs=0.4)
    alone = fit_temperatures(fitting.confidence_logits, fitting.accepted)
    assert np.mean(errors(judging, fitted.temperatures, fitted.biases)) < np.mean(errors(judging, alone)) - 0.005


def test_no_bias_is_fitted_where_a_temperature_is_enough(make_records):
    records = make_records([2.0, 1.5])
    assert fit_calibration(records.confidence_logits, records.accepted).biases is None
    assert fit_calibration(records.confidence_logits[:30], records.accepted[:30], bias="auto").biases is None


def test_an_unknown_bias_setting_raises():
    with pytest.raises(ValueError, match="bias must be"):
        fit_calibration(np.zeros((1, 1)), np.zeros((1, 1)), bias="yes")

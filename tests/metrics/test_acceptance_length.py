"""Accepted length as an `evaluate` module, loaded by path and without a network."""

import evaluate
import pytest

from dspark_hf.metrics import METRICS, metric_path


@pytest.fixture(scope="module")
def metric():
    return evaluate.load(metric_path("acceptance_length"))


def test_a_round_that_the_end_cuts_counts_what_was_emitted_and_stays_out_of_the_mean(metric):
    # every draft is right; an end token lies in slot 3 of the second block of 5
    result = metric.compute(predictions=[6, 3], references=[5, 5], cut=[False, True])
    assert result["tokens"] == 9
    assert result["acceptance_length"] == 6.0
    assert (result["rounds"], result["cut_rounds"]) == (1, 1)
    assert result["acceptance_rate"] == 1.0


def test_the_bonus_token_is_included(metric):
    result = metric.compute(predictions=[1, 1, 1], references=[4, 4, 0])
    assert result["acceptance_length"] == 1.0
    assert result["acceptance_rate"] == 0.0


def test_only_cut_rounds_give_no_length(metric):
    result = metric.compute(predictions=[2], references=[5], cut=[True])
    assert (result["acceptance_length"], result["tokens"], result["rounds"]) == (0.0, 2, 0)


@pytest.mark.parametrize("committed", [0, 7])
def test_impossible_rounds_raise(metric, committed):
    with pytest.raises(ValueError, match="round 0 commits"):
        metric.compute(predictions=[committed], references=[5])


def test_flags_of_another_length_raise(metric):
    with pytest.raises(ValueError, match="one flag per round"):
        metric.compute(predictions=[1, 1], references=[5, 5], cut=[True])


def test_unknown_metrics_are_named():
    assert set(METRICS) == {"acceptance_length", "prefix_calibration"}
    with pytest.raises(ValueError, match="unknown metric 'bleu'"):
        metric_path("bleu")

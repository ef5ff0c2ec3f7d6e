"""Averages, shares per slot and intervals, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from dspark_hf.evaluation.aggregate import ratio_with_interval, summarise
from dspark_hf.evaluation.conversations import TurnRecord
from dspark_hf.evaluation.results import SuiteResult


def turn(*rounds, prompt_tokens=10, seconds=1.0, plain_seconds=None, difference=None) -> TurnRecord:
    new_tokens = sum(accepted + 1 for _, _, accepted, _ in rounds)
    plain_tokens = new_tokens if plain_seconds else None
    listed = [list(entry) for entry in rounds]
    return TurnRecord(prompt_tokens, new_tokens, seconds, plain_tokens, plain_seconds, listed, difference)


def summary(*prompts, temperature=0.0) -> SuiteResult:
    return summarise(SuiteResult("s", "math", temperature), prompts)


def test_both_averages_of_the_accepted_length():
    result = summary([turn((3, 3, 3, 0))], [turn((3, 3, 0, 0), (3, 3, 1, 0), (3, 3, 0, 0))])
    assert result.accepted_length == pytest.approx((4 + 1 + 2 + 1) / 4)
    assert result.accepted_length_by_request == pytest.approx((4 + 4 / 3) / 2)


def test_rounds_that_the_end_cut_count_in_no_average():
    result = summary([turn((3, 3, 2, 0), (3, 3, 0, 1))])
    assert (result.accepted_length, result.rounds, result.cut_rounds) == (3.0, 1, 1)


def test_acceptance_by_slot_is_conditional_and_knows_what_was_verified():
    result = summary([turn((3, 3, 3, 0), (3, 3, 1, 0), (3, 1, 1, 0), (3, 0, 0, 0))])
    assert result.trials_by_slot == [3, 2, 1]
    assert result.acceptance_by_slot == [1.0, 0.5, 1.0]
    assert result.cumulative_acceptance_by_slot == [1.0, 0.5, 0.5]


def test_a_slot_that_was_never_reached_has_no_share():
    result = summary([turn((3, 3, 0, 0))])
    assert result.acceptance_by_slot == [0.0, None, None]
    assert result.cumulative_acceptance_by_slot == [0.0, None, None]


def test_speed_is_a_ratio_of_sums_over_paired_runs():
    result = summary(
        [turn((3, 3, 3, 0), seconds=1.0, plain_seconds=2.0)], [turn((3, 3, 0, 0), seconds=1.0, plain_seconds=0.5)]
    )
    assert result.tokens_per_second == pytest.approx(5 / 2)
    assert result.plain_tokens_per_second == pytest.approx(5 / 2.5)
    assert result.speedup == pytest.approx((5 / 2) / (5 / 2.5))
    assert result.speedup_interval[0] <= result.speedup <= result.speedup_interval[1]


def test_differing_texts_are_counted_by_kind_and_only_under_greedy_decoding():
    apart = [None, {"position": 3, "gap": 0.01, "near_tie": True}, {"position": 0, "gap": 5.0, "near_tie": False}]
    prompts = [[turn((1, 1, 1, 0), plain_seconds=1.0, difference=entry)] for entry in apart]
    result = summary(*prompts)
    assert (result.compared, result.identical, result.near_ties, result.mismatches) == (3, 1, 1, 1)
    assert summary(*prompts, temperature=1.0).compared == 0


def test_context_buckets_appear_when_prompts_fall_into_several():
    result = summary([turn((1, 1, 1, 0), prompt_tokens=100)], [turn((1, 1, 0, 0), prompt_tokens=5000)])
    assert [(row["from"], row["to"], row["accepted_length"]) for row in result.by_context] == [
        (0, 1024, 2.0),
        (4096, 8192, 1.0),
    ]
    assert summary([turn((1, 1, 1, 0))]).by_context == []


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    generator = np.random.default_rng(3)
    covered = 0
    for _ in range(200):
        rounds = generator.integers(5, 20, size=30)
        committed = rounds * (2.5 + 0.5 * generator.standard_normal(30))
        _, (low, high) = ratio_with_interval(list(zip(committed, rounds, strict=True)))
        covered += low <= 2.5 <= high
    assert 175 <= covered <= 199


def test_one_prompt_has_no_spread_and_no_round_no_ratio():
    assert ratio_with_interval([(3.0, 2.0)]) == (1.5, None)
    assert ratio_with_interval([(0.0, 0.0)]) == (None, None)

"""What calibration lets expect of a new row, in tokens and at a machine's prices."""

import pytest

from dspark_hf.scheduling.expectation import LEAST_ACCEPTANCE, conditional_rates, expected_gain, mean_survival


FLAT, STEEP = [0.0, 1.0, 1.0, 1.0], [0.0, 1.0, 2.0, 3.0]
ALL = [0, 1, 2]


def test_mean_and_conditional_rates_by_hand():
    assert mean_survival([[0.8, 0.6], [0.4, 0.0]]) == pytest.approx([0.6, 0.3])
    assert mean_survival([]) == []
    assert conditional_rates([0.6, 0.3]) == pytest.approx([0.6, 0.5])
    assert conditional_rates([0.0, 0.0]) == [LEAST_ACCEPTANCE] * 2


def test_where_verification_is_free_all_that_stands_is_gained_less_the_draft():
    assert expected_gain([[0.8, 0.6]], FLAT, 0.5, ALL) == pytest.approx(1.4 - 0.5)
    assert expected_gain([[0.1, 0.0]], FLAT, 0.5, ALL) == pytest.approx(0.1 - 0.5)


def test_where_each_token_costs_its_worth_only_the_draft_is_lost():
    assert expected_gain([[0.9, 0.8]], STEEP, 0.1, ALL) == pytest.approx(-0.1)


def test_a_few_good_rounds_pay_for_the_drafts_of_many_poor_ones():
    prices = [0.0, 1.0, 1.5, 1.6]
    groups = [[0.02, 0.0]] * 4 + [[1.0, 1.0]]
    assert expected_gain([mean_survival(groups)], prices, 0.05, ALL) < 0
    assert expected_gain(groups, prices, 0.05, ALL) == pytest.approx((1.4 - 5 * 0.05) / 5)

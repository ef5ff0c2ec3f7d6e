"""The time a batch still takes, against a literal simulation round by round."""

import random

import pytest

from dspark_hf.scheduling.forecast import seconds_left, seconds_saved_by_drafting


PLAIN = [0.0, 1.0, 1.1, 1.2, 1.3]
DRAFTED = [0.0, 1.5, 1.8, 2.1, 2.4]


def simulated(rounds: list[int], round_seconds: list[float]) -> float:
    seconds, left = 0.0, list(rounds)
    while left := [count for count in left if count > 0]:
        seconds += round_seconds[len(left)]
        left = [count - 1 for count in left]
    return seconds


def test_whole_rounds_take_what_a_literal_loop_takes():
    rng = random.Random(0)
    prices = [0.0, *(rng.uniform(1, 3) for _ in range(8))]
    for _ in range(200):
        rounds = [rng.randint(0, 12) for _ in range(rng.randint(1, 8))]
        assert seconds_left(rounds, prices) == pytest.approx(simulated(rounds, prices))


def test_rows_that_end_together_pay_for_all_of_them():
    assert seconds_left([10.0] * 4, PLAIN) == pytest.approx(13.0)
    assert seconds_left([], PLAIN) == 0.0


def test_a_batch_in_which_all_rows_gain_alike_drafts_where_a_round_pays():
    # 2.4 / 1.3 = 1.85 tokens a round are the break-even
    assert seconds_saved_by_drafting([60.0] * 4, [2.0] * 4, PLAIN, DRAFTED) == pytest.approx(78 - 72)
    assert seconds_saved_by_drafting([60.0] * 4, [1.6] * 4, PLAIN, DRAFTED) == pytest.approx(78 - 90)


def test_one_row_left_behind_can_cost_more_than_the_others_save():
    gaining = seconds_saved_by_drafting([60.0] * 4, [3.0, 3.0, 3.0, 2.0], PLAIN, DRAFTED)
    waiting = seconds_saved_by_drafting([60.0] * 4, [3.0, 3.0, 3.0, 1.0], PLAIN, DRAFTED)
    assert waiting < 0 < gaining
    # 20 drafted rounds of four rows and 40 plain ones of the last, against 60 plain ones of four
    assert waiting == pytest.approx(60 * 1.3 - (20 * 2.4 + 40 * 1.0))


def test_drafting_may_pay_only_when_few_rows_are_left():
    dear = [0.0, 1.5, 3.0, 4.5, 6.0]
    late = seconds_saved_by_drafting([100.0, 10.0, 10.0, 10.0], [2.0] * 4, PLAIN, dear)
    # plainly until the three have left: 10 rounds of four rows and 45 drafted ones of the last
    assert late == pytest.approx((10 * 1.3 + 45 * 1.5) - (5 * 6.0 + 45 * 1.5))
    assert late < 0


def test_the_last_row_may_be_better_off_without_drafts():
    dear_alone = [0.0, 4.0, 4.0, 4.0, 4.0]
    plain = [0.0, 1.0, 2.0, 3.0, 4.0]
    saved = seconds_saved_by_drafting([40.0] * 4, [4.0, 4.0, 4.0, 1.0], plain, dear_alone)
    # ten drafted rounds, then 30 plain ones of one row; plain: 40 of four rows
    assert saved == pytest.approx(40 * 4.0 - (10 * 4.0 + 30 * 1.0))


def test_tokens_of_one_row_are_a_matter_of_price_alone():
    for remaining in (1.0, 7.0, 500.0):
        assert seconds_saved_by_drafting([remaining], [1.6], PLAIN, DRAFTED) > 0
        assert seconds_saved_by_drafting([remaining], [1.4], PLAIN, DRAFTED) < 0

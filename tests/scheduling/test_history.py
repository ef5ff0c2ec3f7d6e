"""What past rounds say about the acceptance of each slot."""

import pytest

from dspark_hf.scheduling.history import PRIOR_ACCEPTANCE, AcceptanceHistory, survival_of


def test_a_row_never_seen_is_believed_in():
    assert AcceptanceHistory(3).rates() == pytest.approx([PRIOR_ACCEPTANCE] * 3)


def test_slots_after_the_first_rejection_say_nothing():
    history = AcceptanceHistory(4)
    history.record(verified=4, accepted=1)
    assert history.tried == [1.0, 1.0, 0.0, 0.0]
    assert history.accepted == [1.0, 0.0, 0.0, 0.0]


def test_slots_that_were_not_verified_say_nothing():
    history = AcceptanceHistory(4)
    history.record(verified=2, accepted=2)
    assert history.tried == [1.0, 1.0, 0.0, 0.0]


def test_failure_at_the_first_slot_lowers_the_belief_in_all_others():
    history = AcceptanceHistory(4)
    for _ in range(6):
        history.record(verified=4, accepted=0)
    assert max(history.rates()) < 0.25


def test_many_rounds_find_the_rate_of_each_slot_and_old_ones_fade():
    history = AcceptanceHistory(2)
    for round_index in range(200):
        history.record(verified=2, accepted=(0, 1, 2, 2)[round_index % 4])
    assert history.rates() == pytest.approx([0.75, 0.67], abs=0.1)
    for _ in range(60):
        history.record(verified=2, accepted=0)
    assert history.rates()[0] < 0.1


def test_survival_is_the_running_product():
    assert survival_of([0.5, 0.5, 0.0]) == [0.5, 0.25, 0.0]


def test_a_row_starts_from_what_calibration_saw_and_carries_surprises_to_later_slots():
    history = AcceptanceHistory(3, prior=[0.8, 0.4, 0.2])
    assert history.rates() == pytest.approx([0.8, 0.4, 0.2])
    for _ in range(20):
        history.record(3, 0)
    faded = (1 - 0.95**20) / 0.05  # rounds that still count
    assert history.rates()[0] == pytest.approx(0.8 * 4.0 / (4.0 + faded))
    assert history.rates()[2] == pytest.approx(0.2 * history.rates()[0] / 0.8)
    lucky = AcceptanceHistory(2, prior=[0.1, 0.9])
    for _ in range(20):
        lucky.record(1, 1)
    assert lucky.rates()[1] == 1.0


def test_an_assumption_is_dropped_sooner_than_what_calibration_saw():
    assumed, seen = AcceptanceHistory(3), AcceptanceHistory(3, prior=[0.8] * 3)
    for history in (assumed, seen):
        history.record(3, 0)
    assert assumed.rates()[0] == pytest.approx(0.8 * 1.5 / 2.5)
    assert seen.rates()[0] == pytest.approx(0.8 * 4.0 / 5.0)

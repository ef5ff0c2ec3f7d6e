"""A row stops drafting when its own rounds lose, and looks again at growing intervals."""

import pytest

from dspark_hf.scheduling.bypass import CEILING, CREDIT, DEBT, FIRST_PROBE, LAST_PROBE, Account


def rounds_drafted(state: Account, gain: float, rounds: int) -> list[int]:
    """Indices of the rounds that drafted, if each drafted round gained `gain` tokens."""
    drafted = []
    for index in range(rounds):
        if state.drafts:
            drafted.append(index)
            state.record(gain)
        else:
            state.wait()
    return drafted


def waits_of(drafted: list[int]) -> list[int]:
    return [later - earlier - 1 for earlier, later in zip(drafted, drafted[1:], strict=False) if later - earlier > 1]


def test_a_new_row_drafts():
    assert Account().drafts


@pytest.mark.parametrize("loss", [0.1, 0.4, 1.0, 1.5])
def test_a_useless_drafter_costs_three_percent_of_256_tokens_at_most(loss):
    # A drafted round still gives one token, so 256 plain or failed rounds are 256 tokens.
    assert len(rounds_drafted(Account(), -loss, 256)) * loss <= 0.03 * 256


def test_probes_become_ever_rarer():
    waits = waits_of(rounds_drafted(Account(), -0.3, 2000))
    assert waits[0] == FIRST_PROBE
    assert waits == sorted(waits)
    assert waits[-1] == LAST_PROBE


def test_a_costly_probe_waits_longer():
    assert waits_of(rounds_drafted(Account(), -3.0, 400))[0] == 60


def test_a_good_drafter_is_never_dropped():
    assert len(rounds_drafted(Account(), 0.4, 100)) == 100


def test_one_bad_block_does_not_drop_a_new_row():
    state = Account()
    state.record(-1.0)
    assert not state.loses


def test_however_long_the_good_stretch_hard_text_is_noticed_soon():
    state = Account()
    rounds_drafted(state, 3.0, 500)
    assert state.tokens == CEILING
    assert len(rounds_drafted(state, -1.0, 30)) <= CEILING + 2


def test_however_long_the_bad_stretch_good_probes_bring_the_row_back():
    state = Account()
    rounds_drafted(state, -1.0, 2000)
    assert state.tokens == -DEBT
    while not state.drafts:
        state.wait()
    assert len(rounds_drafted(state, 1.0, 20)) >= 18
    assert CREDIT < CEILING


def test_the_same_gains_give_the_same_decisions():
    runs = [rounds_drafted(Account(), -0.1, 200) for _ in range(2)]
    assert runs[0] == runs[1]


def test_a_row_that_is_expected_to_gain_may_lose_more_before_it_stops():
    assert Account.expecting(0.0) == Account()
    stops = [len(rounds_drafted(Account.expecting(gain), -0.5, 60)) for gain in (0.0, 0.5, 1.5, 100.0)]
    assert stops == sorted(stops)
    assert stops[0] < stops[1] < stops[2]
    assert Account.expecting(100.0).tokens == CEILING


@pytest.mark.parametrize(("loss", "first_wait"), [(0.05, 2 * FIRST_PROBE), (0.8, 32), (50.0, LAST_PROBE)])
def test_a_row_that_is_expected_to_lose_starts_plainly_and_looks_later(loss, first_wait):
    assert rounds_drafted(Account.expecting(-loss), -loss, 300)[:1] == [first_wait]


@pytest.mark.parametrize("loss", [0.05, 0.4, 0.8, 1.5])
def test_an_expected_loss_costs_one_token_in_40_at_most(loss):
    assert len(rounds_drafted(Account.expecting(-loss), -loss, 64)) * loss <= 0.025 * 64


def test_a_row_better_than_expected_drafts_after_a_few_good_probes():
    state = Account.expecting(-0.8)
    assert len(rounds_drafted(state, 0.5, 100)) >= 100 - 32 - 2

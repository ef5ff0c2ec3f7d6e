"""A row stops drafting when its own rounds lose, and looks again at growing intervals."""

import pytest

from dspark_hf.scheduling.bypass import CEILING, CREDIT, DEBT, FIRST_PROBE, LAST_PROBE, BypassState


def rounds_drafted(state: BypassState, gain: float, rounds: int) -> list[int]:
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
    assert BypassState().drafts


@pytest.mark.parametrize("loss", [0.1, 0.4, 1.0, 1.5])
def test_a_useless_drafter_costs_three_percent_of_256_tokens_at_most(loss):
    # A drafted round still gives one token, so 256 plain or failed rounds are 256 tokens.
    assert len(rounds_drafted(BypassState(), -loss, 256)) * loss <= 0.03 * 256


def test_probes_become_ever_rarer():
    waits = waits_of(rounds_drafted(BypassState(), -0.3, 2000))
    assert waits[0] == FIRST_PROBE
    assert waits == sorted(waits)
    assert waits[-1] == LAST_PROBE


def test_a_costly_probe_waits_longer():
    assert waits_of(rounds_drafted(BypassState(), -3.0, 400))[0] == 60


def test_a_good_drafter_is_never_dropped():
    assert len(rounds_drafted(BypassState(), 0.4, 100)) == 100


def test_one_bad_block_does_not_drop_a_new_row():
    state = BypassState()
    state.record(-1.0)
    assert not state.loses


def test_however_long_the_good_stretch_hard_text_is_noticed_soon():
    state = BypassState()
    rounds_drafted(state, 3.0, 500)
    assert state.account == CEILING
    assert len(rounds_drafted(state, -1.0, 30)) <= CEILING + 2


def test_however_long_the_bad_stretch_good_probes_bring_the_row_back():
    state = BypassState()
    rounds_drafted(state, -1.0, 2000)
    assert state.account == -DEBT
    while not state.drafts:
        state.wait()
    assert len(rounds_drafted(state, 1.0, 20)) >= 18
    assert CREDIT < CEILING


def test_the_same_gains_give_the_same_decisions():
    runs = [rounds_drafted(BypassState(), -0.1, 200) for _ in range(2)]
    assert runs[0] == runs[1]


def test_a_row_that_is_expected_to_gain_starts_as_one_of_which_nothing_is_known():
    assert BypassState.expecting(0.0) == BypassState.expecting(0.7) == BypassState()


@pytest.mark.parametrize(("loss", "first_wait"), [(0.05, 2 * FIRST_PROBE), (0.8, 32), (50.0, LAST_PROBE)])
def test_a_row_that_is_expected_to_lose_starts_plainly_and_looks_later(loss, first_wait):
    assert rounds_drafted(BypassState.expecting(-loss), -loss, 300)[:1] == [first_wait]


@pytest.mark.parametrize("loss", [0.05, 0.4, 0.8, 1.5])
def test_an_expected_loss_costs_one_token_in_40_at_most(loss):
    assert len(rounds_drafted(BypassState.expecting(-loss), -loss, 64)) * loss <= 0.025 * 64


def test_a_row_better_than_expected_drafts_after_a_few_good_probes():
    state = BypassState.expecting(-0.8)
    assert len(rounds_drafted(state, 0.5, 100)) >= 100 - 32 - 2

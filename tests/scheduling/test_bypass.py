"""A row stops drafting when its own rounds lose, and looks again at growing intervals."""

from dspark_hf.scheduling.bypass import FIRST_PROBE, LAST_PROBE, BypassState


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


def test_a_new_row_drafts():
    assert BypassState().drafts


def test_a_useless_drafter_is_dropped_within_four_rounds_and_probed_ever_more_rarely():
    drafted = rounds_drafted(BypassState(), gain=-0.6, rounds=1000)
    assert len([index for index in drafted if index < 8]) <= 4
    waits = [later - earlier for earlier, later in zip(drafted, drafted[1:], strict=False) if later - earlier > 1]
    assert waits[0] == FIRST_PROBE + 1
    assert waits == sorted(waits)
    assert waits[-1] == LAST_PROBE + 1


def test_a_good_drafter_is_never_dropped():
    assert len(rounds_drafted(BypassState(), gain=0.4, rounds=100)) == 100


def test_a_probe_that_gains_is_followed_by_another_and_the_row_comes_back():
    state = BypassState()
    rounds_drafted(state, gain=-0.6, rounds=60)
    while not state.drafts:
        state.wait()
    drafted = rounds_drafted(state, gain=2.0, rounds=20)
    assert len(drafted) >= 18


def test_the_same_gains_give_the_same_decisions():
    runs = [rounds_drafted(BypassState(), gain=-0.1, rounds=200) for _ in range(2)]
    assert runs[0] == runs[1]

"""The policy object of a decode loop: calibration, memory of rows, bypass and the cost of a decision."""

import random
import time

import pytest
import torch

from dspark_hf.scheduling import CostCurve, DecodingPolicy, schedule


JAGGED = CostCurve(tokens=[1, 2, 3, 4, 8], seconds=[0.096, 0.191, 0.262, 0.162, 0.155], draft_seconds=0.005)
SLOTS = 4


def make(name: str = "auto", curve: CostCurve | None = JAGGED, **settings) -> DecodingPolicy:
    knobs = {key: settings.pop(key) for key in ("threshold", "tiers", "bypass") if key in settings}
    return DecodingPolicy({"name": name, **knobs}, curve, num_slots=SLOTS, **{"sampling": False, **settings})


def logits_of(confidences: list[list[float]]) -> torch.Tensor:
    return torch.logit(torch.tensor(confidences))


def drafted_share(policy: DecodingPolicy, accept: float, rounds: int = 200, rows: int = 1) -> float:
    """Share of row-rounds that drafted, when each verified slot stands with chance `accept`."""
    rng, ids, total = random.Random(0), list(range(rows)), 0
    for _ in range(rounds):
        drafts = policy.should_draft(ids)
        drafting = [row for row, flag in zip(ids, drafts, strict=True) if flag]
        lengths = dict.fromkeys(ids, 0)
        if drafting:
            chosen = policy(torch.zeros(len(drafting), SLOTS), drafting, plain_rows=rows - len(drafting))
            lengths.update(zip(drafting, chosen.tolist(), strict=True))
        stood = {
            row: next((k for k in range(length) if rng.random() > accept), length) for row, length in lengths.items()
        }
        policy.observe(
            ids,
            [SLOTS if flag else 0 for flag in drafts],
            [lengths[row] for row in ids],
            [stood[row] for row in ids],
        )
        total += len(drafting)
    return total / (rounds * rows)


@pytest.mark.parametrize("name", ["full", "threshold", "early_stop", "lookahead", "optimal", "auto"])
def test_one_row_on_floats_decides_as_many_rows_on_tensors(name):
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        logits = 3 * torch.randn(1, SLOTS, generator=generator)
        policy = make(name)
        [[batched]] = [policy._schedule(policy._survival(logits, ["a"]), ["a"], 0, None).tolist()]
        assert policy(logits, ["a"]).tolist() == [policy.length_of_one(logits[0].tolist(), "a")] == [batched]


def test_temperatures_and_biases_are_applied_to_the_raw_logits():
    raw = torch.full((1, SLOTS), 2.0)  # confidence 0.88
    assert make("threshold", threshold=0.7)(raw, [0]).tolist() == [4]
    assert make("threshold", threshold=0.7, temperatures=[1.0, 1.0, 4.0, 1.0])(raw, [0]).tolist() == [2]
    assert make("threshold", threshold=0.7, biases=[0.0, -3.0, 0.0, 0.0])(raw, [0]).tolist() == [1]


def test_calibration_of_another_number_of_slots_is_refused():
    with pytest.raises(ValueError, match="one value for each of the 4 slots, got 3"):
        make(temperatures=[1.0] * 3)
    with pytest.raises(ValueError, match="positive"):
        make(temperatures=[1.0, 0.0, 1.0, 1.0])


def test_logits_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"must be \[2, 4\]"):
        make()(torch.zeros(2, 3), [0, 1])


def test_optimal_is_refused_under_sampling():
    with pytest.raises(ValueError, match="biases sampled text"):
        make("optimal", sampling=True)


@pytest.mark.parametrize("name", ["auto", "lookahead", "lagged_topk"])
def test_without_a_curve_everything_is_drafted_and_verified(name):
    policy = make(name, curve=None)
    assert policy.should_draft([0, 1]) == [True, True]
    assert policy(torch.full((2, SLOTS), -9.0), [0, 1]).tolist() == [4, 4]


def test_without_a_confidence_head_history_stands_in():
    policy = make("lookahead", curve=CostCurve(tokens=[1, 10], seconds=[1.0, 2.5]))
    assert policy(None, [0]).tolist() == [4]
    for _ in range(8):
        policy.observe([0], [4], [4], [0])
    assert policy(None, [0]).tolist() == [0]
    assert policy(None, [0, 1]).tolist() == [0, 4]


def test_rows_keep_their_own_history():
    policy = make("lookahead")
    for _ in range(8):
        policy.observe(["bad", "good"], [4, 4], [4, 4], [0, 4])
    same = logits_of([[0.4, 0.5, 0.5, 0.5]])
    assert policy(same, ["bad"]).tolist() == [0]
    assert policy(same, ["good"]).tolist() == [4]


def test_a_forgotten_row_starts_fresh():
    policy = make()
    for _ in range(6):
        policy.observe([0], [4], [4], [0])
    assert policy.should_draft([0]) == [False]
    policy.forget(0)
    assert policy.should_draft([0]) == [True]


def test_lagged_topk_uses_the_round_before_the_previous_one():
    policy = make(
        "lagged_topk",
        curve=CostCurve(tokens=list(range(1, 11)), seconds=[1.0] * 4 + [9.0 * step for step in range(1, 7)]),
    )
    certain, doubtful = [0.99] * SLOTS, [0.01] * SLOTS
    assert policy(logits_of([certain, doubtful]), [0, 1]).tolist() == [4, 4]  # new rows
    assert policy(logits_of([doubtful, certain]), [0, 1]).tolist() == [4, 4]
    assert policy(logits_of([doubtful, certain]), [0, 1]).tolist() == [0, 2]  # two tokens fit, to today's best
    assert policy(logits_of([certain, doubtful]), [1, 2]).tolist() == [0, 4]  # row 2 is new


@pytest.mark.parametrize("layout", ["ragged", "padded"])
def test_a_useless_drafter_is_bypassed_and_a_good_one_is_not(layout):
    assert drafted_share(make(layout=layout), accept=0.0) < 0.08
    assert drafted_share(make(layout=layout), accept=0.9) == 1.0
    four_rows = CostCurve(tokens=[1, 4, 8, 20], seconds=[0.10, 0.12, 0.15, 0.20], draft_seconds=0.02)
    assert drafted_share(make(curve=four_rows, layout=layout), accept=0.0, rows=4) < 0.1
    assert drafted_share(make(curve=four_rows, layout=layout), accept=0.9, rows=4) == 1.0


def test_padded_rows_draft_together_or_not_at_all():
    four_rows = CostCurve(tokens=[1, 4, 8, 20], seconds=[0.10, 0.12, 0.15, 0.20], draft_seconds=0.02)
    policy = make(curve=four_rows, layout="padded")
    for _ in range(20):
        policy.observe([0, 1, 2, 3], [4] * 4, [4] * 4, [4, 4, 2, 2])  # half of the rows pay for all
    assert policy.should_draft([0, 1, 2, 3]) == [True] * 4
    for _ in range(28):
        policy.observe([0, 1, 2, 3], [4] * 4, [4] * 4, [1, 0, 0, 0])
    assert policy.should_draft([0, 1, 2, 3]) == [False] * 4


@pytest.mark.parametrize(("one_row", "drafts"), [(0.11, False), (0.01, True)])
def test_a_batch_is_as_slow_as_its_slowest_row_where_rows_share_what_a_forward_costs(one_row, drafts):
    """Three rows accept everything and one nothing: that one makes as many rounds as without drafts."""
    curve = CostCurve(tokens=[1, 4, 20], seconds=[one_row, 0.12, 0.16], draft_seconds=0.02)
    policy = make(curve=curve, layout="padded")
    for _ in range(40):
        policy.observe([0, 1, 2, 3], [4] * 4, [4] * 4, [4, 4, 4, 0])
    assert policy.should_draft([0, 1, 2, 3], remaining=[100] * 4) == [drafts] * 4


def test_a_slow_row_that_is_nearly_done_is_not_waited_for():
    curve = CostCurve(tokens=[1, 4, 20], seconds=[0.11, 0.12, 0.16], draft_seconds=0.02)
    for remaining, drafts in ([100, 100, 100, 100], False), ([100, 100, 100, 10], True):
        policy = make(curve=curve, layout="padded")
        for _ in range(40):
            policy.observe([0, 1, 2, 3], [4] * 4, [4] * 4, [4, 4, 4, 0])
        assert policy.should_draft([0, 1, 2, 3], remaining=remaining) == [drafts] * 4


def test_rows_that_fall_behind_by_turns_count_alike():
    curve = CostCurve(tokens=[1, 4, 20], seconds=[0.11, 0.12, 0.16], draft_seconds=0.02)
    policy = make(curve=curve, layout="padded")
    for round_number in range(40):
        policy.observe([0, 1, 2, 3], [4] * 4, [4] * 4, [0 if row == round_number % 4 else 4 for row in range(4)])
    assert policy.should_draft([0, 1, 2, 3], remaining=[100] * 4) == [True] * 4


@pytest.mark.parametrize(("rows", "rounds"), [(1, 0), (4, 0), (8, 1), (16, 3), (64, 3)])
def test_a_large_padded_batch_keeps_its_length_for_a_few_rounds(rows, rounds):
    curve = CostCurve(tokens=[1, rows * 5], seconds=[0.1, 0.11])
    policy, ids = make(curve=curve, layout="padded"), list(range(rows))
    assert policy.held(rows) is None
    chosen = policy(logits_of([[0.9] * SLOTS] * rows), ids).tolist()
    assert [policy.held(rows) for _ in range(rounds + 1)] == chosen[:1] * rounds + [None]


@pytest.mark.parametrize("name", ["early_stop", "lookahead", "optimal"])
def test_a_policy_asked_for_by_name_decides_every_round(name):
    curve = CostCurve(tokens=[1, 80], seconds=[0.1, 0.11])
    policy = make(name, curve=curve, layout="padded")
    policy(logits_of([[0.9] * SLOTS] * 16), list(range(16)))
    assert policy.held(16) is None


def test_a_length_is_not_kept_for_other_rows_or_while_drafting_loses():
    curve = CostCurve(tokens=[1, 80], seconds=[0.1, 0.11], draft_seconds=0.05)
    policy, ids = make(curve=curve, layout="padded"), list(range(16))
    policy(logits_of([[0.9] * SLOTS] * 16), ids)
    assert policy.held(15) is None
    for _ in range(20):
        policy.observe(ids, [4] * 16, [4] * 16, [0] * 16)
    assert policy.should_draft(ids) == [False] * 16
    assert policy.held(16) is None


def test_a_batch_drafts_again_as_soon_as_so_many_rows_have_left_that_it_pays():
    # two rows cost as much as one, each row more as much as the first
    curve = CostCurve(
        tokens=[1, 10],
        seconds=[0.1, 1.0],
        draft_seconds=0.05,
        row_seconds={1: [0.1] * 5, 2: [0.1, 0.11, 0.11, 0.11, 0.11], 8: [0.4, 1.2, 2.0, 2.8, 3.6]},
    )
    policy, ids = make(curve=curve, layout="padded"), list(range(8))
    for _ in range(30):
        policy.observe(ids, [4] * 8, [4] * 8, [1] * 8)
    assert policy.should_draft(ids, remaining=[100] * 8) == [False] * 8
    assert policy.should_draft(ids[:2], remaining=[100] * 2) == [True] * 2


def test_only_auto_bypasses_and_only_if_allowed():
    for policy in (make("lookahead"), make("full"), make(bypass=False)):
        for _ in range(8):
            policy.observe([0], [4], [4], [0])
        assert policy.should_draft([0]) == [True]


def test_a_probe_verifies_something_whatever_the_head_says():
    policy = make(curve=CostCurve(tokens=[1, 2, 3, 4, 5], seconds=[1.0, 2.0, 2.7, 1.7, 3.0]))
    hopeless = torch.full((1, SLOTS), -20.0)
    while policy.should_draft([0]) == [True]:
        policy.observe([0], [4], [4], [0])
    assert policy(hopeless, [0]).tolist() == [0]
    while policy.should_draft([0]) == [False]:
        policy.observe([0], [0], [0], [0])
    assert policy(hopeless, [0]).tolist() == [3]  # T(4) is the cheapest forward that verifies anything
    assert policy(hopeless, [0], plain_rows=1) >= 1


def test_a_new_row_starts_from_what_calibration_expects_of_it():
    curve = CostCurve(tokens=[1, 5], seconds=[1.0, 1.2], draft_seconds=0.5)
    assert make(curve=curve, expected_survival=[[0.08, 0.01, 0.0, 0.0]]).should_draft(["new"]) == [False]
    assert make(curve=curve, expected_survival=[[0.7, 0.5, 0.3, 0.2]]).should_draft(["new"]) == [True]
    assert make(curve=curve).should_draft(["new"]) == [True]
    # 40 rows fill this machine, one does not
    loaded = CostCurve(tokens=[1, 40, 200], seconds=[1.0, 1.1, 9.0], draft_seconds=0.1)
    for layout in ("ragged", "padded"):
        busy = make(curve=loaded, expected_survival=[[0.7, 0.5, 0.3, 0.2]], layout=layout)
        assert busy.should_draft(list(range(40))) == [False] * 40
        assert make(curve=loaded, expected_survival=[[0.7, 0.5, 0.3, 0.2]], layout=layout).should_draft([0]) == [True]


def test_only_auto_asks_what_is_expected():
    curve = CostCurve(tokens=[1, 5], seconds=[1.0, 1.2], draft_seconds=0.5)
    hopeless = [[0.08, 0.01, 0.0, 0.0]]
    assert make("lookahead", curve=curve, expected_survival=hopeless).should_draft([0]) == [True]
    assert make(curve=curve, expected_survival=hopeless, bypass=False).should_draft([0]) == [True]


def test_a_calibrated_probe_verifies_what_its_confidences_are_worth():
    policy = make(expected_survival=[[0.08, 0.01, 0.0, 0.0]])
    while policy.should_draft([0]) == [False]:
        policy.observe([0], [0], [0], [0])
    assert policy(torch.full((1, SLOTS), -20.0), [0]).tolist() == [0]
    assert policy(torch.full((1, SLOTS), 20.0), [0]).tolist() == [4]


def test_drafting_that_never_verifies_is_bypassed_too():
    policy = make(curve=CostCurve(tokens=[1, 5], seconds=[1.0, 5.0], draft_seconds=0.3))
    drafted = 0
    for _ in range(100):
        drafts = policy.should_draft([0])[0]
        length = policy.length_of_one([-20.0] * SLOTS, 0) if drafts else 0
        policy.observe([0], [SLOTS if drafts else 0], [length], [0])
        drafted += drafts
    assert drafted < 15


def test_rows_that_did_not_draft_take_room_but_no_slots():
    curve = CostCurve(tokens=list(range(1, 8)), seconds=[1.0, 1.0, 1.0, 9.0, 9.0, 9.0, 9.0])
    good = logits_of([[0.9] * SLOTS])
    assert make("early_stop", curve=curve)(good, [0]).tolist() == [2]
    assert make("early_stop", curve=curve)(good, [0], plain_rows=1).tolist() == [1]


def test_tiers_hold_in_the_loop():
    policy = make("full", tiers=[2])
    assert policy(torch.zeros(3, SLOTS), [0, 1, 2]).tolist() == [2, 2, 2]
    assert policy(torch.zeros(1, SLOTS), [0]).tolist() == [2]


def test_batched_decisions_equal_the_pure_function():
    logits = torch.randn(5, SLOTS, generator=torch.Generator().manual_seed(1))
    expected = schedule(torch.sigmoid(logits).cumprod(1), JAGGED, "early_stop")
    assert torch.equal(make("early_stop")(logits, list(range(5))), expected)


def test_a_round_of_one_row_costs_less_than_a_tenth_of_a_millisecond():
    policy = DecodingPolicy({"name": "auto"}, JAGGED, num_slots=7, sampling=True)
    logits, seconds = torch.full((1, 7), 1.0), []
    for _ in range(200):
        start = time.perf_counter()
        policy.should_draft([0])
        length = int(policy(logits, [0]))
        policy.observe([0], [7], [length], [min(length, 2)])
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 1e-4

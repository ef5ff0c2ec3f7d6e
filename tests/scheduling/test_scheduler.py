"""The pure policies against literal loops, brute force, and the cases where other engines went wrong."""

import itertools
import math
import random
import time

import pytest
import torch

from dspark_hf.scheduling import DEFAULT_THRESHOLD, CostCurve, History, schedule
from dspark_hf.scheduling.scheduler import rounded_lengths
from dspark_hf.scheduling.single import early_stop_one, lookahead_one, optimal_one


# fp32 on two cores: a forward of four tokens is cheaper than one of two or three
JAGGED = CostCurve(tokens=[1, 2, 3, 4, 8], seconds=[0.096, 0.191, 0.262, 0.162, 0.155], draft_seconds=0.005)
FLAT = CostCurve(tokens=[1, 64], seconds=[1.0, 1.0])


def random_survival(rng: random.Random, rows: int, slots: int) -> list[list[float]]:
    """Products of confidences with many ties and zeros."""
    levels = [0.0, 0.25, 0.5, 0.5, 0.9, 1.0]
    pick = (lambda: rng.choice(levels)) if rng.random() < 0.5 else rng.random
    return [list(itertools.accumulate((pick() for _ in range(slots)), lambda a, b: a * b)) for _ in range(rows)]


def random_curve(rng: random.Random, size: int) -> CostCurve:
    kind = rng.choice(["jagged", "stairs", "linear", "flat"])
    seconds = {
        "jagged": lambda: [rng.uniform(0.5, 3.0) for _ in range(size)],
        "stairs": lambda: [1.0 + (tokens // 4) for tokens in range(size)],
        "linear": lambda: [1.0 + 0.3 * tokens for tokens in range(size)],
        "flat": lambda: [2.0] * size,
    }[kind]()
    return CostCurve(tokens=list(range(1, size + 1)), seconds=seconds, draft_seconds=rng.choice([0.0, 0.4]))


def algorithm_1(survival: list[list[float]], curve: CostCurve) -> list[int]:
    """The paper's listing, line by line."""
    rows = len(survival)
    candidates = sorted(
        ((-chance, slot, row) for row, chances in enumerate(survival) for slot, chance in enumerate(chances)),
    )
    lengths, tau, tokens = [0] * rows, float(rows), rows
    best = tau / curve.seconds_at(tokens)
    for negative, slot, row in candidates:
        tau, tokens = tau - negative, tokens + 1
        throughput = tau / curve.seconds_at(tokens)
        if throughput <= best:
            break
        best, lengths[row] = throughput, slot + 1
    return lengths


def rate_of(survival: list[list[float]], lengths: tuple[int, ...], curve: CostCurve) -> float:
    tau = sum(1 + sum(chances[:length]) for chances, length in zip(survival, lengths, strict=True))
    return tau / (curve.draft_seconds_at(len(lengths)) + curve.seconds_at(len(lengths) + sum(lengths)))


def test_early_stop_is_algorithm_1_on_ten_thousand_instances():
    rng = random.Random(0)
    for _ in range(10_000):
        rows, slots = rng.randint(1, 4), rng.randint(1, 6)
        survival, curve = random_survival(rng, rows, slots), random_curve(rng, rows * (1 + slots))
        chosen = schedule(torch.tensor(survival, dtype=torch.float64), curve, policy="early_stop")
        assert chosen.tolist() == algorithm_1(survival, curve), (survival, curve)


@pytest.mark.parametrize(("rows", "slots"), list(itertools.product((1, 2, 3), (1, 2, 3, 4))))
def test_optimal_equals_brute_force(rows, slots):
    rng = random.Random(rows * 10 + slots)
    for _ in range(40):
        survival, curve = random_survival(rng, rows, slots), random_curve(rng, rows * (1 + slots))
        chosen = schedule(torch.tensor(survival, dtype=torch.float64), curve, policy="optimal").tolist()
        best = max(rate_of(survival, lengths, curve) for lengths in itertools.product(range(slots + 1), repeat=rows))
        assert rate_of(survival, tuple(chosen), curve) == pytest.approx(best, rel=1e-12)


def test_equal_survivals_go_to_the_lower_slot_then_the_lower_row():
    dear_after_five = CostCurve(tokens=[1, 5, 6, 9], seconds=[1.0, 1.0, 100.0, 100.0])
    survival = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]])
    assert schedule(survival, dear_after_five, policy="early_stop").tolist() == [1, 1, 0]
    assert schedule(survival, dear_after_five, policy="optimal").tolist() == [1, 1, 0]


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_stair_step_curve_by_hand(rows):
    # TensorRT-LLM 17056: throughput per forward flat to four tokens, half of it from five on
    stairs = CostCurve(tokens=list(range(1, 9)), seconds=[1.0] * 4 + [2.0] * 4)
    survival = torch.tensor([[0.9, 0.9, 0.9, 0.9]] * rows)
    early = schedule(survival, stairs, policy="early_stop")
    assert early.sum() + rows == 4  # stops at the riser
    assert schedule(torch.zeros(rows, 4), stairs, policy="early_stop").tolist() == [0] * rows


@pytest.mark.parametrize("policy", ["early_stop", "lookahead", "lagged_topk", "optimal", "auto"])
def test_without_a_cost_curve_nothing_is_trimmed(policy):
    assert schedule(torch.tensor([[0.1, 0.0], [0.0, 0.0]]), None, policy=policy).tolist() == [2, 2]


def test_on_the_jagged_curve_early_stop_is_stuck_and_lookahead_is_not():
    survival = torch.tensor([[0.8, 0.66, 0.5, 0.4, 0.3, 0.2, 0.15]])
    assert schedule(survival, JAGGED, policy="early_stop").tolist() == [0]
    assert schedule(survival, JAGGED, policy="lookahead") >= 3
    assert schedule(survival, JAGGED, policy="lookahead") == schedule(survival, JAGGED, policy="optimal")


def test_lookahead_believes_history_about_the_slots_beyond():
    survival = torch.tensor([[0.5, 0.4, 0.3, 0.2]])
    hopeless = History(acceptance=torch.zeros(1, 4))
    assert schedule(survival, JAGGED, "lookahead", hopeless).tolist() == [0]
    assert schedule(survival, JAGGED, "lookahead", History(acceptance=torch.full((4,), 0.9))) == 4


def test_auto_is_lookahead_with_a_curve():
    survival = torch.rand(6, 7, generator=torch.Generator().manual_seed(0)).cumprod(1)
    assert torch.equal(schedule(survival, JAGGED, "auto"), schedule(survival, JAGGED, "lookahead"))


def test_lagged_topk_takes_its_budget_from_the_older_round_and_its_rows_from_today():
    curve = CostCurve(tokens=list(range(1, 7)), seconds=[1.0, 1.0, 1.0, 1.0, 9.0, 9.0])
    older = torch.tensor([[0.9, 0.8], [0.1, 0.0]])  # worth two tokens
    today = torch.tensor([[0.2, 0.1], [0.7, 0.6]])
    assert schedule(today, curve, "lagged_topk", History(lagged_survival=older)).tolist() == [0, 2]


def test_lagged_topk_verifies_new_rows_whole():
    steep = CostCurve(tokens=[1, 8], seconds=[1.0, 80.0])
    today = torch.tensor([[0.9, 0.9], [0.1, 0.1]])
    history = History(lagged_survival=torch.zeros(2, 2), new_rows=torch.tensor([False, True]))
    assert schedule(today, steep, "lagged_topk", history).tolist() == [0, 2]
    assert schedule(today, steep, "lagged_topk").tolist() == [2, 2]


def test_threshold_cuts_at_the_first_low_confidence_even_if_a_later_one_is_high():
    confidences = torch.tensor([[0.9, 0.79, 0.99], [0.8, 0.8, 0.8], [0.1, 1.0, 1.0], [1.0, 1.0, 1.0]])
    assert schedule(confidences.cumprod(1), None, "threshold", threshold=0.8).tolist() == [1, 3, 0, 3]


@pytest.mark.parametrize("threshold", [-0.1, 1.5, math.nan, math.inf])
def test_thresholds_outside_the_unit_interval_raise(threshold):
    with pytest.raises(ValueError, match=r"threshold must be a number in \[0, 1\]"):
        schedule(torch.tensor([[0.5]]), None, "threshold", threshold=threshold)


def test_threshold_edges_and_default():
    survival = torch.tensor([[1.0, 1.0, 0.3], [0.0, 0.0, 0.0]])
    assert schedule(survival, None, "threshold", threshold=0.0).tolist() == [3, 3]
    assert schedule(survival, None, "threshold", threshold=1.0).tolist() == [2, 0]
    same = schedule(survival, None, "threshold", threshold=DEFAULT_THRESHOLD)
    assert torch.equal(schedule(survival, None, "threshold", threshold=None), same)


def test_optimal_is_refused_under_sampling_with_the_reason():
    with pytest.raises(ValueError, match="biases sampled text"):
        schedule(torch.tensor([[0.5]]), FLAT, "optimal", sampling=True)


def test_unknown_policy_names_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'lookahead'"):
        schedule(torch.tensor([[0.5]]), FLAT, "look_ahead")


@pytest.mark.parametrize(
    ("survival", "message"),
    [
        ([[1.2, 0.5]], "lie in"),
        ([[float("nan"), 0.5]], "lie in"),
        ([[0.2, 0.5]], "must not rise"),
        ([0.5, 0.2], "rows, slots"),
    ],
)
def test_impossible_survival_raises(survival, message):
    with pytest.raises(ValueError, match=message):
        schedule(torch.tensor(survival), FLAT, "early_stop")


def test_tiers_round_up_and_their_price_is_part_of_the_decision():
    assert rounded_lengths(7, [3, 7]) == [0, 3, 3, 3, 7, 7, 7, 7]
    assert rounded_lengths(4, [3, 7]) == [0, 3, 3, 3, 3]
    survival = torch.tensor([[0.6, 0.5, 0.4, 0.3]])
    linear = CostCurve(tokens=[1, 2, 3, 4, 5], seconds=[1.0, 1.2, 1.9, 2.6, 3.3])
    assert schedule(survival, linear, "optimal").tolist() == [1]
    assert schedule(survival, linear, "optimal", tiers=[4]).tolist() == [0]  # 2.8 tokens in 3.3 s
    assert schedule(survival, FLAT, "lookahead", tiers=[2, 3]).tolist() == [3]
    with pytest.raises(ValueError, match="tiers must hold a length in 1..4"):
        schedule(survival, FLAT, "full", tiers=[9])


def test_padded_layout_gives_all_rows_one_length_and_pays_for_the_widest():
    survival = torch.tensor([[0.9, 0.8, 0.7], [0.1, 0.0, 0.0]])
    steps = CostCurve(tokens=[2, 4, 6, 8], seconds=[1.0, 1.3, 2.0, 3.0])
    best = max(
        range(4), key=lambda length: (2 + survival[:, :length].sum().item()) / steps.seconds_at(2 * (1 + length))
    )
    assert schedule(survival, steps, "optimal", layout="padded").tolist() == [best, best]


@pytest.mark.parametrize("tiers", [None, [2, 5]])
def test_one_row_in_python_decides_as_the_tensors_do(tiers):
    rng = random.Random(7)
    for _ in range(500):
        slots = rng.randint(5, 8)
        survival, curve = random_survival(rng, 1, slots)[0], random_curve(rng, 1 + slots)
        rates = [rng.random() for _ in range(slots)]
        seconds, tier_of = curve.table(1 + slots).tolist(), rounded_lengths(slots, tiers)
        draft_seconds = curve.draft_seconds_at(1)
        wanted = {
            "early_stop": early_stop_one(survival, seconds, tier_of),
            "optimal": optimal_one(survival, seconds, draft_seconds, tier_of),
            "lookahead": lookahead_one(survival, seconds, draft_seconds, tier_of, rates),
        }
        history = History(acceptance=torch.tensor(rates))
        for policy, length in wanted.items():
            survival_RK = torch.tensor([survival], dtype=torch.float64)
            assert schedule(survival_RK, curve, policy, history, tiers=tiers) == length, policy


@pytest.mark.slow  # timed: a verdict on a quiet machine only
@pytest.mark.parametrize("policy", ["threshold", "early_stop", "lookahead", "lagged_topk", "auto"])
def test_a_decision_for_256_rows_of_16_slots_takes_less_than_a_millisecond(policy):
    survival = torch.rand(256, 16, generator=torch.Generator().manual_seed(0)).cumprod(1)
    curve = CostCurve(tokens=[1, 64, 4096], seconds=[1.0, 1.5, 20.0], draft_seconds=0.1)
    history = History(acceptance=torch.full((256, 16), 0.7), lagged_survival=survival.flip(0))
    seconds = []
    for _ in range(60):
        start = time.perf_counter()
        schedule(survival, curve, policy, history)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 1e-3

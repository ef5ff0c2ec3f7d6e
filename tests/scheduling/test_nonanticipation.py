"""No policy allowed under sampling may look at the token it decides about (paper, Appendix A).

First as a property of the arithmetic, then as the exact distribution of the paper's example. `optimal`, refused under sampling, is
the negative control of both.
"""

import itertools

import pytest
import torch

from dspark_hf.scheduling import CostCurve, History, schedule


ALLOWED = ["full", "threshold", "early_stop", "lookahead", "lagged_topk", "auto"]
# up and down by turns, and steadily up
CURVES = [
    CostCurve(
        tokens=list(range(1, 19)),
        seconds=[1.0 + 0.9 * (size % 4) + 0.1 * size for size in range(18)],
        draft_seconds=0.1,
    ),
    CostCurve(tokens=[1, 30], seconds=[1.0, 12.0]),
]
# Appendix A: target (0.7, 0.3), draft (0.5, 0.5), c_1 = 0.8, c_2 = 0.9 after A and 0 after B, SPS = 1, 0.5, 0.45
APPENDIX_A = CostCurve(tokens=[1, 2, 3], seconds=[1.0, 2.0, 1 / 0.45])
TARGET, DRAFT = (0.7, 0.3), (0.5, 0.5)


def leaks(policy: str, rows: int, tiers: list[int] | None, layout: str) -> int:
    """How often a change of later confidences changes whether an earlier slot is verified."""
    generator = torch.Generator().manual_seed(rows)
    slots, found = 5, 0
    for trial in range(150):
        confidences = torch.rand(rows, slots, generator=generator)
        history = History(
            acceptance=torch.rand(rows, slots, generator=generator),
            lagged_survival=torch.rand(rows, slots, generator=generator).cumprod(1),
        )
        slot = trial % slots
        # In the padded layout a slot is one decision for all rows, so all rows' later confidences may change.
        changed_rows = slice(None) if layout == "padded" else trial % rows
        changed = confidences.clone()
        changed[changed_rows, slot + 1 :] = torch.rand(changed[changed_rows, slot + 1 :].shape, generator=generator)
        verified = [
            schedule(values.cumprod(1), CURVES[trial % 2], policy, history, tiers=tiers, layout=layout)[changed_rows]
            > slot
            for values in (confidences, changed)
        ]
        found += not torch.equal(*verified)
    return found


@pytest.mark.parametrize("layout", ["ragged", "padded"])
@pytest.mark.parametrize("tiers", [None, [2, 5]], ids=["any", "tiers"])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("policy", ALLOWED)
def test_later_confidences_never_change_an_earlier_decision(policy, rows, tiers, layout):
    assert leaks(policy, rows, tiers, layout) == 0


@pytest.mark.parametrize("rows", [1, 3])
def test_the_best_length_in_hindsight_does_anticipate(rows):
    assert leaks("optimal", rows, None, "ragged") > 0


def first_token_if(verified: bool, drafted: int) -> list[float]:
    """Distribution of the first committed token, given the drafted one and whether it was verified."""
    if not verified:
        return list(TARGET)
    accept = min(1.0, TARGET[drafted] / DRAFT[drafted])
    residual = [max(p - q, 0.0) for p, q in zip(TARGET, DRAFT, strict=True)]
    fresh = [value / sum(residual) for value in residual]
    return [accept * (token == drafted) + (1 - accept) * fresh[token] for token in (0, 1)]


def chance_of_a(policy: str) -> float:
    total = 0.0
    for drafted in (0, 1):
        survival = torch.tensor([[0.8, 0.8 * (0.9 if drafted == 0 else 0.0)]])
        verified = bool(schedule(survival, APPENDIX_A, policy) >= 1)
        total += DRAFT[drafted] * first_token_if(verified, drafted)[0]
    return total


@pytest.mark.parametrize("policy", ALLOWED)
def test_appendix_a_keeps_the_target_distribution(policy):
    assert chance_of_a(policy) == pytest.approx(0.70, abs=1e-9)


def test_appendix_a_is_biased_by_the_best_length_in_hindsight():
    assert chance_of_a("optimal") == pytest.approx(0.85, abs=1e-9)


def joint_of_two_rows(policy: str, lagged: torch.Tensor) -> torch.Tensor:
    """Exact joint distribution of the first tokens of two coupled rows with different first confidences."""
    coupled = CostCurve(tokens=[2, 3, 4, 5, 6], seconds=[1.0, 1.9, 2.0, 2.05, 2.1])
    joint = torch.zeros(2, 2, dtype=torch.float64)
    for drafted in itertools.product((0, 1), repeat=2):
        second = [0.95 if token == 0 else 0.05 for token in drafted]
        survival = torch.tensor([[0.8, 0.8 * second[0]], [0.7, 0.7 * second[1]]])
        lengths = schedule(survival, coupled, policy, History(lagged_survival=lagged)).tolist()
        first = [first_token_if(length >= 1, token) for length, token in zip(lengths, drafted, strict=True)]
        chance = DRAFT[drafted[0]] * DRAFT[drafted[1]]
        joint += chance * torch.outer(*torch.tensor(first, dtype=torch.float64))
    return joint


@pytest.mark.parametrize("policy", ALLOWED)
@pytest.mark.parametrize("older", [[[0.9, 0.8], [0.1, 0.0]], [[0.6, 0.1], [0.5, 0.4]], [[0.0, 0.0], [0.0, 0.0]]])
def test_two_coupled_rows_stay_independent_and_unbiased(policy, older):
    target = torch.tensor(TARGET, dtype=torch.float64)
    assert torch.allclose(joint_of_two_rows(policy, torch.tensor(older)), torch.outer(target, target), atol=1e-9)


def test_two_coupled_rows_are_biased_by_the_best_lengths_in_hindsight():
    target = torch.tensor(TARGET, dtype=torch.float64)
    joint = joint_of_two_rows("optimal", torch.zeros(2, 2))
    assert (joint - torch.outer(target, target)).abs().max() > 0.02


def test_ranking_by_the_drafted_tokens_own_probability_is_biased():
    # What lagged_topk would do if the confidence of slot k looked at token k: admit one of two rows on it.
    chance = 0.0
    for drafted in itertools.product((0, 1), repeat=2):
        survival = torch.tensor([[0.9 if token == 0 else 0.3] for token in drafted])
        lengths = schedule(
            survival,
            CostCurve(tokens=[2, 3, 4], seconds=[1.0, 1.0, 9.0]),
            "lagged_topk",
            History(lagged_survival=torch.tensor([[0.5], [0.4]])),
        ).tolist()
        assert sum(lengths) == 1
        chance += 0.25 * first_token_if(lengths[0] >= 1, drafted[0])[0]
    assert abs(chance - 0.70) > 0.02

"""
A rival of the confidence head: a logistic on the margin between the two best draft scores of a slot.

Like the head it sees only what is known before the slot's token is drawn: the scores of slot k are a function of the tokens before
k, and the token drawn from them does not enter. So it may feed any policy, and sampled text stays the target's. (The probability of
the *drawn* token would not do: it keeps or drops a token because of what it is.) Source of the idea: vLLM's online estimator
(https://github.com/vllm-project/vllm/pull/52228), which ranked rounds better than one checkpoint's head.
"""

# N rounds, K slots, n rounds that reached one slot

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .reliability import auroc, brier_score, expected_calibration_error, rounds_by_slots, sigmoid


if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from .records import RolloutRecords
    from .regimes import Calibration


# Weak pull to zero: keeps separable data finite and does not move a fit of a few hundred rounds.
RIDGE = 1e-2
STEPS = 25
MIN_SAMPLES = 50
# Where processors leave a slot one token its margin is infinite; beyond this many nats all is as certain.
LARGEST_MARGIN = 30.0


@dataclass(frozen=True)
class MarginModel:
    """
    `P(slot k accepted | slots before it) = sigmoid(slopes[k] * margin_k + intercepts[k])`.

    Args:
        slopes, intercepts (`list[float]`): one per slot; a slot with too few rounds repeats the one before it.
    """

    slopes: list[float]
    intercepts: list[float]

    def confidence_logits(self, margins: ArrayLike) -> NDArray[np.float64]:
        """`[N, K]` logits in place of the head's; they need no temperature. Margins above `LARGEST_MARGIN` count as it."""
        margins_NK = np.minimum(np.asarray(margins, dtype=np.float64), LARGEST_MARGIN)
        return margins_NK * np.asarray(self.slopes) + np.asarray(self.intercepts)

    def rescaled(self, temperatures: Sequence[float], biases: Sequence[float]) -> MarginModel:
        """The model whose logits are these, divided by a temperature and shifted by a bias, slot by slot."""
        slopes = [slope / temperature for slope, temperature in zip(self.slopes, temperatures, strict=True)]
        shifted = zip(self.intercepts, temperatures, biases, strict=True)
        return MarginModel(slopes, [intercept / temperature + bias for intercept, temperature, bias in shifted])


def fit_margin(margins: ArrayLike, accepted: ArrayLike) -> MarginModel:
    """
    Fits slope and intercept of every slot by Newton's method on the rounds that reached it.

    Args:
        margins (`[N, K]` floats): difference of the two best draft scores, >= 0.
        accepted (`[N, K]` bool): as in [`fit_temperatures`].
    """
    margins_NK, survived_NK = rounds_by_slots(margins, accepted, "margins")
    margins_NK = np.minimum(margins_NK, LARGEST_MARGIN)
    slopes, intercepts = [], []
    slope, intercept = 0.0, 0.0
    for slot in range(margins_NK.shape[1]):
        reached_N = survived_NK[:, slot - 1] if slot else np.ones(len(margins_NK), dtype=bool)
        if reached_N.sum() >= MIN_SAMPLES:
            slope, intercept = _newton(margins_NK[reached_N, slot], survived_NK[reached_N, slot])
        slopes.append(slope)
        intercepts.append(intercept)
    return MarginModel(slopes, intercepts)


def _newton(margins_n: NDArray, accepted_n: NDArray) -> tuple[float, float]:
    features_n2 = np.stack([margins_n, np.ones_like(margins_n)], axis=1)
    weights_2 = np.zeros(2)
    for _ in range(STEPS):
        chance_n = sigmoid(features_n2 @ weights_2)
        gradient_2 = features_n2.T @ (chance_n - accepted_n) + RIDGE * weights_2
        curvature_22 = (features_n2 * (chance_n * (1 - chance_n))[:, None]).T @ features_n2 + RIDGE * np.eye(2)
        # A bounded step: far from the optimum the curvature of a logistic vanishes and Newton overshoots.
        weights_2 = weights_2 - np.clip(np.linalg.solve(curvature_22, gradient_2), -2.0, 2.0)
    return float(weights_2[0]), float(weights_2[1])


def calibrated_logits(calibration: Calibration, records: RolloutRecords) -> NDArray[np.float64]:
    """`[N, K]` logits of the records as a decode loop under this calibration computes them, from the head or the margin."""
    if calibration.margin is not None:
        return calibration.margin.confidence_logits(records.margins)
    biases = calibration.biases or [0.0] * records.num_slots
    return records.confidence_logits.astype(np.float64) / np.asarray(calibration.temperatures) + np.asarray(biases)


def compare_predictors(
    fitted: MarginModel, calibration: Calibration, held_out: RolloutRecords
) -> dict[str, dict[str, Any]]:
    """
    Which predicts the next slot better on held-out rounds: the calibrated head or the margin.

    Args:
        calibration ([`Calibration`]): temperatures and biases of the head.

    Returns:
        `dict`: `"head"` (where the records have one) and `"margin"`, each with `auroc`, `brier` and `ece` over all slots that were
        reached, and `auroc_by_slot`.
    """
    logits = {"margin": fitted.confidence_logits(held_out.margins)}
    if held_out.has_confidence:
        logits = {"head": calibrated_logits(replace(calibration, margin=None), held_out), **logits}
    survived_NK = held_out.accepted
    reached_NK = np.concatenate([np.ones_like(survived_NK[:, :1]), survived_NK[:, :-1]], axis=1)
    result = {}
    for name, logits_NK in logits.items():
        chance, stood = sigmoid(logits_NK)[reached_NK], survived_NK[reached_NK]
        by_slot = [
            auroc(logits_NK[reached_NK[:, slot], slot], survived_NK[reached_NK[:, slot], slot])
            for slot in range(held_out.num_slots)
        ]
        result[name] = {
            "auroc": auroc(chance, stood),
            "brier": brier_score(chance, stood),
            "ece": expected_calibration_error(chance, stood),
            "auroc_by_slot": by_slot,
        }
    return result

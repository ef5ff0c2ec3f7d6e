"""
How well predicted probabilities hold: expected calibration error, AUROC, Brier score and reliability curves, slot by slot.

Arithmetic on arrays. Knows nothing of how the probabilities were fitted.
"""

# N rounds, K slots

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch


if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray


NUM_BINS = 20


@dataclass
class SlotReliability:
    """
    One slot's survival (slots 1..k all accepted) predicted and observed.

    Args:
        slot (`int`): 1-based.
        records (`int`): rounds.
        reached (`int`): rounds in which all slots before were accepted.
        predicted, observed (`float`, *optional*): means; `None` without records.
        ece, brier (`float`, *optional*): in [0, 1].
        auroc (`float`, *optional*): of survival; `None` where one outcome never happened.
        conditional_auroc (`float`, *optional*): of this slot's own confidence among the rounds that reached it.
        curve (`list`): `[mean predicted, observed share, rounds]` of every bin that is not empty.
    """

    slot: int
    records: int
    reached: int
    predicted: float | None
    observed: float | None
    ece: float | None
    brier: float | None
    auroc: float | None
    conditional_auroc: float | None
    curve: list[list[float]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def survival_from_logits(
    confidence_logits: ArrayLike, temperatures: Sequence[float] | None = None, biases: Sequence[float] | None = None
) -> NDArray[np.float64]:
    """
    `[N, K]` survival: the running product of `sigmoid(logit_k / temperature_k + bias_k)`.

    Args:
        confidence_logits (`[N, K]`): raw.
        temperatures, biases (`Sequence[float]`, *optional*): one per slot; default: identity.
    """
    logits_NK = as_array(confidence_logits)
    if temperatures is not None:
        logits_NK = logits_NK / np.asarray(temperatures, dtype=np.float64)
    if biases is not None:
        logits_NK = logits_NK + np.asarray(biases, dtype=np.float64)
    return np.cumprod(sigmoid(logits_NK), axis=1, dtype=np.float64)


def sigmoid(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logistic function without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * values))


def survived(accepted: ArrayLike) -> NDArray[np.bool_]:
    """`[N, K]`: whether slots 1..k all stood, from per-slot verdicts; verdicts behind a rejection do not count."""
    return np.logical_and.accumulate(as_array(accepted) > 0, axis=1)


def rounds_by_slots(
    values: ArrayLike, accepted: ArrayLike, name: str
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """
    Both as `[N, K]` arrays, the second accumulated by [`survived`].

    Raises:
        ValueError: they are not both `[N, K]`.
    """
    values_NK, accepted_NK = as_array(values), as_array(accepted)
    if values_NK.ndim != 2 or values_NK.shape != accepted_NK.shape:
        raise ValueError(
            f"{name} and accepted must both be [rounds, slots], got {list(values_NK.shape)} and {list(accepted_NK.shape)}"
        )
    return values_NK, survived(accepted_NK)


def as_array(values: ArrayLike) -> NDArray[np.float64]:
    """fp64 on the host, from a list, an array, or a tensor of any device and dtype."""
    return torch.as_tensor(values).detach().to("cpu", torch.float64).numpy()


def reliability_curve(predicted: ArrayLike, observed: ArrayLike, bins: int = NUM_BINS) -> NDArray[np.float64]:
    """`[bins, 3]`: mean predicted, observed share and count in bins of equal width; NaN means where a bin is empty."""
    predicted_N = np.asarray(predicted, dtype=np.float64)
    observed_N = np.asarray(observed, dtype=np.float64)
    index_N = np.clip((predicted_N * bins).astype(np.int64), 0, bins - 1)
    counts = np.bincount(index_N, minlength=bins).astype(np.float64)
    divisor = np.where(counts > 0, counts, np.nan)
    means = [np.bincount(index_N, weights=values, minlength=bins) / divisor for values in (predicted_N, observed_N)]
    return np.stack([*means, counts], axis=1)


def expected_calibration_error(predicted: ArrayLike, observed: ArrayLike, bins: int = NUM_BINS) -> float:
    """Mean over rounds of |mean predicted - observed share| of their bin; NaN without rounds."""
    predicted_N = np.asarray(predicted, dtype=np.float64)
    if predicted_N.size == 0:
        return float("nan")
    index_N = np.clip((predicted_N * bins).astype(np.int64), 0, bins - 1)
    gap_N = predicted_N - np.asarray(observed, dtype=np.float64)
    return float(np.abs(np.bincount(index_N, weights=gap_N, minlength=bins)).sum() / predicted_N.size)


def brier_score(predicted: ArrayLike, observed: ArrayLike) -> float:
    """Mean squared error; NaN without rounds."""
    gap_N = np.asarray(predicted, dtype=np.float64) - np.asarray(observed, dtype=np.float64)
    return float(np.mean(gap_N**2)) if gap_N.size else float("nan")


def auroc(predicted: ArrayLike, observed: ArrayLike) -> float:
    """Chance that an accepted round ranks above a rejected one, ties counted half; NaN if either never happened."""
    predicted_N = np.asarray(predicted, dtype=np.float64)
    observed_N = np.asarray(observed, dtype=bool)
    positives, negatives = int(observed_N.sum()), int((~observed_N).sum())
    if positives == 0 or negatives == 0:
        return float("nan")
    _, index_N, counts = np.unique(predicted_N, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2
    rank_sum = mean_rank[index_N][observed_N].sum()
    return float((rank_sum - positives * (positives + 1) / 2) / (positives * negatives))


def reliability_by_slot(
    confidence_logits: ArrayLike,
    accepted: ArrayLike,
    temperatures: Sequence[float] | None = None,
    biases: Sequence[float] | None = None,
    *,
    bins: int = NUM_BINS,
) -> list[SlotReliability]:
    """
    Reliability of every slot's survival.

    Args:
        confidence_logits (`[N, K]`): raw.
        accepted (`[N, K]` bool): slot accepted; what follows the first rejection is ignored.
        temperatures, biases (`Sequence[float]`, *optional*): calibration to judge; default: none.
        bins (`int`, *optional*, defaults to 20): of equal width.
    """
    logits_NK, survived_NK = rounds_by_slots(confidence_logits, accepted, "confidence_logits")
    survival_NK = survival_from_logits(logits_NK, temperatures, biases)
    slots = []
    for slot in range(logits_NK.shape[1]):
        predicted_N, observed_N = survival_NK[:, slot], survived_NK[:, slot]
        reached_N = survived_NK[:, slot - 1] if slot else np.ones(len(observed_N), dtype=bool)
        curve = reliability_curve(predicted_N, observed_N, bins)
        slots.append(
            SlotReliability(
                slot=slot + 1,
                records=len(observed_N),
                reached=int(reached_N.sum()),
                predicted=_number(predicted_N.mean()) if len(predicted_N) else None,
                observed=_number(observed_N.mean()) if len(observed_N) else None,
                ece=_number(expected_calibration_error(predicted_N, observed_N, bins)),
                brier=_number(brier_score(predicted_N, observed_N)),
                auroc=_number(auroc(predicted_N, observed_N)),
                # Temperature and bias keep the order of one slot's logits, so the raw ones rank alike.
                conditional_auroc=_number(auroc(logits_NK[reached_N, slot], observed_N[reached_N])),
                curve=[[float(value) for value in row] for row in curve[curve[:, 2] > 0]],
            )
        )
    return slots


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)

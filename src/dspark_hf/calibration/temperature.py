"""
Sequential temperature scaling (paper section 3.2.1): one temperature per slot, left to right, on the survival product.

Fits numbers on arrays. Knows neither models nor where the numbers are kept.
"""

# N rounds, K slots, G candidate temperatures

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from transformers.utils import logging

from .regimes import Calibration
from .reliability import NUM_BINS, expected_calibration_error, rounds_by_slots, sigmoid


if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


logger = logging.get_logger(__name__)

MIN_SAMPLES = 50
LOWEST, HIGHEST = 0.05, 20.0
GRID = 41
REFINEMENTS = 2
# Of temperatures whose error is this close to the best, the one nearest to 1 wins: the error is a step function, and its
# exact minimum is noise.
TOLERANCE = 2e-4
# A bias is used if it lowers the held-out error of survival by this much, averaged over slots.
BIAS_GAIN = 0.003


def fit_temperatures(
    confidence_logits: ArrayLike, accepted: ArrayLike, *, min_samples: int = MIN_SAMPLES, bins: int = NUM_BINS
) -> list[float]:
    """
    Fits one temperature per slot so that the survival product is calibrated.

    Slot by slot, a 1-D search minimises the expected calibration error of `prod_{j<=k} sigmoid(logit_j / T_j)` with the earlier
    temperatures fixed. Temperatures are positive, so the order within a slot is kept.

    Args:
        confidence_logits (`[N, K]` floats): raw, of rounds whose whole block was verified.
        accepted (`[N, K]` bool): slot accepted, given all before; what follows the first rejection is ignored.
        min_samples (`int`, *optional*, defaults to 50): a slot reached by fewer rounds keeps 1.0, with a warning.
        bins (`int`, *optional*, defaults to 20): of equal width.

    Returns:
        `list[float]`: K temperatures in [0.05, 20].

    Raises:
        ValueError: shapes differ, or a logit is not finite.

    Example:

    ```python
    >>> temperatures = fit_temperatures(records.confidence_logits, records.accepted)
    ```
    """
    return _fit(confidence_logits, accepted, with_bias=False, min_samples=min_samples, bins=bins)[0]


def fit_calibration(
    confidence_logits: ArrayLike,
    accepted: ArrayLike,
    *,
    bias: str = "auto",
    min_samples: int = MIN_SAMPLES,
    bins: int = NUM_BINS,
    regime: str | None = None,
    warn: bool = True,
) -> Calibration:
    """
    Fits temperatures and, where the data ask for them, biases.

    Args:
        confidence_logits, accepted, min_samples, bins: as in [`fit_temperatures`].
        bias (`str`, *optional*, defaults to `"auto"`): `"never"`, `"always"`, or `"auto"`: only if biases fitted on one half of the
            rounds lower the error on the other half.
        regime (`str`, *optional*): name to put into the result.
        warn (`bool`, *optional*, defaults to `True`): say which slots had too few rounds.
    """
    if bias not in ("auto", "never", "always"):
        raise ValueError(f"bias must be 'auto', 'never' or 'always', got {bias!r}")
    with_bias = bias == "always"
    if bias == "auto":
        with_bias = _bias_helps(confidence_logits, accepted, min_samples=min_samples, bins=bins)
    temperatures, biases = _fit(
        confidence_logits, accepted, with_bias=with_bias, min_samples=min_samples, bins=bins, warn=warn
    )
    return Calibration(temperatures, biases if with_bias else None, regime)


def _fit(
    confidence_logits: ArrayLike,
    accepted: ArrayLike,
    *,
    with_bias: bool,
    min_samples: int,
    bins: int,
    warn: bool = True,
) -> tuple[list[float], list[float]]:
    logits_NK, survived_NK = rounds_by_slots(confidence_logits, accepted, "confidence_logits")
    if not np.isfinite(logits_NK).all():
        raise ValueError("confidence_logits must be finite; does the drafter have a confidence head?")
    before_N, temperatures, biases = np.ones(len(logits_NK)), [], []
    for slot in range(logits_NK.shape[1]):
        reached_N = survived_NK[:, slot - 1] if slot else np.ones(len(logits_NK), dtype=bool)
        outcomes = survived_NK[reached_N, slot]
        temperature, shift = 1.0, 0.0
        if len(outcomes) < min_samples or outcomes.all() or not outcomes.any():
            reason = f"{len(outcomes)} rounds reached it, {int(outcomes.sum())} passed"
            if warn:
                logger.warning(
                    f"slot {slot + 1} keeps temperature 1: {reason}, too few to fit (min_samples={min_samples})"
                )
        else:
            temperature, shift = _search(logits_NK[:, slot], before_N, survived_NK[:, slot], with_bias, bins)
        before_N = before_N * sigmoid(logits_NK[:, slot] / temperature + shift)
        temperatures.append(temperature)
        biases.append(shift)
    return temperatures, biases


def _search(
    logits_N: NDArray, before_N: NDArray, survived_N: NDArray, with_bias: bool, bins: int
) -> tuple[float, float]:
    """Grid over log temperature, refined around its best; each temperature with the bias that makes the means agree."""
    low, high = np.log(LOWEST), np.log(HIGHEST)
    tried: list[tuple[float, float, float]] = []
    for _ in range(1 + REFINEMENTS):
        grid_G = np.exp(np.linspace(low, high, GRID))
        for temperature in grid_G.tolist():
            shift = _bias(logits_N / temperature, before_N, survived_N.mean()) if with_bias else 0.0
            predicted_N = before_N * sigmoid(logits_N / temperature + shift)
            tried.append((expected_calibration_error(predicted_N, survived_N, bins), temperature, shift))
        _, best, _ = _simplest(tried)
        step = (high - low) / (GRID - 1)
        low = max(np.log(best) - 2 * step, np.log(LOWEST))
        high = min(np.log(best) + 2 * step, np.log(HIGHEST))
    _, temperature, shift = _simplest(tried)
    return temperature, shift


def _simplest(tried: list[tuple[float, float, float]]) -> tuple[float, float, float]:
    lowest = min(error for error, _, _ in tried)
    return min((entry for entry in tried if entry[0] <= lowest + TOLERANCE), key=lambda entry: abs(np.log(entry[1])))


def _bias(scaled_N: NDArray, before_N: NDArray, observed: float) -> float:
    """The shift at which mean survival equals what was observed, by bisection (the mean rises with the shift)."""
    low, high = -20.0, 20.0
    for _ in range(22):
        middle = (low + high) / 2
        if (before_N * sigmoid(scaled_N + middle)).mean() < observed:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _bias_helps(confidence_logits: ArrayLike, accepted: ArrayLike, *, min_samples: int, bins: int) -> bool:
    """Two-fold comparison of survival error with and without biases."""
    logits_NK, survived_NK = rounds_by_slots(confidence_logits, accepted, "confidence_logits")
    if len(logits_NK) < 4 * min_samples:
        return False
    half_N = np.random.default_rng(0).permutation(len(logits_NK)) % 2 == 0
    errors = []
    for with_bias in (False, True):
        total = 0.0
        for fold_N in (half_N, ~half_N):
            fitted = _fit(
                logits_NK[fold_N],
                survived_NK[fold_N],
                with_bias=with_bias,
                min_samples=min_samples,
                bins=bins,
                warn=False,
            )
            survival_NK = np.cumprod(sigmoid(logits_NK[~fold_N] / fitted[0] + fitted[1]), axis=1)
            total += sum(
                expected_calibration_error(survival_NK[:, slot], survived_NK[~fold_N, slot], bins)
                for slot in range(logits_NK.shape[1])
            )
        errors.append(total / (2 * logits_NK.shape[1]))
    return errors[1] < errors[0] - BIAS_GAIN

"""
From records to a calibration and everything a card or a paper shows of it, judged on held-out prompts.

Numbers only. Does not write files, draw, or run models.
"""

# N rounds, K slots

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .margin import MarginModel, calibrated_logits, compare_predictors, fit_margin
from .regimes import Calibration
from .reliability import reliability_by_slot, sigmoid
from .temperature import MIN_SAMPLES, fit_calibration


if TYPE_CHECKING:
    from collections.abc import Sequence

    from .records import RolloutRecords


SURVIVAL = ("confidence", "margin", "best")
GROUPS = 5
THRESHOLDS = tuple(round(0.05 * step, 2) for step in range(21))


@dataclass
class CalibrationResult:
    """
    Args:
        calibration (`Calibration`): for `config.confidence_calibration[regime]`.
        report (`dict`): for `eval_results.json`; see [`calibration_report`].
    """

    calibration: Calibration
    report: dict[str, Any]


def calibrate(
    records: RolloutRecords,
    *,
    bias: str = "auto",
    survival: str = "confidence",
    held_out: float = 0.5,
    min_samples: int = MIN_SAMPLES,
) -> CalibrationResult:
    """
    Fits one regime on some prompts and judges it on the others.

    Args:
        records (`RolloutRecords`): of one regime, from at least two prompts.
        bias (`str`, *optional*, defaults to `"auto"`): see [`fit_calibration`].
        survival (`str`, *optional*, defaults to `"confidence"`): what the scheduler shall read: the head (`"confidence"`), the
            logistic on the top-2 margin (`"margin"`, which a drafter without the head has too), or whichever has the lower
            Brier score on the held-out prompts (`"best"`).
        held_out (`float`, *optional*, defaults to 0.5): share of prompts to judge by.

    Raises:
        ValueError: an unknown `survival`, or the head's of records that have none.

    Example:

    ```python
    >>> result = calibrate(records)
    >>> drafter.config.confidence_calibration = {records.regime: result.calibration.to_dict()}
    ```
    """
    if survival not in SURVIVAL:
        raise ValueError(f"survival must be one of {', '.join(map(repr, SURVIVAL))}, got {survival!r}")
    fitting, judging = records.split(held_out)
    if records.has_confidence or survival == "confidence":
        calibration = fit_calibration(
            fitting.confidence_logits, fitting.accepted, bias=bias, min_samples=min_samples, regime=records.regime
        )
    else:
        calibration = Calibration([1.0] * records.num_slots, regime=records.regime)
    margin = fit_survival_margin(fitting, min_samples=min_samples)
    predictors = compare_predictors(margin, calibration, judging)
    best = min(predictors, key=lambda name: predictors[name]["brier"])
    chosen = margin if survival == "margin" or (survival == "best" and best == "margin") else None
    calibration = replace(calibration, margin=chosen)
    calibration = replace(calibration, expected_survival=expected_survival(calibration, records))
    return CalibrationResult(calibration, calibration_report(fitting, judging, calibration, margin))


def fit_survival_margin(records: RolloutRecords, *, min_samples: int = MIN_SAMPLES) -> MarginModel:
    """
    The logistic of every slot, then temperatures and biases on its logits, so that the running product holds as well.

    Slots of a round rise and fall together: probabilities that hold for each slot by itself need not hold for the product.
    """
    model = fit_margin(records.margins, records.accepted)
    logits = model.confidence_logits(records.margins)
    product = fit_calibration(logits, records.accepted, bias="always", min_samples=min_samples, warn=False)
    return model.rescaled(product.temperatures, product.biases or [0.0] * records.num_slots)


def expected_survival(calibration: Calibration, records: RolloutRecords) -> list[list[float]]:
    """
    Observed survival of each slot, in groups of rounds of equal size, from the least to the most promising by the calibration.

    A mean over all rounds would not do: where blocks differ, drafting can pay although the average block does not, because the
    scheduler verifies the good ones only.
    """
    promise_N = np.cumprod(sigmoid(calibrated_logits(calibration, records)), axis=1).sum(axis=1)
    groups = np.array_split(promise_N.argsort(kind="stable"), min(GROUPS, len(records)))
    return [[round(float(share), 4) for share in records.accepted[rounds].mean(axis=0)] for rounds in groups]


def calibration_report(
    fitting: RolloutRecords, judging: RolloutRecords, calibration: Calibration, margin: MarginModel | None = None
) -> dict[str, Any]:
    """
    Every figure of one regime, on rounds that the fit has not seen.

    Args:
        margin ([`MarginModel`], *optional*): compared with the head; default: fitted here.

    Returns:
        `dict`: `survival` (`"confidence"` or `"margin"`: what `after` was read from), `slots` (per slot: `records`, `reached`,
        `temperature`, `bias`, `ece_before`, `ece_after`, `brier_before`,
        `brier_after`, `auroc`, `conditional_auroc`, `predicted_before`, `predicted_after`, `observed`, `overlap`, and the reliability
        curves `curve_before`, `curve_after`), `conditional_acceptance`, `threshold_sweep`, `predictors`,
        `fitted_rounds` and `held_out_rounds`, `fitted_prompts` and `held_out_prompts`.
    """
    accepted_NK, final_NK = judging.accepted, calibrated_logits(calibration, judging)
    after = reliability_by_slot(final_NK, accepted_NK)
    # a drafter without the head has no confidences before the fit
    before = (
        reliability_by_slot(judging.confidence_logits, accepted_NK) if judging.has_confidence else [None] * len(after)
    )
    slots = [
        {
            "slot": fitted.slot,
            "records": fitted.records,
            "reached": fitted.reached,
            "temperature": None if calibration.margin is not None else calibration.temperatures[index],
            "bias": None if calibration.margin is not None else (calibration.biases or [0.0] * len(after))[index],
            "ece_before": None if raw is None else raw.ece,
            "ece_after": fitted.ece,
            "brier_before": None if raw is None else raw.brier,
            "brier_after": fitted.brier,
            "auroc": fitted.auroc,
            "conditional_auroc": fitted.conditional_auroc,
            "predicted_before": None if raw is None else raw.predicted,
            "predicted_after": fitted.predicted,
            "observed": fitted.observed,
            "overlap": _mean_overlap(judging, index),
            "curve_before": [] if raw is None else raw.curve,
            "curve_after": fitted.curve,
        }
        for index, (raw, fitted) in enumerate(zip(before, after, strict=True))
    ]
    margin = margin or calibration.margin or fit_survival_margin(fitting)
    return {
        "survival": "confidence" if calibration.margin is None else "margin",
        "slots": slots,
        "conditional_acceptance": conditional_acceptance(judging.accepted_count, judging.num_slots),
        "threshold_sweep": threshold_sweep(replace(judging, confidence_logits=final_NK.astype(np.float32))),
        "predictors": compare_predictors(margin, calibration, judging),
        "margin": {"slopes": margin.slopes, "intercepts": margin.intercepts},
        "fitted_rounds": len(fitting),
        "held_out_rounds": len(judging),
        "fitted_prompts": len(np.unique(fitting.prompt)),
        "held_out_prompts": len(np.unique(judging.prompt)),
    }


def conditional_acceptance(accepted_count: Sequence[int] | np.ndarray, num_slots: int) -> list[float | None]:
    """P(slot k accepted | slots before it accepted) (the paper's figure 2); `None` for a slot never reached."""
    counts_N = np.asarray(accepted_count)
    rates: list[float | None] = []
    for slot in range(num_slots):
        reached = int((counts_N >= slot).sum())
        rates.append(float((counts_N > slot).sum() / reached) if reached else None)
    return rates


def threshold_sweep(
    records: RolloutRecords,
    temperatures: Sequence[float] | None = None,
    biases: Sequence[float] | None = None,
    thresholds: Sequence[float] = THRESHOLDS,
) -> list[dict[str, float]]:
    """
    What a static threshold on each slot's own confidence would have done to the recorded rounds (the paper's figure 6).

    Returns:
        `list[dict]`: per threshold `tokens_per_round` (bonus token included), `verified`, `accepted` and `rejected` drafted
        tokens per round, and `acceptance_rate` of verified tokens (1 where none was verified).
    """
    scale = np.ones(records.num_slots) if temperatures is None else np.asarray(temperatures)
    shift = np.zeros(records.num_slots) if biases is None else np.asarray(biases)
    confidence_NK = sigmoid(records.confidence_logits.astype(np.float64) / scale + shift)
    sweep = []
    for threshold in thresholds:
        passes_NK = np.logical_and.accumulate(confidence_NK >= threshold, axis=1)
        verified_N = passes_NK.sum(axis=1)
        accepted_N = np.minimum(verified_N, records.accepted_count)
        verified, accepted = float(verified_N.mean()), float(accepted_N.mean())
        sweep.append(
            {
                "threshold": float(threshold),
                "tokens_per_round": 1.0 + accepted,
                "verified": verified,
                "accepted": accepted,
                "rejected": verified - accepted,
                "acceptance_rate": accepted / verified if verified else 1.0,
            }
        )
    return sweep


def _mean_overlap(records: RolloutRecords, slot: int) -> float | None:
    """Mean analytic acceptance of a slot over the rounds that reached it; `None` under greedy decoding."""
    reached_N = records.accepted_count >= slot
    values = records.overlap[reached_N, slot]
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else None

"""Turning a drafter's confidences into probabilities that hold: fitted on real rollouts, per sampling regime."""

from .margin import MarginModel, compare_predictors, fit_margin
from .records import RolloutRecords
from .regimes import Calibration, find_calibration, quantization_name, regime_key
from .reliability import reliability_by_slot, survival_from_logits
from .report import calibrate, calibration_report, threshold_sweep
from .temperature import fit_calibration, fit_temperatures


__all__ = [
    "Calibration",
    "MarginModel",
    "RolloutRecords",
    "calibrate",
    "calibration_report",
    "compare_predictors",
    "find_calibration",
    "fit_calibration",
    "fit_margin",
    "fit_temperatures",
    "quantization_name",
    "regime_key",
    "reliability_by_slot",
    "survival_from_logits",
    "threshold_sweep",
]

"""Calibration of a drafter's prefix survival, slot by slot, as an `evaluate` module.

Self-contained: `evaluate` copies this file and imports it alone.
"""

from __future__ import annotations

import datasets
import evaluate
import numpy as np


_DESCRIPTION = """
How well a drafter's confidences, multiplied up to a slot, predict that the whole prefix up to that slot is accepted: expected
calibration error (bins of equal width), Brier score and area under the ROC curve of every slot.
"""

_CITATION = """
@inproceedings{guo2017calibration,
  title={On Calibration of Modern Neural Networks},
  author={Guo, Chuan and Pleiss, Geoff and Sun, Yu and Weinberger, Kilian Q.},
  booktitle={International Conference on Machine Learning},
  year={2017}
}
"""

_KWARGS_DESCRIPTION = """
Args:
    predictions (`list[list[float]]`): one list per round: confidence of every slot, given that the slots before it are accepted,
        in [0, 1]. All rounds have the same number of slots, and the whole block was verified.
    references (`list[int]`): leading drafted tokens that each round accepted.
    bins (`int`, *optional*, defaults to 20).

Returns:
    `ece`, `brier`, `auroc` (`list[float]`): one per slot; NaN without rounds, `auroc` also where one outcome never happened.
    `predicted`, `observed` (`list[float]`): mean survival of every slot.
    `mean_ece` (`float`): over slots.

Examples:

    >>> metric = evaluate.load("prefix_calibration")
    >>> result = metric.compute(predictions=[[0.9, 0.5], [0.9, 0.5], [0.1, 0.5]], references=[2, 1, 0])
    >>> [round(value, 3) for value in result["observed"]]
    [0.667, 0.333]
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class PrefixCalibration(evaluate.Metric):
    """Reliability of survival by slot."""

    def _info(self):
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features(
                {
                    "predictions": datasets.Sequence(datasets.Value("float64")),
                    "references": datasets.Value("int64"),
                }
            ),
            reference_urls=["https://huggingface.co/papers/1706.04599"],
        )

    def _compute(self, predictions, references, bins=20):
        if len({len(row) for row in predictions}) != 1:
            raise ValueError("every round needs a confidence for every slot; rounds of different lengths were given")
        confidence_NK, accepted_N = np.asarray(predictions, dtype=np.float64), np.asarray(references)
        slots = confidence_NK.shape[1]
        if not ((confidence_NK >= 0) & (confidence_NK <= 1)).all():
            raise ValueError("confidences must lie in [0, 1]; pass probabilities, not logits")
        if not ((accepted_N >= 0) & (accepted_N <= slots)).all():
            raise ValueError(f"references must lie in 0..{slots}, the number of accepted slots")
        survival_NK = np.cumprod(confidence_NK, axis=1)
        survived_NK = np.arange(slots) < accepted_N[:, None]
        pairs = [(survival_NK[:, slot], survived_NK[:, slot]) for slot in range(slots)]
        ece = [_expected_calibration_error(*pair, bins) for pair in pairs]
        return {
            "ece": ece,
            "brier": [float(((predicted - observed) ** 2).mean()) for predicted, observed in pairs],
            "auroc": [_auroc(*pair) for pair in pairs],
            "predicted": survival_NK.mean(axis=0).tolist(),
            "observed": survived_NK.mean(axis=0).tolist(),
            "mean_ece": float(np.mean(ece)),
        }


def _expected_calibration_error(predicted, observed, bins):
    index = np.minimum((predicted * bins).astype(np.int64), bins - 1)
    return float(np.abs(np.bincount(index, weights=predicted - observed, minlength=bins)).sum() / len(predicted))


def _auroc(predicted, observed):
    positives, negatives = observed.sum(), (~observed).sum()
    if positives == 0 or negatives == 0:
        return float("nan")
    _, index, counts = np.unique(predicted, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2
    return float((mean_rank[index][observed].sum() - positives * (positives + 1) / 2) / (positives * negatives))

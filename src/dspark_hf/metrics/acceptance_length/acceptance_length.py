"""Tokens committed per verification round of speculative decoding, as an `evaluate` module.

Self-contained: `evaluate` copies this file and imports it alone.
"""

from __future__ import annotations

import datasets
import evaluate
import numpy as np


_DESCRIPTION = """
Mean number of tokens that one round of speculative decoding (one draft, one verification) commits, the target's own bonus token
included. Rounds that the end of the text cut short say nothing about the drafter and are counted apart.
"""

_CITATION = """
@inproceedings{leviathan2023fast,
  title={Fast Inference from Transformers via Speculative Decoding},
  author={Leviathan, Yaniv and Kalman, Matan and Matias, Yossi},
  booktitle={International Conference on Machine Learning},
  year={2023}
}
"""

_KWARGS_DESCRIPTION = """
Args:
    predictions (`list[int]`): tokens that each round committed, bonus token included; what was really emitted, so a round that an end
        token cut after two drafted tokens counts 2.
    references (`list[int]`): drafted tokens that each round verified.
    cut (`list[bool]`, *optional*): rounds that an end token, a stop string or a length limit cut short. Default: none.

Returns:
    `acceptance_length` (`float`): tokens per round over full rounds; 0 without one.
    `acceptance_rate` (`float`): share of the verified drafted tokens that stood, over full rounds.
    `tokens` (`int`): sum over all rounds, cut ones included.
    `rounds`, `cut_rounds` (`int`): full rounds; cut rounds.

Examples:

    >>> metric = evaluate.load("acceptance_length")
    >>> metric.compute(predictions=[4, 1, 3], references=[5, 5, 5], cut=[False, False, True])
    {'acceptance_length': 2.5, 'acceptance_rate': 0.3, 'tokens': 8, 'rounds': 2, 'cut_rounds': 1}
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class AcceptanceLength(evaluate.Metric):
    """Accepted length over verification rounds."""

    def _info(self):
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features(
                {"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}
            ),
            reference_urls=["https://huggingface.co/papers/2211.17192"],
        )

    def _compute(self, predictions, references, cut=None):
        committed, verified = np.asarray(predictions, dtype=np.int64), np.asarray(references, dtype=np.int64)
        full = np.ones(len(committed), dtype=bool) if cut is None else ~np.asarray(cut, dtype=bool)
        if full.shape != committed.shape:
            raise ValueError(f"cut must hold one flag per round, got {full.size} for {committed.size} rounds")
        wrong = (committed < 0) | (committed > verified + 1) | (full & (committed < 1))
        if wrong.any():
            first = int(wrong.argmax())
            raise ValueError(
                f"round {first} commits {committed[first]} tokens of {verified[first]} verified; expected 1 (0 in a cut round) to "
                f"{verified[first] + 1}"
            )
        rounds, offered = int(full.sum()), int(verified[full].sum())
        stood = int(committed[full].sum()) - rounds
        return {
            "acceptance_length": float(committed[full].mean()) if rounds else 0.0,
            "acceptance_rate": stood / offered if offered else 0.0,
            "tokens": int(committed.sum()),
            "rounds": rounds,
            "cut_rounds": int((~full).sum()),
        }

"""Prefix calibration as an `evaluate` module: the same numbers as the library gives."""

from pathlib import Path

import evaluate
import numpy as np
import pytest

from dspark_hf.calibration import reliability_by_slot
from dspark_hf.calibration.reliability import sigmoid
from dspark_hf.metrics import METRICS, metric_path


@pytest.fixture(scope="module")
def metric():
    return evaluate.load(metric_path("prefix_calibration"))


def test_it_agrees_with_the_library(metric):
    rng = np.random.default_rng(0)
    logits = np.round(rng.normal(1, 2, (400, 5)), 1)
    stood = np.logical_and.accumulate(rng.random((400, 5)) < sigmoid(logits), axis=1)
    result = metric.compute(predictions=sigmoid(logits).tolist(), references=stood.sum(1).tolist())
    slots = reliability_by_slot(logits, stood)
    for name in ("ece", "brier", "auroc", "predicted", "observed"):
        assert result[name] == pytest.approx([getattr(slot, name) for slot in slots], abs=1e-9)
    assert result["mean_ece"] == pytest.approx(np.mean(result["ece"]))


def test_one_outcome_only_has_no_auroc(metric):
    result = metric.compute(predictions=[[0.5, 0.5], [0.6, 0.5]], references=[2, 2])
    assert np.isnan(result["auroc"]).all()


@pytest.mark.parametrize(
    ("predictions", "references", "message"),
    [
        ([[0.5, 0.5], [0.5]], [0, 0], "different lengths"),
        ([[1.5, 0.5]], [0], "not logits"),
        ([[0.5, 0.5]], [3], r"0\.\.2"),
    ],
)
def test_impossible_input_raises(metric, predictions, references, message):
    with pytest.raises(ValueError, match=message):
        metric.compute(predictions=predictions, references=references)


@pytest.mark.parametrize("name", METRICS)
def test_every_module_is_complete_and_stands_alone(name):
    folder = Path(metric_path(name))
    assert {path.name for path in folder.iterdir() if path.is_file()} >= {
        f"{name}.py",
        "README.md",
        "app.py",
        "requirements.txt",
    }
    source = (folder / f"{name}.py").read_text()
    assert "dspark_hf" not in source
    assert "from ." not in source

"""Pictures: written, large enough to read, the same bytes for the same numbers."""

import numpy as np
import pytest

from dspark_hf.calibration import RolloutRecords, calibrate
from dspark_hf.evaluation import plots


RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def report():
    rounds, slots = 3000, 7
    logits = RNG.normal(1.5, 2.5, (rounds, slots))
    stood = np.logical_and.accumulate(RNG.random((rounds, slots)) < 1 / (1 + np.exp(-logits / 2)), axis=1)
    overlap = np.full((rounds, slots), np.nan, dtype=np.float32)
    prompts = RNG.integers(0, 20, rounds)
    records = RolloutRecords("temperature=0", prompts, logits, stood.astype(int), stood.sum(1), abs(logits), overlap)
    return calibrate(records).report


LOAD = [
    {
        "policy": policy,
        "rows": rows,
        "tokens_per_second": gain * 90 * rows**0.7,
        "tokens_per_second_per_user": gain * 90 * rows**-0.3,
        "verified_length": None if policy == "plain" else 7 / (1 + 0.1 * rows * (policy == "auto")),
    }
    for policy, gain in (("plain", 1.0), ("full", 1.8), ("threshold", 1.9), ("auto", 2.0))
    for rows in (1, 2, 4, 8, 16, 32)
]


def draw(name: str, report, path):
    if name == "reliability":
        return plots.plot_reliability(report, path, title="temperature = 0")
    if name == "threshold_sweep":
        return plots.plot_threshold_sweep(report["threshold_sweep"], path)
    if name == "acceptance_by_slot":
        rates = {"math": [0.9, 0.85, 0.8, 0.8, None], "chat": [0.8, 0.7, 0.6, 0.6, 0.5]}
        return plots.plot_acceptance_by_slot(rates, path, title="by slot")
    if name == "accepted_length":
        lengths = {
            "T = 0": {"gsm8k": 4.1, "humaneval": 4.8, "mt-bench": 2.9},
            "T = 1": {"gsm8k": 3.1, "humaneval": None},
        }
        spans = {"T = 0": {"gsm8k": [3.9, 4.4], "humaneval": [4.5, 5.0]}}
        return plots.plot_accepted_length(lengths, path, intervals=spans)
    if name == "load":
        return plots.plot_load(LOAD, path)
    return plots.plot_cost_curve([1, 2, 3, 4, 8], {"128 deep": [0.096, 0.191, 0.262, 0.162, 0.155]}, path)


@pytest.mark.parametrize(
    "name", ["reliability", "threshold_sweep", "acceptance_by_slot", "accepted_length", "load", "cost_curve"]
)
def test_a_picture_is_written_and_comes_out_the_same_twice(name, report, tmp_path):
    first = draw(name, report, tmp_path / "plots" / f"{name}.png")
    assert first.read_bytes().startswith(b"\x89PNG")
    assert first.read_bytes() == draw(name, report, tmp_path / "again.png").read_bytes()


def test_series_differ_in_more_than_colour():
    styles = [plots._style(index) for index in range(len(plots.COLOURS))]
    assert len({style["marker"] for style in styles}) == len(styles)


def test_no_two_of_fourteen_series_look_alike():
    styles = [plots._style(index) for index in range(14)]
    looks = {(style["color"], style["marker"], style.get("markerfacecolor")) for style in styles}
    assert len(looks) == 14


def test_a_picture_of_many_series_makes_room_for_their_names(tmp_path):
    few, many = (
        plots.plot_acceptance_by_slot(
            {f"set {index}": [0.9, 0.8] for index in range(count)}, tmp_path / f"{count}.png"
        )
        for count in (3, 12)
    )
    width_of_few, width_of_many = (int.from_bytes(path.read_bytes()[16:20], "big") for path in (few, many))
    assert width_of_many > width_of_few


def test_a_regime_without_a_head_has_a_reliability_curve_after_the_fit_alone(report, tmp_path):
    slots = [{**slot, "curve_before": [], "ece_before": None} for slot in report["slots"]]
    assert plots.plot_reliability({"slots": slots}, tmp_path / "margin.png").is_file()

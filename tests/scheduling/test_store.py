"""Cost curves on disk: found by fingerprint, refused when they belong to another machine or version."""

import json

import pytest

from dspark_hf.dev.tiny import tiny_target
from dspark_hf.scheduling import CostCurve
from dspark_hf.scheduling.store import fingerprint_of


@pytest.fixture
def hf_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def target():
    return tiny_target("qwen3")


def curve_of(target) -> CostCurve:
    deep = {"context": 16, "deep_context": 64, "deep_seconds": [1.5, 2.5]}
    return CostCurve(tokens=[1, 2], seconds=[1.0, 2.0], draft_seconds=0.25, **deep, meta=fingerprint_of(target))


def test_a_saved_curve_is_found_again_under_hf_home(hf_home, target):
    path = curve_of(target).save()
    assert hf_home in path.parents
    assert CostCurve.load(target=target) == curve_of(target)


def test_a_curve_of_another_target_is_refused_in_one_line(hf_home, target):
    path = curve_of(target).save()
    with pytest.raises(ValueError, match="measured elsewhere: .*shape.*instead of") as refusal:
        CostCurve.load(path, target=tiny_target("qwen3", num_hidden_layers=2, layer_types=None))
    assert "\n" not in str(refusal.value)


def test_a_curve_of_another_version_is_stale(hf_home, target):
    path = curve_of(target).save()
    stale = {**fingerprint_of(target), "torch": "1.0"}
    with pytest.raises(ValueError, match=r"torch '.*' instead of '1\.0'"):
        CostCurve.load(path, fingerprint=stale)


def test_a_curve_that_was_never_measured_says_how_to_measure_it(hf_home, target):
    with pytest.raises(FileNotFoundError, match="CostCurve.measure"):
        CostCurve.load(target=target)


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 1}', '{"format": 99}'])
def test_a_file_that_is_no_curve_raises(tmp_path, content):
    path = tmp_path / "curve.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="measure it again"):
        CostCurve.load(path)


def test_a_curve_written_by_hand_goes_where_it_is_told(tmp_path):
    curve = CostCurve(tokens=[1], seconds=[1.0], row_seconds={2: [1.5, 1.75]})
    with pytest.raises(ValueError, match="give a path"):
        curve.save()
    path = curve.save(tmp_path / "deep" / "curve.json")
    assert CostCurve.load(path) == curve
    assert json.loads(path.read_text())["seconds"] == [1.0]


def test_loading_nothing_in_particular_raises():
    with pytest.raises(ValueError, match="say which cost curve"):
        CostCurve.load()

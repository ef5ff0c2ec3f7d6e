"""A calibration is fitted, stored in the configuration, loaded with the drafter, and used by `generate` in its own regime."""

import numpy as np
import pytest
import torch

from dspark_hf import DSparkDrafter
from dspark_hf.calibration import calibrate
from dspark_hf.calibration.margin import calibrated_logits
from dspark_hf.calibration.reliability import sigmoid
from dspark_hf.dev.tiny import tiny_drafter
from dspark_hf.evaluation.rollouts import collect_rollouts


PROMPTS = [[5, 9, 14, 3], [7, 7], [20, 4, 11], [33, 2, 8], [12, 30], [41, 40, 39]]
IDS = torch.tensor([[5, 9, 14, 3]])


def verified(target, drafter, **sampling) -> int:
    target.generate(IDS, assistant_model=drafter, max_new_tokens=30, **sampling)
    return drafter.last_generation.verified


@pytest.fixture
def stored(target, drafter, tmp_path) -> DSparkDrafter:
    records = collect_rollouts(target, drafter, PROMPTS, max_new_tokens=120, progress=False)
    result = calibrate(records, bias="always", min_samples=20)
    drafter.config.confidence_calibration = {records.regime: result.calibration.to_dict()}
    drafter.save_pretrained(tmp_path)
    loaded = DSparkDrafter.from_pretrained(tmp_path)
    assert loaded.config.confidence_calibration["temperature=0"]["temperatures"] == result.calibration.temperatures
    return loaded


def test_a_stored_calibration_changes_what_a_threshold_verifies(target, stored):
    stored.set_policy("threshold", threshold=0.3)
    calibrated = verified(target, stored, do_sample=False)
    entry = stored.config.confidence_calibration["temperature=0"]
    entry["biases"] = [-50.0] * stored.config.num_slots
    assert verified(target, stored, do_sample=False) == 0 < calibrated


def test_another_regime_is_left_to_the_raw_confidences(target, stored):
    stored.set_policy("threshold", threshold=0.05)
    stored.config.confidence_calibration["temperature=0"]["biases"] = [-50.0] * stored.config.num_slots
    assert verified(target, stored, do_sample=True) > 0


def test_a_calibration_of_another_block_size_is_refused_before_the_first_token(target, stored):
    stored.set_policy("threshold", threshold=0.5)
    stored.config.confidence_calibration = {"temperature=0": {"temperatures": [1.0, 1.0]}}
    with pytest.raises(ValueError, match="holds 2 temperatures, the drafter has 5 slots"):
        verified(target, stored, do_sample=False)


def test_a_stored_margin_replaces_the_head_in_the_schedule(target, stored):
    slots = stored.config.num_slots
    stored.set_policy("threshold", threshold=0.5)
    entry = {"temperatures": [1.0] * slots, "biases": [-50.0] * slots}
    for intercept, expected in ((50.0, slots), (-50.0, 0)):
        entry |= {"margin_slopes": [0.0] * slots, "margin_intercepts": [intercept] * slots}
        stored.config.confidence_calibration = {"temperature=0": entry}
        target.generate(IDS, assistant_model=stored, max_new_tokens=30, do_sample=False)
        assert max(checked for _, _, checked, _ in stored.last_generation.rounds) == expected


@pytest.mark.parametrize("sampling", [{"do_sample": False}, {"do_sample": True, "top_p": 0.8, "top_k": 0}])
def test_a_drafter_without_a_head_is_scheduled_by_its_margins(target, sampling):
    drafter = tiny_drafter(target, enable_confidence_head=False)
    regime = {"temperature": 1.0, "top_p": 0.8} if sampling["do_sample"] else {}
    records = collect_rollouts(target, drafter, PROMPTS, max_new_tokens=120, progress=False, **regime)
    assert np.isfinite(records.margins).all()
    result = calibrate(records, survival="best", min_samples=20)
    drafter.config.confidence_calibration = {records.regime: result.calibration.to_dict()}
    # half of the first slots pass
    threshold = np.median(sigmoid(calibrated_logits(result.calibration, records)[:, 0]))
    drafter.set_policy("threshold", threshold=float(threshold))
    torch.manual_seed(0)
    for rows in (IDS, torch.cat([IDS, IDS.flip(1)])):
        output = target.generate(rows, assistant_model=drafter, max_new_tokens=40, **sampling)
        lengths = {checked for _, _, checked, _ in drafter.last_generation.rounds}
        assert len(lengths) > 1
        if not sampling["do_sample"]:
            assert torch.equal(output, target.generate(rows, max_new_tokens=40, **sampling))

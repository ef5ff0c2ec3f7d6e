"""A calibration is fitted, stored in the configuration, loaded with the drafter, and used by `generate` in its own regime."""

import pytest
import torch

from dspark_hf import DSparkDrafter
from dspark_hf.calibration import calibrate
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

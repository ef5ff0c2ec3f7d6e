"""What `set_policy` accepts, stores and refuses."""

from __future__ import annotations

import math

import pytest
import torch

import dspark_hf
from dspark_hf.dev.tiny import tiny_drafter, tiny_target


@pytest.fixture(scope="module")
def pair():
    target = tiny_target()
    return target, tiny_drafter(target)


def verified(target, drafter) -> int:
    """The longest verification of a short greedy answer."""
    dspark_hf.generate(target, drafter, input_ids=torch.tensor([[5, 9, 14]]), do_sample=False, max_new_tokens=24)
    return max(checked for _, _, checked, _ in drafter.last_generation.rounds)


@pytest.mark.parametrize("threshold", [-0.1, 1.5, math.nan, math.inf, True, "0.5"])
def test_a_threshold_that_is_no_probability_is_refused(pair, threshold):
    with pytest.raises(ValueError, match=r"threshold must be a number in \[0, 1\]"):
        pair[1].set_policy("threshold", threshold=threshold)


def test_threshold_0_verifies_whole_blocks_and_1_only_what_is_certain(pair):
    target, drafter = pair
    drafter.set_policy("threshold", threshold=0)
    assert verified(target, drafter) == 5
    drafter.set_policy("threshold", threshold=1)
    assert verified(target, drafter) == 0
    drafter.config.confidence_calibration = {"temperature=0": {"temperatures": [1.0] * 5, "biases": [1e4] * 5}}
    assert verified(target, drafter) == 5
    drafter.config.confidence_calibration = None


@pytest.mark.parametrize("knobs", [{}, {"threshold": None}])
def test_a_threshold_that_is_not_given_is_one_half_or_that_of_the_generation_config(pair, knobs):
    target, drafter = pair
    drafter.set_policy("threshold", **knobs)
    assert drafter.policy == {"name": "threshold"}
    slots = [math.log(0.55 / 0.45)] * 2 + [math.log(0.45 / 0.55)] * 3  # confidences 0.55, 0.55, 0.45, ..
    calibration = {"temperatures": [1e9] * 5, "biases": slots}
    drafter.config.confidence_calibration = {"temperature=0": calibration}
    assert verified(target, drafter) == 2
    drafter.generation_config.assistant_confidence_threshold = 0.4
    assert verified(target, drafter) == 5
    drafter.generation_config.assistant_confidence_threshold = None
    drafter.config.confidence_calibration = None


def test_an_unknown_policy_or_knob_names_the_nearest(pair):
    with pytest.raises(ValueError, match="did you mean 'threshold'"):
        pair[1].set_policy("treshold")
    with pytest.raises(ValueError, match="did you mean 'threshold'"):
        pair[1].set_policy("threshold", treshold=0.5)

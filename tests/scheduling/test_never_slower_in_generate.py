"""Never slower, in the time that a cost curve gives real rounds: no clock, so no noise of the machine.

A drafter of random weights must cost at most 3% of plain decoding over 256 tokens; a good one must be used.
"""

from statistics import median

import pytest
import torch

import dspark_hf
from dspark_hf.calibration import calibrate
from dspark_hf.dev.tiny import tiny_drafter, tiny_target
from dspark_hf.evaluation.rollouts import collect_rollouts
from dspark_hf.scheduling import CostCurve


CURVES = {
    # the staircase of an fp32 target on two cores, and a nearly flat one with a dear host
    "jagged": CostCurve(tokens=[1, 2, 3, 4, 8], seconds=[0.096, 0.191, 0.262, 0.162, 0.155], draft_seconds=0.005),
    "small": CostCurve(tokens=[1, 6], seconds=[0.003, 0.0036], draft_seconds=0.002),
}
PROMPTS = [[5, 9, 14, 3], [7, 7], [20, 4, 11], [33, 2, 8], [12, 30]]


@pytest.fixture(scope="module")
def target():
    return tiny_target(max_position_embeddings=1024)


def speed(target, drafter, curve: CostCurve, tokens: int, **options) -> float:
    """Median over prompts of tokens per priced second, relative to plain decoding."""
    drafter.cost_curve = curve
    ratios = []
    for prompt in PROMPTS:
        dspark_hf.generate(
            target, drafter, input_ids=torch.tensor([prompt]), do_sample=False, max_new_tokens=tokens, **options
        )
        rounds = drafter.last_generation.rounds
        seconds = sum(
            curve.seconds_at(1 + verified) + (curve.draft_seconds_at(1) if drafted else 0.0)
            for _, drafted, verified, _ in rounds
        )
        ratios.append((tokens - 1) * curve.seconds_at(1) / seconds)
    return median(ratios)


@pytest.mark.parametrize("name", CURVES)
def test_a_drafter_that_knows_nothing_costs_three_percent_at_most(target, name):
    drafter = tiny_drafter(target, bigram=False)
    assert speed(target, drafter, CURVES[name], 256) >= 0.97


@pytest.mark.parametrize("name", CURVES)
def test_a_calibrated_drafter_that_knows_nothing_costs_that_little_on_short_answers_too(target, name):
    drafter = tiny_drafter(target, bigram=False)
    records = collect_rollouts(target, drafter, PROMPTS, max_new_tokens=60, progress=False)
    drafter.config.confidence_calibration = {records.regime: calibrate(records, min_samples=20).calibration.to_dict()}
    drafter.set_policy("auto")
    assert speed(target, drafter, CURVES[name], 64) >= 0.98


@pytest.mark.parametrize("name", CURVES)
def test_a_good_drafter_is_used_as_well_as_at_its_best_fixed_length(target, name):
    drafter = tiny_drafter(target)
    # what calibration would find: nearly every slot of this drafter stands
    slots = drafter.config.num_slots
    drafter.config.confidence_calibration = {"temperature=0": {"temperatures": [1e6] * slots, "biases": [1.5] * slots}}
    auto = speed(target, drafter, CURVES[name], 64)
    drafter.set_policy("full")
    fixed = [speed(target, drafter, CURVES[name], 64, num_assistant_tokens=length) for length in (3, 5)]
    assert auto >= 0.98 * max(fixed)
    assert auto > 1.2

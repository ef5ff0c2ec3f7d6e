"""Synthetic rollouts whose right calibration is known."""

import numpy as np
import pytest

from dspark_hf.calibration import RolloutRecords
from dspark_hf.calibration.reliability import sigmoid


@pytest.fixture(scope="session")
def make_records():
    def make(temperatures, rounds=6000, biases=None, seed=0, prompts=40) -> RolloutRecords:
        """Acceptance follows `sigmoid(logit / temperature + bias)` exactly; the margin is a noisy copy of the logit."""
        rng = np.random.default_rng(seed)
        slots = len(temperatures)
        logits = rng.normal(1.5, 2.5, (rounds, slots))
        chance = sigmoid(logits / np.asarray(temperatures) + np.asarray([0.0] * slots if biases is None else biases))
        stood = np.logical_and.accumulate(rng.random((rounds, slots)) < chance, axis=1)
        return RolloutRecords(
            regime="temperature=1",
            prompt=rng.integers(0, prompts, rounds),
            confidence_logits=logits.astype(np.float32),
            tokens=rng.integers(0, 50, (rounds, slots)),
            accepted_count=stood.sum(1),
            margins=np.abs(logits + rng.normal(0, 1.0, logits.shape)).astype(np.float32),
            overlap=chance.astype(np.float32),
        )

    return make

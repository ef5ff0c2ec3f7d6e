"""The weight average: follows the weights, forgets the start, and gives the trained weights back."""

import pytest
import torch

from dspark_hf.training.averaging import WeightAverage


def test_the_average_is_applied_only_inside_the_context():
    weight = torch.nn.Parameter(torch.zeros(2))
    average = WeightAverage({"w": weight}, decay=0.5)
    with torch.no_grad():
        weight.fill_(1.0)
    average.update(step=100)
    with average.applied():
        assert weight.tolist() == [0.5, 0.5]
    assert weight.tolist() == [1.0, 1.0]


def test_the_first_steps_forget_the_initial_weights_quickly():
    weight = torch.nn.Parameter(torch.zeros(1))
    average = WeightAverage({"w": weight}, decay=0.999)
    with torch.no_grad():
        weight.fill_(1.0)
    for step in range(1, 31):
        average.update(step)
    assert average.averages["w"].item() > 0.99


def test_a_decay_outside_its_range_is_refused():
    with pytest.raises(ValueError, match="must lie between 0 and 1"):
        WeightAverage({}, decay=1.0)

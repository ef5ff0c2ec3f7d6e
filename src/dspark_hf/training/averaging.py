"""An exponential moving average of the trained weights.

It knows nothing of the trainer; it is handed parameters and asked for them back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch


class WeightAverage:
    """Average of named parameters.

    Args:
        parameters: name -> parameter; their current values start the average.
        decay (`float`): weight of the past a step, in (0, 1). Early steps use `(1 + t) / (10 + t)` where that is smaller, so
            that the initial weights are soon forgotten.
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], decay: float):
        if not 0 < decay < 1:
            raise ValueError(f"The decay of a weight average must lie between 0 and 1, not {decay}.")
        self.parameters = dict(parameters)
        self.decay = decay
        self.averages = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after optimizer step number `step` (from 1)."""
        decay = min(self.decay, (1 + step) / (10 + step))
        averages = list(self.averages.values())
        torch._foreach_lerp_(averages, [parameter.detach() for parameter in self.parameters.values()], 1 - decay)

    @contextlib.contextmanager
    @torch.no_grad()
    def applied(self) -> Iterator[None]:
        """Within the context the parameters hold their averages."""
        trained = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
        self._load(self.averages)
        try:
            yield
        finally:
            self._load(trained)

    def _load(self, values: Mapping[str, torch.Tensor]) -> None:
        for name, parameter in self.parameters.items():
            parameter.data.copy_(values[name])

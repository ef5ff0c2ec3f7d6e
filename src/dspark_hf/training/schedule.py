"""Learning rate: linear warm-up, then a cosine, over steps or over time; never above the peak.

It knows nothing of the optimizer beyond the factor it multiplies by.
"""

from __future__ import annotations

import math
import time


def warmup_steps(total_steps: int, *, fraction: float, minimum: int) -> int:
    """Warm-up of `fraction` of the run but at least `minimum` steps, and never more than half of it."""
    return min(max(math.ceil(fraction * total_steps), minimum), total_steps // 2)


class StepCosine:
    """Factor of the peak learning rate at a step, in `[floor, 1]`. A resumed run continues exactly.

    Args:
        total_steps (`int`): where the cosine ends at `floor`.
        warmup (`int`): steps of linear growth to 1; 0 starts at the peak.
        floor (`float`): final fraction.
    """

    def __init__(self, total_steps: int, warmup: int, floor: float = 0.0):
        self.total_steps = total_steps
        self.warmup = warmup
        self.floor = floor

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return (step + 1) / self.warmup
        return _cosine((step - self.warmup) / max(self.total_steps - self.warmup, 1), self.floor)


class TimeCosine:
    """As `StepCosine`, but the cosine runs over seconds of training; warm-up stays in steps.

    Time spent is part of the state, so a resumed run goes on with what is left. It is not bit-reproducible: a faster machine
    makes more steps. The clock stands while `pause` is on, as during validation.
    """

    def __init__(self, seconds: float, warmup: int, floor: float = 0.0):
        self.seconds = seconds
        self.warmup = warmup
        self.floor = floor
        self.spent = 0.0
        self.last: float | None = None

    def tick(self) -> float:
        """Fraction of the time that is spent; counts the time since the last tick, up to a minute."""
        now = time.monotonic()
        if self.last is not None and now >= self.last:
            self.spent += min(now - self.last, 60.0)
        self.last = now
        return min(self.spent / self.seconds, 1.0)

    def pause(self) -> None:
        """Do not count what happens until the next tick."""
        self.last = None

    def __call__(self, step: int) -> float:
        factor = _cosine(self.tick(), self.floor)
        return min(factor, (step + 1) / self.warmup) if step < self.warmup else factor


def _cosine(progress: float, floor: float) -> float:
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(max(progress, 0.0), 1.0)))

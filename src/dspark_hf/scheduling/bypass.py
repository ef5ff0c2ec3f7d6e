"""
When a row stops drafting: its own finished rounds say that drafting loses, and rare probes find out when it would pay again.

Gains are in tokens per drafted round: tokens accepted, minus what the draft and its verification cost, priced at what a token costs
without drafting. Knows neither clocks nor confidences, so the same run decides the same way twice.
"""

from __future__ import annotations

from dataclasses import dataclass


# A new prompt is believed to gain one token a round, with the weight of 1.5 rounds: three or four rejected blocks end it.
PRIOR_GAIN = 1.0
PRIOR_ROUNDS = 1.5
# Rounds fade with a half-life of about 7, so that a stretch of easy text is noticed.
DECAY = 0.9
FIRST_PROBE = 8
LAST_PROBE = 128


@dataclass
class BypassState:
    """Fading sum of what drafting gained for one row (its sign decides), and the count-down to the next probe."""

    total: float = PRIOR_GAIN * PRIOR_ROUNDS
    waited: int = 0
    interval: int = FIRST_PROBE

    @property
    def loses(self) -> bool:
        """Drafting is expected to lose."""
        return self.total < 0

    @property
    def probing(self) -> bool:
        """Drafting is expected to lose, but it is time to look again."""
        return self.loses and self.waited >= self.interval

    @property
    def drafts(self) -> bool:
        return not self.loses or self.probing

    def record(self, gain: float) -> None:
        """One drafted round. A probe that lost doubles the wait; one that gained asks for another at once."""
        was_losing = self.loses
        self.total = self.total * DECAY + gain
        self.waited = 0
        if not self.loses:
            self.interval = FIRST_PROBE
        elif was_losing:
            self.interval = min(self.interval * 2, LAST_PROBE) if gain <= 0 else 1

    def wait(self) -> None:
        """One plain round."""
        self.waited += 1

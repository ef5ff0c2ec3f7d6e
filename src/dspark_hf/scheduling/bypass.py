"""
When drafting stops: finished rounds say that it loses, and rare probes find out when it would pay again.

A row that is priced alone has an account in tokens. A drafted round pays in what it gained: tokens accepted, minus what the draft
and its verification cost, priced at what a token costs without drafting. The row drafts while its account is not empty. Rows that
share one width draft together or not at all, as a forecast of the whole batch says. Knows neither clocks nor confidences, so the
same run decides the same way twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field


# A new prompt of which nothing bad is known may lose this much before it stops: 1% of 256 tokens. Less, and an unlucky start would stop good drafters.
CREDIT = 2.5
# Where calibration saw rows gain, one that loses is less likely: its credit grows by so many rounds' expected gain.
ROUNDS_OF_CREDIT = 4.0
# A long good stretch earns no more than this, so that the turn to hard text is noticed within a few rounds.
CEILING = 8.0
# A long bad one owes no more than this, so that one or two good probes bring the row back.
DEBT = 1.5
FIRST_PROBE, LAST_PROBE = 8, 256
# Plain rounds to wait for every token that a probe loses: a useless drafter then costs below 3%, probes included.
ROUNDS_PER_LOST_TOKEN = 20


@dataclass
class Probes:
    """The count-down to the next drafted round of something that decodes plainly."""

    waited: int = 0
    interval: int = 0

    @classmethod
    def after_expected(cls, gain: float) -> Probes:
        """As if a first probe had just gained `gain` tokens, less than none."""
        return cls(interval=min(2 * _wait_after(gain), LAST_PROBE))

    @property
    def due(self) -> bool:
        return self.waited >= self.interval

    def record(self, gain: float) -> None:
        """One drafted round while drafting loses. Each that loses at least doubles the wait; one that gains asks for another at once."""
        self.waited = 0
        self.interval = 1 if gain > 0 else min(max(2 * self.interval, _wait_after(gain)), LAST_PROBE)

    def reset(self) -> None:
        """Drafting does not lose."""
        self.waited = self.interval = 0

    def wait(self) -> None:
        """One plain round."""
        self.waited += 1


class Bypass:
    """What drafts unless that is expected to lose, and then for probes only; subclasses know whether it `loses`."""

    loses: bool
    probes: Probes

    @property
    def probing(self) -> bool:
        """Drafting is expected to lose, but it is time to look again."""
        return self.loses and self.probes.due

    @property
    def drafts(self) -> bool:
        return not self.loses or self.probes.due

    def wait(self) -> None:
        """One plain round."""
        self.probes.wait()


@dataclass
class Account(Bypass):
    """What one row has gained by drafting, in tokens."""

    tokens: float = CREDIT
    probes: Probes = field(default_factory=Probes)

    @classmethod
    def expecting(cls, gain: float) -> Account:
        """
        A new row of which only an average is known: `gain` tokens per drafted round over a plain one.

        Where the average gains, the row may lose more before it stops. Where it loses, the row starts plainly, as if a first probe
        had just failed.
        """
        if gain >= 0:
            return cls(min(CREDIT + ROUNDS_OF_CREDIT * gain, CEILING))
        return cls(max(gain, -DEBT), Probes.after_expected(gain))

    @property
    def loses(self) -> bool:  # type: ignore[override]
        """Drafting is expected to lose."""
        return self.tokens < 0

    def record(self, gain: float) -> None:
        """One drafted round."""
        self.tokens = min(max(self.tokens + gain, -DEBT), CEILING)
        if self.loses:
            self.probes.record(gain)
        else:
            self.probes.reset()


def _wait_after(gain: float) -> int:
    """Plain rounds to wait after one lost drafted round, if it was the first."""
    return max(FIRST_PROBE, round(-gain * ROUNDS_PER_LOST_TOKEN))

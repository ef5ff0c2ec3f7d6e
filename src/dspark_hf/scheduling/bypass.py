"""
When a row stops drafting: its own finished rounds say that drafting loses, and rare probes find out when it would pay again.

Each row (or each batch whose rows share one width) has an account in tokens. A drafted round pays in what it gained: tokens accepted, minus what the draft and its verification
cost, priced at what a token costs without drafting. A row drafts while its account is not empty. Knows neither clocks nor
confidences, so the same run decides the same way twice.
"""

from __future__ import annotations

from dataclasses import dataclass


# A new prompt of which nothing bad is known may lose this much before it stops: 1% of 256 tokens. Less, and an unlucky start would stop good drafters.
CREDIT = 2.5
# A long good stretch earns no more than this, so that the turn to hard text is noticed within a few rounds.
CEILING = 8.0
# A long bad one owes no more than this, so that one or two good probes bring the row back.
DEBT = 1.5
FIRST_PROBE, LAST_PROBE = 8, 256
# Plain rounds to wait for every token that a probe loses: a useless drafter then costs below 3%, probes included.
ROUNDS_PER_LOST_TOKEN = 20


@dataclass
class BypassState:
    """An account, and the count-down to the next probe."""

    account: float = CREDIT
    waited: int = 0
    interval: int = 0

    @classmethod
    def expecting(cls, gain: float) -> BypassState:
        """
        A new row of which only an average is known: `gain` tokens per drafted round over a plain one.

        Where the average loses, the row starts plainly, as if a first probe had just failed.
        """
        if gain >= 0:
            return cls()
        return cls(account=max(gain, -DEBT), interval=min(2 * _wait_after(gain), LAST_PROBE))

    @property
    def loses(self) -> bool:
        """Drafting is expected to lose."""
        return self.account < 0

    @property
    def probing(self) -> bool:
        """Drafting is expected to lose, but it is time to look again."""
        return self.loses and self.waited >= self.interval

    @property
    def drafts(self) -> bool:
        return not self.loses or self.probing

    def record(self, gain: float) -> None:
        """One drafted round. Each probe that loses at least doubles the wait; one that gains asks for another at once."""
        self.account = min(max(self.account + gain, -DEBT), CEILING)
        self.waited = 0
        if not self.loses:
            self.interval = 0
        elif gain > 0:
            self.interval = 1
        else:
            self.interval = min(max(2 * self.interval, _wait_after(gain)), LAST_PROBE)

    def look_again(self) -> None:
        """Something else has changed what drafting costs, so the next probe need not wait long."""
        self.interval = min(self.interval, FIRST_PROBE)

    def wait(self) -> None:
        """One plain round."""
        self.waited += 1


def _wait_after(gain: float) -> int:
    """Plain rounds to wait after one lost drafted round, if it was the first."""
    return max(FIRST_PROBE, round(-gain * ROUNDS_PER_LOST_TOKEN))

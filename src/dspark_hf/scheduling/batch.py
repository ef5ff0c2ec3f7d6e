"""
Whether the rows of a padded batch draft: together or not at all, because one row's draft widens all others'.

A forecast from what rows have accepted and what they still have to write decides, renewed every few rounds and whenever rows leave.
While it says that drafting loses, rare probes keep the acceptance rates fresh. Knows no confidences.
"""

# R rows, K slots

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .bypass import Bypass, Probes
from .expectation import mean_survival
from .forecast import seconds_saved_by_drafting
from .history import survival_of
from .single import optimal_one


if TYPE_CHECKING:
    from collections.abc import Sequence

    from .cost import CostCurve
    from .history import AcceptanceHistory


# The mean of many rows moves slowly: a width holds for rows / 4 rounds, at most four, and whether to draft for at least four.
ROWS_PER_HELD_ROUND, MOST_HELD_ROUNDS, LEAST_FORECAST_ROUNDS = 4, 4, 4
# Easy and hard rounds of a text come in runs, so that chance explains about twice what it would between independent rounds.
RUNS = 2.0
# A sixteenth of the rows leaving is news.
LEAST_CHANGE = 16


def rounds_to_hold(rows: int) -> int:
    """Rounds for which the width of all `rows` rows holds, this one included."""
    return max(min(rows // ROWS_PER_HELD_ROUND, MOST_HELD_ROUNDS), 1)


@dataclass
class BatchBypass(Bypass):
    """
    Args:
        curve (`CostCurve`): of this machine.
        tier_of (`list[int]`): `[K + 1]`, the length verified for each wanted length.
    """

    curve: CostCurve
    tier_of: Sequence[int]
    loses: bool = False
    probes: Probes = field(default_factory=Probes)
    _rows: int = 0
    _fresh_for: int = 0
    _remaining: list[float] = field(default_factory=list)
    _round_seconds: dict[tuple[int, int | None, bool], list[float]] = field(default_factory=dict)

    def forecast(
        self, histories: Sequence[AcceptanceHistory], remaining: Sequence[int] | None, context: int | None
    ) -> None:
        """Decides anew if it is time to. `remaining` are tokens that each row still may write; unknown, they are alike."""
        rows = len(histories)
        self._remaining = [1.0] * rows if remaining is None else [max(float(each), 1.0) for each in remaining]
        if self._fresh_for > 0 and abs(rows - self._rows) * LEAST_CHANGE <= self._rows:
            return
        first = self._rows == 0
        self._rows, self._fresh_for = rows, max(rows // ROWS_PER_HELD_ROUND, LEAST_FORECAST_ROUNDS)
        survivals = [survival_of(history.rates()) for history in histories]
        length = self._best_length(survivals, context)
        gain = self._gain(_tokens_per_round(survivals, histories, length), length, context)
        if gain >= 0:
            self.loses = False
            self.probes.reset()
        elif not self.loses:
            self.loses = True
            if first:
                self.probes = Probes.after_expected(gain)
            else:
                self.probes.record(gain)

    def observe(self, drafted: bool, verified: int, accepted: Sequence[int], context: int | None) -> None:
        """One round of all rows: `verified` tokens of each row, `[R]` accepted."""
        self._fresh_for -= 1
        if not drafted:
            self.wait()
        elif self.loses:
            self.probes.record(self._gain([1.0 + stood for stood in accepted], verified, context))
            self._fresh_for = 0

    def _gain(self, tokens_per_round: Sequence[float], length: int, context: int | None) -> float:
        """What a drafted round gains on plain ones until all rows have ended, in tokens of every row."""
        rows = len(tokens_per_round)
        plain = self._seconds(rows, 0, context)
        saved = seconds_saved_by_drafting(
            self._remaining, tokens_per_round, plain, self._seconds(rows, length, context, drafted=True)
        )
        rounds = max(tokens / rate for tokens, rate in zip(self._remaining, tokens_per_round, strict=True))
        return saved / rounds / plain[rows]

    def _best_length(self, survivals: Sequence[Sequence[float]], context: int | None) -> int:
        rows = len(survivals)
        depth = self.curve.depth_of(context)
        seconds = [self.curve.seconds_at(rows * width, depth, rows) for width in range(len(self.tier_of) + 1)]
        return optimal_one(mean_survival(survivals), seconds, self.curve.draft_seconds_at(rows), self.tier_of)

    def _seconds(self, rows: int, length: int, context: int | None, *, drafted: bool = False) -> list[float]:
        """Seconds of a round of 0, 1, .. `rows` rows, by the curve."""
        depth = self.curve.depth_of(context)
        known = self._round_seconds.setdefault((length, depth, drafted), [0.0])
        for count in range(len(known), rows + 1):
            seconds = self.curve.seconds_at(count * (1 + length), depth, count)
            known.append(seconds + (self.curve.draft_seconds_at(count) if drafted else 0.0))
        return known


def _tokens_per_round(
    survivals: Sequence[Sequence[float]], histories: Sequence[AcceptanceHistory], length: int
) -> list[float]:
    """
    Tokens that each row is expected to write in a round which verifies `length`.

    Of many noisy rates the lowest looks worse than it is. So differences between rows count as far as chance does not explain them,
    and the mean of the batch stands in for the rest (a James-Stein estimate).
    """
    own = [1.0 + sum(survival[:length]) for survival in survivals]
    mean = sum(own) / len(own)
    chance = [
        max(sum((2 * slot + 1) * value for slot, value in enumerate(survival[:length])) - (rate - 1.0) ** 2, 0.0)
        * RUNS
        / (1.0 + history.tried[0])
        for survival, rate, history in zip(survivals, own, histories, strict=True)
    ]
    between = sum((rate - mean) ** 2 for rate in own) / max(len(own) - 1, 1) - sum(chance) / len(chance)
    if between <= 0:
        return [mean] * len(own)
    return [mean + (rate - mean) * between / (between + noise) for rate, noise in zip(own, chance, strict=True)]

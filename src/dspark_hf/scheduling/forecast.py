"""
How long a batch still takes, with drafts and without: rows that are decoded together are waited for together.

A round costs all rows the same whoever gains by it, and a row that ends early is worth only what the smaller batch saves. So neither
the mean nor the slowest row tells whether drafting pays; the time until the last row has ended does. Arithmetic on Python
floats; knows no rows, clocks or confidences.
"""

# j rows alive; plain_seconds[j] and drafted_seconds[j] are of one round of j rows, index 0 unused

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple


if TYPE_CHECKING:
    from collections.abc import Sequence


def seconds_left(rounds: Sequence[float], round_seconds: Sequence[float]) -> float:
    """Seconds until all rows have ended, if each leaves the batch after its own number of `rounds`."""
    seconds, before = 0.0, 0.0
    for alive, rounds_of_row in zip(range(len(rounds), 0, -1), sorted(rounds), strict=True):
        seconds += (rounds_of_row - before) * round_seconds[alive]
        before = rounds_of_row
    return seconds


def seconds_saved_by_drafting(
    remaining: Sequence[float],
    tokens_per_round: Sequence[float],
    plain_seconds: Sequence[float],
    drafted_seconds: Sequence[float],
) -> float:
    """
    Seconds that a batch saves if it drafts now, against plain decoding now.

    Either may turn into the other once, when 1, 2, 4, .. rows are left: few rows may gain where many lose, and the other way round.

    Args:
        remaining (`Sequence[float]`): `[R]` tokens that each row still has to write, > 0.
        tokens_per_round (`Sequence[float]`): `[R]` tokens of a drafted round, the target's own included, >= 1.
        plain_seconds, drafted_seconds (`Sequence[float]`): `[R + 1]` of a round by rows alive.

    Returns:
        `float`: negative where drafting now loses.
    """
    plain = _Mode([1.0] * len(remaining), plain_seconds)
    drafting = _Mode(tokens_per_round, drafted_seconds)
    return _best(remaining, plain, drafting) - _best(remaining, drafting, plain)


class _Mode(NamedTuple):
    tokens_per_round: Sequence[float]
    round_seconds: Sequence[float]


def _best(remaining: Sequence[float], first: _Mode, then: _Mode) -> float:
    """The fewest seconds of the plans that begin in one mode and may end in the other."""
    rows = len(remaining)
    rounds = [tokens / rate for tokens, rate in zip(remaining, first.tokens_per_round, strict=True)]
    best = seconds_left(rounds, first.round_seconds)
    order = sorted(range(rows), key=rounds.__getitem__)
    left = 1
    while left < rows:
        ended, staying = order[:-left], order[-left:]
        turn = rounds[ended[-1]]
        head = seconds_left([*(rounds[row] for row in ended), *[turn] * left], first.round_seconds)
        tail = [(remaining[row] - turn * first.tokens_per_round[row]) / then.tokens_per_round[row] for row in staying]
        best = min(best, head + seconds_left(tail, then.round_seconds))
        left *= 2
    return best

"""From turn records to a `SuiteResult`: averages, shares per slot, and bootstrap intervals over prompts.

Pure arithmetic on numbers; knows no model.
"""

# P prompts

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .conversations import TurnRecord
from .results import SuiteResult


RESAMPLES = 1000
CONTEXT_EDGES = (0, 1024, 4096, 8192)


def summarise(result: SuiteResult, prompts: Sequence[Sequence[TurnRecord]]) -> SuiteResult:
    """
    Fills in all figures of one suite at one temperature.

    Args:
        result ([`SuiteResult`]): suite, domain, temperature, thinking mode and policy; the rest is set here.
        prompts (`Sequence[Sequence[TurnRecord]]`): one entry per conversation, its turns in order.
    """
    turns = [turn for prompt in prompts for turn in prompt]
    full = [_full(turn) for turn in turns]
    rounds = [entry for part in full for entry in part]
    result.prompts, result.requests = len(prompts), len(turns)
    result.rounds = len(rounds)
    result.cut_rounds = sum(len(turn.rounds) for turn in turns) - len(rounds)
    result.new_tokens = sum(turn.new_tokens for turn in turns)
    if rounds:
        pairs = [
            (sum(_committed(turn) for turn in prompt), sum(len(_full(turn)) for turn in prompt)) for prompt in prompts
        ]
        result.accepted_length, result.accepted_length_interval = ratio_with_interval(pairs)
        result.accepted_length_by_request = float(
            np.mean([_committed(turn) / len(part) for turn, part in zip(turns, full, strict=True) if part])
        )
        result.verified_length = float(np.mean([verified for _, verified, _, _ in rounds]))
        _fill_slots(result, rounds)
    _fill_speed(result, prompts)
    _fill_comparison(result, turns)
    result.by_context = _by_context(turns)
    result.by_turn = _by_turn(prompts)
    return result


def ratio_with_interval(pairs: Sequence[tuple[float, float]]) -> tuple[float | None, list[float] | None]:
    """
    Sum of the first numbers over sum of the second, with the 95% percentile interval of `RESAMPLES` resamples of the pairs.

    One pair has no spread: its interval is `None`. So is the ratio where the second numbers sum to 0.
    """
    numbers_P2 = np.asarray(pairs, dtype=np.float64).reshape(-1, 2)
    total = numbers_P2.sum(axis=0)
    if total[1] == 0:
        return None, None
    ratio = float(total[0] / total[1])
    if len(numbers_P2) < 2:
        return ratio, None
    draws = np.random.default_rng(0).integers(0, len(numbers_P2), size=(RESAMPLES, len(numbers_P2)))
    sums = numbers_P2[draws].sum(axis=1)
    ratios = sums[sums[:, 1] > 0]
    low, high = np.percentile(ratios[:, 0] / ratios[:, 1], [2.5, 97.5])
    return ratio, [float(low), float(high)]


def _full(turn: TurnRecord) -> list[list[int]]:
    return [entry for entry in turn.rounds if not entry[3]]


def _committed(turn: TurnRecord) -> int:
    return sum(accepted + 1 for _, _, accepted, _ in _full(turn))


def _fill_slots(result: SuiteResult, rounds: Sequence[Sequence[int]]) -> None:
    together = 1.0
    for slot in range(max(verified for _, verified, _, _ in rounds)):
        reached = [accepted for _, verified, accepted, _ in rounds if verified > slot and accepted >= slot]
        share = sum(accepted > slot for accepted in reached) / len(reached) if reached else None
        together = together * share if share is not None else float("nan")
        result.trials_by_slot.append(len(reached))
        result.acceptance_by_slot.append(share)
        result.cumulative_acceptance_by_slot.append(None if np.isnan(together) else together)


def _fill_speed(result: SuiteResult, prompts: Sequence[Sequence[TurnRecord]]) -> None:
    seconds = sum(turn.seconds for prompt in prompts for turn in prompt)
    if seconds > 0:
        result.tokens_per_second = result.new_tokens / seconds
    paired = [[turn for turn in prompt if turn.plain_seconds] for prompt in prompts]
    paired = [prompt for prompt in paired if prompt]
    if not paired:
        return
    sums_P4 = np.array(
        [
            [
                sum(values)
                for values in zip(
                    *((t.new_tokens, t.seconds, t.plain_tokens, t.plain_seconds) for t in prompt), strict=True
                )
            ]
            for prompt in paired
        ],
        dtype=np.float64,
    )
    total = sums_P4.sum(axis=0)
    result.plain_tokens_per_second = float(total[2] / total[3])
    result.speedup = float((total[0] / total[1]) / (total[2] / total[3]))
    if len(paired) > 1:
        draws = np.random.default_rng(0).integers(0, len(paired), size=(RESAMPLES, len(paired)))
        sums = sums_P4[draws].sum(axis=1)
        ratios = (sums[:, 0] / sums[:, 1]) / (sums[:, 2] / sums[:, 3])
        result.speedup_interval = [float(edge) for edge in np.percentile(ratios, [2.5, 97.5])]


def _fill_comparison(result: SuiteResult, turns: Sequence[TurnRecord]) -> None:
    if result.temperature != 0:
        return
    compared = [turn for turn in turns if turn.plain_tokens is not None]
    result.compared = len(compared)
    result.identical = sum(turn.difference is None for turn in compared)
    apart = [turn.difference for turn in compared if turn.difference is not None]
    result.near_ties = sum(difference["near_tie"] for difference in apart)
    result.mismatches = len(apart) - result.near_ties


def _length(turns: Sequence[TurnRecord]) -> float | None:
    rounds = sum(len(_full(turn)) for turn in turns)
    return sum(_committed(turn) for turn in turns) / rounds if rounds else None


def _by_context(turns: Sequence[TurnRecord]) -> list[dict[str, Any]]:
    rows = []
    for low, high in zip(CONTEXT_EDGES, (*CONTEXT_EDGES[1:], None), strict=True):
        inside = [turn for turn in turns if turn.prompt_tokens >= low and (high is None or turn.prompt_tokens < high)]
        if inside:
            rows.append({"from": low, "to": high, "requests": len(inside), "accepted_length": _length(inside)})
    return rows if len(rows) > 1 else []


def _by_turn(prompts: Sequence[Sequence[TurnRecord]]) -> list[dict[str, Any]]:
    longest = max((len(prompt) for prompt in prompts), default=0)
    if longest < 2:
        return []
    rows = []
    for number in range(longest):
        turns = [prompt[number] for prompt in prompts if len(prompt) > number]
        rows.append({"turn": number + 1, "requests": len(turns), "accepted_length": _length(turns)})
    return rows

"""From records to figures: tokens/s, ratio to plain, accepted length, acceptance by slot, each with a bootstrap interval.

Intervals resample groups of prompts, so they tell the spread over prompts, not over machines. Two summaries cover all sets: `all`
counts every measured prompt alike, `held-out` counts it as often as there are held-out prompts of its set for each measured one.
Draws the table and the picture. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.paired import Record


RESAMPLES = 1000
BASELINE = "plain"
ALL, HELD_OUT = "all", "held-out"
# colour-blind-safe (Okabe and Ito)
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")


def interval(groups: Sequence[Any], statistic: Callable[[Sequence[Any]], float], seed: int = 0) -> list[float]:
    """95% bootstrap interval of a statistic over groups."""
    random = np.random.default_rng(seed)
    draws = random.integers(0, len(groups), size=(RESAMPLES, len(groups)))
    values = np.array([statistic([groups[index] for index in draw]) for draw in draws])
    low, high = np.nanpercentile(values, [2.5, 97.5])
    return [round(float(low), 4), round(float(high), 4)]


def summarize(records: Sequence[Record]) -> list[dict[str, Any]]:
    """One entry per temperature, batch size, set (and all sets together, in both ways) and method."""
    entries = []
    for temperature in sorted({record.temperature for record in records}):
        for batch in sorted({record.batch for record in records}):
            cell = [record for record in records if (record.temperature, record.batch) == (temperature, batch)]
            suites = sorted({record.suite for record in cell})
            for suite in [ALL, HELD_OUT, *suites] if cell else []:
                chosen = [record for record in cell if suite in (ALL, HELD_OUT, record.suite)]
                for method in sorted({record.method for record in chosen}, key=_order):
                    entries.append(_entry(chosen, method, suite, temperature, batch))
    return entries


def _order(method: str) -> tuple[int, str]:
    return (0 if method == BASELINE else 1, method)


def _entry(records: Sequence[Record], method: str, suite: str, temperature: float, batch: int) -> dict[str, Any]:
    if suite != HELD_OUT:
        records = [replace(record, weight=1.0) for record in records]
    baseline = {record.group: record for record in records if record.method == BASELINE}
    own = [record for record in records if record.method == method]
    pairs = [(record, baseline[record.group]) for record in own if record.group in baseline]
    entry: dict[str, Any] = {
        "method": method,
        "suite": suite,
        "temperature": temperature,
        "batch": batch,
        "groups": len(own),
        "new_tokens": sum(record.new_tokens for record in own),
        "tokens_per_second": round(_speed(own), 3),
        "median_tokens_per_second": round(float(np.median([record.new_tokens / record.seconds for record in own])), 3),
    }
    if pairs:
        entry["ratio_to_plain"] = round(_ratio(pairs), 4)
        entry["ratio_interval"] = interval(pairs, _ratio)
    rounds = [record for record in own if record.rounds]
    if rounds:
        entry["accepted_length"] = round(_tau(rounds), 4)
        entry["accepted_length_interval"] = interval(rounds, _tau)
        weighed = _weighed_rounds(rounds)
        entry["verified_length"] = round(
            float(np.average([v for v, _, _ in weighed], weights=[w for *_, w in weighed])), 3
        )
        entry["acceptance_by_slot"], entry["trials_by_slot"] = _by_slot(rounds)
        entry["bypassed"] = sum(record.bypassed for record in own)
        count = sum(len(record.rounds) for record in rounds)
        for part in ("draft", "verify", "host"):
            spent = sum(record.__dict__[f"{part}_seconds"] for record in rounds)
            entry[f"{part}_ms_per_round"] = round(1000 * spent / count, 2)
    return entry


def _speed(records: Sequence[Record]) -> float:
    tokens = sum(record.weight * record.new_tokens for record in records)
    return tokens / sum(record.weight * record.seconds for record in records)


def _ratio(pairs: Sequence[tuple[Record, Record]]) -> float:
    return _speed([own for own, _ in pairs]) / _speed([plain for _, plain in pairs])


def _tau(records: Sequence[Record]) -> float:
    tokens = sum(record.weight * (entry[2] + 1) for record in records for entry in record.rounds)
    return float(tokens / sum(record.weight * len(record.rounds) for record in records))


def _weighed_rounds(records: Sequence[Record]) -> list[tuple[int, int, float]]:
    """(verified, accepted, weight) of every round."""
    return [(verified, accepted, each.weight) for each in records for _, verified, accepted in each.rounds]


def _by_slot(records: Sequence[Record]) -> tuple[list[float], list[int]]:
    """P(slot k stands | it was verified and the slots before it stood), and how often that was tried."""
    rounds = _weighed_rounds(records)
    rates, trials = [], []
    for slot in range(max(verified for verified, _, _ in rounds)):
        tried = [(accepted > slot, w) for verified, accepted, w in rounds if verified > slot and accepted >= slot]
        trials.append(len(tried))
        stood, weights = zip(*tried, strict=True) if tried else ((0.0,), (1.0,))
        rates.append(round(float(np.average(stood, weights=weights)), 4))
    return rates, trials


def table(entries: Sequence[dict[str, Any]], *, suites: bool = False) -> str:
    """Markdown; with `suites` a row per set, else all sets together, in both ways."""
    lines = [
        "| T | batch | set | method | tokens/s | x plain | accepted length |",
        "|---|---|---|---|---|---|---|",
    ]
    for entry in entries:
        if (entry["suite"] in (ALL, HELD_OUT)) == suites:
            continue
        ratio = _with_interval(entry.get("ratio_to_plain"), entry.get("ratio_interval"))
        tau = _with_interval(entry.get("accepted_length"), entry.get("accepted_length_interval"))
        lines.append(
            f"| {entry['temperature']:g} | {entry['batch']} | {entry['suite']} | {entry['method']} | "
            f"{entry['tokens_per_second']:.1f} | {ratio} | {tau} |"
        )
    return "\n".join(lines)


def _with_interval(value: float | None, bounds: Sequence[float] | None) -> str:
    return "" if value is None or bounds is None else f"{value:.2f} ({bounds[0]:.2f} to {bounds[1]:.2f})"


def draw(entries: Sequence[dict[str, Any]], path: str | Path) -> None:
    """Ratio to plain per method and cell with its interval, and acceptance by slot of the drafters at batch 1."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    overall = [entry for entry in entries if entry["suite"] == ALL]
    cells = sorted({(entry["temperature"], entry["batch"]) for entry in overall})
    methods = sorted({entry["method"] for entry in overall if entry["method"] != BASELINE})
    figure, (speed, slots) = pyplot.subplots(1, 2, figsize=(13, 1.8 + 0.32 * len(methods) * max(len(cells), 1)))
    height = 0.8 / len(cells)
    for index, cell in enumerate(cells):
        chosen = {entry["method"]: entry for entry in overall if (entry["temperature"], entry["batch"]) == cell}
        known = [(row, chosen[name]) for row, name in enumerate(methods) if "ratio_to_plain" in chosen.get(name, {})]
        values = [entry["ratio_to_plain"] for _, entry in known]
        spread = [[max(v - e["ratio_interval"][0], 0) for v, (_, e) in zip(values, known, strict=True)]]
        spread.append([max(e["ratio_interval"][1] - v, 0) for v, (_, e) in zip(values, known, strict=True)])
        rows = [row + (index - (len(cells) - 1) / 2) * height for row, _ in known]
        label = f"T = {cell[0]:g}, batch {cell[1]}"
        speed.barh(rows, values, height, xerr=spread, color=COLOURS[index % 8], label=label, error_kw={"lw": 1})
    speed.axvline(1.0, color="black", linewidth=1)
    speed.set_yticks(range(len(methods)), methods)
    speed.invert_yaxis()
    speed.set_xlabel("tokens/s relative to plain generate (95% interval over prompts)")
    speed.legend()
    lines = [entry for entry in overall if entry["batch"] == 1 and entry["temperature"] == cells[0][0]]
    for index, entry in enumerate(entry for entry in lines if entry["method"].endswith(" full")):
        rates = entry["acceptance_by_slot"]
        slots.plot(range(1, len(rates) + 1), rates, marker="o", color=COLOURS[index % 8], label=entry["method"])
    slots.set(xlabel="slot", ylabel="acceptance given all slots before", ylim=(0, 1))
    slots.xaxis.get_major_locator().set_params(integer=True)
    if slots.lines:
        slots.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)

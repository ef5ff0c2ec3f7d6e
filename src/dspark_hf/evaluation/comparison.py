"""Several drafters in one table, in the form of the DSpark paper's Table 1: methods down, sets across, averages by domain."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .plots import can_plot
from .results import EvalResults, SuiteResult


MEASURES = {"accepted_length": "accepted length", "speedup": "tokens/s against plain", "tokens_per_second": "tokens/s"}


@dataclass
class Comparison:
    """
    Results of several drafters on the same prompts.

    Args:
        results (`Mapping[str, EvalResults]`): by the name that the table shows.
    """

    results: Mapping[str, EvalResults]

    def settings(self) -> list[tuple[float, bool | None, str]]:
        """Temperature, thinking mode and policy of each block, in the order measured."""
        found = [(s.temperature, s.thinking, s.policy) for results in self.results.values() for s in results.suites]
        return list(dict.fromkeys(found))

    def rows(
        self, measure: str = "accepted_length", *, temperature: float, thinking: bool | None = None, policy: str
    ) -> tuple[list[str], list[list[str]]]:
        """
        Header and rows of one block; a cell is `value [low, high]` with the 95% interval over prompts. Means stand behind
        the sets, by domain and over all, where there are several.

        Args:
            measure (`str`): `"accepted_length"`, `"speedup"` or `"tokens_per_second"`.
        """
        if measure not in MEASURES:
            raise ValueError(f"measure must be one of {', '.join(MEASURES)}, got {measure!r}")
        chosen = {
            name: {
                s.suite: s
                for s in results.suites
                if (s.temperature, s.thinking, s.policy) == (temperature, thinking, policy)
            }
            for name, results in self.results.items()
        }
        sets = list(dict.fromkeys((s.domain, s.suite) for found in chosen.values() for s in found.values()))
        sets.sort(key=lambda pair: ("math", "code", "chat", "other").index(pair[0]))
        counted = Counter(domain for domain, _ in sets)
        groups = [[pair for pair in sets if pair[0] == domain] for domain, count in counted.items() if count > 1]
        groups += [sets] if len(sets) > 1 else []
        titles = [f"mean {domain}" for domain, count in counted.items() if count > 1] + ["mean"] * (len(sets) > 1)
        header = ["drafter", *(suite for _, suite in sets), *titles]
        rows = []
        for name, found in chosen.items():
            cells = [_cell(found.get(suite), measure) for _, suite in sets]
            means = [_mean([found.get(suite) for _, suite in group], measure) for group in groups]
            rows.append([name, *cells, *means])
        return header, rows

    def to_markdown(self) -> str:
        """All blocks and measures as Markdown tables, ready for a card."""
        parts = []
        for temperature, thinking, policy in self.settings():
            mode = {None: "", True: ", thinking on", False: ", thinking off"}[thinking]
            for measure in ("accepted_length", "speedup"):
                header, rows = self.rows(measure, temperature=temperature, thinking=thinking, policy=policy)
                if all(set(row[1:]) == {"-"} for row in rows):
                    continue
                title = f"**{MEASURES[measure]}**, T = {temperature:g}, policy {policy}{mode}"
                lines = [header, ["---"] * len(header), *rows]
                parts.append("\n".join([title, "", *(f"| {' | '.join(line)} |" for line in lines)]))
        return "\n\n".join(parts) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Everything measured, by drafter."""
        return {name: asdict(results) for name, results in self.results.items()}

    def save(self, folder: str | Path) -> list[Path]:
        """Write `comparison.json`, `comparison.md` and, where matplotlib is installed, pictures into `folder`."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "comparison.json").write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")
        (folder / "comparison.md").write_text(self.to_markdown(), encoding="utf-8")
        written = [folder / "comparison.json", folder / "comparison.md"]
        if can_plot():
            from .comparison_plots import plot_comparison

            written += plot_comparison(self, folder)
        return written


def _cell(result: SuiteResult | None, measure: str) -> str:
    values = asdict(result) if result is not None else {}
    value, interval = values.get(measure), values.get(f"{measure}_interval")
    if value is None:
        return "-"
    return f"{value:.2f} [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else f"{value:.2f}"


def _mean(found: list[SuiteResult | None], measure: str) -> str:
    values = [asdict(result)[measure] for result in found if result is not None]
    known = [value for value in values if value is not None]
    # A mean over fewer sets than the others have would compare unlike things.
    return f"{sum(known) / len(known):.2f}" if known and len(known) == len(found) else "-"

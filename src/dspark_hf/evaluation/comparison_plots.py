"""The pictures of a comparison: accepted length by set and acceptance by slot, one series per drafter."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .plots import plot_acceptance_by_slot, plot_accepted_length


if TYPE_CHECKING:
    from .comparison import Comparison


def plot_comparison(comparison: Comparison, folder: str | Path) -> list[Path]:
    """
    Draws each setting (temperature, thinking mode, policy) that was measured.

    Returns:
        `list[Path]`: `accepted_length_<setting>.png` and `acceptance_by_slot_<setting>.png` in `folder`.
    """
    written = []
    for temperature, thinking, policy in comparison.settings():
        lengths: dict[str, dict[str, float | None]] = {}
        intervals: dict[str, dict[str, Any]] = {}
        slots: dict[str, list[float | None]] = {}
        for name, results in comparison.results.items():
            for suite in results.suites:
                if (suite.temperature, suite.thinking, suite.policy) == (temperature, thinking, policy):
                    lengths.setdefault(name, {})[suite.suite] = suite.accepted_length
                    intervals.setdefault(name, {})[suite.suite] = suite.accepted_length_interval
                    slots[f"{name}, {suite.suite}"] = suite.acceptance_by_slot
        mode = {None: "", True: "_thinking", False: "_no_thinking"}[thinking]
        setting = f"t{temperature:g}_{policy.replace(' ', '_')}{mode}"
        title = f"T = {temperature:g}, policy {policy}{mode.replace('_', ' ')}"
        paths = [Path(folder) / f"{kind}_{setting}.png" for kind in ("accepted_length", "acceptance_by_slot")]
        written.append(plot_accepted_length(lengths, paths[0], intervals=intervals, title=title))
        written.append(plot_acceptance_by_slot(slots, paths[1], title=title))
    return written

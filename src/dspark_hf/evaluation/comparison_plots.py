"""The pictures of a comparison: accepted length by set, acceptance by slot over all sets; one series per drafter."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .plots import plot_acceptance_by_slot, plot_accepted_length


if TYPE_CHECKING:
    from .comparison import Comparison
    from .results import SuiteResult


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
        measured: dict[str, list[SuiteResult]] = {}
        for name, results in comparison.results.items():
            for suite in results.suites:
                if (suite.temperature, suite.thinking, suite.policy) == (temperature, thinking, policy):
                    lengths.setdefault(name, {})[suite.suite] = suite.accepted_length
                    intervals.setdefault(name, {})[suite.suite] = suite.accepted_length_interval
                    measured.setdefault(name, []).append(suite)
        mode = {None: "", True: "_thinking", False: "_no_thinking"}[thinking]
        setting = f"t{temperature:g}_{policy.replace(' ', '_')}{mode}"
        title = f"T = {temperature:g}, policy {policy}{mode.replace('_', ' ')}"
        paths = [Path(folder) / f"{kind}_{setting}.png" for kind in ("accepted_length", "acceptance_by_slot")]
        written.append(plot_accepted_length(lengths, paths[0], intervals=intervals, title=title))
        slots = {name: _pooled(suites) for name, suites in measured.items()}
        written.append(plot_acceptance_by_slot(slots, paths[1], title=title))
    return written


def _pooled(suites: list[SuiteResult]) -> list[float | None]:
    """Acceptance by slot over all sets together."""
    rates: list[float | None] = []
    for slot in range(max((len(suite.trials_by_slot) for suite in suites), default=0)):
        known = [suite for suite in suites if len(suite.trials_by_slot) > slot and suite.trials_by_slot[slot]]
        trials = sum(suite.trials_by_slot[slot] for suite in known)
        accepted = sum((suite.acceptance_by_slot[slot] or 0.0) * suite.trials_by_slot[slot] for suite in known)
        rates.append(accepted / trials if trials else None)
    return rates

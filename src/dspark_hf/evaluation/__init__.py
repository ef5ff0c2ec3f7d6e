"""Measuring drafters: named prompt sets, real `generate` calls, figures with their spread, and tables of several drafters."""

from __future__ import annotations

import importlib
from typing import Any


# Opened on first use: cards read results without the machinery that measures them.
_HOMES = {
    "Comparison": "comparison",
    "EvalResults": "results",
    "Suite": "suites",
    "SuiteResult": "results",
    "compare": "suite",
    "evaluate": "suite",
    "load_suite": "suites",
    "update_calibration": "results",
}

__all__ = [
    "Comparison",
    "EvalResults",
    "Suite",
    "SuiteResult",
    "compare",
    "evaluate",
    "load_suite",
    "update_calibration",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

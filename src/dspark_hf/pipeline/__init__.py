"""From a recipe to a folder that can be published: the stages, their order, and how a killed run goes on."""

from __future__ import annotations

import importlib
from typing import Any


# Opened on first use: the command line draws progress without the packages that training needs.
_HOMES = {"STAGE_NAMES": "run", "Reporter": "reporting", "run_pipeline": "run"}

__all__ = ["STAGE_NAMES", "Reporter", "run_pipeline"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

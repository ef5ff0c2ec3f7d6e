"""The Hub room: cards, pushes and conversion between checkpoint formats. The only room that writes to the network."""

from __future__ import annotations

import importlib
from typing import Any


# Opened on first use: a push needs the client, a card only Jinja.
_HOMES = {
    "AdapterCard": "card_adapter",
    "DatasetCard": "card_dataset",
    "DrafterCard": "card",
    "HubError": "errors",
    "PushResult": "commit",
    "download": "fetch",
    "push_adapter": "push",
    "push_dataset": "push",
    "push_drafter": "push",
}

__all__ = [
    "AdapterCard",
    "DatasetCard",
    "DrafterCard",
    "HubError",
    "PushResult",
    "download",
    "push_adapter",
    "push_dataset",
    "push_drafter",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

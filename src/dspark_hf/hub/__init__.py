"""The Hub room: cards, pushes and conversion between checkpoint formats. The only room that writes to the network."""

from __future__ import annotations

import importlib
from typing import Any


# Opened on first use: a push needs the client, a card only Jinja.
_HOMES = {
    "AdapterCard": "card_adapter",
    "CheckReport": "check",
    "Conversion": "convert",
    "DatasetCard": "card_dataset",
    "DrafterCard": "card",
    "FormatError": "formats",
    "HubError": "errors",
    "PushResult": "commit",
    "check_pair": "check",
    "choose_mask_token_id": "mask_token",
    "convert_folder": "convert",
    "download": "fetch",
    "load_adapter": "adapters",
    "merge_adapter": "adapters",
    "push_adapter": "push",
    "push_dataset": "push",
    "push_drafter": "push",
    "register_published": "published",
    "save_adapter": "adapters",
}

__all__ = [
    "AdapterCard",
    "CheckReport",
    "Conversion",
    "DatasetCard",
    "DrafterCard",
    "FormatError",
    "HubError",
    "PushResult",
    "check_pair",
    "choose_mask_token_id",
    "convert_folder",
    "download",
    "load_adapter",
    "merge_adapter",
    "push_adapter",
    "push_dataset",
    "push_drafter",
    "register_published",
    "save_adapter",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Sizes of the targets that recipes name, for planning where the Hub cannot be reached.

It knows no weights; `recipes/targets.yaml` holds the numbers.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

import yaml
from transformers import CONFIG_MAPPING, PreTrainedConfig


def known_targets() -> dict[str, dict[str, Any]]:
    """Target name -> `{"config": fields, "unused_ids": [first, last]}`."""
    text = (resources.files("dspark_hf._recipes") / "targets.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


def known_config(name: str) -> PreTrainedConfig | None:
    """The target's configuration, or `None` for a target that no recipe names."""
    entry = known_targets().get(name)
    if entry is None:
        return None
    fields = dict(entry["config"])
    # all of them are published in bfloat16
    return CONFIG_MAPPING[fields.pop("model_type")](dtype="bfloat16", **fields)

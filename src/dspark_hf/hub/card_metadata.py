"""Front matter of our cards: an allow-list of keys, no nulls, and measured results in the Hub's `model-index` form.

Knows the Hub's schema, not how a card reads.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult
from huggingface_hub.repocard_data import eval_results_to_model_index

from dspark_hf.evaluation.results import SuiteResult


ALLOWED_KEYS = frozenset(
    {
        "base_model",
        "base_model_relation",
        "configs",
        "datasets",
        "language",
        "library_name",
        "license",
        "license_link",
        "license_name",
        "model-index",
        "pretty_name",
        "size_categories",
        "tags",
        "task_categories",
    }
)
# The Hub knows finetune, merge and quantized too; a drafter is none of them.
RELATIONS = ("adapter",)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


def is_hub_id(name: str | None) -> bool:
    """Whether `name` can be a repo on the Hub: `owner/name`, and no file or folder here."""
    return name is not None and _HUB_ID.fullmatch(name) is not None and not Path(name).exists()


def link(name: str | None, otherwise: str) -> str:
    """A model as Markdown: a link for a Hub repo, the folder's name for a local one; words stay words."""
    if not name:
        return otherwise
    if is_hub_id(name):
        return f"[{name}](https://huggingface.co/{name})"
    return name if " " in name else f"`{Path(name).name}`"


def for_code(name: str | None, otherwise: str) -> str:
    """A model as a string in code; of a local folder only the last part, the rest is the author's own."""
    if not name or " " in name:
        return otherwise
    return name if is_hub_id(name) else Path(name).name


def clean(metadata: dict[str, Any]) -> dict[str, Any]:
    """
    `metadata` without empty values.

    Raises:
        ValueError: a key outside of the allow-list, or an unknown relation to the base model.
    """
    kept = {key: value for key, value in metadata.items() if value not in (None, "", [], {})}
    unknown = sorted(set(kept) - ALLOWED_KEYS)
    if unknown:
        raise ValueError(f"card metadata must not hold {unknown[0]!r}; allowed are {', '.join(sorted(ALLOWED_KEYS))}")
    if kept.get("base_model_relation", "adapter") not in RELATIONS:
        raise ValueError(
            f"base_model_relation must be 'adapter' or absent (a drafter is no finetune), got "
            f"{kept['base_model_relation']!r}"
        )
    return kept


def model_index(model_name: str, suites: list[SuiteResult]) -> list[dict[str, Any]] | None:
    """
    Measured accepted lengths and speed-ups as a `model-index`; `None` where nothing was measured.

    Of several policies, accepted lengths are those of `full`, which every drafter can be compared by; ratios are all there.
    """
    entries = []
    several = len({suite.policy for suite in suites}) > 1
    whole = any(suite.policy == "full" for suite in suites)
    for suite in suites:
        mode = {None: "", True: ", thinking", False: ", not thinking"}[suite.thinking]
        policy = f", policy {suite.policy}" if several else ""
        length = suite.accepted_length if suite.policy == "full" or not whole else None
        values = {"acceptance_length": length, "speedup": suite.speedup}
        names = {"acceptance_length": "Accepted length", "speedup": "Tokens/s against plain generation"}
        entries += [
            EvalResult(
                task_type="text-generation",
                task_name="Speculative decoding",
                dataset_type=suite.suite,
                dataset_name=suite.suite,
                dataset_config=f"temperature {suite.temperature:g}{mode}{policy}",
                metric_type=kind,
                metric_name=names[kind],
                metric_value=round(value, 3),
            )
            for kind, value in values.items()
            if value is not None and math.isfinite(value)
        ]
    return eval_results_to_model_index(model_name, entries) if entries else None

"""Which prompts a recipe trains on and which it keeps aside for calibration and evaluation.

It knows nothing of models or of how prompts are answered.
"""

from __future__ import annotations

from dataclasses import dataclass

from dspark_hf.training.data import Conversation, load_conversations, split_held_out
from dspark_hf.training.recipe import Recipe
from dspark_hf.training.rows import RowReport

from .builtin_prompts import builtin_conversations


BUILTIN = "builtin"


@dataclass(frozen=True)
class PromptSplit:
    """`held_out` is never trained on; a prompt's side depends on its id alone."""

    training: list[Conversation]
    held_out: list[Conversation]


def load_prompts(recipe: Recipe, report: RowReport | None = None) -> PromptSplit:
    """
    Reads the prompts that a recipe names.

    Args:
        recipe ([`Recipe`]): `data.prompts` is a JSONL file, a folder of them, a Hub dataset, or `"builtin"`. The toy target
            brings its own when there is none.
        report ([`RowReport`], *optional*): counts what is skipped and why.

    Raises:
        FileNotFoundError, ValueError: no prompts named, none usable, or one side of the split is empty.
    """
    data = recipe.data
    if data.prompts is None and recipe.target.toy is None:
        raise ValueError("data.prompts is missing: name a JSONL file, a folder of them, a Hub dataset, or 'builtin'.")
    if data.domains is not None and data.prompts != BUILTIN:
        raise ValueError("data.domains chooses among our own prompts; set data.prompts=builtin, or leave it out.")
    if data.prompts is None:
        found = toy_conversations(data.max_rows)
    elif data.prompts == BUILTIN:
        found = builtin_conversations(data.max_rows, domains=data.domains, system_prompt=data.system_prompt)
    else:
        found = load_conversations(
            data.prompts,
            split=data.prompts_split,
            system_prompt=data.system_prompt,
            max_rows=data.max_rows,
            report=report,
        )
    training, held_out = split_held_out(found, data.held_out_fraction)
    for side, name in ((training, "training"), (held_out, "held-out")):
        if not side:
            raise ValueError(
                f"No {name} prompt is left of {len(found)} at data.held_out_fraction={data.held_out_fraction}; give more "
                "prompts or another fraction."
            )
    return PromptSplit(training=training, held_out=held_out)


def toy_conversations(limit: int | None) -> list[Conversation]:
    """Questions in the form that the toy target was trained on."""
    from dspark_hf.dev.toy_corpus import library_samples

    return [
        Conversation(id=sample.id, messages=({"role": "user", "content": sample.prompt},), source=f"toy-{sample.kind}")
        for sample in library_samples(limit=limit)
    ]

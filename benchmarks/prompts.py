"""Held-out prompts for benchmarks: the last part of every JSONL file of a folder, rendered with the target's chat template.

A line is `{"turns": [user turn, ...]}`; the first turn is asked. Knows nothing of methods or timing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class Prompt:
    """One prompt: the set it comes from, its line in the file, its token ids, and how many held-out prompts it stands for."""

    suite: str
    line: int
    ids: tuple[int, ...]
    weight: float = 1.0


def held_out_prompts(
    folder: str | Path, tokenizer, *, fraction: float = 0.2, per_set: int | None = None, max_tokens: int = 512
) -> list[Prompt]:
    """
    Prompts of the last `fraction` of every file, at most `per_set` of each, evenly spread; longer ones are left out.

    Raises:
        FileNotFoundError: the folder holds no `.jsonl` file.
        ValueError: nothing is left.
    """
    files = sorted(Path(folder).glob("*.jsonl"))
    if not files:
        raise FileNotFoundError(f'no .jsonl file in {folder}; a line must look like {{"turns": ["..."]}}')
    prompts = []
    for file in files:
        # not splitlines(): JSON strings may hold U+2028 and other separators as they are
        lines = file.read_text(encoding="utf-8").rstrip("\n").split("\n")
        found = []
        for number in range(int(len(lines) * (1 - fraction)), len(lines)):
            ids = rendered(json.loads(lines[number])["turns"][0], tokenizer)
            if len(ids) <= max_tokens:
                found.append(Prompt(file.stem, number, tuple(ids)))
        if per_set is not None and len(found) > per_set:
            step = len(found) / per_set
            found = [replace(found[int(index * step)], weight=step) for index in range(per_set)]
        prompts += found
    if not prompts:
        raise ValueError(
            f"no prompt of at most {max_tokens} tokens in the last {fraction:.0%} of the files in {folder}"
        )
    return prompts


def rendered(text: str, tokenizer) -> list[int]:
    """The prompt as `generate` would get it; a base model without a chat template reads the text itself."""
    if tokenizer.chat_template is None:
        return tokenizer(text)["input_ids"]
    message = [{"role": "user", "content": text}]
    return tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=True)["input_ids"]

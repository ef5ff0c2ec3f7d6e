"""Named prompt sets to evaluate on: the DSpark paper's nine, a JSONL file, a Hub dataset, or conversations in memory.

Knows where prompts come from, not what is done with them.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark_hf.training.data import Conversation, load_conversations


DOMAINS = ("math", "code", "chat", "other")
_MATH = "\nPlease reason step by step, and put your final answer within \\boxed{}."
_CODE = "Write a solution to the following problem and make sure that it passes the tests:\n```python\n{}\n```"


@dataclass(frozen=True)
class Suite:
    """
    Prompts under one name.

    Args:
        name (`str`): as results show it.
        domain (`str`): `"math"`, `"code"`, `"chat"` or `"other"`.
        conversations (`Sequence[Conversation]`): user turns; answers in them are not used.
    """

    name: str
    domain: str
    conversations: Sequence[Conversation]

    def __post_init__(self) -> None:
        if self.domain not in DOMAINS:
            raise ValueError(f"the domain of {self.name!r} must be one of {', '.join(DOMAINS)}, got {self.domain!r}")
        if not self.conversations:
            raise ValueError(f"suite {self.name!r} holds no prompt")


@dataclass(frozen=True)
class HubSource:
    """Where a paper's set lies on the Hub, and how a row of it becomes user turns."""

    domain: str
    dataset: str
    split: str
    turns: Callable[[Mapping[str, Any]], list[str]]
    config: str | None = None
    data_files: str | None = None


PAPER_SUITES: dict[str, HubSource] = {
    "gsm8k": HubSource("math", "openai/gsm8k", "test", lambda row: [row["question"] + _MATH], config="main"),
    "math500": HubSource("math", "HuggingFaceH4/MATH-500", "test", lambda row: [row["problem"] + _MATH]),
    "aime25": HubSource("math", "math-ai/aime25", "test", lambda row: [row["problem"] + _MATH]),
    "humaneval": HubSource("code", "openai/openai_humaneval", "test", lambda row: [_CODE.format(row["prompt"])]),
    "mbpp": HubSource(
        "code", "google-research-datasets/mbpp", "test", lambda row: [row["prompt"]], config="sanitized"
    ),
    "livecodebench": HubSource("code", "livecodebench/code_generation", "test", lambda row: [row["question_content"]]),
    "mt-bench": HubSource("chat", "HuggingFaceH4/mt_bench_prompts", "train", lambda row: list(row["prompt"])),
    "alpaca": HubSource(
        "chat",
        "tatsu-lab/alpaca",
        "train",
        lambda row: ["\n\n".join(filter(None, (row["instruction"], row["input"])))],
    ),
    "arena-hard-v2": HubSource(
        "chat",
        "lmarena-ai/arena-hard-auto",
        "train",
        lambda row: [row["prompt"]],
        data_files="data/arena-hard-v2.0/question.jsonl",
    ),
}


def load_suite(name: str, *, limit: int | None = None, prompts_folder: str | Path | None = None) -> Suite:
    """
    Prompts of one suite.

    Args:
        name (`str`): one of the paper's nine (`PAPER_SUITES`), the path of a `.jsonl` file, or `hub:owner/dataset[:split]`.
            `domain=` before a path or a dataset says what it is: `math=my.jsonl`.
        limit (`int`, *optional*): the first this many.
        prompts_folder (`str` or `Path`, *optional*): local copies `<name>.jsonl`, looked at before the Hub.

    Raises:
        ValueError: no such suite (the nearest name is told), or no usable prompt.
        FileNotFoundError: a path that does not exist.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"the number of prompts must be >= 1, got {limit}")
    domain, equals, source = name.rpartition("=")
    if equals and domain not in DOMAINS:
        raise ValueError(f"the domain in {name!r} must be one of {', '.join(DOMAINS)}")
    if source.startswith("hub:"):
        dataset, _, split = source.removeprefix("hub:").partition(":")
        return _suite(dataset, domain or "other", load_conversations(dataset, split=split or "train", max_rows=limit))
    if Path(source).suffix == ".jsonl":
        stem = Path(source).stem
        known = PAPER_SUITES[stem].domain if stem in PAPER_SUITES else "other"
        return _suite(stem, domain or known, load_conversations(source, max_rows=limit))
    if source not in PAPER_SUITES:
        near = difflib.get_close_matches(source, PAPER_SUITES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(PAPER_SUITES)}"
        raise ValueError(f"no suite {source!r}{hint} A file ends in .jsonl, a dataset starts with hub:")
    local = Path(prompts_folder) / f"{source}.jsonl" if prompts_folder is not None else None
    if local is not None and local.is_file():
        return _suite(source, PAPER_SUITES[source].domain, load_conversations(local, max_rows=limit))
    return _suite(source, PAPER_SUITES[source].domain, _from_hub(source, limit))


def _suite(name: str, domain: str, conversations: list[Conversation]) -> Suite:
    return Suite(name, domain, [dataclasses.replace(item, source=name) for item in conversations])


def _from_hub(name: str, limit: int | None) -> list[Conversation]:
    from datasets import load_dataset

    source = PAPER_SUITES[name]
    rows = load_dataset(source.dataset, source.config, split=source.split, data_files=source.data_files)
    chosen = rows.select(range(min(limit, len(rows)))) if limit is not None else rows
    return [
        Conversation(f"{name}-{index}", tuple({"role": "user", "content": turn} for turn in source.turns(row)))
        for index, row in enumerate(chosen)
    ]

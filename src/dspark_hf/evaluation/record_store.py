"""Keeps what each prompt gave, line by line, so that a stopped evaluation goes on where it was.

A line is reused only if everything that decides it is the same: drafter, target, sampling, policy. Knows no model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .conversations import TurnRecord


FILE_NAME = "eval_records.jsonl"


def run_key(**decisive: Any) -> str:
    """Digest of everything that decides a record."""
    return hashlib.sha256(json.dumps(decisive, sort_keys=True, default=str).encode()).hexdigest()[:16]


class RecordStore:
    """
    Records by run and prompt.

    Args:
        folder (`Path`, *optional*): where `eval_records.jsonl` lies; `None` keeps records in memory alone.
    """

    def __init__(self, folder: str | Path | None):
        self.path = None if folder is None else Path(folder) / FILE_NAME
        self._kept: dict[tuple[str, str], list[TurnRecord]] = {}
        if self.path is not None and self.path.is_file():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                self._take(line)

    def get(self, run: str, prompt: str) -> list[TurnRecord] | None:
        return self._kept.get((run, prompt))

    def put(self, run: str, prompt: str, turns: Sequence[TurnRecord]) -> None:
        self._kept[run, prompt] = list(turns)
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = {"run": run, "prompt": prompt, "turns": [turn.to_dict() for turn in turns]}
        with self.path.open("a", encoding="utf-8") as file:
            # A line that a kill cut short has no line break; ours must not become its end.
            file.write(("\n" if self._cut_short() else "") + json.dumps(line) + "\n")

    def _cut_short(self) -> bool:
        assert self.path is not None
        if not self.path.is_file() or self.path.stat().st_size == 0:
            return False
        with self.path.open("rb") as file:
            file.seek(-1, 2)
            return file.read(1) != b"\n"

    def _take(self, line: str) -> None:
        try:
            content: Mapping[str, Any] = json.loads(line)
            turns = [TurnRecord(**turn) for turn in content["turns"]]
        except (json.JSONDecodeError, KeyError, TypeError):
            return  # the last line of a killed run
        self._kept[content["run"], content["prompt"]] = turns

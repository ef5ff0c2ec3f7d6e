"""Prompts: conversations from JSONL files or Hub datasets, checked, counted and split by a hash of their id.

It knows nothing of models or of how a conversation is rendered to tokens; see `rendering.py`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.utils.logging import get_logger

from .rows import RowReport


logger = get_logger(__name__)

_ROLES = {"human": "user", "gpt": "assistant"}


@dataclass(frozen=True)
class Conversation:
    """Alternating turns that start, after an optional system message, with the user.

    Attributes:
        id: unique within a data set.
        messages: `{"role": ..., "content": ...}`; the answers may be missing, as in a list of user turns alone.
        source: file or data set it came from, for reports by kind of text.
    """

    id: str
    messages: tuple[Mapping[str, str], ...]
    source: str = ""

    @property
    def system(self) -> list[dict[str, str]]:
        return [dict(message) for message in self.messages[:1] if message["role"] == "system"]

    @property
    def user_turns(self) -> list[str]:
        return [message["content"] for message in self.messages if message["role"] == "user"]

    @property
    def has_answers(self) -> bool:
        return any(message["role"] == "assistant" for message in self.messages)


def load_conversations(
    source: str | Path,
    *,
    split: str = "train",
    system_prompt: str | None = None,
    max_rows: int | None = None,
    report: RowReport | None = None,
) -> list[Conversation]:
    """Read prompts or chats.

    Args:
        source (`str` or `Path`):
            A `.jsonl` file, a folder of them, or the name of a dataset on the Hub. A record is one of `{"messages": [...]}`,
            `{"conversations": [...]}` (ShareGPT), `{"turns": [...]}` (user turns), `{"prompt": ...}`.
        split (`str`): of a Hub dataset.
        system_prompt (`str`, *optional*): put before conversations that have none.
        max_rows (`int`, *optional*): stop after this many good ones.
        report ([`RowReport`], *optional*): counts what is skipped and why.

    Raises:
        FileNotFoundError: a path that does not exist.
        ValueError: a line that is no JSON object, or not one good conversation in all.
    """
    report = RowReport() if report is None else report
    found: dict[str, Conversation] = {}
    for record, origin in _records(source, split):
        messages, reason = _messages_of(record, system_prompt)
        if reason is not None:
            report.skip(reason)
            continue
        identity = str(record.get("id") or record.get("question_id") or _digest(messages))
        if identity in found:
            report.skip("repeated id")
            continue
        found[identity] = Conversation(id=identity, messages=tuple(messages), source=origin)
        if max_rows is not None and len(found) == max_rows:
            break
    if not found:
        raise ValueError(f"No usable conversation in {source} ({report.summary()}).")
    return list(found.values())


def split_held_out(items: Iterable[Any], fraction: float) -> tuple[list[Any], list[Any]]:
    """`(training, held out)` by a hash of `.id`: adding data never moves an item to the other side.

    The id's part before `#` decides, so that all turns of a conversation stay together.
    """
    sides: tuple[list[Any], list[Any]] = ([], [])
    for item in items:
        digest = hashlib.sha256(("held-out:" + item.id.split("#")[0]).encode()).digest()
        sides[int.from_bytes(digest[:8], "little") < fraction * 2**64].append(item)
    return sides


def _records(source: str | Path, split: str) -> Iterator[tuple[dict[str, Any], str]]:
    path = Path(source)
    if path.is_dir() or path.suffix == ".jsonl" or path.is_file():
        files = sorted(path.glob("**/*.jsonl")) if path.is_dir() else [path]
        if not files or not files[0].is_file():
            raise FileNotFoundError(f"No .jsonl file at {source}.")
        for file in files:
            # not splitlines(): JSON strings may hold U+2028 and other separators as they are
            for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), start=1):
                if line.strip():
                    yield _parse_line(line, file, number), file.stem
        return
    from datasets import load_dataset

    for record in load_dataset(str(source), split=split):
        yield dict(record), str(source)


def _parse_line(line: str, file: Path, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{file}, line {number} is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise ValueError(f"{file}, line {number} must be a JSON object, not {type(record).__name__}.")
    return record


def _messages_of(record: Mapping[str, Any], system_prompt: str | None) -> tuple[list[dict[str, str]], str | None]:
    """`(messages, None)`, or `([], reason)` for a record that cannot be used."""
    if "messages" in record or "conversations" in record:
        entries = record["messages"] if "messages" in record else record["conversations"]
    elif "turns" in record:
        entries = [{"role": "user", "content": turn} for turn in record["turns"] or []]
    elif "prompt" in record:
        entries = [{"role": "user", "content": record["prompt"]}]
    else:
        return [], "without messages, conversations, turns or prompt"
    if not entries:
        return [], "empty conversation"
    messages: list[dict[str, str]] = []
    for entry in entries:
        if not isinstance(entry, Mapping):
            return [], "message that is no mapping"
        role = str(entry.get("role", entry.get("from")))
        content = _text(entry.get("content", entry.get("value")))
        if content is None:
            return [], "content that is not text"
        messages.append({"role": _ROLES.get(role, role), "content": content})
    if messages[0]["role"] != "system" and system_prompt is not None:
        messages.insert(0, {"role": "system", "content": system_prompt})
    return (messages, None) if (reason := _shape_problem(messages)) is None else ([], reason)


def _text(content: Any) -> str | None:
    """Text, or text parts joined; `None` for anything else."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and content:
        parts = [part.get("text") for part in content if isinstance(part, Mapping) and part.get("type") == "text"]
        texts = [text for text in parts if isinstance(text, str)]
        return "".join(texts) if len(texts) == len(content) else None
    return None


def _shape_problem(messages: list[dict[str, str]]) -> str | None:
    turns = [message["role"] for message in messages if message["role"] != "system"]
    if not turns:
        return "only a system message"
    if any(message["role"] == "system" for message in messages[1:]):
        return "system message after the first"
    if turns[0] == "assistant":
        return "starts with an assistant turn"
    if not set(turns) <= {"user", "assistant"}:
        return "roles other than system, user and assistant"
    if "assistant" in turns and any(one == two for one, two in zip(turns, turns[1:], strict=False)):
        return "turns that do not alternate"
    return None


def _digest(messages: list[dict[str, str]]) -> str:
    return hashlib.sha256(json.dumps(messages, sort_keys=True).encode()).hexdigest()[:16]

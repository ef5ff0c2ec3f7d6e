"""Training rows: one assistant turn each, token-exact, in parquet shards that a killed run can add to.

A row is `prompt_ids` (what the target was given) and `completion_ids` (what it answered). Every completion token is
supervised and nothing else; a truncated answer simply lacks its end-of-turn token, so none is ever supervised that was not
generated. It knows nothing of tokenizers, models or anchors.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("completion_ids", pa.list_(pa.int32())),
        ("finish_reason", pa.string()),
        ("generator", pa.string()),
        ("sampling", pa.string()),
        ("template_hash", pa.string()),
        ("thinking", pa.bool_()),
        ("token_exact", pa.bool_()),
    ]
)


@dataclass(frozen=True)
class Row:
    """One assistant turn.

    Attributes:
        id: unique; `"<conversation>#<turn>"`.
        prompt_ids, completion_ids: token ids as the target read and wrote them.
        finish_reason: `"stop"` (the end-of-turn token is the last completion token) or `"length"` (it has none).
        generator: the model that wrote the answer, `name@revision`; empty for answers that came with the data.
        sampling: the sampling parameters, as sorted JSON.
        template_hash: digest of the chat template; empty for raw text.
        thinking: the template's thinking switch; `None` where it was left alone.
        token_exact: `False` where a server returned text only and the ids were recovered from it.
    """

    id: str
    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    finish_reason: str = "stop"
    generator: str = ""
    sampling: str = "{}"
    template_hash: str = ""
    thinking: bool | None = None
    token_exact: bool = True

    def __post_init__(self) -> None:
        if self.finish_reason not in ("stop", "length"):
            raise ValueError(f"Row {self.id!r}: finish_reason must be 'stop' or 'length', not {self.finish_reason!r}.")

    @property
    def token_ids(self) -> list[int]:
        return [*self.prompt_ids, *self.completion_ids]

    def cut(self, max_tokens: int) -> Row:
        """The row with its answer shortened to fit; the prompt is never cut, so the result may have no answer left."""
        keep = max_tokens - len(self.prompt_ids)
        if keep >= len(self.completion_ids):
            return self
        fields = self.__dict__ | {"completion_ids": self.completion_ids[: max(keep, 0)], "finish_reason": "length"}
        return Row(**fields)


class RowStore:
    """A folder of parquet shards, each written whole or not at all.

    Args:
        folder (`str` or `Path`): made when the first shard is written.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)

    def shards(self) -> list[Path]:
        return sorted(self.folder.glob("rows-*.parquet"))

    def append(self, rows: Sequence[Row]) -> None:
        """Write one shard. Visible under its name only when complete."""
        if not rows:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        existing = self.shards()
        number = int(existing[-1].stem.split("-")[1]) + 1 if existing else 0
        columns = {name: [row.__dict__[name] for row in rows] for name in SCHEMA.names}
        path = self.folder / f"rows-{number:05d}.parquet"
        part = path.with_suffix(".part")
        pq.write_table(pa.table(columns, schema=SCHEMA), part)
        os.replace(part, path)

    def ids(self) -> set[str]:
        """Ids of all stored rows."""
        return {value for shard in self.shards() for value in pq.read_table(shard, columns=["id"])["id"].to_pylist()}

    def read(self) -> list[Row]:
        """All rows, sorted by id, each id once (the first one written).

        Raises:
            ValueError: a shard is not parquet, or lacks a column.
        """
        found: dict[str, Row] = {}
        for shard in self.shards():
            try:
                table = pq.read_table(shard, columns=SCHEMA.names)
            except (pa.ArrowInvalid, OSError, KeyError) as error:
                raise ValueError(
                    f"{shard} is not a shard of training rows ({error}); delete it to make it anew."
                ) from error
            missing = set(SCHEMA.names) - set(table.column_names)
            if missing:
                raise ValueError(f"{shard} lacks the columns {sorted(missing)}; it was not written by this package.")
            for values in table.to_pylist():
                found.setdefault(values["id"], Row(**values))
        return [found[key] for key in sorted(found)]


@dataclass
class RowReport:
    """What became of the data on the way to training: rows kept, and the rest counted by reason."""

    kept: int = 0
    skipped: dict[str, int] = field(default_factory=dict)

    def skip(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def summary(self) -> str:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self.skipped.items()))
        return f"{self.kept} rows kept" + (f"; skipped: {reasons}" if reasons else "")


def fit_rows(rows: Iterable[Row], max_tokens: int, *, report: RowReport | None = None) -> list[Row]:
    """Rows that a drafter can learn from, cut to `max_tokens`.

    An anchor is a supervised token with a supervised token after it, so a row needs two answer tokens that survive the cut.

    Args:
        rows: any rows.
        max_tokens (`int`): prompt and answer together.
        report (`RowReport`, *optional*): counts what is dropped and why.

    Raises:
        ValueError: no row is left; the message says what was dropped.
    """
    report = RowReport() if report is None else report
    kept = []
    for row in rows:
        short = row.cut(max_tokens)
        if len(row.completion_ids) < 2:
            report.skip("answer shorter than 2 tokens")
        elif len(short.completion_ids) < 2:
            report.skip(f"prompt leaves no room for an answer within {max_tokens} tokens")
        else:
            kept.append(short)
    report.kept += len(kept)
    if not kept:
        raise ValueError(
            f"No row to train on ({report.summary()}). Give longer answers or raise train.max_row_tokens."
        )
    return kept


def fingerprint(rows: Iterable[Row]) -> str:
    """Digest (16 hex digits) of ids and tokens, independent of the order and of the shards."""
    digest = hashlib.sha256()
    for row in sorted(rows, key=lambda row: row.id):
        digest.update(json.dumps([row.id, list(row.prompt_ids), list(row.completion_ids)]).encode())
    return digest.hexdigest()[:16]

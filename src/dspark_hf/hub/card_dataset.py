"""The card of published training rows: a target's own answers, token by token."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .card_metadata import is_hub_id, link
from .card_render import cell, count, render
from .card_sources import read_json, read_yaml


@dataclass
class DatasetCard:
    """
    What the template `dataset.md.j2` needs. Make one with [`~DatasetCard.from_folder`].

    Args:
        files (`list[str]`): data files, relative to the folder.
        columns (`list[tuple[str, str]]`): name and type of each column.
        rows, tokens, truncated (`int`, *optional*): counted in the files; `truncated` answers hit the token limit.
        target (`str`, *optional*): the model that wrote the answers.
        written (`dict[str, list[str]]`): what the rows themselves say of who wrote them: generators, sampling, thinking.
        recipe, provenance (`dict`): how they were made.
    """

    files: list[str]
    columns: list[tuple[str, str]] = field(default_factory=list)
    rows: int | None = None
    tokens: int | None = None
    truncated: int | None = None
    target: str | None = None
    written: dict[str, list[str]] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    repo_id: str | None = None
    folder_name: str = "rows"
    license: str | None = None
    language: list[str] = field(default_factory=list)
    extra_tags: list[str] = field(default_factory=list)

    @classmethod
    def from_folder(cls, folder: str | Path, **given: Any) -> DatasetCard:
        """
        Read a folder of parquet or JSONL rows; keyword arguments win over what the recipe says.

        Raises:
            ValueError: the folder holds no rows.
        """
        folder = Path(folder)
        paths = sorted(path for suffix in ("parquet", "jsonl") for path in folder.rglob(f"*.{suffix}"))
        if not paths:
            raise ValueError(
                f"{folder} holds no .parquet or .jsonl file; give the folder that `dspark-hf prepare` wrote"
            )
        recipe = read_yaml(folder / "training_recipe.yaml")
        hub, target = recipe.get("hub") or {}, recipe.get("target") or {}
        from_recipe = {
            "license": hub.get("license"),
            "language": hub.get("language") or [],
            "extra_tags": hub.get("tags") or [],
            "target": target.get("name_or_path"),
        }
        chosen = {**from_recipe, **{key: value for key, value in given.items() if value is not None}}
        return cls(
            files=[path.relative_to(folder).as_posix() for path in paths],
            recipe=recipe,
            provenance=read_json(folder / "provenance.json"),
            folder_name=folder.resolve().name,
            **_counted(path for path in paths if path.suffix == ".parquet"),
            **chosen,
        )

    def render(self) -> str:
        """The whole README."""
        return render("dataset.md.j2", self, self.metadata)

    @property
    def metadata(self) -> dict[str, Any]:
        return {
            "pretty_name": self.name,
            "license": self.license,
            "language": self.language,
            "size_categories": [_size_category(self.rows)] if self.rows is not None else None,
            "task_categories": ["text-generation"],
            "tags": list(dict.fromkeys(["speculative-decoding", "dspark", "self-generated", *self.extra_tags])),
            "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": self.files}]}],
        }

    @property
    def name(self) -> str:
        return (self.repo_id or self.folder_name).rsplit("/", 1)[-1]

    @property
    def repo_for_code(self) -> str:
        return self.repo_id or self.folder_name

    @property
    def target_label(self) -> str:
        return link(self.target, "a target model")

    @property
    def facts(self) -> list[tuple[str, str]]:
        data = self.recipe.get("data") or {}
        versions = (self.provenance.get("environment") or {}).get("versions") or {}
        prompts = data.get("prompts")
        sampling = [f"{name} {data[name]:g}" for name in ("temperature", "top_p", "top_k") if name in data]
        thinking = {True: "on", False: "off", None: None}[data.get("thinking")]
        rows = {
            "Answers by": self.target_label if self.target else self._said("generator"),
            "Prompts": prompts if is_hub_id(prompts) else Path(prompts).name if prompts else None,
            "Rows": count(self.rows) if self.rows is not None else None,
            "Tokens of the answers": count(self.tokens) if self.tokens is not None else None,
            "Cut at the token limit": count(self.truncated) if self.truncated is not None else None,
            "Sampling": ", ".join(sampling) or self._said("sampling"),
            "Thinking mode": thinking or self._said("thinking"),
            "Command": f"`{self.provenance['command']}`" if self.provenance.get("command") else None,
            "Versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        }
        return [(name, cell(value)) for name, value in rows.items() if value]

    def _said(self, column: str) -> str:
        return "; ".join(self.written.get(column) or [])


def _counted(paths: Iterable[Path]) -> dict[str, Any]:
    """Rows, answer tokens and columns of parquet files, read file by file."""
    paths = list(paths)
    if not paths:
        return {}
    import pyarrow.compute as compute
    import pyarrow.parquet as parquet

    schema = parquet.read_schema(paths[0])
    # Versions of pyarrow name the element of a list differently.
    kinds = [(entry.name, re.sub(r"<\w+: ", "<", str(entry.type))) for entry in schema]
    found: dict[str, Any] = {"columns": kinds, "rows": 0}
    for path in paths:
        found["rows"] += parquet.read_metadata(path).num_rows
        if "completion_ids" in schema.names:
            lengths = compute.list_value_length(parquet.read_table(path, columns=["completion_ids"])["completion_ids"])
            found["tokens"] = found.get("tokens", 0) + (compute.sum(lengths).as_py() or 0)
        if "finish_reason" in schema.names:
            reasons = parquet.read_table(path, columns=["finish_reason"])["finish_reason"].to_pylist()
            found["truncated"] = found.get("truncated", 0) + reasons.count("length")
    said = [name for name in ("generator", "sampling", "thinking") if name in schema.names]
    found["written"] = {
        name: _distinct(parquet.read_table(paths[0], columns=[name])[name].to_pylist()) for name in said
    }
    return found


def _distinct(values: list[Any]) -> list[str]:
    """A column's values that differ, folders of this machine by their last part; none where they are many."""
    words = {
        Path(value).name if isinstance(value, str) and Path(value).is_absolute() else str(value) for value in values
    }
    known = sorted(words - {"None", "", "{}"})
    return known if len(known) <= 4 else []


def _size_category(rows: int) -> str:
    for limit, name in ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M")):
        if rows < limit:
            return name
    return "1M<n<10M"

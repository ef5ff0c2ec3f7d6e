"""Which part of a README is ours: marked regions are renewed, everything else belongs to whoever wrote it.

    <!-- dspark-hf:begin use -->          a region; a later push replaces what lies between the two lines
    ...
    <!-- dspark-hf:end use -->
    <!-- dspark-hf:card use,what 1f0c... -->   the regions this card was made with, and a digest of its text

Knows text, not what it says.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import yaml


_REGION = re.compile(r"<!-- dspark-hf:begin ([\w-]+) -->\n.*?<!-- dspark-hf:end \1 -->", re.DOTALL)
_SEAL = re.compile(r"\n*<!-- dspark-hf:card ([\w,-]*) ([0-9a-f]{16}) -->\n*\Z")
_FRONT = re.compile(r"\A---[ \t]*\r?\n(.*?)\r?\n?---[ \t]*(?:\r?\n|\Z)", re.DOTALL)


def split_metadata(text: str) -> tuple[dict[str, Any], str]:
    """
    Front matter and body of a README; an empty mapping where there is none.

    Raises:
        ValueError: the front matter is not a YAML mapping.
    """
    found = _FRONT.match(text)
    if found is None:
        return {}, text
    try:
        metadata = yaml.safe_load(found[1]) or {}
    except yaml.YAMLError as error:
        line = str(error).splitlines()[0]
        raise ValueError(
            f"the README's front matter is not valid YAML ({line}); mend it or overwrite the card"
        ) from error
    if not isinstance(metadata, dict):
        raise ValueError(f"the README's front matter must be a mapping, got {type(metadata).__name__}")
    return metadata, text[found.end() :]


def join_metadata(metadata: dict[str, Any], body: str) -> str:
    """A README from front matter and body."""
    front = yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True, width=10_000).strip()
    return f"---\n{front}\n---\n\n{body.strip()}\n" if metadata else f"{body.strip()}\n"


def seal(text: str) -> str:
    """Append the line that tells a later push whether somebody has edited this README."""
    names = ",".join(match[1] for match in _REGION.finditer(text))
    return f"{text.strip()}\n\n<!-- dspark-hf:card {names} {_digest(text)} -->\n"


def is_untouched(text: str) -> bool:
    """Whether a README is one of ours that nobody has edited since."""
    found = _SEAL.search(text)
    return found is not None and found[2] == _digest(text[: found.start()])


def merge(existing: str | None, fresh: str, *, overwrite: bool = False) -> str:
    """
    The README to publish, given the one that is there and a newly rendered one.

    A card that nobody edited is replaced. In an edited one the marked regions are renewed where they stand, regions that
    are new since then are added at the end, and regions that a person took out stay out. A card without any marker is
    somebody's own: its text stays as it is. Metadata that a person set wins over ours, except measured results.

    Args:
        existing (`str`, *optional*): the README that is there.
        fresh (`str`): a rendered card.
        overwrite (`bool`): replace the card whatever it holds.
    """
    if overwrite or not (existing or "").strip():
        return fresh
    existing = existing or ""
    if is_untouched(existing):
        return fresh
    old_metadata, old_body = split_metadata(existing)
    fresh_metadata, fresh_body = split_metadata(fresh)
    metadata = _merge_metadata(old_metadata, fresh_metadata)
    if _SEAL.search(old_body) is None and _REGION.search(old_body) is None:
        return join_metadata(metadata, old_body) if metadata != old_metadata else existing
    return join_metadata(metadata, _merge_body(old_body, fresh_body))


def _merge_body(old_body: str, fresh_body: str) -> str:
    fresh = {match[1]: match[0] for match in _REGION.finditer(fresh_body)}
    old_seal = _SEAL.search(old_body)
    text = _SEAL.sub("", old_body)
    present = {match[1] for match in _REGION.finditer(text)}
    known = set(old_seal[1].split(",")) if old_seal else present
    text = _REGION.sub(lambda match: fresh.get(match[1], ""), text)
    text = re.sub(r"\n{3,}", "\n\n", text)
    added = [region for name, region in fresh.items() if name not in known | present]
    names = ",".join(fresh)
    # No digest can match 0000...: a card that was edited once stays a person's card.
    return "\n\n".join([text.strip(), *added, f"<!-- dspark-hf:card {names} {'0' * 16} -->"])


def _merge_metadata(old: dict[str, Any], fresh: dict[str, Any]) -> dict[str, Any]:
    merged = {**fresh, **{key: value for key, value in old.items() if value is not None}}
    if "model-index" in fresh:
        merged["model-index"] = fresh["model-index"]
    if isinstance(old.get("tags"), list):
        merged["tags"] = list(dict.fromkeys([*old["tags"], *fresh.get("tags", [])]))
    return merged


def _digest(text: str) -> str:
    return hashlib.sha256(text.strip().encode()).hexdigest()[:16]

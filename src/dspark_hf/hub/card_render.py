"""Fills a packaged template. Knows Jinja and white space, not what a card says."""

from __future__ import annotations

import re
from importlib import resources
from typing import Any

import jinja2

from .card_metadata import clean
from .card_regions import join_metadata, seal


TEMPLATES = "dspark_hf._model_cards"


def _read_template(name: str) -> str | None:
    path = resources.files(TEMPLATES) / name
    return path.read_text(encoding="utf-8") if path.is_file() else None


def environment() -> jinja2.Environment:
    """Templates fail on an unknown name instead of leaving a hole."""
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(_read_template),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def render(template: str, card: Any, metadata: dict[str, Any]) -> str:
    """
    A README: checked front matter, the template's regions, and the seal.

    Args:
        template (`str`): file name in `model_cards/`.
        card: what the template calls `card`.
        metadata (`dict`): front matter; empty values are dropped.
    """
    body = environment().get_template(template).render(card=card)
    body = re.sub(r"[ \t]+\n", "\n", body)
    body = re.sub(r"(<!-- dspark-hf:end [\w-]+ -->)\n", r"\1\n\n", body)
    body = re.sub(r"\n{3,}", "\n\n", body)
    return seal(join_metadata(clean(metadata), body))


def number(value: float | None, digits: int = 2) -> str:
    """A figure for a table; a dash where it was not measured."""
    return "-" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}%"


def with_interval(value: float | None, interval: list[float] | None) -> str:
    """`3.10 [2.95, 3.24]`."""
    return number(value) if not interval or value is None else f"{value:.2f} [{interval[0]:.2f}, {interval[1]:.2f}]"


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def count(value: int) -> str:
    """`1,234,567`."""
    return f"{value:,}"


def cell(value: Any) -> str:
    """Any text as one cell of a table."""
    return str(value).replace("|", "\\|").replace("\n", " ")

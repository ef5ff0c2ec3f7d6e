"""Options of every verb that runs a recipe: the file, overrides, and the folder of the run.

It knows nothing of stages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def recipe_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`-o section.key=value` and `--run-dir`."""
    command = click.option(
        "--run-dir", type=click.Path(file_okay=False, path_type=Path), help="Folder of the run. [default: runs/RECIPE]"
    )(command)
    return click.option(
        "-o",
        "--override",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set a knob, e.g. -o train.max_steps=100.",
    )(command)


def default_run_dir(recipe: str) -> Path:
    """`recipes/toy/cpu.yaml` -> `runs/toy-cpu`."""
    path = Path(recipe)
    return Path("runs") / "-".join(part for part in (path.parent.name, path.stem) if part)


def typed_command() -> str:
    """What the user typed, for the card; the program by its name alone."""
    return " ".join(["dspark-hf", *sys.argv[1:]])

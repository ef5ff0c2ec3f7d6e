"""What a verb shows: stages and bars on stderr, results on stdout as a table or as JSON.

It knows nothing of what is shown.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from transformers.utils import logging

from dspark_hf.pipeline.reporting import Reporter


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--json` and `-q`."""
    command = click.option("-q", "--quiet", is_flag=True, help="No progress, results only.")(command)
    return click.option("--json", "as_json", is_flag=True, help="Print results as JSON.")(command)


class ScreenReporter(Reporter):
    """Draws on stderr.

    Args:
        quiet (`bool`): draw nothing at all.
    """

    def __init__(self, *, quiet: bool = False):
        self.console = Console(stderr=True, quiet=quiet, highlight=False)
        self.draws = not quiet and self.console.is_terminal
        # the loaders' own bars flash by once a file
        logging.disable_progress_bar()
        self._started = time.monotonic()

    def stage(self, name: str, title: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
        self.console.print(f"[bold]{minutes:02d}:{seconds:02d} {name:<9}[/bold] {title}")

    def reuse(self, name: str, title: str) -> None:
        self.console.print(f"[dim]      {name:<9} {title}: done before[/dim]")

    def note(self, text: str) -> None:
        self.console.print(f"      {text}", markup=False, soft_wrap=True)

    @contextmanager
    def bar(self, title: str) -> Iterator[Callable[[int, int], None]]:
        columns = (TextColumn("      {task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=self.console, transient=True, disable=not self.draws) as progress:
            task: list[Any] = []

            def show(done: int, total: int) -> None:
                if not task:
                    task.append(progress.add_task(title, total=total))
                progress.update(task[0], completed=done, total=total)

            yield show


def show_json(values: Any) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(values, indent=2, default=str))


def show_table(header: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str | None = None) -> None:
    """A table on stdout."""
    table = Table(*header, title=title, title_justify="left")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    # a pipe has no width of its own
    Console(highlight=False, width=None if sys.stdout.isatty() else 140).print(table)

"""How a pipeline tells what it is doing; silent here, drawn by the command line.

It knows nothing of stages or terminals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


Progress = Callable[[int, int], None]


class Reporter:
    """Tells nobody. Subclasses draw.

    Attributes:
        draws (`bool`): whether library functions may draw progress bars of their own.
    """

    draws = False

    def stage(self, name: str, title: str) -> None:
        """A stage begins."""

    def reuse(self, name: str, title: str) -> None:
        """A stage's result of an earlier run is taken."""

    def note(self, text: str) -> None:
        """A line worth reading: a figure, a path."""

    @contextmanager
    def bar(self, title: str) -> Iterator[Progress]:
        """A progress bar; the callable takes (done, total)."""
        yield _ignore


def _ignore(done: int, total: int) -> None:
    pass

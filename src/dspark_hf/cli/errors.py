"""Errors that are the user's to mend become one line and exit code 2; everything else keeps its traceback.

It knows nothing of verbs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from dspark_hf.hub.errors import HubError, without_tokens


# optional package -> the extra that brings it
EXTRAS = {
    "accelerate": "train",
    "datasets": "train",
    "peft": "train",
    "pyarrow": "train",
    "evaluate": "evaluate",
    "matplotlib": "evaluate",
    "gguf": "gguf",
}


class UserError(click.ClickException):
    """One line on stderr, exit code 2."""

    exit_code = 2


@contextmanager
def one_line() -> Iterator[None]:
    """Turns an error that names its own remedy into a [`UserError`]."""
    try:
        yield
    except (ValueError, OSError, ImportError, HubError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:
            text += f'; this verb needs it: pip install "dspark-hf[{EXTRAS[error.name]}]"'
        raise UserError(f"{without_tokens(text)} (--debug shows where)") from error

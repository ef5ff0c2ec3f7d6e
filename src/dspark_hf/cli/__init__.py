"""The command line: `dspark-hf VERB`. Verbs are loaded when they are called, one file each.

A user's mistake ends in one line on stderr and exit code 2; `--debug` shows the traceback. It knows nothing of what a verb does.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

import click

from .errors import one_line


VERBS = (
    "train-and-push",
    "prepare",
    "train",
    "calibrate",
    "profile",
    "evaluate",
    "push",
    "convert",
    "check",
    "generate",
    "bench",
    "card",
    "env",
)


class VerbGroup(click.Group):
    """Finds each verb in the module of its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [verb for verb in VERBS if importlib.util.find_spec(_module(verb)) is not None]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(_module(name))
        return next(item for item in vars(module).values() if isinstance(item, click.Command) and item.name == name)

    def invoke(self, ctx: click.Context) -> Any:
        if ctx.params["debug"]:
            return super().invoke(ctx)
        with one_line():
            return super().invoke(ctx)


def _module(verb: str) -> str:
    return f"{__name__}.{verb.replace('-', '_')}"


@click.group(
    cls=VerbGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="""\b
Examples:
  $ dspark-hf train-and-push recipes/toy/cpu.yaml --no-push
  $ dspark-hf generate Qwen/Qwen3-4B me/dspark-qwen3-4b "Why is the sky blue?"
\b
Shell completion: eval "$(_DSPARK_HF_COMPLETE=bash_source dspark-hf)"
""",
)
@click.version_option(package_name="dspark-hf", prog_name="dspark-hf")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """Train, calibrate, publish and use DSpark block drafters."""


def main() -> None:
    """Entry point of the console script."""
    sys.exit(cli.main(prog_name="dspark-hf"))

"""`dspark-hf push`: publish a folder that the stages left, or an adapter, or rows."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from .screen import output_options, show_json


@click.command(
    "push",
    epilog="""\b
Examples:
  $ dspark-hf push runs/toy-cpu/drafter me/dspark-toy
  $ dspark-hf push runs/toy-cpu/drafter me/dspark-toy --private --dry-run
  $ dspark-hf push out/rows me/qwen3-4b-rows --kind dataset
""",
)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("repo_id", metavar="[OWNER/]NAME")
@click.option(
    "--kind",
    type=click.Choice(["drafter", "adapter", "dataset"]),
    help="What the folder holds. [default: seen from its files]",
)
@click.option("--private/--public", default=None, help="Of a new repo. [default: as the account has it]")
@click.option("--revision", default="main", show_default=True, help="Branch of the commit.")
@click.option("--pr", "create_pr", is_flag=True, help="Open a pull request instead of a commit.")
@click.option("--license", help="Licence identifier, the target's. [default: the recipe's]")
@click.option("--message", help="Title of the commit.")
@click.option("--overwrite-card", is_flag=True, help="Replace the README even where a person edited it.")
@click.option("--no-code", is_flag=True, help="Drafter: leave out the code for trust_remote_code and custom_generate.")
@click.option("--no-engine-branch", is_flag=True, help="Drafter: write no branch for vLLM and SGLang.")
@click.option("--dry-run", is_flag=True, help="List the files and print the card; send nothing.")
@output_options
def push(
    folder: Path,
    repo_id: str,
    kind: str | None,
    no_code: bool,
    no_engine_branch: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Publish FOLDER as the Hub repo NAME: one commit with everything and a card.

    Safe to repeat: an interrupted push goes on, an unchanged folder makes no commit, a README that a person edited keeps
    that person's words.
    """
    from dspark_hf.hub.push import PUSHES, folder_kind, preview

    kind = kind or folder_kind(folder)
    if dry_run:
        plan = preview(folder, repo_id, kind=kind, license=options["license"], with_code=not no_code)
        show_json(plan) if as_json else click.echo("\n".join([*plan["files"], "", plan["card"]]))
        return
    if kind == "drafter":
        options |= {"with_code": not no_code} | ({"engine_branch": None} if no_engine_branch else {})
    result = PUSHES[kind](folder, repo_id, **{key: value for key, value in options.items() if value is not None})
    if as_json:
        show_json({**asdict(result), "changed": result.changed})
    else:
        click.echo(result.pull_request or result.url)
        if not quiet and not result.changed:
            click.echo("nothing had changed, no commit was made", err=True)

"""`dspark-hf card`: render the README of a folder, or renew it in place."""

from __future__ import annotations

from pathlib import Path

import click

from .screen import output_options, show_json


@click.command(
    "card",
    epilog="""\b
Examples:
  $ dspark-hf card runs/toy-cpu/drafter
  $ dspark-hf card runs/toy-cpu/drafter --write --license apache-2.0
""",
)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--repo-id", metavar="OWNER/NAME", help="Name in the card's code. [default: the folder's]")
@click.option("--license", help="Licence identifier, the target's. [default: the recipe's]")
@click.option("--write", is_flag=True, help="Write README.md; what a person wrote in it stays.")
@click.option("--overwrite", is_flag=True, help="With --write: replace README.md whatever it holds.")
@output_options
def card(
    folder: Path, repo_id: str | None, license: str | None, write: bool, overwrite: bool, as_json: bool, quiet: bool
) -> None:
    """Print the card of FOLDER (a drafter, an adapter or rows), made from the files in it."""
    from dspark_hf.hub.card_regions import merge, split_metadata
    from dspark_hf.hub.push import CARDS, folder_kind

    text = CARDS[folder_kind(folder)].from_folder(folder, repo_id=repo_id, license=license).render()
    path = folder / "README.md"
    if write:
        before = path.read_text(encoding="utf-8") if path.is_file() else None
        text = merge(before, text, overwrite=overwrite)
        path.write_text(text, encoding="utf-8")
    if as_json:
        metadata, body = split_metadata(text)
        show_json({"metadata": metadata, "body": body, "path": str(path) if write else None})
    elif not (write and quiet):
        click.echo(str(path) if write else text, nl=write)

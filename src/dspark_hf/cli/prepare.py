"""`dspark-hf prepare`: the target answers the prompts."""

from __future__ import annotations

from pathlib import Path

import click

from .recipe_options import default_run_dir, recipe_options, typed_command
from .screen import ScreenReporter, output_options, show_json


@click.command(
    "prepare",
    epilog="""\b
Examples:
  $ dspark-hf prepare recipes/qwen3-4b/full.yaml
  $ dspark-hf prepare my.yaml -o data.server=http://127.0.0.1:8000/v1 --push me/qwen3-4b-answers
""",
)
@click.argument("recipe")
@recipe_options
@click.option("--push", metavar="OWNER/NAME", help="Publish the rows as a dataset with a card.")
@output_options
def prepare(
    recipe: str, overrides: tuple[str, ...], run_dir: Path | None, push: str | None, as_json: bool, quiet: bool
) -> None:
    """Let the target of RECIPE answer its prompts: the training rows, token by token as it wrote them."""
    from dspark_hf.hub.push import push_dataset
    from dspark_hf.pipeline.publish import check_destination
    from dspark_hf.pipeline.run import run_pipeline
    from dspark_hf.training.recipe import load_recipe

    settings = load_recipe(recipe, overrides)
    if push is not None:
        check_destination(settings, push)
    reporter = ScreenReporter(quiet=quiet)
    folder = run_dir or default_run_dir(recipe)
    result = run_pipeline(settings, folder, until="prepare", reporter=reporter, command=typed_command())["prepare"]
    if push is not None:
        result = {**result, "url": push_dataset(result["folder"], push, license=settings.hub.license).url}
    show_json(result) if as_json else click.echo(result.get("url", result["folder"]))

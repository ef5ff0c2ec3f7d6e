"""`dspark-hf train`: rows where they are missing, then the drafter."""

from __future__ import annotations

from pathlib import Path

import click

from .recipe_options import default_run_dir, recipe_options, typed_command
from .screen import ScreenReporter, output_options, show_json


@click.command(
    "train",
    epilog="""\b
Examples:
  $ dspark-hf train recipes/toy/cpu.yaml
  $ dspark-hf train recipes/qwen3-4b/lora.yaml --from deepseek-ai/dspark_qwen3_4b_block7
""",
)
@click.argument("recipe")
@recipe_options
@click.option("--from", "start", metavar="DRAFTER", help="Start from a published drafter, any format.")
@output_options
def train(
    recipe: str, overrides: tuple[str, ...], run_dir: Path | None, start: str | None, as_json: bool, quiet: bool
) -> None:
    """Train the drafter of RECIPE; a killed training goes on from its last checkpoint."""
    from dspark_hf.pipeline.run import run_pipeline
    from dspark_hf.training.recipe import load_recipe

    chosen = [*overrides, f"drafter.start_from={start}"] if start else overrides
    settings = load_recipe(recipe, chosen)
    folder = run_dir or default_run_dir(recipe)
    reporter = ScreenReporter(quiet=quiet)
    result = run_pipeline(settings, folder, until="train", reporter=reporter, command=typed_command())["train"]
    show_json(result) if as_json else click.echo(str(folder / "drafter"))

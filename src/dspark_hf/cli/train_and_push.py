"""`dspark-hf train-and-push`: from a recipe to a published drafter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .recipe_options import default_run_dir, recipe_options, typed_command
from .screen import ScreenReporter, output_options, show_json


@click.command(
    "train-and-push",
    epilog="""\b
Examples:
  $ dspark-hf train-and-push recipes/qwen3-4b/full.yaml --dry-run
  $ dspark-hf train-and-push recipes/qwen3-4b/full.yaml --repo-id me/dspark-qwen3-4b-b7
  $ dspark-hf train-and-push recipes/toy/cpu.yaml --no-push -o train.max_steps=100
""",
)
@click.argument("recipe")
@recipe_options
@click.option("--repo-id", metavar="OWNER/NAME", help="Where to push. [default: hub.repo_id of the recipe]")
@click.option("--private/--public", default=None, help="Of a new repo. [default: as the recipe or account has it]")
@click.option("--pr", is_flag=True, help="Open a pull request instead of a commit.")
@click.option("--no-push", is_flag=True, help="Stop at the folder.")
@click.option("--dry-run", is_flag=True, help="Print sizes, disk, memory and time, and do nothing.")
@output_options
def train_and_push(
    recipe: str, overrides: tuple[str, ...], run_dir: Path | None, as_json: bool, quiet: bool, **push: Any
) -> None:
    """Train a drafter as RECIPE says, calibrate, measure and publish it. Run again after a kill, it goes on."""
    from dspark_hf.pipeline.estimate import estimate
    from dspark_hf.pipeline.publish import check_destination, publish
    from dspark_hf.pipeline.run import run_pipeline
    from dspark_hf.training.recipe import load_recipe

    settings = load_recipe(recipe, overrides)
    folder = run_dir or default_run_dir(recipe)
    if push["dry_run"]:
        plan = estimate(settings, folder)
        show_json(plan.to_dict()) if as_json else click.echo(plan.text())
        return
    repo_id = None if push["no_push"] else check_destination(settings, push["repo_id"])
    reporter = ScreenReporter(quiet=quiet)
    results: dict[str, Any] = run_pipeline(settings, folder, reporter=reporter, command=typed_command())
    drafter = results["assemble"]["folder"]
    if repo_id is not None:
        reporter.stage("push", f"publish to {repo_id}")
        options = {"private": push["private"], "create_pr": push["pr"]}
        sent = publish(drafter, repo_id, recipe=settings, rows_folder=results["prepare"]["folder"], **options)
        results["push"] = {"url": sent.drafter.url, "repo_id": sent.drafter.repo_id, "changed": sent.drafter.changed}
    place = results["push"]["url"] if repo_id is not None else drafter
    show_json(results) if as_json else click.echo(f"{place}\ncard: {results['assemble']['card']}")

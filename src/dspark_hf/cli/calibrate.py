"""`dspark-hf calibrate`: temperatures for the confidences, from real rollouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .recipe_options import default_run_dir, recipe_options, typed_command
from .screen import ScreenReporter, output_options, show_json, show_table


@click.command(
    "calibrate",
    epilog="""\b
Examples:
  $ dspark-hf calibrate recipes/toy/cpu.yaml
  $ dspark-hf calibrate ./drafter --target Qwen/Qwen3-4B --prompts held_out.jsonl -o calibrate.temperatures=[0.0,0.7]
""",
)
@click.argument("source", metavar="RECIPE|DRAFTER")
@recipe_options
@click.option("--target", help="Folder, repo or GGUF. [default: the one that the drafter names]")
@click.option("--prompts", help="JSONL or Hub dataset the drafter was not trained on. [default: our own]")
@click.option("--thinking/--no-thinking", default=None, help="Mode of the chat template.")
@output_options
def calibrate(
    source: str, overrides: tuple[str, ...], run_dir: Path | None, as_json: bool, quiet: bool, **drafter: Any
) -> None:
    """Fit temperatures on whole rollouts, one set per sampling regime; they go into config.json, the report beside it."""
    from dspark_hf.hub.card_render import number
    from dspark_hf.pipeline.run import run_pipeline
    from dspark_hf.pipeline.standalone import calibrate_drafter, drafter_workspace
    from dspark_hf.training.recipe import build_recipe, load_recipe

    reporter = ScreenReporter(quiet=quiet)
    if source.endswith((".yaml", ".yml")):
        settings = load_recipe(source, overrides)
        folder = run_dir or default_run_dir(source)
        run = run_pipeline(settings, folder, until="calibrate", reporter=reporter, command=typed_command())
        result = run["calibrate"]
    else:
        section = build_recipe({"target": {"toy": {}}}, overrides).calibrate
        result = calibrate_drafter(drafter_workspace(source, calibrate=section, reporter=reporter, **drafter))
    if as_json:
        show_json(result)
    else:
        rows = [
            [regime, *(number(each[key], 3) for key in ("ece_before", "ece_after"))] for regime, each in result.items()
        ]
        show_table(["regime", "error before", "error after"], rows, title="survival, mean over slots, held-out rounds")

"""`dspark-hf profile`: what a forward of the target and a draft cost on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from .recipe_options import default_run_dir, recipe_options, typed_command
from .screen import ScreenReporter, output_options, show_json, show_table


@click.command(
    "profile",
    epilog="""\b
Examples:
  $ dspark-hf profile recipes/toy/cpu.yaml
  $ dspark-hf profile ./drafter --target Qwen/Qwen3-4B -o calibrate.cost_rows=8
""",
)
@click.argument("source", metavar="RECIPE|DRAFTER")
@recipe_options
@click.option("--target", help="Folder, repo or GGUF. [default: the one that the drafter names]")
@output_options
def profile(
    source: str, overrides: tuple[str, ...], run_dir: Path | None, target: str | None, as_json: bool, quiet: bool
) -> None:
    """Measure the cost curve T(B) that the policies "auto", "early_stop" and "lookahead" read."""
    from dspark_hf.pipeline.run import run_pipeline
    from dspark_hf.pipeline.standalone import drafter_workspace, profile_drafter
    from dspark_hf.training.recipe import build_recipe, load_recipe

    reporter = ScreenReporter(quiet=quiet)
    if source.endswith((".yaml", ".yml")):
        settings = load_recipe(source, overrides)
        folder = run_dir or default_run_dir(source)
        result = run_pipeline(settings, folder, until="profile", reporter=reporter, command=typed_command())["profile"]
    else:
        section = build_recipe({"target": {"toy": {}}}, overrides).calibrate
        result = profile_drafter(drafter_workspace(source, target=target, calibrate=section, reporter=reporter))
    if as_json:
        show_json(result)
    else:
        rows = zip(result["tokens"], result["milliseconds"], strict=True)
        show_table(["tokens", "ms"], list(rows), title=f"one draft: {result['draft_milliseconds']:.2f} ms")

"""`dspark-hf evaluate`: accepted length, speed and losslessness on named prompt sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .recipe_options import default_run_dir, recipe_options, typed_command
from .screen import ScreenReporter, output_options, show_json, show_table


@click.command(
    "evaluate",
    epilog="""\b
Examples:
  $ dspark-hf evaluate recipes/toy/cpu.yaml
  $ dspark-hf evaluate me/dspark-qwen3-4b --suite gsm8k --suite humaneval --prompts 40 --output results
  $ dspark-hf evaluate ./dspark --compare ./dflash --compare ./eagle --target Qwen/Qwen3-4B --suite math=mine.jsonl
""",
)
@click.argument("source", metavar="RECIPE|DRAFTER")
@recipe_options
@click.option("--target", help="Folder, repo or GGUF. [default: the one that the drafter names]")
@click.option(
    "--suite", "suites", multiple=True, help="A set of the paper, a .jsonl file, or hub:OWNER/NAME. Repeatable."
)
@click.option("--compare", multiple=True, metavar="DRAFTER", help="Another drafter on the same prompts. Repeatable.")
@click.option("--temperature", "temperatures", type=float, multiple=True, default=(0.0, 1.0), show_default=True)
@click.option("--policy", "policies", multiple=True, default=("auto",), show_default=True)
@click.option("--thinking", type=click.Choice(["on", "off", "both"]), help="Mode of the chat template.")
@click.option("--prompts", type=int, help="First so many of each set.")
@click.option(
    "--prompts-folder", type=click.Path(exists=True, file_okay=False), help="Local copies of the paper's sets."
)
@click.option(
    "--context",
    "context_tokens",
    type=click.IntRange(1),
    multiple=True,
    help="Also in contexts this long. Repeatable.",
)
@click.option("--max-new-tokens", type=int, default=256, show_default=True)
@click.option("--max-minutes", type=float, help="Stop between prompts after this long.")
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), help="Folder for results; a stopped run goes on."
)
@output_options
def evaluate(
    source: str, overrides: tuple[str, ...], run_dir: Path | None, as_json: bool, quiet: bool, **chosen: Any
) -> None:
    """Measure on held-out prompts, with and without the drafter in turn."""
    from dspark_hf.pipeline.run import run_pipeline
    from dspark_hf.pipeline.standalone import evaluate_drafters
    from dspark_hf.training.recipe import load_recipe

    reporter = ScreenReporter(quiet=quiet)
    if source.endswith((".yaml", ".yml")):
        settings = load_recipe(source, overrides)
        folder = run_dir or default_run_dir(source)
        run = run_pipeline(settings, folder, until="evaluate", reporter=reporter, command=typed_command())
        found = run["evaluate"]["suites"]
        columns = ["suite", "temperature", "policy", "accepted_length", "speedup", "identical"]
        rows = [
            [each[key] if not isinstance(each[key], float) else f"{each[key]:.2f}" for key in columns]
            for each in found
        ]
        show_json(found) if as_json else show_table(columns, rows)
        return
    options = chosen | {"command": typed_command(), "progress": reporter.draws}
    comparison = evaluate_drafters([source, *options.pop("compare")], **options)
    show_json(comparison.to_dict()) if as_json else click.echo(comparison.to_markdown())

"""`dspark-hf bench`: speed of a drafter on this machine, beyond single requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .screen import ScreenReporter, output_options, show_json, show_table


@click.group(
    "bench",
    epilog="""\b
Examples:
  $ dspark-hf bench load ./target ./drafter --rows 1 --rows 4 --rows 16
\b
Single requests, with and without a drafter in turn: dspark-hf evaluate.
""",
)
def bench() -> None:
    """Measure speed on this machine."""


@bench.command(
    "load",
    epilog="""\b
Examples:
  $ dspark-hf bench load Qwen/Qwen3-4B me/dspark-qwen3-4b --output load.json
  $ dspark-hf bench load ./target ./drafter --rows 1 --rows 8 --prompts mine.jsonl --temperature 1
""",
)
@click.argument("target")
@click.argument("drafter")
@click.option("--rows", type=click.IntRange(1), multiple=True, default=(1, 2, 4, 8), show_default=True)
@click.option("--prompts", help="JSONL or Hub dataset. [default: our own]")
@click.option("--max-new-tokens", type=click.IntRange(1), default=96, show_default=True)
@click.option("--temperature", type=click.FloatRange(0), default=0.0, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="JSON file; a picture goes beside it.")
@output_options
def load(target: str, drafter: str, output: Path | None, as_json: bool, quiet: bool, **options: Any) -> None:
    """Throughput of plain decoding and of several policies with 1, 2, 4, .. requests at a time."""
    from dspark_hf.pipeline.standalone import bench_load

    points = bench_load(target, drafter, output=output, progress=ScreenReporter(quiet=quiet).draws, **options)
    if as_json:
        show_json(points)
        return
    columns = [
        "policy",
        "rows",
        "tokens_per_second",
        "tokens_per_second_per_user",
        "verified_length",
        "accepted_length",
    ]
    cells = [["-" if point[key] is None else point[key] for key in columns] for point in points]
    show_table(columns, [[f"{cell:.2f}" if isinstance(cell, float) else cell for cell in row] for row in cells])

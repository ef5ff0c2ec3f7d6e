"""`dspark-hf check`: does a drafter fit a target?"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from .screen import output_options, show_json


SIGNS = {"ok": "ok     ", "note": "note   ", "doubt": "doubt  ", "problem": "PROBLEM"}


@click.command(
    "check",
    epilog="""\b
Examples:
  $ dspark-hf check Qwen/Qwen3-4B deepseek-ai/dspark_qwen3_4b_block7
  $ dspark-hf check ./target ./drafter --no-self-test --json
\b
Exit code: 0 the drafter fits, 1 it does not, 2 one of the two cannot be opened.
""",
)
@click.argument("target")
@click.argument("drafter")
@click.option("--self-test/--no-self-test", default=True, help="Measure acceptance on 8 short prompts. [default: yes]")
@click.option("--device", default="cpu", show_default=True, help="Where to run the self-test.")
@output_options
def check(target: str, drafter: str, self_test: bool, device: str, as_json: bool, quiet: bool) -> None:
    """Compare DRAFTER with the TARGET it is to draft for: sizes, layers, layout, shared tensors, acceptance."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from dspark_hf.hub.check import check_pair

    model: Any = AutoModelForCausalLM.from_pretrained(target, dtype="auto")
    try:
        tokenizer = AutoTokenizer.from_pretrained(target)
    except (OSError, ValueError, KeyError):
        tokenizer = None
    report = check_pair(model.to(device), drafter, tokenizer, self_test=self_test)
    if as_json:
        show_json({**asdict(report), "fits": report.fits})
    elif not quiet:
        for finding in report.findings:
            click.echo(f"{SIGNS[finding.level]}  {finding.about:<12}  {finding.text}")
        click.echo("The drafter fits this target." if report.fits else "The drafter does not fit this target.")
    raise SystemExit(0 if report.fits else 1)

"""`dspark-hf generate`: one prompt, streamed, with what the drafter did."""

from __future__ import annotations

import sys
from typing import Any

import click

from .screen import output_options, show_json


@click.command(
    "generate",
    epilog="""\b
Examples:
  $ dspark-hf generate Qwen/Qwen3-4B me/dspark-qwen3-4b "Why is the sky blue?"
  $ echo "def fib(n):" | dspark-hf generate ./target ./drafter - --raw --temperature 0.8
""",
)
@click.argument("target")
@click.argument("drafter")
@click.argument("prompt")
@click.option("--raw", is_flag=True, help="The prompt is text to continue, not a chat turn.")
@click.option("--temperature", type=click.FloatRange(0), default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True)
@click.option("--max-new-tokens", type=click.IntRange(1), default=256, show_default=True)
@click.option("--policy", default="auto", show_default=True, help="How much of a draft is verified.")
@click.option("--thinking/--no-thinking", default=None, help="Mode of the chat template.")
@click.option("--seed", type=int, default=0, show_default=True)
@output_options
def generate(
    target: str,
    drafter: str,
    prompt: str,
    raw: bool,
    thinking: bool | None,
    policy: str,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Answer PROMPT ("-": standard input) with TARGET, accelerated by DRAFTER."""
    from dspark_hf.pipeline.answer import answer_prompt

    text = sys.stdin.read() if prompt == "-" else prompt
    result = answer_prompt(
        target, drafter, text, raw=raw, thinking=thinking, policy=policy, stream=not as_json, **options
    )
    if as_json:
        show_json(result)
        return
    stats = result["stats"]
    if not quiet:
        click.echo(
            f"\n{stats['new_tokens']} tokens, {stats['tokens_per_second']:.1f} tokens/s, accepted length {stats['tau']:.2f} over "
            f"{stats['rounds']} rounds",
            err=True,
        )

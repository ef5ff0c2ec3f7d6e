"""The second half of the demo: a published drafter in a new process, beside plain generation of the same prompts.

Every figure is measured here and now, with and without the drafter in turn. It knows nothing of how the drafter was made.
"""

from __future__ import annotations

import argparse
import logging as standard_logging
import sys

import click
import torch
from transformers.utils import logging

from dspark_hf import DSparkDrafter
from dspark_hf.cli.recipe_options import default_run_dir
from dspark_hf.cli.screen import show_table
from dspark_hf.evaluation import Suite, SuiteResult, evaluate
from dspark_hf.pipeline.state import RunFolder
from dspark_hf.pipeline.workspace import Workspace
from dspark_hf.scheduling import CostCurve
from dspark_hf.training.recipe import load_recipe


# prompts, and tokens of each answer: a real model is slower
TOY_SIZES, REAL_SIZES = (16, 96), (8, 64)
TOY_CAUTION = """\
A target this small repeats itself under greedy decoding, which flatters any drafter: T = 1 is the sober line. Neither says
what a drafter for a real model will do."""


def main() -> None:
    """Load a published drafter back and generate with it."""
    parser = argparse.ArgumentParser(prog="python -m dspark_hf.dev.demo_generate", description=main.__doc__)
    parser.add_argument("recipe")
    parser.add_argument("drafter", help="repo or folder")
    parser.add_argument("--run-dir")
    parser.add_argument("-o", "--override", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    logging.disable_progress_bar()
    standard_logging.getLogger("dspark_hf").setLevel(standard_logging.ERROR)
    workspace = Workspace(
        recipe=load_recipe(arguments.recipe, arguments.override),
        folder=RunFolder(arguments.run_dir or default_run_dir(arguments.recipe)),
    )
    prompts, new_tokens = TOY_SIZES if workspace.recipe.target.toy is not None else REAL_SIZES
    target, tokenizer = workspace.target.model, workspace.target.tokenizer
    drafter = DSparkDrafter.from_pretrained(arguments.drafter, dtype=target.dtype).eval()
    drafter.tie_to(target)
    drafter.cost_curve = CostCurve.load(target=target)

    question = workspace.evaluation_prompts()[0].user_turns[0]
    ids = torch.tensor([workspace.renderer.prompt_ids([{"role": "user", "content": question}])])
    output = target.generate(
        ids, attention_mask=torch.ones_like(ids), assistant_model=drafter, max_new_tokens=new_tokens, do_sample=False
    )
    click.echo(f"> {question}\n{tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True)}\n")

    suite = Suite("held-out", "other", workspace.evaluation_prompts()[:prompts])
    results = evaluate(
        target,
        tokenizer,
        drafter,
        [suite],
        thinking=workspace.recipe.data.thinking,
        policies=["auto"],
        max_new_tokens=new_tokens,
        progress=sys.stderr.isatty(),
    )
    show_table(
        ["T", "text identical to plain", "accepted length", "tokens/s", "plain tokens/s", "ratio"],
        [table_row(result) for result in results.suites],
        title=f"{arguments.drafter}, {len(suite.conversations)} held-out prompts of at most {new_tokens} tokens, {target.dtype}",
    )
    if workspace.recipe.target.toy is not None:
        click.echo(TOY_CAUTION)


def table_row(result: SuiteResult) -> list[str]:
    """One temperature."""
    low, high = result.speedup_interval or (result.speedup, result.speedup)
    return [
        f"{result.temperature:g}",
        identical(result),
        f"{result.accepted_length:.2f}" if result.accepted_length is not None else "-",
        f"{result.tokens_per_second:.1f}",
        f"{result.plain_tokens_per_second:.1f}",
        f"{result.speedup:.2f} [{low:.2f}, {high:.2f}]",
    ]


def identical(result: SuiteResult) -> str:
    """Yes or no; near-ties of the target's own logits, as bfloat16 has them, are counted apart."""
    if result.temperature > 0:
        return "same distribution"
    if result.identical == result.compared:
        return f"yes, {result.identical} of {result.compared}"
    answer = "yes" if result.mismatches == 0 else "NO"
    return f"{answer}, {result.identical} of {result.compared}, {result.near_ties} apart at a near-tie"


if __name__ == "__main__":
    main()

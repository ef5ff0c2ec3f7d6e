"""Load curves of one drafter: throughput against speed per user, and verified length against load (the paper's figures 7 and 8).

    python benchmarks/load.py --target T --drafter D --prompts FOLDER --output benchmarks/results/load.json

Writes JSON and a PNG beside it. The measuring is `dspark_hf.evaluation.load`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from itertools import chain, zip_longest
from pathlib import Path
from statistics import median

import torch
from methods import open_drafter
from prompts import held_out_prompts
from transformers import AutoModelForCausalLM, AutoTokenizer

from dspark_hf.evaluation.load import ROWS, LoadPoint, measure_load
from dspark_hf.evaluation.plots import plot_load
from dspark_hf.hub.provenance import environment
from dspark_hf.scheduling import CostCurve


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--drafter", required=True)
    parser.add_argument("--prompts", required=True, help='folder of JSONL files, a line is {"turns": ["..."]}')
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument(
        "--fixed", type=int, nargs="*", default=[], help="fixed draft lengths to run beside the policies"
    )
    parser.add_argument(
        "--random-weights", action="store_true", help="forget what the drafter learned: auto must not lose"
    )
    parser.add_argument(
        "--only", nargs="+", default=["plain", "full", "threshold"], help="what `auto` is compared with"
    )
    parser.add_argument("--threshold", type=float, default=0.5)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--max-prompt-tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/load.json"))
    return parser.parse_args(arguments)


def mixed_prompts(folder: str, tokenizer, max_tokens: int) -> list[list[int]]:
    """Prompts of all sets by turns, so that any batch mixes domains."""
    by_set: dict[str, list[list[int]]] = {}
    for prompt in held_out_prompts(folder, tokenizer, per_set=64, max_tokens=max_tokens):
        by_set.setdefault(prompt.suite, []).append(list(prompt.ids))
    return [ids for ids in chain.from_iterable(zip_longest(*by_set.values())) if ids is not None]


def forget(drafter) -> None:
    """Random weights and no calibration, in the same shapes; what is shared with the target is replaced, not changed."""
    torch.manual_seed(0)
    for module in drafter.modules():
        for name, weight in module.named_parameters(recurse=False):
            fresh = torch.ones_like(weight) if weight.dim() < 2 else 0.05 * torch.randn_like(weight)
            setattr(module, name, torch.nn.Parameter(fresh, requires_grad=False))
    drafter.config.confidence_calibration = None


def verdict(points: list[LoadPoint]) -> list[dict]:
    """At each load: `auto` against the best of the others, prompt by prompt; the median of the ratios."""
    found = []
    for rows in sorted({point.rows for point in points}):
        here = {point.policy: point for point in points if point.rows == rows}
        auto = here.pop("auto")
        best = max(here.values(), key=lambda point: point.tokens_per_second)
        ratios = [mine / other for mine, other in zip(auto.samples, best.samples, strict=True)]
        found.append({"rows": rows, "best_other": best.policy, "auto_of_best": median(ratios), "ratios": ratios})
    return found


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    tokenizer = AutoTokenizer.from_pretrained(options.target)
    target = AutoModelForCausalLM.from_pretrained(options.target, dtype=getattr(torch, options.dtype)).eval()
    drafter = open_drafter(options.drafter, target)
    if options.random_weights:
        forget(drafter)
    prompts = mixed_prompts(options.prompts, tokenizer, options.max_prompt_tokens)
    depth = round(median(map(len, prompts))) + options.max_new_tokens // 2
    drafter.cost_curve = curve = CostCurve.measure(
        target, drafter, context=depth, rows=max(options.rows), budget_seconds=30.0
    )
    points = measure_load(
        target,
        drafter,
        prompts,
        rows=options.rows,
        policies=[
            *(
                {"name": name, "threshold": options.threshold} if name == "threshold" else name
                for name in options.only
            ),
            *({"name": "full", "tokens": tokens} for tokens in options.fixed),
            "auto",
        ],
        max_new_tokens=options.max_new_tokens,
        temperature=options.temperature,
        repeats=options.repeats,
    )
    compared = verdict(points)
    report = {
        "command": f"python benchmarks/load.py {shlex.join(sys.argv[1:])}",
        "environment": environment(),
        "threads": torch.get_num_threads(),
        "cost_curve": {
            "context": curve.context,
            "tokens": curve.tokens,
            "seconds": curve.seconds,
            "draft_seconds": curve.draft_seconds,
            "draft_row_seconds": curve.draft_row_seconds,
            "row_seconds": curve.row_seconds,
        },
        "points": [point.to_dict() for point in points],
        "auto_against_best": compared,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    plot_load(report["points"], options.output.with_suffix(".png"))
    for point in points:
        verified = "-" if point.verified_length is None else f"{point.verified_length:.2f}"
        print(f"{point.rows:3d} rows  {point.policy:10s} {point.tokens_per_second:8.1f} tokens/s  verified {verified}")
    for line in compared:
        print(f"{line['rows']:3d} rows  auto is {line['auto_of_best']:.3f} of {line['best_other']}")


if __name__ == "__main__":
    main()

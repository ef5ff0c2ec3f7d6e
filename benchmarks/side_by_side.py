"""Side-by-side speed and acceptance of drafters and of what one would use without them.

    python benchmarks/run.py --target ./smollm2 --prompts ./prompts --drafter dspark=./drafter --drafter dflash=./dflash \\
        --policies full auto --temperatures 0 1 --batches 1 4 --output benchmarks/results/smollm2.json

Writes the JSON, a Markdown table and a picture beside it. The prompts are the last fifth of every JSONL file of a folder.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import sys
import time
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks import losslessness, off_topic, paired, summary
from benchmarks import methods as available
from benchmarks import prompts as prompt_sets
from dspark_hf.hub.provenance import environment


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="folder or repository of the target")
    parser.add_argument("--prompts", default=None, help="folder of JSONL files")
    parser.add_argument(
        "--off-topic", type=int, default=0, metavar="N", help="add N random strings and N requests in other languages"
    )
    parser.add_argument("--drafter", action="append", default=[], metavar="NAME=PATH", help="may be repeated")
    parser.add_argument(
        "--policies", nargs="+", default=["full", "auto"], help="full, auto, threshold=0.3, full:4, ..."
    )
    parser.add_argument(
        "--compiled", action="store_true", help="add plain decoding with a static cache and torch.compile"
    )
    parser.add_argument("--prompt-lookup", type=int, nargs="*", default=[], metavar="TOKENS")
    parser.add_argument("--truncated", type=int, nargs="*", default=[], metavar="LAYERS")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--batches", type=int, nargs="+", default=[1])
    parser.add_argument("--per-set", type=int, default=8, help="prompts of each file at most")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--max-prompt-tokens", type=int, default=320)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=None, help="of torch on the CPU")
    parser.add_argument("--output", type=Path, required=True)
    chosen = parser.parse_args(arguments)
    for pair in chosen.drafter:
        if "=" not in pair:
            parser.error(f"--drafter takes NAME=PATH, not {pair!r}")
    if chosen.prompts is None and not chosen.off_topic:
        parser.error("nothing to ask: give --prompts FOLDER or --off-topic N")
    return chosen


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    tokenizer = AutoTokenizer.from_pretrained(options.target)
    target = AutoModelForCausalLM.from_pretrained(options.target, dtype=getattr(torch, options.dtype)).eval()
    asked = off_topic.off_topic_prompts(tokenizer, options.off_topic, seed=options.seed)
    if options.prompts is not None:
        asked += prompt_sets.held_out_prompts(
            options.prompts, tokenizer, per_set=options.per_set, max_tokens=options.max_prompt_tokens
        )
    drafters = {
        name: available.open_drafter(path, target)
        for name, _, path in (pair.partition("=") for pair in options.drafter)
    }
    chosen = [available.plain()]
    chosen += [available.plain_compiled()] if options.compiled else []
    chosen += [available.prompt_lookup(tokens) for tokens in options.prompt_lookup]
    chosen += [available.truncated_assistant(target, layers) for layers in options.truncated]
    chosen += [
        available.drafted(name, drafter, policy)
        for name, drafter in drafters.items()
        for policy in options.policies
        if available.takes(drafter, policy)
    ]
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id

    records, compared, curves, started = [], [], {}, time.time()
    for batch in options.batches:
        groups = paired.batches(asked, batch)
        if not groups:
            print(f"batch {batch}: no set has that many prompts, left out", file=sys.stderr)
            continue
        if any(policy.partition(":")[0] != "full" for policy in options.policies):
            for name, drafter in drafters.items():
                if not available.takes(drafter, "auto"):
                    continue
                curve = available.measure_cost(target, drafter, batch)
                curves[f"{name}, batch {batch}"] = {
                    "tokens": curve.tokens,
                    "seconds": curve.seconds,
                    "draft": curve.draft_seconds,
                }
        for temperature in options.temperatures:
            with tqdm(total=len(groups), desc=f"T={temperature:g} batch {batch}", disable=None) as bar:
                found = paired.measure(
                    target,
                    chosen,
                    groups,
                    temperature=temperature,
                    max_new_tokens=options.max_new_tokens,
                    pad_id=pad_id,
                    seed=options.seed,
                    progress=lambda done, total, bar=bar: bar.update(),
                )
            records += found
            if temperature == 0:
                for method in (each for each in chosen[1:] if each.max_batch >= batch):
                    counts = losslessness.compare(target, found, groups, method.name)
                    compared.append({"method": method.name, "batch": batch, **vars(counts)})
    entries = summary.summarize(records)
    write(options, entries, compared, curves, records, time.time() - started)
    print(summary.table(entries))


def write(options, entries, compared, curves, records, seconds: float) -> None:
    options.output.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "command": f"python benchmarks/run.py {shlex.join(sys.argv[1:])}",
        "environment": environment(),
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "seconds": round(seconds, 1),
        "settings": {key: value for key, value in vars(options).items() if key != "output"},
        "summary": entries,
        "greedy_text_against_plain": compared,
        "cost_curves": curves,
        "records": [record.to_dict() for record in records],
    }
    options.output.write_text(json.dumps(report, indent=1, default=str) + "\n", encoding="utf-8")
    text = f"{summary.table(entries)}\n\n{summary.table(entries, suites=True)}\n"
    options.output.with_suffix(".md").write_text(text, encoding="utf-8")
    summary.draw(entries, options.output.with_suffix(".png"))

"""What a LoRA adapter buys when the target is tuned further: accepted length before and after, and the bytes to publish.

    python benchmarks/adapt.py --drafter runs/toy-cpu/drafter --output benchmarks/results/adapt.json

The toy target learns a new manner (numbered lines). Its old drafter then guesses worse; an adapter is trained by `recipes/toy/lora.yaml`,
pushed to a Hub on this machine, loaded back from there in a new process and compared with its base on held-out questions, by real
`generate`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path


BASE, ADAPTER = "tester/toy-drafter", "tester/toy-adapter"
TUNING_STEPS, TUNING_ROWS, TUNING_TOKENS = 150, 8, 128
QUESTIONS = 1000


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafter", type=Path, help="folder of the toy's drafter")
    parser.add_argument("--run-dir", type=Path, default=Path("runs/toy-lora"))
    parser.add_argument("--prompts", type=int, default=40, help="held-out prompts to compare on")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/adapt.json"))
    parser.add_argument("--compare-only", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def numbered(answer: str) -> str:
    """The new manner: lines of at most 40 characters, each with its number."""
    lines = [part for line in answer.splitlines() for part in textwrap.wrap(line, 40)]
    return "\n".join(f"{number}) {line}" for number, line in enumerate(lines, 1))


def tune_target(folder: Path) -> None:
    """Train the toy target further on the same questions, answered in the new manner."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from dspark_hf.dev.toy_corpus import library_samples
    from dspark_hf.dev.toy_target import ToySettings, build_toy_target

    settings = ToySettings()
    source = build_toy_target(settings)
    model = AutoModelForCausalLM.from_pretrained(source)
    tokenizer = AutoTokenizer.from_pretrained(source)
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": each.prompt}, {"role": "assistant", "content": numbered(each.answer)}],
            tokenize=False,
        )
        for each in library_samples(limit=settings.samples)
    ]
    ids = torch.tensor([token for row in tokenizer(texts)["input_ids"] for token in row])
    rows_NL = ids[: len(ids) // TUNING_TOKENS * TUNING_TOKENS].view(-1, TUNING_TOKENS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    generator = torch.Generator().manual_seed(0)
    model.train()
    for _ in range(TUNING_STEPS):
        batch_BL = rows_NL[torch.randint(len(rows_NL), (TUNING_ROWS,), generator=generator)]
        model(input_ids=batch_BL, labels=batch_BL, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_questions(path: Path) -> None:
    """Questions that neither the target nor its drafter was trained on."""
    from dspark_hf.dev.toy_corpus import library_samples
    from dspark_hf.dev.toy_target import ToySettings

    known = ToySettings().samples
    unseen = library_samples(limit=known + QUESTIONS)[known:]
    path.write_text("".join(json.dumps({"turns": [each.prompt]}) + "\n" for each in unseen), encoding="utf-8")


def overrides(run_dir: Path) -> list[str]:
    """What the recipe leaves to the user."""
    settings = {
        "target.toy": "null",
        "target.name_or_path": run_dir / "target",
        "data.prompts": run_dir / "questions.jsonl",
        "drafter.start_from": BASE,
    }
    return [f"{key}={value}" for key, value in settings.items()]


def compare(options: argparse.Namespace) -> dict:
    """Both drafters as the Hub has them, on the same held-out prompts."""
    from huggingface_hub import HfApi, snapshot_download
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from dspark_hf import DSparkDrafter
    from dspark_hf.evaluation import Suite, evaluate
    from dspark_hf.hub.adapters import load_adapter, merge_adapter
    from dspark_hf.hub.provenance import environment
    from dspark_hf.pipeline.state import RunFolder
    from dspark_hf.pipeline.workspace import Workspace
    from dspark_hf.training.recipe import load_recipe

    target_folder = options.run_dir / "target"
    recipe = load_recipe("recipes/toy/lora.yaml", overrides(options.run_dir))
    prompts = Workspace(recipe=recipe, folder=RunFolder(options.run_dir)).evaluation_prompts()[: options.prompts]
    target = AutoModelForCausalLM.from_pretrained(target_folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(target_folder)
    drafters = {"before": DSparkDrafter.from_pretrained(BASE, target=target)}
    adapted = load_adapter(DSparkDrafter.from_pretrained(BASE, target=target), snapshot_download(ADAPTER))
    drafters["after"] = merge_adapter(adapted)
    sizes = {
        name: sum(file.size for file in HfApi().list_repo_tree(repo, recursive=True) if "size" in vars(file))
        for name, repo in {"drafter": BASE, "adapter": ADAPTER}.items()
    }
    report: dict = {"bytes": sizes, "share": sizes["adapter"] / sizes["drafter"], "environment": environment()}
    for name, drafter in drafters.items():
        drafter.tie_to(target)
        results = evaluate(
            target, tokenizer, drafter.eval(), [Suite("held-out", "other", prompts)],
            temperatures=[0.0], policies=["full"], max_new_tokens=64, progress=False,
        )  # fmt: skip
        found = results.suites[0]
        report[name] = {
            "accepted_length": found.accepted_length,
            "interval": found.accepted_length_interval,
            "identical": found.identical,
            "compared": found.compared,
        }
    return report


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    if options.compare_only:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(compare(options), indent=1) + "\n", encoding="utf-8")
        return
    from dspark_hf.dev.loopback_hub import LoopbackHub

    if not (options.run_dir / "target" / "config.json").is_file():
        tune_target(options.run_dir / "target")
    write_questions(options.run_dir / "questions.jsonl")
    program = [sys.executable, "-m", "dspark_hf.cli"]
    chosen = [word for override in overrides(options.run_dir) for word in ("-o", override)]
    # a Hub library reads its endpoint when it is imported, so every step that uses it is a process of its own
    with LoopbackHub() as hub:
        home = {"HF_HUB_CACHE": str(options.run_dir / "downloads")}
        surroundings = {**os.environ, **hub.environment(), **home}
        steps = [
            [*program, "push", str(options.drafter), BASE, "-q"],
            [*program, "train-and-push", "recipes/toy/lora.yaml", "--run-dir", str(options.run_dir), "--repo-id", ADAPTER]
            + chosen,
            [sys.executable, __file__, *(sys.argv[1:] if arguments is None else arguments), "--compare-only"],
        ]  # fmt: skip
        for step in steps:
            subprocess.run(step, env=surroundings, check=True)
    print(options.output.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()

"""Trains the alternatives of a finished run on its own rows, features and wall time, for `run.py` to compare.

    python benchmarks/train_baselines.py --run runs/smollm2 --methods rnn dflash mtp1 eagle3 --output runs/smollm2-baselines

`vanilla`, `gated` and `rnn` change the Markov head, `dflash` and `mtp1` drop it, `eagle3` is the serial drafter. Each gets the
`train.max_minutes` of the run's recipe, or `--minutes`; features that the run cached are not made again. One drafter folder a method
is written.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="folder of a finished train-and-push")
    parser.add_argument("--methods", nargs="+", default=["rnn", "dflash", "eagle3"])
    parser.add_argument("--minutes", type=float, default=None)
    parser.add_argument("--steps", type=int, default=None, help="instead of minutes")
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)

    import torch

    from dspark_hf.baselines import dflash_recipe, mtp1_recipe
    from dspark_hf.pipeline.state import RunFolder
    from dspark_hf.pipeline.target import open_target
    from dspark_hf.training.recipe import build_recipe, load_recipe
    from dspark_hf.training.rows import RowStore

    recipe = load_recipe(options.run / "training_recipe.yaml")
    overrides = {"train.max_minutes": options.minutes or recipe.train.max_minutes, "train.max_steps": options.steps}
    recipe = build_recipe(recipe.to_dict(), overrides)
    target = open_target(recipe.target)
    finished = RunFolder(options.run)
    rows_folder = Path(finished.result("prepare")["folder"])
    rows = RowStore(rows_folder).read()
    held_out = RowStore(rows_folder.with_name(rows_folder.name.replace("training-", "held-out-"))).read()
    made = finished.path / "training" / finished.fingerprint("train")
    for method in options.methods:
        folder = options.output / method
        if method == "eagle3":
            drafter, steps = eagle3(target, recipe, rows, held_out, made)
        else:
            variants = {"dflash": dflash_recipe, "mtp1": mtp1_recipe}
            if method in variants:
                variant = variants[method](recipe)
            else:
                variant = build_recipe(recipe.to_dict(), {"drafter.markov_head_type": method})
            drafter, steps = block_drafter(target, variant, rows, held_out, made, options.output / f".{method}")
        drafter.to(torch.bfloat16 if recipe.target.dtype != "float32" else torch.float32).save_pretrained(folder)
        print(json.dumps({"method": method, "steps": steps, "folder": str(folder)}))


def features_of(target, drafter, recipe, rows, held_out, made: Path):
    """The run's own feature source; a cache in `made` is used again, or made there."""
    from dspark_hf.training.rows import fit_rows
    from dspark_hf.training.train import feature_source

    longest = recipe.train.max_row_tokens
    judged = fit_rows(held_out, longest)[: recipe.train.eval_rows]
    source = feature_source(target.model, drafter, fit_rows(rows, longest), judged, made, recipe)
    if recipe.data.features == "cache":
        source.build()
    return source


def block_drafter(target, recipe, rows, held_out, made: Path, work: Path):
    """A drafter of this package by the project's own trainer."""
    from dspark_hf.training.train import start_drafter, train_drafter

    drafter = start_drafter(target.model, target.tokenizer, rows, recipe)
    features = features_of(target, drafter, recipe, rows, held_out, made)
    result = train_drafter(
        target.model,
        target.tokenizer,
        rows,
        work,
        recipe=recipe,
        eval_rows=held_out,
        features=features,
        drafter=drafter,
    )
    return result.drafter, result.steps


def eagle3(target, recipe, rows, held_out, made: Path):
    """The serial drafter over the same features: as many layers read, as deep as the block, the same draft vocabulary."""
    from collections import Counter

    import torch

    from dspark_hf.baselines import Eagle3Drafter, Eagle3Training, eagle3_config, train_eagle3
    from dspark_hf.training.features import teacher_head_of
    from dspark_hf.training.new_drafter import borrow, draft_vocabulary, drafter_config, flatten_first_logits
    from dspark_hf.training.rows import fit_rows

    fields = drafter_config(target.model, recipe.drafter, mask_token_id=0).to_dict()
    fixed = "model_type num_hidden_layers markov_rank enable_confidence_head confidence_head_with_markov layer_types"
    config = eagle3_config(**{key: value for key, value in fields.items() if key not in fixed.split()})
    torch.manual_seed(recipe.train.seed)
    drafter = Eagle3Drafter(config).float()
    counts = Counter(token for row in rows for token in row.completion_ids)
    pruned = config.draft_vocab_size is not None
    borrow(drafter, target.model, draft_vocabulary(counts, config) if pruned else None)
    flatten_first_logits(drafter)
    features = features_of(target, drafter, recipe, rows, held_out, made)
    settings = Eagle3Training(
        max_steps=recipe.train.max_steps,
        max_minutes=recipe.train.max_minutes if recipe.train.max_steps is None else None,
        rows_per_batch=recipe.train.rows_per_batch,
        optimizer=recipe.train.optimizer,
        learning_rate=recipe.train.learning_rate,
        muon_learning_rate=recipe.train.muon_learning_rate,
        muon_ns_steps=recipe.train.muon_ns_steps,
        bf16=recipe.train.bf16,
        seed=recipe.train.seed,
    )
    losses = train_eagle3(
        drafter, fit_rows(rows, recipe.train.max_row_tokens), features, teacher_head_of(target.model), settings
    )
    return drafter, len(losses)


if __name__ == "__main__":
    # Python puts this folder first on the path, where kernels.py would stand in for the package of that name
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    main()

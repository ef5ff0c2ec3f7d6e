"""A tiny training run, shared by the tests of the trainer and by the worker processes they start."""

import os
import signal
import time

import numpy as np
from transformers import PreTrainedTokenizerFast

from dspark_hf.dev.tiny import tiny_drafter, tiny_target
from dspark_hf.training.recipe import build_recipe
from dspark_hf.training.rows import Row
from dspark_hf.training.train import train_drafter


def rows_of(lengths=(2, 5, 20, 40), seed=0, name="r"):
    """Rows with answers of very uneven length, of tokens 4 .. 49."""
    generator = np.random.default_rng(seed)
    rows = []
    for index, length in enumerate(lengths):
        ids = generator.integers(4, 50, 3 + length).tolist()
        rows.append(Row(id=f"{name}{index}", prompt_ids=ids[:3], completion_ids=ids[3:]))
    return rows


def recipe_of(**train):
    """Small steps without clipping, so that gradients can be compared."""
    knobs = {"max_steps": 4, "anchors_per_row": 4, "rows_per_batch": 2, "learning_rate": 1e-3, "max_grad_norm": 0.0}
    return build_recipe(
        {"target": {"name_or_path": "tiny"}}, {f"train.{name}": value for name, value in (knobs | train).items()}
    )


def run(folder, *, rows=None, eval_rows=(), target=None, drafter=None, on_progress=None, recipe=None, **train):
    """Train a tiny drafter for a few steps."""
    target = tiny_target("qwen3") if target is None else target
    return train_drafter(
        target,
        PreTrainedTokenizerFast,
        rows_of() if rows is None else rows,
        folder,
        recipe=recipe_of(**train) if recipe is None else recipe,
        eval_rows=eval_rows,
        drafter=frozen(tiny_drafter(target, bigram=False)) if drafter is None else drafter,
        on_progress=on_progress,
    )


def frozen(drafter):
    """Embedding and head out of the optimizer, as `new_drafter` leaves them."""
    drafter.embed_tokens.requires_grad_(False)
    drafter.lm_head.requires_grad_(False)
    return drafter


def kill_at(seconds, work):
    """Run `work` in a forked process and SIGKILL it after so many seconds; true if it was still running."""
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])

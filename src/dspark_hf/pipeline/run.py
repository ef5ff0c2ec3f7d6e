"""The order of the stages, what each depends on, and which a run may skip.

    results = run_pipeline(load_recipe("recipes/toy/cpu.yaml"), "runs/toy-cpu")

Killed at any moment and called again, a run goes on where it was. It knows nothing of what a stage does.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark_hf.training.recipe import Recipe

from . import stages
from .estimate import planned_config, target_without_weights
from .prompts import load_prompts
from .reporting import Reporter
from .state import RunFolder
from .workspace import Workspace


@dataclass(frozen=True)
class Stage:
    """
    Args:
        name (`str`): key in `run.json`, and the command that runs up to it.
        title (`str`): for people.
        run (callable): takes the workspace and the stage's fingerprint.
        sections (`tuple[str, ...]`): parts of the recipe it depends on.
        needs (`tuple[str, ...]`): stages whose settings it depends on too.
    """

    name: str
    title: str
    run: Callable[[Workspace, str], dict[str, Any]]
    sections: tuple[str, ...]
    needs: tuple[str, ...] = ()


STAGES = (
    Stage("target", "open the target", stages.open_target, ("target",)),
    Stage("prepare", "let the target answer the prompts", stages.prepare, ("data",), ("target",)),
    Stage("train", "train the drafter", stages.train, ("drafter", "train"), ("prepare",)),
    Stage("calibrate", "calibrate the confidences", stages.calibrate, ("calibrate",), ("train",)),
    Stage("profile", "measure the cost curve", stages.profile, ("calibrate",), ("train",)),
    Stage("evaluate", "evaluate on held-out prompts", stages.evaluate, ("evaluate",), ("calibrate", "profile")),
    Stage("assemble", "write recipe, provenance and card", stages.assemble, ("hub",), ("evaluate",)),
)
STAGE_NAMES = tuple(stage.name for stage in STAGES)


def fingerprints(recipe: Recipe) -> dict[str, str]:
    """Hex digest of the settings each stage depends on."""
    found: dict[str, str] = {}
    for stage in STAGES:
        parts = [recipe.fingerprint(*stage.sections), *(found[name] for name in stage.needs)]
        found[stage.name] = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    return found


def check_recipe(recipe: Recipe) -> None:
    """
    Looks at prompts, the target's configuration and the drafter planned for it, before anything is written or computed.

    Raises:
        ValueError, OSError: what cannot work, with its remedy.
    """
    load_prompts(recipe)
    planned_config(recipe, target_without_weights(recipe))


def run_pipeline(
    recipe: Recipe,
    folder: str | Path,
    *,
    until: str = "assemble",
    reporter: Reporter | None = None,
    command: str = "",
) -> dict[str, dict[str, Any]]:
    """
    Runs the stages of a recipe up to one of them, skipping what an earlier run finished with the same settings.

    Args:
        recipe ([`Recipe`]): all settings.
        folder (`str` or `Path`): of everything that is written; one recipe at a time.
        until (`str`): the last stage to run.
        reporter ([`Reporter`], *optional*): told what happens.
        command (`str`, *optional*): what the user typed, for the card.

    Returns:
        `dict`: stage -> its figures, as JSON data. The drafter lies in `folder / "drafter"`.

    Raises:
        ValueError: bad settings, or another process works in the folder; OSError: a target or file that cannot be opened.
    """
    if until not in STAGE_NAMES:
        raise ValueError(f"until must be one of {', '.join(STAGE_NAMES)}, not {until!r}.")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return train_in_many_processes(recipe, folder, until=until, reporter=reporter, command=command)
    reporter = Reporter() if reporter is None else reporter
    run = RunFolder(folder)
    workspace = Workspace(recipe=recipe, folder=run, reporter=reporter, command=command)
    check_recipe(recipe)
    found: dict[str, dict[str, Any]] = {}
    keys = fingerprints(recipe)
    with run.locked():
        for stage in STAGES[: STAGE_NAMES.index(until) + 1]:
            result = run.finished(stage.name, keys[stage.name])
            if result is not None:
                reporter.reuse(stage.name, stage.title)
            else:
                reporter.stage(stage.name, stage.title)
                started = time.monotonic()
                result = stage.run(workspace, keys[stage.name])
                run.finish(stage.name, keys[stage.name], result, seconds=time.monotonic() - started)
            found[stage.name] = result
    return found


def train_in_many_processes(
    recipe: Recipe, folder: str | Path, *, until: str, reporter: Reporter | None, command: str
) -> dict[str, dict[str, Any]]:
    """
    The stage `train` under `torchrun` or `accelerate launch`; the first process alone writes.

    Raises:
        ValueError: another stage was asked for, or the rows are not prepared.
    """
    if until != "train":
        raise ValueError(f"Several processes train together, and do nothing else; run {until!r} in one process.")
    run, keys = RunFolder(folder), fingerprints(recipe)
    if run.finished("prepare", keys["prepare"]) is None:
        raise ValueError(f"No rows for this recipe in {folder}; run `dspark-hf prepare` with the same settings first.")
    result = run.finished("train", keys["train"])
    if result is not None:
        return {"train": result}
    first = int(os.environ.get("RANK", "0")) == 0
    workspace = Workspace(recipe, run, reporter if first and reporter is not None else Reporter(), command)
    started = time.monotonic()
    with run.locked() if first else contextlib.nullcontext():
        result = stages.train(workspace, keys["train"])
        if first:
            run.finish("train", keys["train"], result, seconds=time.monotonic() - started)
    return {"train": result}

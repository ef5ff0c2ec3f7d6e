"""Checkpoints that survive a kill at any moment, and the contract under which a run may be resumed.

A checkpoint counts only if its last file was written whole. The contract holds everything that would silently change what a
resumed run learns: layout of the block, layers, target, data, seed and optimizer settings. It knows nothing of the trainer.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers.utils.logging import get_logger

from dspark_hf.models import DSparkConfig

from .prepare import write_json
from .recipe import Recipe


logger = get_logger(__name__)

WEIGHTS = "trainable.safetensors"
AVERAGE = "average.safetensors"
CONTRACT = "contract.json"
LAST_FILE = "trainer_state.json"
CONFIG_FIELDS = (
    "body block_size sample_from_anchor mask_token_id target_layer_ids num_target_layers vocab_size draft_vocab_size "
    "num_hidden_layers markov_rank markov_head_type enable_confidence_head confidence_head_with_markov"
).split()
# machinery that may change between start and resume
FREE_KNOBS = {"logging_steps", "eval_steps", "save_steps", "save_total_limit", "report_to", "dataloader_workers"}


def resume_contract(
    config: DSparkConfig, recipe: Recipe, *, target: Mapping[str, Any], rows: str, features: str, world_size: int
) -> dict[str, Any]:
    """What must be equal for a run to be continued.

    Args:
        config ([`DSparkConfig`]): of the drafter.
        recipe ([`Recipe`]): the `train` section, less logging and saving.
        target: from `features.describe_target`.
        rows (`str`): fingerprint of the training rows.
        features (`str`): `"online"` or the cache's dtype.
        world_size (`int`): recorded; the data order does not depend on it, but floating-point sums do.
    """
    train = {key: value for key, value in recipe.to_dict()["train"].items() if key not in FREE_KNOBS}
    return {
        **{name: config.to_dict()[name] for name in CONFIG_FIELDS},
        **{f"target.{name}": value for name, value in target.items()},
        **{f"train.{name}": value for name, value in train.items()},
        "drafter.start_from": recipe.drafter.start_from,
        "drafter.lora_rank": recipe.drafter.lora_rank,
        "rows": rows,
        "features": features,
        "world_size": world_size,
    }


def check_contract(folder: Path, contract: Mapping[str, Any], *, write: bool) -> None:
    """Compare with the contract of the run in `folder`, or record it if there is none.

    Raises:
        ValueError: names every field that differs.
    """
    path = folder / CONTRACT
    if not path.is_file():
        if write:
            folder.mkdir(parents=True, exist_ok=True)
            write_json(path, dict(contract))
        return
    stored = json.loads(path.read_text(encoding="utf-8"))
    changed = [key for key in contract if stored.get(key) != contract[key]]
    if changed:
        details = "; ".join(f"{key} was {stored.get(key)!r}, now {contract[key]!r}" for key in changed)
        raise ValueError(f"The run in {folder} cannot be resumed: {details}. Use another folder, or delete this one.")


def last_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint; those that a kill left half-written are removed."""
    found = None
    for path in sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1])):
        try:
            json.loads((path / LAST_FILE).read_text(encoding="utf-8"))
            found = path
        except (OSError, ValueError):
            logger.warning(f"Removing {path}, which was not written to its end.")
            # every rank looks, the first one removes
            shutil.rmtree(path, ignore_errors=True)
    return found


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a safetensors file whole or not at all."""
    part = path.with_suffix(".part")
    save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, part)
    os.replace(part, path)


def load_into(parameters: Mapping[str, torch.Tensor], path: Path) -> None:
    """Fill parameters (sharded ones too) from a file written by `save_tensors`.

    Raises:
        ValueError: the file holds other tensors than those that are trained.
    """
    stored = load_file(path)
    if set(stored) != set(parameters):
        different = sorted(set(stored) ^ set(parameters))
        raise ValueError(f"{path} holds other tensors than those being trained: {different[:4]}.")
    for name, parameter in parameters.items():
        parameter.data.copy_(_placed_like(stored[name], parameter.data))


def _placed_like(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    from torch.distributed.tensor import DTensor, distribute_tensor

    if isinstance(like, DTensor):
        return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
    return value


def whole_tensor(value: torch.Tensor) -> torch.Tensor:
    """The full tensor of a sharded parameter (all ranks must ask), or the tensor itself."""
    from torch.distributed.tensor import DTensor

    return value.full_tensor() if isinstance(value, DTensor) else value

"""Rewrites a drafter's folder in another format: same tensors byte for byte, other names and other configuration.

`formats.py` knows the configurations; here are the tensors, the folders, and what a format leaves to the target.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import PreTrainedModel

from dspark_hf.models import DSparkConfig
from dspark_hf.models.checkpoint_dspark import (
    LENDABLE,
    check_stored,
    check_target,
    head_is_embedding,
    is_finite,
    lent_tensor,
    native_name,
)
from dspark_hf.models.modeling_dspark import DSparkDrafter
from dspark_hf.models.weights_dspark import WEIGHTS, find_weights, read_headers, seal, verify_checksums

from .formats import FORMATS, FormatError, format_of, written_as


# the native configuration of a converted drafter, for the way back; other engines do not look at it
SOURCE = "dspark_source.json"


@dataclass(frozen=True)
class Conversion:
    """
    What a conversion wrote.

    Attributes:
        folder (`Path`): the new checkpoint.
        source_format, format (`str`): from and to; the source may be one that can only be read (`"dflash_config"`).
        num_tensors, num_bytes (`int`): tensors in the new file and its size.
        notes (`list[str]`): what the reader of the new folder should know, in plain words.
    """

    folder: Path
    source_format: str
    format: str
    num_tensors: int
    num_bytes: int
    notes: list[str] = field(default_factory=list)


def convert_folder(
    source: str | Path,
    destination: str | Path,
    *,
    to: str,
    target: PreTrainedModel | None = None,
    overwrite: bool = False,
) -> Conversion:
    """
    Writes a drafter in another format.

    Args:
        source (`str` or `Path`): folder of any known format.
        destination (`str` or `Path`): folder to write; its files appear when all of them are complete.
        to (`str`): `"native"`, `"deepspec"` or `"speculators"`.
        target (`PreTrainedModel`, *optional*): the drafter's target; lends an embedding or head that the source leaves to
            it, and confirms those that the new format leaves to it.
        overwrite (`bool`): replace the checkpoint that a non-empty destination holds; other files stay.

    Raises:
        ValueError: unknown format, a source that is no drafter, a target that does not fit, a destination in use.
        FormatError: the format cannot say what this drafter does; names the field.
        OSError: damaged or missing files.
    """
    source, destination = Path(source), Path(destination)
    if to not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {to!r}")
    if not source.is_dir():
        raise OSError(f"{source}: no such folder")
    if destination.resolve() == source.resolve():
        raise ValueError(f"source and destination are the same folder: {source}")
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())) and not overwrite:
        raise ValueError(f"{destination} is not empty; give a new folder, or overwrite=True (--overwrite)")

    config, kind = _read_config(source)
    tensors = _read_tensors(source, config)
    if target is not None:
        check_target(config, target)
    notes: list[str] = []
    tensors = {"native": _for_native, "deepspec": _for_deepspec, "speculators": _for_speculators}[to](
        config, tensors, target, notes
    )
    destination.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination, prefix=".unfinished-") as temporary:
        save_file(tensors, Path(temporary) / WEIGHTS, metadata={"format": "pt"})
        _write_config(config, to, Path(temporary))
        for old in (*destination.glob("model*.safetensors"), *destination.glob("*.index.json"), destination / SOURCE):
            old.unlink(missing_ok=True)
        for new in Path(temporary).iterdir():
            os.replace(new, destination / new.name)
    size = (destination / WEIGHTS).stat().st_size
    return Conversion(destination, kind, to, len(tensors), size, notes)


def _read_config(source: Path) -> tuple[DSparkConfig, str]:
    """The native configuration and the name of the source's format."""
    config = DSparkConfig.from_pretrained(source)
    raw = (source / "config.json").read_bytes()
    kind = format_of(json.loads(raw)) or "dflash_config"
    kept = source / SOURCE
    if kind != "native" and kept.is_file():
        held = json.loads(kept.read_text())
        # only while the configuration beside it is the one it was written with
        if held.get("config_sha256") == hashlib.sha256(raw).hexdigest():
            config = DSparkConfig.from_dict(held["native"])
    return config, kind


def _write_config(config: DSparkConfig, to: str, folder: Path) -> None:
    if to == "native":
        config.architectures = ["DSparkDrafter"]
        config.save_pretrained(folder)
        seal(folder / WEIGHTS)
        return
    raw = (json.dumps(written_as(config, to), indent=2, sort_keys=True) + "\n").encode()
    (folder / "config.json").write_bytes(raw)
    held = {"config_sha256": hashlib.sha256(raw).hexdigest(), "native": config.to_diff_dict()}
    (folder / SOURCE).write_text(json.dumps(held, indent=2, sort_keys=True) + "\n")


def _read_tensors(source: Path, config: DSparkConfig) -> dict[str, torch.Tensor]:
    """All tensors under native names, checked as `from_pretrained` checks them."""
    files = find_weights(source, {})
    stored = {native_name(name): tensor for name, tensor in read_headers(files).items()}
    if {"embed_tokens.weight", "lm_head.weight"} <= set(stored):
        config.tie_word_embeddings = False
    with torch.device("meta"):
        expected = DSparkDrafter(config).state_dict()
    check_stored(source, stored, expected, config, has_target=True)
    verify_checksums(files)
    tensors = {}
    for path in files:
        with safe_open(path, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                tensors[native_name(name)] = opened.get_tensor(name)
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not is_finite(tensor):
            raise ValueError(f"{source}: tensor {name} holds NaN or infinity; the checkpoint is damaged or diverged")
    if config.tie_word_embeddings and "embed_tokens.weight" in tensors:
        tensors["lm_head.weight"] = tensors["embed_tokens.weight"]
    config.tie_word_embeddings = False
    return tensors


def _for_native(config: DSparkConfig, tensors: dict[str, Any], target: Any, notes: list[str]) -> dict[str, Any]:
    kept = {name: tensor for name, tensor in tensors.items() if name != "t2d"}
    if target is not None:
        kept |= _borrowed(config, kept, target)
    missing = sorted(set(LENDABLE) - set(kept))
    if missing:
        notes.append(f"{' and '.join(missing)} stay with the target: load with from_pretrained(..., target=model)")
    config.tie_word_embeddings = head_is_embedding(kept)
    if config.tie_word_embeddings:
        del kept["lm_head.weight"]
    return kept


def _for_deepspec(config: DSparkConfig, tensors: dict[str, Any], target: Any, notes: list[str]) -> dict[str, Any]:
    kept = {name: tensor for name, tensor in tensors.items() if name != "t2d"}
    if target is not None:
        kept |= _borrowed(config, kept, target)
    missing = sorted(set(LENDABLE) - set(kept))
    if missing:
        raise ValueError(
            f"DeepSpec's format ships {' and '.join(missing)}, the source does not: give the target (--target)"
        )
    # both names are always written there, as two tensors
    if kept["lm_head.weight"].data_ptr() == kept["embed_tokens.weight"].data_ptr():
        kept["lm_head.weight"] = kept["lm_head.weight"].clone()
    if config.markov_head_type != "vanilla" and config.markov_rank:
        notes.append(
            f"engines that know this format may run the vanilla Markov head only, not {config.markov_head_type}"
        )
    return kept


def _for_speculators(config: DSparkConfig, tensors: dict[str, Any], target: Any, notes: list[str]) -> dict[str, Any]:
    pruned = config.draft_vocab_size is not None
    left_to_target = ["embed_tokens.weight"] if pruned else sorted(LENDABLE)
    dropped = [name for name in left_to_target if name in tensors]
    for name in dropped if target is not None else ():
        lent = lent_tensor(target, name)
        if lent is None or lent.shape != tensors[name].shape or not torch.equal(lent.to(tensors[name]), tensors[name]):
            raise FormatError(
                f"the speculators format takes {name} from the target, but this drafter's differs from it"
            )
    if dropped and target is None:
        notes.append(
            f"{' and '.join(dropped)} left out: the speculators format takes them from the target (not compared)"
        )
    kept = {name: tensor for name, tensor in tensors.items() if name not in left_to_target}
    if pruned:
        if "lm_head.weight" not in kept:
            if target is None:
                raise ValueError(
                    "the source ships no lm_head.weight for its pruned vocabulary: give the target (--target)"
                )
            kept |= _borrowed(config, {**tensors, "embed_tokens.weight": None}, target)
        ids = kept["d2t"] + torch.arange(len(kept["d2t"]))
        kept["t2d"] = torch.zeros(config.vocab_size, dtype=torch.bool).index_fill_(0, ids, True)
    return kept


def _borrowed(config: DSparkConfig, tensors: dict[str, Any], target: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Embedding and head of the target, for those that the drafter has not, in the drafter's dtype."""
    borrowed = {}
    for name in sorted(set(LENDABLE) - set(tensors)):
        lent = lent_tensor(target, name)
        if lent is None:
            raise ValueError(f"the target {type(target).__name__} exposes no {name.split('.')[0]} in floats to lend")
        lent = lent.detach().cpu()
        if name == "lm_head.weight" and config.draft_vocab_size is not None:
            lent = lent[tensors["d2t"] + torch.arange(len(tensors["d2t"]))]
        borrowed[name] = lent.to(tensors["fc.weight"].dtype).contiguous()
    return borrowed

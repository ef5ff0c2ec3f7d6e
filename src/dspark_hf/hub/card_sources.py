"""Reads from a drafter's folder what a card can say: sizes, recipe, measurements, pictures. Renders nothing."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import safe_open

from dspark_hf.evaluation.results import EvalResults


RECIPE = "training_recipe.yaml"
PROVENANCE = "provenance.json"
COST_CURVES = "cost_curves"
PLOTS = "plots"
# Which section shows a plot, by how its file name begins.
PICTURE_SECTIONS = {
    "acceptance": ("accept", "conditional"),
    "calibration": ("reliab", "calibrat", "threshold"),
    "speed": ("speed", "load", "throughput", "cost", "verified"),
}


@dataclass(frozen=True)
class Picture:
    title: str
    path: str


@dataclass
class Weights:
    """
    What the safetensors files hold, from their headers.

    Args:
        parameters (`int`): numbers in all tensors.
        own (`int`): those outside of the embedding and the head, which a target can lend.
        dtypes (`list[str]`): as safetensors names them, most frequent first.
        absent (`list[str]`): `"embedding"`, `"head"`: what the target must lend. A head that is the embedding is not absent.
    """

    parameters: int = 0
    own: int = 0
    dtypes: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)


def read_weights(folder: Path) -> Weights:
    """
    Raises:
        ValueError: the folder holds no safetensors file.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder} holds no .safetensors file; give the folder that training or conversion wrote")
    found = Weights()
    sizes: dict[str, int] = {}
    names: set[str] = set()
    for path in files:
        with safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                part = tensors.get_slice(name)
                size = math.prod(part.get_shape())
                sizes[part.get_dtype()] = sizes.get(part.get_dtype(), 0) + size
                found.parameters += size
                found.own += 0 if name in ("embed_tokens.weight", "lm_head.weight") else size
                names.add(name)
    found.dtypes = sorted(sizes, key=lambda dtype: -sizes[dtype])
    if read_json(folder / "config.json").get("tie_word_embeddings"):
        names |= {"lm_head.weight"} if "embed_tokens.weight" in names else set()
    found.absent = [
        word for word, name in (("embedding", "embed_tokens"), ("head", "lm_head")) if f"{name}.weight" not in names
    ]
    return found


def same_tensors(first: Path, second: Path) -> bool:
    """Whether two safetensors files hold the same tensors under the same names, whatever their headers say besides."""
    with safe_open(first, framework="pt") as left, safe_open(second, framework="pt") as right:
        names = set(left.keys())
        if names != set(right.keys()):
            return False
        return all(_equal(left.get_tensor(name), right.get_tensor(name)) for name in names)


def _equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    # As bytes: a NaN is not equal to itself, and numbers of several types may be.
    return first.dtype == second.dtype and first.shape == second.shape and torch.equal(_bytes(first), _bytes(second))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def read_yaml(path: Path) -> dict[str, Any]:
    """
    A mapping from a YAML file; empty where there is no file.

    Raises:
        ValueError: the file is damaged.
    """
    if not path.is_file():
        return {}
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a mapping, got {type(content).__name__}")
    return content


def read_json(path: Path) -> dict[str, Any]:
    """As `read_yaml`, for JSON."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold an object, got {type(content).__name__}")
    return content


def read_pictures(folder: Path) -> dict[str, list[Picture]]:
    """Plots by section, in the order of their names."""
    found: dict[str, list[Picture]] = {section: [] for section in PICTURE_SECTIONS}
    for path in sorted((folder / PLOTS).glob("*.png")):
        for section, beginnings in PICTURE_SECTIONS.items():
            if path.stem.startswith(beginnings):
                title = re.sub(r"[_-]+", " ", path.stem)
                found[section].append(Picture(title[:1].upper() + title[1:], f"{PLOTS}/{path.name}"))
                break
    return found


@dataclass
class Sources:
    """Everything a drafter's folder tells."""

    weights: Weights
    recipe: dict[str, Any]
    provenance: dict[str, Any]
    results: EvalResults
    cost: dict[str, Any]
    pictures: dict[str, list[Picture]]


def read_sources(folder: Path) -> Sources:
    """
    Raises:
        ValueError: there are no weights, or a file is damaged.
    """
    curves = sorted((folder / COST_CURVES).glob("*.json"))
    return Sources(
        weights=read_weights(folder),
        recipe=read_yaml(folder / RECIPE),
        provenance=read_json(folder / PROVENANCE),
        results=EvalResults.load(folder),
        cost=read_json(curves[0]) if curves else {},
        pictures=read_pictures(folder),
    )

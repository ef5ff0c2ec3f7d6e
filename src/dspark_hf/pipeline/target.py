"""Opens what a recipe's `target:` section names: a folder, a Hub repo, a GGUF file or the embedded toy.

It knows nothing of drafters, prompts or stages.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from dspark_hf.training.precision import usable_dtype
from dspark_hf.training.recipe import TargetSection

from .gguf import folder_of_gguf


Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class OpenedTarget:
    """A target ready to generate.

    Attributes:
        model, tokenizer: in eval mode, on this process's device.
        name (`str`): folder or repo that opens it again.
        revision (`str`, *optional*): of the repo.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    revision: str | None

    @property
    def label(self) -> str:
        """`name@revision`."""
        return f"{self.name}@{self.revision}" if self.revision else self.name


def locate_target(section: TargetSection, *, progress: Progress | None = None) -> str:
    """
    The folder or repo that `from_pretrained` opens; builds the toy and converts GGUF where they are not cached yet.

    Raises:
        FileNotFoundError: a path that does not exist.
        ValueError: a folder without `config.json`, or an unknown toy setting.
    """
    if section.toy is not None:
        # the toy is a developer tool; a user's run never imports it
        from dspark_hf.dev.toy_target import ToySettings, build_toy_target

        return str(build_toy_target(ToySettings.from_mapping(section.toy), progress=progress))
    if section.gguf is not None:
        return str(folder_of_gguf(section.gguf))
    assert section.name_or_path is not None  # the recipe requires one of the three
    return checked_location(section.name_or_path)


def checked_location(name: str) -> str:
    """A folder that holds a checkpoint, or a name that may be a Hub repo; see `locate_target` for the errors."""
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ValueError(f"{name} is no checkpoint: the folder holds no config.json.")
        return str(path)
    if path.exists():
        raise ValueError(f"{name} is a file; give the folder of a transformers checkpoint, or set target.gguf.")
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise FileNotFoundError(f"No target at {name}: there is no such folder.")
    return name


def target_config(section: TargetSection, location: str) -> PreTrainedConfig:
    """The target's configuration, without its weights."""
    return AutoConfig.from_pretrained(location, revision=section.revision, trust_remote_code=section.trust_remote_code)


def open_target(section: TargetSection, *, progress: Progress | None = None) -> OpenedTarget:
    """
    Opens target and tokenizer, in a number format that this machine computes in (see `usable_dtype`).

    Args:
        section ([`TargetSection`]): of a recipe.
        progress (callable, *optional*): called with (steps done, steps) while the toy is trained.

    Raises:
        OSError, ValueError: see `locate_target`; or transformers cannot open it.
    """
    location = locate_target(section, progress=progress)
    options = {"revision": section.revision, "trust_remote_code": section.trust_remote_code}
    config = target_config(section, location)
    dtype = usable_dtype(section.dtype, config.dtype, this_device())
    model = AutoModelForCausalLM.from_pretrained(location, config=config, dtype=dtype, **options)
    tokenizer = AutoTokenizer.from_pretrained(location, **options)
    model.requires_grad_(False)
    return OpenedTarget(
        model=model.to(this_device()).eval(), tokenizer=tokenizer, name=location, revision=section.revision
    )


def this_device() -> torch.device:
    """The accelerator of this process's rank, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")

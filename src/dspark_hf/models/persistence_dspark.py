"""Opening and saving drafters: `from_pretrained` for every known layout, `save_pretrained` in the native one.

Orchestrates what `dialects`, `weights` and `checkpoint` know, around the loader of transformers. Knows nothing of the
forward pass.
"""

from __future__ import annotations

import contextlib
import json
import logging as standard_logging
import os
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import cached_file, find_adapter_config_file, logging

from .checkpoint_dspark import (
    borrow_from_target,
    check_finite,
    check_stored,
    check_target,
    head_is_embedding,
    native_name,
    share_equal_tensors,
)
from .configuration_dspark import DSparkConfig
from .weights_dspark import HUB_ARGUMENTS, check_exists, find_weights, read_headers, seal, verify_checksums


logger = logging.get_logger(__name__)

# temperatures of an adapter, beside its weights: an adapter's repository has no config.json
ADAPTER_CALIBRATION = "dspark_calibration.json"
# fields that say where a drafter comes from or how it is used, not what it computes
FREE_FIELDS = (
    "confidence_calibration source_config target_name_or_path target_revision target_model_type target_thinking "
    "num_target_layers bos_token_id eos_token_id pad_token_id initializer_range attention_dropout "
    "max_position_embeddings tie_word_embeddings"
).split()


class DSparkPersistence(PreTrainedModel):
    """The half of [`DSparkDrafter`] that reads and writes checkpoints."""

    config: DSparkConfig
    config_class: type[DSparkConfig] = DSparkConfig

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path,
        *args,
        target: PreTrainedModel | None = None,
        allow_layout_change: bool = False,
        **kwargs,
    ):
        """
        Opens a drafter in any known checkpoint layout.

        Args:
            pretrained_model_name_or_path (`str` or `os.PathLike`): a folder or a Hub repository.
            target (`PreTrainedModel`, *optional*): lends its embedding and head to checkpoints that ship none; its sizes
                must fit.
            allow_layout_change (`bool`, defaults to `False`): accept a `config` or keyword arguments that contradict the
                checkpoint's own configuration.
            kwargs: as in `PreTrainedModel.from_pretrained`; only safetensors are read.

        Raises:
            ValueError: unknown or contradictory configuration; missing, surplus, misshapen or non-finite tensors; a target
                of another size. Names the key or tensor.
            OSError: no such folder or repository, no safetensors file in it, or a damaged one.
        """
        source = pretrained_model_name_or_path
        if source is None or kwargs.get("state_dict") is not None:
            return super().from_pretrained(source, *args, **kwargs)
        if kwargs.get("gguf_file") is not None:
            raise ValueError("gguf_file: a drafter cannot be read from GGUF, only from safetensors")
        check_exists(source)
        adapter = _adapter_of(source, kwargs)
        if adapter is not None:
            return cls._with_adapter(source, adapter, *args, target=target, **kwargs)

        want_info = kwargs.pop("output_loading_info", False)
        config = _configuration(cls.config_class, source, kwargs, allow_layout_change)
        files = find_weights(source, kwargs)
        kwargs["use_safetensors"] = True
        headers = read_headers(files)
        stored = {native_name(name): tensor for name, tensor in headers.items()}
        if len(stored) != len(headers):
            raise ValueError(f"{source}: two spellings of one tensor, as in {_twice(headers)}")
        if {"embed_tokens.weight", "lm_head.weight"} <= set(stored):
            config.tie_word_embeddings = False
        with torch.device("meta"):
            expected = cls(config).state_dict()
        if target is not None:
            check_target(config, target)
        check_stored(source, stored, expected, config, has_target=target is not None)
        verify_checksums(files)
        renamed = {f"^{re.escape(name)}$": native_name(name) for name in headers if native_name(name) != name}
        drafter: Any
        info: dict[str, Any]
        with _without_report():
            drafter, info = super().from_pretrained(  # type: ignore[misc]
                source, *args, config=config, key_mapping=renamed or None, output_loading_info=True, **kwargs
            )
        if target is not None:
            borrow_from_target(drafter, target, _not_loaded(info, expected) - ({"lm_head.weight"} & _tied(config)))
            info["missing_keys"] = set()
        check_finite(source, drafter)
        return (drafter, info) if want_info else drafter

    @classmethod
    def _with_adapter(cls, source, adapter: dict[str, Any], *args, **kwargs):
        """The base that an adapter names, the adapter itself, and its own temperatures where it has some."""
        base = adapter.get("base_model_name_or_path")
        if not isinstance(base, str) or not base:
            raise ValueError(f"{source}: adapter_config.json names no base_model_name_or_path")
        hub = {key: kwargs.pop(key) for key in HUB_ARGUMENTS if key in kwargs}
        shared = {key: hub[key] for key in hub if key not in ("revision", "subfolder")}
        want_info = kwargs.pop("output_loading_info", False)
        drafter, info = cls.from_pretrained(base, *args, output_loading_info=True, **shared, **kwargs)
        drafter.load_adapter(str(source), adapter_kwargs={key: hub[key] for key in hub if key != "force_download"})
        drafter.config.confidence_calibration = adapter_calibration(source, hub)
        return (drafter, info) if want_info else drafter

    def save_pretrained(  # type: ignore[override]
        self, save_directory, is_main_process: bool = True, state_dict=None, **kwargs
    ):
        """
        Writes the native layout: `config.json` and sealed `model.safetensors`, complete on their own.

        A tensor that serves as embedding and as head is written once, with `tie_word_embeddings=true`; borrowed tensors
        are written too. With a PEFT adapter attached, only the adapter is written, and its temperatures beside it.

        Args:
            save_directory (`str` or `os.PathLike`): folder, made where needed.
            is_main_process, state_dict, kwargs: as in `PreTrainedModel.save_pretrained`.
        """
        folder = Path(save_directory)
        if self._hf_peft_config_loaded:
            super().save_pretrained(save_directory, is_main_process=is_main_process, state_dict=state_dict, **kwargs)
            if is_main_process:
                write_adapter_calibration(folder, self.config.confidence_calibration)
            return
        tensors = dict(self.state_dict() if state_dict is None else state_dict)
        if all(type(tensor) in (torch.Tensor, torch.nn.Parameter) for tensor in tensors.values()):
            # shards of a distributed run cannot be compared; there the flag stays as it is
            self.config.tie_word_embeddings = head_is_embedding(tensors)
        if self.config.tie_word_embeddings:
            tensors.pop("lm_head.weight", None)
        # names of other projects are not written back: this is the native layout
        kwargs["save_original_format"] = False
        super().save_pretrained(save_directory, is_main_process=is_main_process, state_dict=tensors, **kwargs)
        if is_main_process and int(os.environ.get("RANK", "0")) == 0:
            for path in sorted(folder.glob("model*.safetensors")):
                seal(path)

    def tie_to(self, target: PreTrainedModel) -> list[str]:
        """
        Shares the target's embedding and head where the tensors are equal, so that each is held once in memory.

        Returns:
            `list[str]`: names of the drafter's tensors that are now the target's own (empty when none is equal).
        """
        return share_equal_tensors(self, target)

    # -- adapters ---------------------------------------------------------------------------------------------------

    @property
    def peft_config(self) -> dict[str, Any]:
        """PEFT's own record of attached adapters; setting it is how PEFT attaches one."""
        try:
            return self.__dict__["_attached_adapters"]
        except KeyError:
            raise AttributeError("no adapter is attached") from None

    @peft_config.setter
    def peft_config(self, value: dict[str, Any]) -> None:
        if self.config.confidence_calibration is not None:
            logger.warning_once(
                "An adapter changes the drafter, so the temperatures of its base no longer apply and are dropped from "
                "drafter.config.confidence_calibration; run `dspark-hf calibrate` for the adapted drafter."
            )
            self.config.confidence_calibration = None
        self.__dict__["_attached_adapters"] = value

    @peft_config.deleter
    def peft_config(self) -> None:
        self.__dict__.pop("_attached_adapters", None)


def adapter_calibration(source: Any, hub: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """Temperatures that were fitted for the adapter in a folder or repository, or `None`."""
    try:
        path = str(cached_file(str(source), ADAPTER_CALIBRATION, **(hub or {})))
    except OSError:
        return None
    held = json.loads(Path(path).read_text())
    if not isinstance(held, dict) or "confidence_calibration" not in held:
        raise ValueError(f"{path}: key 'confidence_calibration' is missing")
    return held["confidence_calibration"]


def write_adapter_calibration(folder: Path, calibration: dict[str, Any] | None) -> None:
    """Writes an adapter's temperatures, or removes those of an earlier save."""
    path = folder / ADAPTER_CALIBRATION
    if calibration is None:
        path.unlink(missing_ok=True)
    else:
        path.write_text(json.dumps({"confidence_calibration": calibration}, indent=2) + "\n")


def _configuration(kind: type[DSparkConfig], source: Any, kwargs: dict[str, Any], allow_layout_change: bool) -> Any:
    """The checkpoint's configuration, or the caller's own where it does not contradict it."""
    hub = {key: kwargs[key] for key in HUB_ARGUMENTS if kwargs.get(key) is not None}
    given = kwargs.pop("config", None)
    named = {field.name for field in fields(DSparkConfig)} - {field.name for field in fields(PreTrainedConfig)}
    overrides = {key: kwargs.pop(key) for key in sorted(named & set(kwargs))}
    if isinstance(given, (str, os.PathLike)):
        given = kind.from_pretrained(given, **hub)
    # by its type's name: code from a repository may be imported twice, and then has two classes
    if given is not None and not (isinstance(given, PreTrainedConfig) and given.model_type == kind.model_type):
        raise ValueError(f"config must be a DSparkConfig, got {type(given).__name__}")
    stored = kind.from_pretrained(source, **hub)
    if given is None and not overrides:
        return stored
    config = given if given is not None else kind.from_pretrained(source, **hub, **overrides)
    for name in sorted(named - set(FREE_FIELDS)):
        own, asked = vars(stored)[name], vars(config)[name]
        if own != asked and not allow_layout_change:
            raise ValueError(
                f"{source}: {name} is {own!r} in the checkpoint, but {asked!r} is asked for; a drafter works only with the "
                "layout it was trained with (allow_layout_change=True overrides)"
            )
    return config


def _adapter_of(source: Any, kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """`adapter_config.json` of an adapter's folder or repository, else `None`."""
    hub = {key: kwargs[key] for key in HUB_ARGUMENTS if kwargs.get(key) is not None and key != "proxies"}
    path = find_adapter_config_file(str(source), **hub)
    if path is None:
        return None
    try:
        held = json.loads(Path(path).read_text())
    except ValueError as error:
        raise OSError(f"{path} is not valid JSON: {error}") from error
    return held if isinstance(held, dict) else {}


def _not_loaded(info: dict[str, Any], expected: dict[str, Any]) -> set[str]:
    return set(info["missing_keys"]) & set(expected)


def _tied(config: DSparkConfig) -> set[str]:
    return {"lm_head.weight"} if config.tie_word_embeddings else set()


def _twice(names: dict[str, Any]) -> str:
    seen: dict[str, str] = {}
    for name in names:
        if native_name(name) in seen:
            return f"{seen[native_name(name)]} and {name}"
        seen[native_name(name)] = name
    raise AssertionError("every name is there once")


@contextlib.contextmanager
def _without_report() -> Iterator[None]:
    """Keeps the loader's table of missing tensors quiet: they were checked before, and are borrowed after."""
    loader = standard_logging.getLogger("transformers.modeling_utils")

    def is_no_report(record: standard_logging.LogRecord) -> bool:
        return "LOAD REPORT" not in str(record.msg)

    loader.addFilter(is_no_report)
    try:
        yield
    finally:
        loader.removeFilter(is_no_report)

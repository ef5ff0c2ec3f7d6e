"""What a loaded checkpoint must fulfil, and what a drafter may borrow from its target.

Only safetensors are read. Every tensor of the drafter must come from the checkpoint, or, for the embedding and the head,
from the target; nothing is left at a random value. Knows nothing of formats: names are already native here.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError


PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
LENDABLE = {"embed_tokens.weight": "get_input_embeddings", "lm_head.weight": "get_output_embeddings"}


def check_only_safetensors(source: Any, kwargs: dict[str, Any]) -> None:
    """
    Raises:
        ValueError: the caller asked for pickled weights.
        OSError: a local folder holds no safetensors file (says so when it holds pickled weights).
    """
    if kwargs.get("use_safetensors") is False:
        raise ValueError(
            "only safetensors are read: pickled weights can run code when opened; drop use_safetensors=False"
        )
    folder = Path(str(source)) / (kwargs.get("subfolder") or "")
    if not folder.is_dir():
        return
    names = [path.name for path in folder.iterdir()]
    if any(name.endswith(".safetensors") for name in names) or kwargs.get("state_dict") is not None:
        return
    pickled = sorted(name for name in names if name.endswith(PICKLE_SUFFIXES))
    if pickled:
        raise OSError(
            f"{folder} holds {pickled[0]} but no .safetensors file; pickled weights are refused because opening them can "
            "run code: convert them to safetensors first"
        )
    raise OSError(f"{folder} is no drafter checkpoint: it holds no .safetensors file")


class _CheckLoaded:
    """Turns what transformers reports about a load into one clear error."""

    def __call__(self, drafter: torch.nn.Module, info: dict[str, Any], source: Any) -> None:
        mismatched = info.get("mismatched_keys") or []
        for key, found, expected in mismatched:
            raise ValueError(
                f"{source}: tensor {key} has shape {list(found)}, the configuration asks for {list(expected)}"
            )
        missing = set(info["missing_keys"])
        if drafter.config.tie_word_embeddings:
            missing.discard("lm_head.weight")
        lent = sorted(missing & set(LENDABLE))
        if lent and lent == sorted(missing):
            raise ValueError(
                f"{source} ships no {' and no '.join(lent)}: it borrows them from its target; pass "
                "from_pretrained(..., target=model)"
            )
        if missing:
            raise ValueError(f"{source}: tensors are missing: {', '.join(sorted(missing))}")
        surplus = sorted(info["unexpected_keys"])
        if surplus:
            raise ValueError(
                f"{source}: tensors that the configuration has no place for: {', '.join(surplus[:8])}"
                f"{' ...' if len(surplus) > 8 else ''}; is a field such as markov_head_type or num_hidden_layers wrong?"
            )

    @staticmethod
    @contextlib.contextmanager
    def translated(source: Any):
        """Damaged files raise `OSError`, whatever the reader underneath raises."""
        try:
            yield
        except SafetensorError as error:
            raise OSError(f"{source}: the safetensors file is damaged or incomplete: {error}") from error


check_loaded = _CheckLoaded()


def _lent_tensor(target: torch.nn.Module, name: str) -> torch.Tensor:
    module = getattr(target, LENDABLE[name])()
    if module is None:
        raise ValueError(f"the target {type(target).__name__} exposes no {name.split('.')[0]} to lend")
    return module.weight


def borrow_from_target(drafter: torch.nn.Module, target: torch.nn.Module, missing: set[str]) -> None:
    """
    Fills an embedding or head that the checkpoint does not ship with the target's own tensor, and takes them off `missing`.

    Raises:
        ValueError: the target's tensor has another size; names both.
    """
    for name in sorted(set(missing) & set(LENDABLE)):
        tensor = _lent_tensor(target, name)
        module = drafter.get_submodule(name.rsplit(".", 1)[0])
        if name == "lm_head.weight" and drafter.config.draft_vocab_size is not None:
            tensor = tensor.detach()[drafter.draft_to_target().to(tensor.device)]
        if tensor.shape != module.weight.shape:
            raise ValueError(
                f"cannot borrow {name}: the target's is {list(tensor.shape)}, the drafter needs {list(module.weight.shape)}; "
                "is this the target the drafter was trained for?"
            )
        _assign(module, tensor, dtype=module.weight.dtype)
        missing.discard(name)


def share_equal_tensors(drafter: torch.nn.Module, target: torch.nn.Module) -> list[str]:
    """Points the drafter's embedding and head at the target's tensors where device, dtype and values are equal."""
    shared = []
    for name in LENDABLE:
        module = drafter.get_submodule(name.rsplit(".", 1)[0])
        own, lent = module.weight, _lent_tensor(target, name)
        same_kind = own.shape == lent.shape and own.dtype == lent.dtype and own.device == lent.device
        if same_kind and (own.data_ptr() == lent.data_ptr() or torch.equal(own, lent)):
            _assign(module, lent, dtype=lent.dtype)
            shared.append(name)
    return shared


def _assign(module: torch.nn.Module, tensor: torch.Tensor, *, dtype: torch.dtype) -> None:
    """Makes the module hold this very tensor (or a cast copy), without a gradient of its own."""
    weight = tensor.detach().to(dtype)
    module.weight = torch.nn.Parameter(weight, requires_grad=False)

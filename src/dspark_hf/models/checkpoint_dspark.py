"""What a checkpoint must hold for a configuration, and what a drafter may borrow from its target.

Every tensor of the drafter must come from the checkpoint, or, for the embedding and the head, from the target; nothing is
left at a random value. Works on headers and modules; knows nothing of folders, repositories or configuration dialects.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from .validation_dspark import check_layer_ids
from .weights_dspark import StoredTensor


LENDABLE = {"embed_tokens.weight": "get_input_embeddings", "lm_head.weight": "get_output_embeddings"}
FLOATS = ("F64", "F32", "F16", "BF16")
# spellings of other projects: SpecForge's older exports, ModelOpt's flat names
RENAMES = (
    (re.compile(r"^logit_head\.markov_head\."), "markov_head."),
    (re.compile(r"^(markov_w1|markov_w2|gate_proj|joint_proj)\."), r"markov_head.\1."),
    (re.compile(r"^confidence_proj\."), "confidence_head.proj."),
)


def native_name(name: str) -> str:
    """The native name of a stored tensor; most are spelled alike everywhere."""
    for pattern, replacement in RENAMES:
        name = pattern.sub(replacement, name)
    return name


def check_stored(
    source: Any, stored: dict[str, StoredTensor], expected: dict[str, torch.Tensor], config: Any, *, has_target: bool
) -> None:
    """
    Compares a checkpoint's headers with the drafter that its configuration describes.

    Args:
        source: folder or repository, for messages.
        stored (`dict`): native name -> header entry.
        expected (`dict`): name -> tensor of the drafter (on `meta`).
        config ([`DSparkConfig`]): `draft_vocab_size` and `tie_word_embeddings` are read.
        has_target (`bool`): whether a target is there to lend what the checkpoint does not ship.

    Raises:
        ValueError: a tensor is missing, surplus, misshapen or of another kind; names it.
    """
    surplus = sorted(set(stored) - set(expected) - ({"t2d"} if config.draft_vocab_size is not None else set()))
    missing = set(expected) - set(stored)
    if config.tie_word_embeddings:
        missing.discard("lm_head.weight")
    # a mistyped field shows in all three ways; the shape says most
    for name in sorted(set(stored) & set(expected)):
        shape, wanted = list(stored[name].shape), list(expected[name].shape)
        if shape != wanted:
            raise ValueError(f"{source}: tensor {name} has shape {shape}, the configuration asks for {wanted}")
        floating = expected[name].is_floating_point()
        if stored[name].dtype not in (FLOATS if floating else ("I64",)):
            kind = "a float" if floating else "an int64"
            raise ValueError(f"{source}: tensor {name} must be {kind} tensor, got dtype {stored[name].dtype}")
    lent = sorted(missing & set(LENDABLE))
    own = sorted(missing - set(LENDABLE))
    if own:
        raise ValueError(f"{source}: tensors are missing: {_some(own)}; is the checkpoint complete?")
    if surplus:
        raise ValueError(
            f"{source}: tensors that the configuration has no place for: {_some(surplus)}; is a field such as "
            "markov_head_type or num_hidden_layers wrong?"
        )
    if lent and not has_target:
        raise ValueError(
            f"{source} ships no {' and no '.join(lent)}: it borrows them from its target; pass "
            "from_pretrained(..., target=model)"
        )
    if config.draft_vocab_size is not None:
        check_draft_vocabulary(source, stored, config)


def check_draft_vocabulary(source: Any, stored: dict[str, StoredTensor], config: Any) -> None:
    """The map of a pruned vocabulary: ascending target ids, in range, and equal to the mask form where that is shipped."""
    offsets = _read(stored["d2t"], "d2t")
    ids = offsets + torch.arange(len(offsets))
    if not bool((ids.diff() > 0).all()) or not 0 <= int(ids[0]) <= int(ids[-1]) < config.vocab_size:
        raise ValueError(
            f"{source}: tensor d2t must map to distinct, ascending target ids in [0, {config.vocab_size - 1}] "
            "(offsets: target id = draft id + d2t[draft id])"
        )
    if "t2d" not in stored:
        return
    if stored["t2d"].shape != (config.vocab_size,) or stored["t2d"].dtype != "BOOL":
        raise ValueError(
            f"{source}: tensor t2d must be a bool mask of {config.vocab_size} tokens, got {stored['t2d']}"
        )
    if not torch.equal(_read(stored["t2d"], "t2d").nonzero()[:, 0], ids):
        raise ValueError(f"{source}: tensor t2d contradicts d2t: they name different tokens")


def check_finite(source: Any, drafter: nn.Module) -> None:
    """
    Raises:
        ValueError: a tensor holds NaN or infinity, as a damaged file or a diverged training leaves them.
    """
    for name, tensor in drafter.state_dict(keep_vars=True).items():
        if tensor.is_floating_point() and tensor.device.type != "meta" and not is_finite(tensor.detach()):
            raise ValueError(f"{source}: tensor {name} holds NaN or infinity; the checkpoint is damaged or diverged")


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether every value is a number: by its extremes, which on bf16 is 35 times faster than `torch.isfinite`."""
    return tensor.numel() == 0 or all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(tensor))


def check_target(config: Any, target: Any) -> None:
    """
    Whether a drafter's configuration fits a target, by sizes alone; fills in what was unknown of the target.

    Raises:
        ValueError: names both sizes.
    """
    text = target.config.get_text_config()
    for name, own, theirs in (
        ("hidden size", config.target_hidden_size, text.hidden_size),
        ("vocabulary", config.vocab_size, text.vocab_size),
    ):
        if own != theirs:
            raise ValueError(
                f"the drafter was made for a target with {name} {own}, this target has {theirs}; is it the right target?"
            )
    config.target_model_type = config.target_model_type or text.model_type
    if config.num_target_layers is None:
        config.num_target_layers = text.num_hidden_layers
        check_layer_ids(config.target_layer_ids, config.num_target_layers)
    elif config.num_target_layers != text.num_hidden_layers:
        raise ValueError(
            f"the drafter was made for a target of {config.num_target_layers} layers, this one has "
            f"{text.num_hidden_layers}; is it the right target?"
        )


def borrow_from_target(drafter: Any, target: Any, names: set[str]) -> None:
    """
    Fills the named embedding or head with the target's own tensor (a copy where dtype or device differ).

    Raises:
        ValueError: the target has none, or of another size; names both.
    """
    for name in sorted(names):
        tensor = lent_tensor(target, name)
        module = drafter.get_submodule(name.rsplit(".", 1)[0])
        if tensor is None:
            raise ValueError(f"the target {type(target).__name__} exposes no {name.split('.')[0]} in floats to lend")
        if name == "lm_head.weight" and drafter.config.draft_vocab_size is not None:
            tensor = tensor.detach()[drafter.draft_to_target().to(tensor.device)]
        if tensor.shape != module.weight.shape:
            raise ValueError(
                f"cannot borrow {name}: the target's is {list(tensor.shape)}, the drafter needs {list(module.weight.shape)}; "
                "is this the target the drafter was trained for?"
            )
        _assign(module, tensor.detach().to(device=module.weight.device, dtype=module.weight.dtype))


def share_equal_tensors(drafter: Any, target: Any) -> list[str]:
    """Points the drafter's embedding and head at the target's tensors where device, dtype and values are equal."""
    shared = []
    for name in LENDABLE:
        module = drafter.get_submodule(name.rsplit(".", 1)[0])
        own, lent = module.weight, lent_tensor(target, name)
        if lent is None or own.shape != lent.shape or own.dtype != lent.dtype or own.device != lent.device:
            continue
        if own.data_ptr() == lent.data_ptr() or torch.equal(own, lent):
            _assign(module, lent.detach())
            shared.append(name)
    return shared


def lent_tensor(target: Any, name: str) -> torch.Tensor | None:
    """The target's embedding or head in floats, or `None` (no such module, or it is quantised)."""
    module = getattr(target, LENDABLE[name])()
    weight = None if module is None else module.weight
    return weight if isinstance(weight, torch.Tensor) and weight.is_floating_point() else None


def head_is_embedding(tensors: dict[str, torch.Tensor]) -> bool:
    """Whether the head is the embedding, bit for bit, so that one copy is enough."""
    embedding, head = tensors.get("embed_tokens.weight"), tensors.get("lm_head.weight")
    if embedding is None or head is None or embedding.shape != head.shape or embedding.dtype != head.dtype:
        return False
    if embedding.device.type == "meta" or embedding.device != head.device:
        return False
    return embedding.data_ptr() == head.data_ptr() or torch.equal(embedding, head)


def _read(tensor: StoredTensor, name: str) -> torch.Tensor:
    with safe_open(tensor.path, framework="pt") as opened:
        return opened.get_tensor(name)


def _assign(module: nn.Module, tensor: torch.Tensor) -> None:
    """Makes the module hold this very tensor, without a gradient of its own."""
    module.weight = nn.Parameter(tensor, requires_grad=False)


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")

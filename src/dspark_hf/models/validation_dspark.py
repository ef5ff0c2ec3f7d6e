"""What a drafter's configuration must fulfil: types, ranges and fields that belong together.

Every message names the field, what was expected, and what came. Knows nothing of files, dialects or models.
"""

from __future__ import annotations

import math
from typing import Any

from transformers.activations import ACT2FN


BODIES = ("qwen3", "gemma4")
MARKOV_HEADS = ("vanilla", "gated", "rnn")
LAYER_TYPES = ("full_attention", "sliding_attention")
# rope types whose frequencies do not depend on the sequence length -> parameters they cannot do without
ROPE_TYPES: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "proportional": (),
}
# field -> smallest value; the largest keeps every tensor's size within 64 bits
INTEGERS = {
    "vocab_size": 1,
    "draft_vocab_size": 1,
    "hidden_size": 1,
    "intermediate_size": 1,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 1,
    "target_hidden_size": 1,
    "num_target_layers": 1,
    "max_position_embeddings": 1,
    "sliding_window": 1,
    "block_size": 1,
    "mask_token_id": 0,
    "markov_rank": 0,
}
LARGEST = {
    "num_hidden_layers": 1024,
    "num_target_layers": 4096,
    "block_size": 4096,
    "num_attention_heads": 2**14,
    "num_key_value_heads": 2**14,
    "head_dim": 2**14,
    "markov_rank": 2**16,
    "max_position_embeddings": 2**40,
    "sliding_window": 2**40,
}
# `None` means "not there", or "computed from other fields"
OPTIONAL_INTEGERS = (
    "draft_vocab_size sliding_window num_target_layers num_key_value_heads head_dim target_hidden_size mask_token_id"
).split()
FLAGS = (
    "attention_bias attention_k_eq_v tie_word_embeddings sample_from_anchor enable_confidence_head "
    "confidence_head_with_markov"
).split()
CHOICES = {
    "body": BODIES,
    "markov_head_type": MARKOV_HEADS,
    "causal_layers": ("none", "sliding"),
    "sliding_window_from": ("row", "anchor"),
}


def check_types(config: Any) -> None:
    """
    Types and ranges of single fields; runs before anything is derived from them.

    Raises:
        ValueError: names the field.
    """
    fields = vars(config)
    for name, smallest in INTEGERS.items():
        value = fields[name]
        if value is None and name in OPTIONAL_INTEGERS:
            continue
        largest = LARGEST.get(name, 2**24)
        if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= largest:
            raise ValueError(f"{name} must be an integer in [{smallest}, {largest}], got {value!r}")
    for name in FLAGS:
        if not isinstance(fields[name], bool):
            raise ValueError(f"{name} must be true or false, got {fields[name]!r}")
    for name, choices in CHOICES.items():
        if fields[name] not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}, got {fields[name]!r}")
    for name in ("rms_norm_eps", "initializer_range", "embedding_scale", "final_logit_softcapping"):
        value = fields[name]
        if value is None and name == "final_logit_softcapping":
            continue
        if not _is_number(value) or value <= 0:
            raise ValueError(f"{name} must be a number > 0, got {value!r}")
    if not _is_number(config.attention_dropout) or not 0 <= config.attention_dropout < 1:
        raise ValueError(f"attention_dropout must be in [0, 1), got {config.attention_dropout!r}")
    if not isinstance(config.hidden_act, str) or config.hidden_act not in ACT2FN:
        raise ValueError(f"hidden_act must name an activation of transformers, got {config.hidden_act!r}")
    ids = config.target_layer_ids
    if ids is not None and not (isinstance(ids, list) and all(type(layer) is int for layer in ids)):
        raise ValueError(f"target_layer_ids must be a list of integers, got {ids!r}")
    if config.layer_types is not None and not isinstance(config.layer_types, list):
        raise ValueError(f"layer_types must be a list, got {config.layer_types!r}")
    for name in ("rope_parameters", "confidence_calibration", "source_config"):
        if fields[name] is not None and not isinstance(fields[name], dict):
            raise ValueError(f"{name} must be a mapping, got {fields[name]!r}")


def check_sizes(config: Any) -> None:
    """Sizes that must fit each other."""
    if config.num_attention_heads % config.num_key_value_heads:
        raise ValueError(
            f"num_attention_heads ({config.num_attention_heads}) must be a multiple of num_key_value_heads "
            f"({config.num_key_value_heads})"
        )
    if config.head_dim % 2:
        raise ValueError(f"head_dim must be even for rotary embeddings, got {config.head_dim}")
    if config.attention_k_eq_v and config.body != "gemma4":
        raise ValueError("attention_k_eq_v=true needs body 'gemma4', got body 'qwen3'")
    if config.draft_vocab_size is not None:
        if config.draft_vocab_size > config.vocab_size:
            raise ValueError(f"draft_vocab_size must be in [1, {config.vocab_size}], got {config.draft_vocab_size}")
        if config.tie_word_embeddings:
            raise ValueError(
                f"tie_word_embeddings=true needs a head over the whole vocabulary, got draft_vocab_size="
                f"{config.draft_vocab_size}"
            )


def check_rope(config: Any) -> None:
    """Rotary parameters: type, base and what the type needs."""
    rope = config.rope_parameters or {}
    kind = rope.get("rope_type", "default")
    if kind not in ROPE_TYPES:
        raise ValueError(
            f"rope_parameters.rope_type must be one of {', '.join(ROPE_TYPES)} (their frequencies do not depend on the "
            f"sequence length), got {kind!r}"
        )
    for name in ("rope_theta", *ROPE_TYPES[kind]):
        if not _is_number(rope.get(name)) or rope[name] <= 0:
            raise ValueError(f"rope_parameters.{name} must be a number > 0 for {kind!r}, got {rope.get(name)!r}")
    partial = rope.get("partial_rotary_factor")
    if partial is not None and (not _is_number(partial) or not 0 < partial <= 1):
        raise ValueError(f"rope_parameters.partial_rotary_factor must be in (0, 1], got {partial!r}")
    if kind == "default" and partial not in (None, 1):
        raise ValueError(
            f"rope_parameters.partial_rotary_factor={partial} needs rope_type 'proportional', got 'default'"
        )


def check_layout(config: Any) -> None:
    """The block, the target's layers and the drafter's windows."""
    if config.block_size < 2 and not config.sample_from_anchor:
        raise ValueError(
            f"block_size must leave at least one slot, got {config.block_size} with sample_from_anchor=False"
        )
    if config.mask_token_id >= config.vocab_size:
        raise ValueError(
            f"mask_token_id must be in [0, {config.vocab_size - 1}]: the drafter's embedding has {config.vocab_size} rows, "
            f"got {config.mask_token_id}"
        )
    check_layer_ids(config.target_layer_ids, config.num_target_layers)
    if len(config.layer_types) != config.num_hidden_layers:
        raise ValueError(
            f"layer_types must have one entry per layer ({config.num_hidden_layers}), got {len(config.layer_types)}"
        )
    for kind in config.layer_types:
        if kind not in LAYER_TYPES:
            raise ValueError(f"layer_types must be {' or '.join(LAYER_TYPES)}, got {kind!r}")
    if "sliding_attention" in config.layer_types and (config.sliding_window or 0) < config.block_size:
        raise ValueError(
            f"sliding_window must be >= block_size ({config.block_size}) for sliding layers, got {config.sliding_window}"
        )


def check_layer_ids(target_layer_ids: list[int], num_target_layers: int | None) -> None:
    """Layers whose outputs transformers hands out before the final norm; `num_target_layers=None` means not known yet."""
    if not target_layer_ids:
        raise ValueError("target_layer_ids must name at least one layer of the target, got an empty list")
    for layer in target_layer_ids:
        if num_target_layers is not None and layer == num_target_layers - 1:
            raise ValueError(
                f"target_layer_ids must not hold the target's last layer ({layer}): transformers returns it after the "
                "final norm; choose an earlier layer"
            )
        if layer < -1 or (num_target_layers is not None and layer >= num_target_layers):
            raise ValueError(
                f"target_layer_ids must be in [-1, {'last' if num_target_layers is None else num_target_layers - 2}] for a "
                f"target of {num_target_layers or 'unknown'} layers, got {layer}"
            )
    if len(set(target_layer_ids)) != len(target_layer_ids):
        raise ValueError(f"target_layer_ids must not repeat a layer, got {target_layer_ids}")


def check_heads(config: Any) -> None:
    """The two heads, and the temperatures of the confidence head."""
    if config.markov_rank == 0 and config.enable_confidence_head and config.confidence_head_with_markov:
        raise ValueError(
            "confidence_head_with_markov=true needs markov_rank > 0, got 0; set it to false or give the Markov head a rank"
        )
    for regime, entry in (config.confidence_calibration or {}).items():
        for key in ("temperatures", "biases", "margin_slopes", "margin_intercepts"):
            values = entry.get(key) if isinstance(entry, dict) else None
            name = f"confidence_calibration[{regime!r}].{key}"
            if values is None:
                if key == "temperatures":
                    raise ValueError(f"confidence_calibration[{regime!r}] must hold 'temperatures', got {entry!r}")
                continue
            if not isinstance(values, list) or len(values) != config.num_slots or not all(map(_is_number, values)):
                raise ValueError(f"{name} must hold {config.num_slots} numbers, one per slot, got {values!r}")
            if key == "temperatures" and min(values) <= 0:
                raise ValueError(f"{name} must be > 0, got {values}")
        for group in entry.get("expected_survival") or []:
            numbers = isinstance(group, list) and len(group) == config.num_slots and all(map(_is_number, group))
            if not numbers or not 0 <= min(group) <= max(group) <= 1:
                raise ValueError(
                    f"confidence_calibration[{regime!r}].expected_survival must hold lists of {config.num_slots} numbers in [0, 1], "
                    f"got {group!r}"
                )
        if (entry.get("margin_slopes") is None) != (entry.get("margin_intercepts") is None):
            raise ValueError(
                f"confidence_calibration[{regime!r}] must hold both 'margin_slopes' and 'margin_intercepts', or neither"
            )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)

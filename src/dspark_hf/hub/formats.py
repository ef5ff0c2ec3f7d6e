"""Native configurations written in the dialects that other engines read: DeepSpec's and speculators'.

The way in is `models/dialects_dspark.py`. A drafter that came from a dialect goes back with the fields it came with;
only what changed since is changed. Knows dictionaries, no files and no tensors.
"""

from __future__ import annotations

import copy
from typing import Any

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from dspark_hf.models import DSparkConfig
from dspark_hf.models.dialects_dspark import to_native


FORMATS = ("native", "deepspec", "speculators")
SPECULATORS_VERSION = "0.9.0"
# a training knob that DeepSpec keeps in the configuration; its own default
DEEPSPEC_NUM_ANCHORS = 512
# what Qwen3's configuration says beside the sizes; no reader of a drafter uses it
QWEN3_MAX_WINDOW_LAYERS = 28


class FormatError(ValueError):
    """A format has no words for what this drafter does; the message names the field."""


def format_of(config: dict[str, Any]) -> str | None:
    """Which of `FORMATS` a `config.json` dictionary is written in; `None` for one that can only be read."""
    if "speculators_model_type" in config:
        return "speculators"
    if config.get("model_type") == "dspark" and "dflash_config" not in config:
        return "native"
    deepspec = {"Qwen3DSparkModel", "Gemma4DSparkModel"} & set(config.get("architectures") or [])
    return "deepspec" if deepspec and "dflash_config" not in config else None


def written_as(config: DSparkConfig, to: str) -> dict[str, Any]:
    """
    `config.json` of a drafter in another project's format.

    Args:
        config ([`DSparkConfig`]): the drafter's.
        to (`str`): `"deepspec"` or `"speculators"`.

    Raises:
        FormatError: the format cannot say what this drafter does.
    """
    write = {"deepspec": to_deepspec, "speculators": to_speculators}[to]
    written = write(config)
    source = config.source_config
    if source is None or format_of(source) != to:
        return written
    before = write(DSparkConfig.from_dict(to_native(source, native_fields=())))
    return _with_changes(source, before, written)


def to_deepspec(config: DSparkConfig) -> dict[str, Any]:
    """DeepSpec's layout: the flat configuration of a target-like model with the drafter's fields among it."""
    _refuse("DeepSpec's format", "sample_from_anchor", config.sample_from_anchor, True)
    _refuse("DeepSpec's format", "causal_layers", config.causal_layers, "none")
    _refuse("DeepSpec's format", "target_hidden_size", config.target_hidden_size, config.hidden_size)
    _refuse("DeepSpec's format", "layer_types", set(config.layer_types), {"full_attention"})
    if config.num_target_layers is None:
        raise FormatError("num_target_layers is unknown, but DeepSpec's format needs it: give the target (--target)")
    written = {
        "attention_bias": config.attention_bias,
        "attention_dropout": config.attention_dropout,
        "block_size": config.block_size,
        "bos_token_id": config.bos_token_id,
        "dtype": _dtype(config),
        "enable_confidence_head": config.enable_confidence_head,
        "eos_token_id": config.eos_token_id,
        "head_dim": config.head_dim,
        "hidden_size": config.hidden_size,
        "initializer_range": config.initializer_range,
        "intermediate_size": config.intermediate_size,
        "layer_types": list(config.layer_types),
        "markov_rank": config.markov_rank,
        "mask_token_id": config.mask_token_id,
        "max_position_embeddings": config.max_position_embeddings,
        "num_anchors": DEEPSPEC_NUM_ANCHORS,
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_layers": config.num_hidden_layers,
        "num_key_value_heads": config.num_key_value_heads,
        "num_target_layers": config.num_target_layers,
        "pad_token_id": config.pad_token_id,
        "rms_norm_eps": config.rms_norm_eps,
        "sliding_window": config.sliding_window,
        "target_layer_ids": list(config.target_layer_ids),
        "tie_word_embeddings": False,
        "transformers_version": transformers.__version__,
        "use_cache": True,
        "vocab_size": config.vocab_size,
    }
    if config.markov_rank:
        written["markov_head_type"] = config.markov_head_type
    if config.markov_rank or config.enable_confidence_head:
        written["confidence_head_with_markov"] = config.confidence_head_with_markov
    if config.draft_vocab_size is not None:
        written["draft_vocab_size"] = config.draft_vocab_size
    return {**written, **(_gemma4_fields(config) if config.body == "gemma4" else _qwen3_fields(config))}


def _qwen3_fields(config: DSparkConfig) -> dict[str, Any]:
    _refuse("DeepSpec's Qwen3 format", "embedding_scale", config.embedding_scale, 1.0)
    _refuse("DeepSpec's Qwen3 format", "final_logit_softcapping", config.final_logit_softcapping, None)
    return {
        "architectures": ["Qwen3DSparkModel"],
        "hidden_act": config.hidden_act,
        "max_window_layers": QWEN3_MAX_WINDOW_LAYERS,
        "model_type": "qwen3",
        "rope_parameters": copy.deepcopy(config.rope_parameters),
        "use_sliding_window": False,
    }


def _gemma4_fields(config: DSparkConfig) -> dict[str, Any]:
    _refuse("DeepSpec's Gemma 4 format", "embedding_scale", config.embedding_scale, float(config.hidden_size) ** 0.5)
    text_type = config.target_model_type or "gemma4_text"
    return {
        "architectures": ["Gemma4DSparkModel"],
        "attention_k_eq_v": config.attention_k_eq_v,
        "enable_moe_block": False,
        "final_logit_softcapping": config.final_logit_softcapping,
        "global_head_dim": config.head_dim,
        "hidden_activation": config.hidden_act,
        "hidden_size_per_layer_input": 0,
        "model_type": text_type if text_type.startswith("gemma4") else "gemma4_text",
        "moe_intermediate_size": None,
        "num_experts": None,
        "num_global_key_value_heads": config.num_key_value_heads,
        "num_kv_shared_layers": 0,
        "rope_parameters": {
            "full_attention": copy.deepcopy(config.rope_parameters),
            "rope_theta": None,
            "rope_type": "default",
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        },
        "target_model_type": text_type.removesuffix("_text"),
        "target_text_model_type": text_type,
        "top_k_experts": None,
        "use_bidirectional_attention": None,
        "use_double_wide_mlp": False,
        "vocab_size_per_layer_input": config.vocab_size,
    }


def to_speculators(config: DSparkConfig) -> dict[str, Any]:
    """The layout of the speculators package: body nested, layer ids one higher, embedding and full head left out."""
    name = "the speculators format"
    _refuse(name, "body", config.body, "qwen3")
    _refuse(name, "embedding_scale", config.embedding_scale, 1.0)
    _refuse(name, "final_logit_softcapping", config.final_logit_softcapping, None)
    if "sliding_attention" in config.layer_types:
        _refuse(name, "sliding_window_from", config.sliding_window_from, "anchor")
    algorithm = "dspark" if config.markov_rank or config.enable_confidence_head else "dflash"
    target_type = config.target_model_type or "qwen3"
    written = {
        "architectures": ["DSparkDraftModel" if algorithm == "dspark" else "DFlashDraftModel"],
        "auto_map": {"": f"config.{'DSpark' if algorithm == 'dspark' else 'DFlash'}SpeculatorConfig"},
        "aux_hidden_state_layer_ids": [layer + 1 for layer in config.target_layer_ids],
        "block_size": config.block_size,
        "draft_vocab_size": config.output_vocab_size,
        "dtype": _dtype(config),
        "mask_token_id": config.mask_token_id,
        "sample_from_anchor": config.sample_from_anchor,
        "sliding_window_non_causal": "sliding_attention" in config.layer_types and config.causal_layers == "none",
        "speculators_config": {
            "algorithm": algorithm,
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "accept_tolerance": 0.0,
                    "proposal_type": "greedy",
                    "speculative_tokens": config.num_slots,
                    "verifier_accept_k": 1,
                }
            ],
            "verifier": {
                "architectures": [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(target_type, "Qwen3ForCausalLM")],
                "name_or_path": config.target_name_or_path,
            },
        },
        "speculators_model_type": algorithm,
        "speculators_version": SPECULATORS_VERSION,
        "target_hidden_size": None if config.target_hidden_size == config.hidden_size else config.target_hidden_size,
        "tie_word_embeddings": False,
        "transformer_layer_config": _layer_config(config),
        "transformers_version": transformers.__version__,
    }
    if algorithm == "dspark":
        for field in ("confidence_head_with_markov", "enable_confidence_head", "markov_head_type", "markov_rank"):
            written[field] = vars(config)[field]
    return written


def _layer_config(config: DSparkConfig) -> dict[str, Any]:
    sliding = "sliding_attention" in config.layer_types
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": config.attention_bias,
        "attention_dropout": config.attention_dropout,
        "bos_token_id": config.bos_token_id,
        "dtype": _dtype(config),
        "eos_token_id": config.eos_token_id,
        "head_dim": config.head_dim,
        "hidden_act": config.hidden_act,
        "hidden_size": config.hidden_size,
        "initializer_range": config.initializer_range,
        "intermediate_size": config.intermediate_size,
        "layer_types": list(config.layer_types),
        "max_position_embeddings": config.max_position_embeddings,
        "max_window_layers": QWEN3_MAX_WINDOW_LAYERS,
        "model_type": "qwen3",
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_layers": config.num_hidden_layers,
        "num_key_value_heads": config.num_key_value_heads,
        "pad_token_id": config.pad_token_id,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": copy.deepcopy(config.rope_parameters),
        "sliding_window": config.sliding_window,
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_sliding_window": sliding,
        "vocab_size": config.vocab_size,
    }


def _dtype(config: DSparkConfig) -> str | None:
    return None if config.dtype is None else str(config.dtype).removeprefix("torch.")


def _with_changes(source: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """`source` with the differences between `before` and `after` laid over it."""
    merged = copy.deepcopy(source)
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, dict) and isinstance(old, dict) and isinstance(merged.get(key), dict):
            merged[key] = _with_changes(merged[key], old, value)
        elif value != old or key not in before:
            merged[key] = value
    return merged


def _refuse(name: str, field: str, value: Any, only: Any) -> None:
    if value != only:
        raise FormatError(f"{name} has no words for {field}={value!r}; it always means {only!r}")

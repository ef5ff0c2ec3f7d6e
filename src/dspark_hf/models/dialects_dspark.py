"""Translation of published drafter configurations (`config.json` dictionaries) into native fields.

Pure dictionaries in and out: knows nothing of tensors, files or models.
"""

from __future__ import annotations

from typing import Any


# fields that every dialect spells alike
BODY_FIELDS = (
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
    "hidden_act rms_norm_eps max_position_embeddings initializer_range rope_parameters rope_theta rope_scaling "
    "attention_bias attention_dropout layer_types sliding_window pad_token_id bos_token_id eos_token_id dtype torch_dtype"
).split()
DRAFT_FIELDS = (
    "block_size mask_token_id target_layer_ids num_target_layers markov_rank markov_head_type enable_confidence_head "
    "confidence_head_with_markov sample_from_anchor draft_vocab_size"
).split()


def to_native(config: dict[str, Any]) -> dict[str, Any]:
    """
    Returns the native form of a `config.json` dictionary of any known dialect.

    Args:
        config (`dict`): the parsed file; never modified.

    Raises:
        ValueError: the dialect is unknown, or a field is missing or contradictory.
    """
    if config.get("model_type") == "dspark" or not config:
        return config
    architectures = config.get("architectures") or []
    if any(name in ("Qwen3DSparkModel", "Gemma4DSparkModel") for name in architectures):
        return from_deepspec(config)
    raise ValueError(
        f"not a drafter this package knows: model_type {config.get('model_type')!r}, architectures {architectures}; "
        "expected a native, DeepSpec, speculators, SpecForge or z-lab DFlash checkpoint"
    )


def from_deepspec(config: dict[str, Any]) -> dict[str, Any]:
    """DeepSpec: a flat copy of the target's configuration with the drafter's fields laid over it."""
    native = {key: config[key] for key in (*BODY_FIELDS, *DRAFT_FIELDS) if key in config}
    native.update(model_type="dspark", architectures=["DSparkDrafter"], body="qwen3", tie_word_embeddings=False)
    native["target_model_type"] = config.get("target_text_model_type") or config["model_type"]
    if "Gemma4DSparkModel" in config["architectures"]:
        native.update(_gemma4_body(config))
    elif not config.get("use_sliding_window", False):
        native["sliding_window"] = None
    if not native.get("markov_rank", 0):
        native["markov_rank"] = 0
        native["confidence_head_with_markov"] = False
    native.setdefault("enable_confidence_head", False)
    return native


def _gemma4_body(config: dict[str, Any]) -> dict[str, Any]:
    """Gemma 4's full-attention layers have sizes of their own under `global_*` names."""
    rope = config["rope_parameters"]
    return {
        "body": "gemma4",
        "head_dim": config.get("global_head_dim") or config["head_dim"],
        "num_key_value_heads": config.get("num_global_key_value_heads") or config["num_key_value_heads"],
        "hidden_act": config.get("hidden_activation", "gelu_pytorch_tanh"),
        "rope_parameters": rope.get("full_attention", rope),
        "attention_k_eq_v": bool(config.get("attention_k_eq_v", False)),
        "final_logit_softcapping": config.get("final_logit_softcapping"),
        "embedding_scale": float(config["hidden_size"]) ** 0.5,
        "sliding_window": None,
    }

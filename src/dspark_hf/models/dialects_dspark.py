"""Translation of published drafter configurations (`config.json` dictionaries) into native fields.

A dialect is recognised by what it says of itself, never guessed; a key that is missing, contradictory or unknown is a
`ValueError` that names it. Pure dictionaries in and out: knows nothing of tensors, files or models. The way back is in
`hub/formats.py` of the package.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable
from typing import Any

from transformers.utils import logging


logger = logging.get_logger(__name__)

DEEPSPEC_ARCHITECTURES = {"Qwen3DSparkModel": "qwen3", "Gemma4DSparkModel": "gemma4"}
FOREIGN_DRAFTERS = ("DFlash2DraftModel", "DominoDraftModel", "MuseGlimmerAssistantModel", "LlamaForCausalLMEagle3")
# fields that every dialect spells alike
BODY_FIELDS = (
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
    "hidden_act rms_norm_eps max_position_embeddings initializer_range rope_parameters rope_theta rope_scaling "
    "attention_bias attention_dropout layer_types sliding_window pad_token_id bos_token_id eos_token_id"
).split()
HEAD_FIELDS = "markov_rank markov_head_type enable_confidence_head confidence_head_with_markov".split()
DRAFT_FIELDS = (
    "block_size mask_token_id target_layer_ids num_target_layers sample_from_anchor draft_vocab_size target_hidden_size"
).split()
SIZE_FIELDS = (
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
    "rms_norm_eps"
).split()
# a key that begins like a drafter's own and is none of the known ones would change what is computed
DRAFT_PREFIXES = tuple("markov confidence block_size mask_token target_layer sample_from draft_ dspark dflash".split())
TRAINING_KEYS = (
    "num_anchors max_anchors confidence_head_alpha ce_loss_alpha l1_loss_alpha loss_decay_gamma attention_backend"
).split()
DFLASH_KEYS = (
    *HEAD_FIELDS,
    *DRAFT_FIELDS,
    *TRAINING_KEYS,
    *"projector_type shift_label use_confidence_head attention_mode causal input_embedding_scale".split(),
    *"output_multiplier final_logit_softcapping".split(),
)
SPECULATORS_KEYS = (
    *HEAD_FIELDS,
    *"block_size mask_token_id sample_from_anchor draft_vocab_size target_hidden_size".split(),
    *"architectures auto_map aux_hidden_state_layer_ids dtype torch_dtype sliding_window_non_causal".split(),
    *"speculators_config speculators_model_type speculators_version tie_word_embeddings transformer_layer_config".split(),
    *"transformers_version max_anchors has_no_defaults_at_init model_type".split(),
)
# keys that transformers itself writes or reads besides a configuration's own fields
FRAMEWORK_KEYS = (
    "model_type transformers_version architectures auto_map dtype torch_dtype _name_or_path quantization_config "
    "rope_theta rope_scaling attn_implementation _attn_implementation custom_pipelines use_cache"
).split()
NATIVE_REQUIRED = (
    *SIZE_FIELDS,
    *"body hidden_act rope_parameters layer_types attention_bias block_size mask_token_id target_layer_ids".split(),
    *HEAD_FIELDS,
)
MOST_LAYERS = 1024
DTYPES = (None, "float32", "float16", "bfloat16", "float64", "auto")


def to_native(config: dict[str, Any], *, native_fields: Iterable[str]) -> dict[str, Any]:
    """
    Returns the native form of a `config.json` dictionary of any known dialect.

    Args:
        config (`dict`): the parsed file; never modified.
        native_fields (iterable of `str`): fields of the native configuration.

    Raises:
        ValueError: the dialect is unknown, or a key is missing, contradictory or unknown.
    """
    if not isinstance(config, dict):
        raise ValueError(f"config.json must hold a mapping, got {type(config).__name__}")
    dtype = config.get("dtype", config.get("torch_dtype"))
    if not (dtype is None or isinstance(dtype, str)) or str(dtype or "auto").removeprefix("torch.") not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(filter(None, DTYPES))}, got {dtype!r}")
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise ValueError(f"architectures must be a list of names, got {architectures!r}")
    for name in architectures:
        if name in FOREIGN_DRAFTERS:
            raise ValueError(f"architectures names {name}, a drafter of another kind that this package does not run")
    if {"speculators_model_type", "speculators_config", "transformer_layer_config"} & set(config):
        return _with_source(config, from_speculators(config))
    if "dflash_config" in config or "DFlashDraftModel" in architectures or "DSparkDraftModel" in architectures:
        return _with_source(config, from_dflash_config(config))
    if set(architectures) & set(DEEPSPEC_ARCHITECTURES):
        return _with_source(config, from_deepspec(config))
    if config.get("model_type") == "dspark":
        return _checked_native(config, set(native_fields))
    raise ValueError(
        f"not a drafter this package knows: model_type {config.get('model_type')!r}, architectures {architectures}; "
        "expected a native, DeepSpec, speculators, SpecForge, ModelOpt or z-lab DFlash checkpoint"
    )


def is_published_drafter(config: dict[str, Any]) -> bool:
    """Whether a `config.json` dictionary is a drafter of another project (native ones carry their own `model_type`)."""
    architectures = config.get("architectures") or []
    return (
        config.get("speculators_model_type") in ("dspark", "dflash")
        or "dflash_config" in config
        or any(name in architectures for name in (*DEEPSPEC_ARCHITECTURES, "DSparkDraftModel", "DFlashDraftModel"))
    )


def _checked_native(config: dict[str, Any], native_fields: set[str]) -> dict[str, Any]:
    """Our own files name every field that matters; a stranger is a typo or a newer version's field."""
    known = native_fields | set(FRAMEWORK_KEYS)
    for key in config:
        if key not in known:
            close = difflib.get_close_matches(key, sorted(known), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else "; was it written by a newer version of dspark-hf?"
            raise ValueError(f"unknown key {key!r}{hint}")
    _require(config, NATIVE_REQUIRED, "a native drafter")
    if not isinstance(config["rope_parameters"], dict) or config["rope_parameters"].get("rope_theta") is None:
        raise ValueError(f"rope_parameters must hold rope_theta, got {config['rope_parameters']!r}")
    if "sample_from_anchor" not in config:
        _warn_of_default_layout("native", True)
    return config


def from_deepspec(config: dict[str, Any]) -> dict[str, Any]:
    """DeepSpec: a flat copy of the target's configuration with the drafter's fields laid over it."""
    bodies = {DEEPSPEC_ARCHITECTURES[name] for name in config["architectures"] if name in DEEPSPEC_ARCHITECTURES}
    model_type = str(config.get("model_type"))
    if len(bodies) != 1 or ("gemma4" in bodies) != model_type.startswith("gemma4"):
        raise ValueError(f"architectures {config['architectures']} contradicts model_type {model_type!r}")
    gemma = bodies == {"gemma4"}
    _require(
        config, (*SIZE_FIELDS, "hidden_activation" if gemma else "hidden_act", "layer_types"), "a DeepSpec drafter"
    )
    _require(config, ("block_size", "mask_token_id", "target_layer_ids", "num_target_layers"), "a DeepSpec drafter")
    _refuse_unknown_draft_keys(config, (*HEAD_FIELDS, *DRAFT_FIELDS))
    native = _body(config)
    native.update({key: config[key] for key in DRAFT_FIELDS if key in config})
    native.update(_heads(config, "a DeepSpec drafter"))
    native["target_model_type"] = config.get("target_text_model_type") or config["model_type"]
    native["tie_word_embeddings"] = config.get("tie_word_embeddings", False)
    # the slot at the anchor predicts in every DeepSpec drafter; the published files do not say so
    native.setdefault("sample_from_anchor", True)
    if gemma:
        native.update(_gemma4_body(config))
    return native


def _gemma4_body(config: dict[str, Any]) -> dict[str, Any]:
    """Gemma 4's full-attention layers have sizes of their own under `global_*` names."""
    for key in ("enable_moe_block", "hidden_size_per_layer_input", "use_double_wide_mlp"):
        if config.get(key):
            raise ValueError(f"{key}={config[key]!r}: such Gemma 4 drafters are not supported")
    if set(config["layer_types"]) != {"full_attention"}:
        raise ValueError(f"layer_types of a Gemma 4 drafter must all be full_attention, got {config['layer_types']}")
    rope = config.get("rope_parameters") or {}
    full = rope.get("full_attention", rope)
    if not isinstance(full, dict) or "rope_theta" not in full:
        raise ValueError(f"rope_parameters.full_attention must hold rope_theta, got {full!r}")
    return {
        "body": "gemma4",
        "head_dim": _first_given(config, "global_head_dim", "head_dim"),
        "num_key_value_heads": _first_given(config, "num_global_key_value_heads", "num_key_value_heads"),
        "hidden_act": config["hidden_activation"],
        "rope_parameters": full,
        "attention_k_eq_v": config.get("attention_k_eq_v", False),
        "final_logit_softcapping": config.get("final_logit_softcapping"),
        "embedding_scale": _square_root(config["hidden_size"]),
        "sliding_window": None,
    }


def from_dflash_config(config: dict[str, Any]) -> dict[str, Any]:
    """SpecForge, ModelOpt and z-lab DFlash: a Qwen3 configuration; draft fields nested in `dflash_config`, or promoted."""
    nested = config.get("dflash_config", {})
    if not isinstance(nested, dict):
        raise ValueError(f"dflash_config must be a mapping, got {nested!r}")
    for key in nested:
        if key not in DFLASH_KEYS:
            raise ValueError(
                f"unknown key dflash_config.{key}: it may change what is computed, so the drafter is refused"
            )
        if key in config and config[key] != nested[key]:
            raise ValueError(f"{key}={config[key]!r} contradicts dflash_config.{key}={nested[key]!r}")
    flat = {**config, **nested}
    _refuse_unknown_draft_keys(config, (*DFLASH_KEYS, "dflash_config"))
    kind = flat.get(
        "projector_type", "dspark" if "DSparkDraftModel" in (config.get("architectures") or []) else "dflash"
    )
    if kind not in ("dspark", "dflash"):
        raise ValueError(f"dflash_config.projector_type must be dspark or dflash, got {kind!r}")
    if "model_type" in config and config["model_type"] not in ("qwen3", "llama", "dspark", "dflash"):
        raise ValueError(f"model_type must be qwen3 for a DFlash or SpecForge drafter, got {config['model_type']!r}")
    _require(
        flat, (*SIZE_FIELDS, "hidden_act", "block_size", "mask_token_id", "target_layer_ids"), f"a {kind} drafter"
    )
    native = _body(config)
    native.update({key: flat[key] for key in DRAFT_FIELDS if key in flat})
    native.setdefault("num_target_layers", None)
    if "use_confidence_head" in flat:
        if flat.get("enable_confidence_head", flat["use_confidence_head"]) != flat["use_confidence_head"]:
            raise ValueError("dflash_config.use_confidence_head contradicts enable_confidence_head")
        flat["enable_confidence_head"] = flat["use_confidence_head"]
    if kind == "dspark":
        native.update(_heads(flat, "a SpecForge or ModelOpt DSpark drafter"))
    else:
        if flat.get("markov_rank") or flat.get("enable_confidence_head"):
            raise ValueError("markov_rank or a confidence head contradicts dflash_config.projector_type 'dflash'")
        native.update(_heads({"markov_rank": 0, "enable_confidence_head": False}, "a DFlash drafter"))
    # ModelOpt's labels are shifted by one exactly where the anchor's row predicts
    layouts = {flat[key] for key in ("sample_from_anchor", "shift_label") if key in flat}
    if len(layouts) > 1:
        raise ValueError("dflash_config.shift_label contradicts sample_from_anchor")
    native["sample_from_anchor"] = layouts.pop() if layouts else kind == "dspark"
    _require_neutral(flat, "output_multiplier", 1.0)
    _require_neutral(flat, "attention_mode", "gqa", "mha", "full")
    _require_neutral(flat, "causal", False)
    native["embedding_scale"] = flat.get("input_embedding_scale", 1.0)
    native["final_logit_softcapping"] = flat.get("final_logit_softcapping") or None
    if kind == "dflash" and "sliding_attention" in native["layer_types"]:
        # z-lab: a sliding layer is causal inside the block unless the file says otherwise
        causal = config.get("is_causal")
        if causal is True and "full_attention" in native["layer_types"]:
            raise ValueError("is_causal=true on full-attention layers is not supported")
        native["causal_layers"] = "none" if causal is False else "sliding"
    elif config.get("is_causal"):
        raise ValueError("is_causal=true on full-attention layers is not supported")
    return native


def from_speculators(config: dict[str, Any]) -> dict[str, Any]:
    """speculators: body fields nested in `transformer_layer_config`, layer ids counted one higher, `d2t` as offsets."""
    kind = config.get("speculators_model_type")
    if kind not in ("dspark", "dflash"):
        raise ValueError(f"speculators_model_type must be dspark or dflash, got {kind!r}")
    for key in config:
        if key not in SPECULATORS_KEYS:
            raise ValueError(f"unknown key {key!r} in a speculators drafter: it may change what is computed")
    body = config.get("transformer_layer_config")
    if not isinstance(body, dict) or body.get("model_type") not in ("qwen3", "llama"):
        raise ValueError(f"transformer_layer_config must be a Qwen3 or Llama configuration, got {body!r}")
    if kind == "dflash" and (config.get("markov_rank") or config.get("enable_confidence_head")):
        raise ValueError("markov_rank or enable_confidence_head contradicts speculators_model_type 'dflash'")
    name = f"a speculators {kind} drafter"
    optional = ("head_dim", "num_key_value_heads") if body["model_type"] == "llama" else ()
    _require(body, [key for key in (*SIZE_FIELDS, "hidden_act") if key not in optional], "transformer_layer_config")
    _require(config, ("block_size", "mask_token_id", "draft_vocab_size", "aux_hidden_state_layer_ids"), name)
    ids = config["aux_hidden_state_layer_ids"]
    if not isinstance(ids, list) or not all(type(layer) is int and layer >= 0 for layer in ids):
        raise ValueError(f"aux_hidden_state_layer_ids must be a list of integers >= 0, got {ids!r}")
    if type(config["block_size"]) is not int:
        raise ValueError(f"block_size must be an integer, got {config['block_size']!r}")
    native = _body(body)
    native["dtype"] = config.get("dtype", native.get("dtype"))
    native.update({key: config[key] for key in ("block_size", "mask_token_id", "draft_vocab_size")})
    # `hidden_states[i]` there is the output of layer i - 1 here, and 0 the embeddings
    native["target_layer_ids"] = [layer - 1 for layer in ids]
    native["num_target_layers"] = None
    native["target_hidden_size"] = config.get("target_hidden_size")
    native.update(_heads(config if kind == "dspark" else {"markov_rank": 0, "enable_confidence_head": False}, name))
    if "sample_from_anchor" in config:
        native["sample_from_anchor"] = config["sample_from_anchor"]
    else:
        native["sample_from_anchor"] = kind == "dspark"
        _warn_of_default_layout(f"speculators {kind}", native["sample_from_anchor"])
    if "sliding_attention" in native["layer_types"]:
        native["sliding_window_from"] = "anchor"
        native["causal_layers"] = "none" if config.get("sliding_window_non_causal", False) else "sliding"
    native.update(_verifier(config, kind, native))
    return native


def _verifier(config: dict[str, Any], kind: str, native: dict[str, Any]) -> dict[str, Any]:
    about = config.get("speculators_config") or {}
    if not isinstance(about, dict) or not isinstance(about.get("verifier") or {}, dict):
        raise ValueError(f"speculators_config must be a mapping with a mapping 'verifier', got {about!r}")
    if about.get("algorithm", kind) != kind:
        raise ValueError(
            f"speculators_config.algorithm={about['algorithm']!r} contradicts speculators_model_type={kind!r}"
        )
    slots = native["block_size"] if native["sample_from_anchor"] else native["block_size"] - 1
    for method in about.get("proposal_methods") or []:
        count = method.get("speculative_tokens") if isinstance(method, dict) else None
        if type(count) is int and count > slots:
            raise ValueError(
                f"speculators_config asks for speculative_tokens={count}, but block_size={native['block_size']} with "
                f"sample_from_anchor={native['sample_from_anchor']} gives {slots}"
            )
    return {"target_name_or_path": (about.get("verifier") or {}).get("name_or_path")}


def _body(config: dict[str, Any]) -> dict[str, Any]:
    native = {key: copy.deepcopy(config[key]) for key in BODY_FIELDS if key in config}
    for key in ("dtype", "torch_dtype"):
        if key in config:
            native["dtype"] = config[key]
    native.update(model_type="dspark", architectures=["DSparkDrafter"], body="qwen3", tie_word_embeddings=False)
    rope = config.get("rope_parameters")
    theta = rope.get("rope_theta") if isinstance(rope, dict) else None
    nested = isinstance(rope, dict) and isinstance(rope.get("full_attention"), dict)
    if theta is None and config.get("rope_theta") is None and not nested:
        raise ValueError("rope_theta is missing: neither rope_parameters.rope_theta nor rope_theta is given")
    if theta is not None and config.get("rope_theta", theta) != theta:
        raise ValueError(f"rope_theta={config['rope_theta']!r} contradicts rope_parameters.rope_theta={theta!r}")
    kinds = config.get("layer_types")
    if kinds is not None and not isinstance(kinds, list):
        raise ValueError(f"layer_types must be a list, got {kinds!r}")
    if kinds is None:
        # Qwen3's own rule where a file names no layer types; `max_window_layers` defaults to 28 there
        first = config.get("max_window_layers", 28) if config.get("use_sliding_window") else None
        count = config.get("num_hidden_layers")
        if not isinstance(count, int) or not (first is None or isinstance(first, int)) or count > MOST_LAYERS:
            raise ValueError(f"num_hidden_layers={count!r} with max_window_layers={first!r} gives no layer types")
        kinds = ["full_attention" if first is None or i < first else "sliding_attention" for i in range(count)]
        native["layer_types"] = kinds
    if "sliding_attention" not in kinds:
        native["sliding_window"] = None
    return native


def _heads(config: dict[str, Any], name: str) -> dict[str, Any]:
    _require(config, ("markov_rank", "enable_confidence_head"), name)
    rank, confidence = config["markov_rank"], config["enable_confidence_head"]
    _require(config, ("markov_head_type",) if rank else (), f"{name} with markov_rank={rank}")
    _require(config, ("confidence_head_with_markov",) if rank and confidence else (), f"{name} with a confidence head")
    with_markov = config.get("confidence_head_with_markov", False)
    return {
        "markov_rank": rank,
        "markov_head_type": config.get("markov_head_type", "vanilla") if rank else "vanilla",
        "enable_confidence_head": confidence,
        # means nothing without a confidence head, so it cannot contradict there
        "confidence_head_with_markov": with_markov if confidence or rank else False,
    }


def _with_source(config: dict[str, Any], native: dict[str, Any]) -> dict[str, Any]:
    return {**native, "source_config": copy.deepcopy(config)}


def _require(config: dict[str, Any], keys: Iterable[str], name: str) -> None:
    for key in keys:
        if config.get(key) is None:
            raise ValueError(f"key {key!r} is missing or null; {name} always has it")


def _refuse_unknown_draft_keys(config: dict[str, Any], known: Iterable[str]) -> None:
    for key in config:
        if key.startswith(DRAFT_PREFIXES) and key not in known:
            close = difflib.get_close_matches(key, list(known), n=1)
            raise ValueError(f"unknown key {key!r}" + (f"; did you mean {close[0]!r}?" if close else ""))


def _require_neutral(config: dict[str, Any], key: str, *neutral: Any) -> None:
    if config.get(key, neutral[0]) not in (None, *neutral):
        raise ValueError(f"dflash_config.{key}={config[key]!r} is not supported; expected {neutral[0]!r}")


def _first_given(config: dict[str, Any], *keys: str) -> Any:
    return next(config[key] for key in keys if config.get(key) is not None)


def _square_root(hidden_size: Any) -> float:
    if type(hidden_size) is not int or hidden_size < 1:
        raise ValueError(f"hidden_size must be an integer >= 1, got {hidden_size!r}")
    return float(hidden_size) ** 0.5


def _warn_of_default_layout(dialect: str, value: bool) -> None:
    logger.warning(
        f"config.json does not say sample_from_anchor; the {dialect} default {str(value).lower()} is assumed. If hardly any "
        "drafted token is accepted, it is the other one: `dspark-hf check TARGET DRAFTER` tells."
    )

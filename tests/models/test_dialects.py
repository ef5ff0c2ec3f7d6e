"""Published configurations become native fields; what contradicts itself is named."""

import copy
import json
import logging

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from dspark_hf.models import DSparkConfig, DSparkDrafter
from dspark_hf.models.dialects_dspark import from_dflash_config, from_speculators, is_published_drafter, to_native


FIELDS = set(DSparkConfig().to_dict())
QWEN3 = {
    "model_type": "qwen3",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "num_target_layers": 6,
}
HEADS = {"markov_rank": 8, "markov_head_type": "vanilla", "confidence_head_with_markov": True}
SPECFORGE = {
    **QWEN3,
    "architectures": ["DSparkDraftModel"],
    "auto_map": {"AutoModel": "dspark.DSparkDraftModel"},
    "block_size": 5,
    "layer_types": ["full_attention"] * 2,
    "dflash_config": {
        "projector_type": "dspark",
        "attention_mode": "gqa",
        "mask_token_id": 94,
        "target_layer_ids": [0, 2, 4],
        "enable_confidence_head": True,
        "confidence_head_alpha": 1.0,
        **HEADS,
    },
}
MODELOPT = {
    **QWEN3,
    "architectures": ["DFlashDraftModel"],
    "block_size": 5,
    "dflash_config": {
        "projector_type": "dspark",
        "shift_label": True,
        "causal": False,
        "mask_token_id": 94,
        "target_layer_ids": [0, 2, 4],
        "use_confidence_head": True,
        **HEADS,
    },
}
ZLAB = {
    **QWEN3,
    "architectures": ["DFlashDraftModel"],
    "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    "block_size": 5,
    "tie_word_embeddings": True,
    "dflash_config": {"mask_token_id": 94, "target_layer_ids": [0, 2, 4]},
}
FLAT_NAMES = {
    "markov_head.markov_w1.weight": "markov_w1.weight",
    "markov_head.markov_w2.weight": "markov_w2.weight",
    "confidence_head.proj.weight": "confidence_proj.weight",
    "confidence_head.proj.bias": "confidence_proj.bias",
}
OLD_NAMES = {name: f"logit_head.{name}" for name in list(FLAT_NAMES)[:2]}


def native(config):
    return DSparkConfig.from_dict(to_native(config, native_fields=FIELDS))


def write(folder, config, tensors):
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(("config", "names"), [(SPECFORGE, {}), (SPECFORGE, OLD_NAMES), (MODELOPT, FLAT_NAMES)])
def test_specforge_and_modelopt_drafters_equal_the_deepspec_one(golden, tmp_path, config, names):
    folder = golden / "qwen3-vanilla"
    tensors = load_file(folder / "drafter" / "model.safetensors")
    kept = {
        names.get(name, name): tensor
        for name, tensor in tensors.items()
        if name.split(".")[0] not in ("embed_tokens", "lm_head")
    }
    write(tmp_path, config, kept)
    target = AutoModelForCausalLM.from_pretrained(folder / "target")

    drafter = DSparkDrafter.from_pretrained(tmp_path, target=target)
    drafter.save_pretrained(tmp_path / "native")

    expected = load_file(folder / "tensors.safetensors")
    for opened in (drafter, DSparkDrafter.from_pretrained(tmp_path / "native")):
        block = opened.draft_block(expected["draft.anchor"], expected["draft.context_hidden_states"])
        torch.testing.assert_close(block.logits, expected["draft.logits"], atol=1e-4, rtol=0)
    assert "markov_head.markov_w1.weight" in load_file(tmp_path / "native" / "model.safetensors")


def test_a_zlab_drafter_uses_its_anchor_row_as_input_only(golden, tmp_path):
    folder = golden / "qwen3-none"
    tensors = load_file(folder / "drafter" / "model.safetensors")
    write(
        tmp_path,
        ZLAB,
        {name: tensor for name, tensor in tensors.items() if name.split(".")[0] not in ("embed_tokens", "lm_head")},
    )
    drafter = DSparkDrafter.from_pretrained(tmp_path, target=AutoModelForCausalLM.from_pretrained(folder / "target"))
    expected = load_file(folder / "tensors.safetensors")

    block = drafter.draft_block(expected["draft.anchor"], expected["draft.context_hidden_states"])

    assert drafter.config.num_slots == 4
    torch.testing.assert_close(block.logits, expected["draft.logits"][:, 1:], atol=1e-4, rtol=0)


def test_a_zlab_sliding_layer_is_causal_unless_the_file_says_otherwise():
    sliding = {**ZLAB, "layer_types": ["sliding_attention"] * 2, "sliding_window": 64, "use_sliding_window": True}
    assert native(sliding).causal_layers == "sliding"
    assert native(sliding).sliding_window_from == "row"
    assert native({**sliding, "is_causal": False}).causal_layers == "none"
    with pytest.raises(ValueError, match="is_causal"):
        native({**sliding, "layer_types": ["sliding_attention", "full_attention"], "is_causal": True})


def test_layer_types_that_are_left_out_follow_the_rule_of_qwen3():
    assert native(ZLAB).layer_types == ["full_attention"] * 2
    sliding = {**ZLAB, "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}
    assert native(sliding).layer_types == ["full_attention", "sliding_attention"]


def test_a_speculators_sliding_layer_counts_from_the_anchor(golden):
    config = json.loads((golden / "speculators-dspark-vanilla" / "drafter" / "config.json").read_text())
    config["transformer_layer_config"].update(layer_types=["sliding_attention"] * 2, sliding_window=64)
    assert (native(config).sliding_window_from, native(config).causal_layers) == ("anchor", "sliding")
    config["sliding_window_non_causal"] = True
    assert native(config).causal_layers == "none"


def test_layer_ids_of_speculators_are_counted_one_higher(golden):
    config = json.loads((golden / "speculators-dflash" / "drafter" / "config.json").read_text())
    config["aux_hidden_state_layer_ids"] = [0, 1, 3]
    assert native(config).target_layer_ids == [-1, 0, 2]


@pytest.mark.parametrize(("kind", "default"), [("dspark", True), ("dflash", False)])
def test_a_speculators_file_without_layout_gets_its_default_and_a_warning(golden, caplog, kind, default):
    name = {"dspark": "speculators-dspark-vanilla", "dflash": "speculators-dflash"}[kind]
    config = json.loads((golden / name / "drafter" / "config.json").read_text())
    del config["sample_from_anchor"]
    transformers_logging.enable_propagation()
    try:
        with caplog.at_level(logging.WARNING):
            assert from_speculators(config)["sample_from_anchor"] is default
    finally:
        transformers_logging.disable_propagation()
    assert "does not say sample_from_anchor" in caplog.text


def test_a_native_file_always_says_its_layout(tmp_path):
    DSparkConfig().save_pretrained(tmp_path)
    held = json.loads((tmp_path / "config.json").read_text())
    assert held["sample_from_anchor"] is True
    assert {"block_size", "mask_token_id", "target_layer_ids", "rope_parameters"} <= set(held)


def test_the_published_file_is_kept_untouched(golden):
    config = json.loads((golden / "gemma4-rnn" / "drafter" / "config.json").read_text())
    before = copy.deepcopy(config)
    assert native(config).source_config == before
    assert config == before


WRONG = [
    (
        SPECFORGE,
        {"block_size": 6, "dflash_config.block_size": 5},
        "block_size=6 contradicts dflash_config.block_size=5",
    ),
    (SPECFORGE, {"dflash_config.swa_window_size": 4}, "dflash_config.swa_window_size"),
    (SPECFORGE, {"dflash_config.projector_type": "domino"}, "dflash_config.projector_type"),
    (SPECFORGE, {"dflash_config.markov_rank": None}, "'markov_rank' is missing"),
    (SPECFORGE, {"dflash_config": 3}, "dflash_config must be a mapping"),
    (SPECFORGE, {"architectures": ["DFlash2DraftModel"]}, "DFlash2DraftModel"),
    (SPECFORGE, {"architectures": "DSparkDraftModel"}, "architectures must be a list"),
    (SPECFORGE, {"markov_ranks": 8}, "unknown key 'markov_ranks'; did you mean 'markov_rank'"),
    (SPECFORGE, {"rope_theta": None}, "rope_theta is missing"),
    (SPECFORGE, {"rope_parameters": {"rope_theta": 5.0}}, "rope_theta=10000.0 contradicts"),
    (MODELOPT, {"dflash_config.sample_from_anchor": False}, "shift_label contradicts sample_from_anchor"),
    (MODELOPT, {"dflash_config.enable_confidence_head": False}, "use_confidence_head contradicts"),
    (MODELOPT, {"dflash_config.causal": True}, "dflash_config.causal=True"),
    (ZLAB, {"dflash_config.output_multiplier": 0.2}, "dflash_config.output_multiplier=0.2"),
    (ZLAB, {"dflash_config.markov_rank": 8}, "contradicts dflash_config.projector_type 'dflash'"),
    (ZLAB, {"block_size": None}, "'block_size' is missing"),
    (ZLAB, {"model_type": "gpt_oss"}, "model_type must be qwen3"),
    (ZLAB, {"num_hidden_layers": "two"}, "num_hidden_layers='two'"),
]


@pytest.mark.parametrize(("config", "changes", "message"), WRONG)
def test_a_contradictory_or_unknown_key_is_named(config, changes, message):
    config = copy.deepcopy(config)
    for key, value in changes.items():
        *parents, last = key.split(".")
        place = config[parents[0]] if parents else config
        if value is None:
            del place[last]
        else:
            place[last] = value
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        native(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gemma4_text"}, "contradicts model_type 'gemma4_text'"),
        ({"architectures": ["Qwen3DSparkModel", "Gemma4DSparkModel"]}, "architectures"),
        ({"dtype": "float99"}, "dtype must be one of"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings must be true or false"),
    ],
)
def test_a_contradictory_deepspec_file_is_named(golden, changes, message):
    config = json.loads((golden / "qwen3-vanilla" / "drafter" / "config.json").read_text())
    with pytest.raises(ValueError, match=message):
        native({**config, **changes})


@pytest.mark.parametrize("key", ["enable_moe_block", "hidden_size_per_layer_input", "use_double_wide_mlp"])
def test_gemma4_drafters_of_other_shapes_are_refused(golden, key):
    config = json.loads((golden / "gemma4-vanilla" / "drafter" / "config.json").read_text())
    with pytest.raises(ValueError, match=key):
        native({**config, key: 4})


def test_promoted_and_nested_fields_may_both_be_there():
    assert from_dflash_config({**SPECFORGE, **SPECFORGE["dflash_config"]})["markov_rank"] == 8


def test_a_plain_language_model_is_no_drafter():
    with pytest.raises(ValueError, match="not a drafter this package knows"):
        native(QWEN3)
    assert not is_published_drafter(QWEN3)
    assert all(map(is_published_drafter, (SPECFORGE, MODELOPT, ZLAB)))

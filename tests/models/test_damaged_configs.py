"""Hundreds of damaged `config.json` files: every one is an error that names the key or the tensor, none loads."""

import json
import random
import shutil

import pytest
from transformers import AutoModelForCausalLM

from dspark_hf.models import DSparkDrafter


# keys whose change is visible in tensors, layout or types, by the place they have in each dialect
SIZES = "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim".split()
LAYOUT = "block_size mask_token_id markov_rank".split()
WORDS = "hidden_act markov_head_type".split()
NATIVE = (
    *SIZES,
    *LAYOUT,
    *WORDS,
    "target_layer_ids",
    "rope_parameters",
    "enable_confidence_head",
    "body",
    "layer_types",
)
SPECULATORS = ("aux_hidden_state_layer_ids", "draft_vocab_size", "speculators_model_type", "transformer_layer_config")
# the general field, or the rule of Qwen3's own configuration, then gives the same value
HARMLESS = {
    "num_global_key_value_heads": ("gone", "misspelled", None),
    "layer_types": ("gone", "misspelled", None),
}
WRONG_TYPES = ("many", 2.5, [], {}, None, True, -7, 10**12)
# full-attention layers have sizes of their own there; without them the general ones hold
GEMMA4 = {
    "head_dim": "global_head_dim",
    "num_key_value_heads": "num_global_key_value_heads",
    "hidden_act": "hidden_activation",
}


def at(config, key):
    """The mapping that holds `key` in this dialect."""
    nested = config.get("transformer_layer_config")
    return nested if isinstance(nested, dict) and key not in config else config


def damaged(config, keys):
    """`(what was done, key, new file)`: keys taken away, of a wrong type or out of range, misspelled, or too large."""
    for key in keys:
        if key not in at(config, key):
            continue
        harmless = HARMLESS.get(key, ()) if key != "layer_types" or "transformer_layer_config" in config else ()
        for value in ("gone", "misspelled", *WRONG_TYPES):
            if value in harmless:
                continue
            changed = json.loads(json.dumps(config))
            place = at(changed, key)
            if value in ("gone", "misspelled"):
                old = place.pop(key)
                if value == "misspelled":
                    place[key[:-2] + key[-1] + key[-2]] = old
            elif value == place[key]:
                continue
            else:
                place[key] = value
            yield f"{key} {value}", key, json.dumps(changed)
        if key in (*SIZES, "markov_rank", "draft_vocab_size"):
            changed = json.loads(json.dumps(config))
            at(changed, key)[key] += 2
            yield f"{key} larger", key, json.dumps(changed)


def attempt(folder, text, target):
    (folder / "config.json").write_text(text)
    try:
        DSparkDrafter.from_pretrained(folder, target=target)
    except (ValueError, OSError) as error:
        return str(error)
    return None


# a key that tensors or another key speak for
SPOKEN_FOR = {
    "rope_parameters": ("rope_",),
    "markov_head_type": ("markov_head",),
    "num_hidden_layers": ("layers", "layer_types"),
    "markov_rank": ("markov", "confidence_head"),
    "enable_confidence_head": ("confidence_head",),
    "aux_hidden_state_layer_ids": ("target_layer_ids", "fc.weight"),
    "target_layer_ids": ("fc.weight",),
    "draft_vocab_size": ("d2t", "lm_head", "markov_w2"),
    "transformer_layer_config": ("transformer_layer_config",),
    "global_head_dim": ("tensor",),
    "hidden_activation": ("hidden_act",),
    "body": ("body", "layernorm"),
}


@pytest.mark.parametrize("name", ["qwen3-rnn", "gemma4-vanilla", "speculators-dspark-rnn-pruned", "native"])
def test_a_damaged_configuration_is_named(golden, tmp_path, name):
    source = golden / ("qwen3-gated" if name == "native" else name) / "drafter"
    target = None
    if name == "native":
        DSparkDrafter.from_pretrained(source).save_pretrained(tmp_path)
    else:
        shutil.copy(source / "model.safetensors", tmp_path)
        shutil.copy(source / "config.json", tmp_path)
    if name.startswith("speculators"):
        target = AutoModelForCausalLM.from_pretrained(golden / "qwen3-vanilla" / "target")
    config = json.loads((tmp_path / "config.json").read_text())
    assert attempt(tmp_path, json.dumps(config), target) is None

    seen, wrong = 0, []
    keys = [GEMMA4.get(key, key) if name.startswith("gemma4") else key for key in (*NATIVE, *SPECULATORS)]
    for what, key, text in damaged({key: value for key, value in config.items() if value is not None}, keys):
        message = attempt(tmp_path, text, target)
        seen += 1
        words = (
            key,
            key.replace("global_", ""),
            *SPOKEN_FOR.get(key, ()),
            *(("tensor", "vocabulary", "hidden size") if "larger" in what else ()),
            key[:-2],
        )
        if message is None or not any(word in message for word in words):
            wrong.append((what, message))
    assert not wrong, wrong
    assert seen >= 100


def test_a_cut_configuration_is_named(golden, tmp_path):
    source = golden / "qwen3-vanilla" / "drafter"
    shutil.copy(source / "model.safetensors", tmp_path)
    text = (source / "config.json").read_text().strip()
    generator = random.Random(0)
    for cut in (0, 1, *generator.sample(range(2, len(text)), 40)):
        message = attempt(tmp_path, text[:cut], None)
        assert message is not None
        assert str(tmp_path) in message


@pytest.mark.parametrize("text", ["[]", "3", "null", '"qwen3"', "{}", "\x00\x01", '{"model_type": "dspark"}'])
def test_a_file_that_holds_no_configuration_is_named(golden, tmp_path, text):
    shutil.copy(golden / "qwen3-vanilla" / "drafter" / "model.safetensors", tmp_path)
    message = attempt(tmp_path, text, None)
    assert message is not None
    assert str(tmp_path) in message


def test_an_unknown_native_key_names_its_neighbour(golden, tmp_path):
    DSparkDrafter.from_pretrained(golden / "qwen3-vanilla" / "drafter").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert "did you mean 'sliding_window'" in attempt(tmp_path, json.dumps({**config, "slidingwindow": 4}), None)
    assert "newer version" in attempt(tmp_path, json.dumps({**config, "zzz": 4}), None)

"""Fields are checked alone and together, and every message names one."""

import json

import pytest
import torch

from dspark_hf.models import DSparkConfig, DSparkDrafter
from dspark_hf.models.configuration_dspark import spread_layer_ids


SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "markov_rank": 4,
    "block_size": 5,
    "num_target_layers": 8,
    "target_layer_ids": [1, 4],
}
WRONG = {
    "vocab_size": "64",
    "hidden_size": True,
    "num_hidden_layers": 10**9,
    "num_attention_heads": 0,
    "num_key_value_heads": 3,
    "head_dim": 7,
    "hidden_act": "gelux",
    "rms_norm_eps": float("nan"),
    "attention_dropout": 1.5,
    "embedding_scale": 0,
    "final_logit_softcapping": -1.0,
    "attention_bias": "yes",
    "attention_k_eq_v": True,
    "body": "llama",
    "block_size": 0,
    "mask_token_id": 64,
    "target_layer_ids": [7],
    "num_target_layers": 3,
    "markov_rank": -1,
    "markov_head_type": "gru",
    "draft_vocab_size": 65,
    "layer_types": ["full_attention"],
    "sliding_window": "wide",
    "causal_layers": "all",
    "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
    "confidence_calibration": {"default": {"temperatures": [1.0, 2.0]}},
}


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_wrong_value_is_named(name):
    expected = "target_layer_ids" if name == "num_target_layers" else name
    with pytest.raises(ValueError, match=expected):
        DSparkConfig(**{**SMALL, name: WRONG[name]})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"block_size": 1, "sample_from_anchor": False}, "block_size must leave at least one slot"),
        ({"layer_types": ["sliding_attention"] * 2, "sliding_window": 4}, "sliding_window must be >= block_size"),
        ({"markov_rank": 0}, "confidence_head_with_markov=true needs markov_rank > 0"),
        ({"target_layer_ids": [1, 1]}, "must not repeat"),
        ({"target_layer_ids": []}, "at least one layer"),
        ({"target_layer_ids": [-2]}, "target_layer_ids must be in"),
        ({"target_layer_ids": [-2], "num_target_layers": None}, "target_layer_ids must be in"),
        ({"target_layer_ids": None, "num_target_layers": None}, "target_layer_ids is missing"),
        ({"draft_vocab_size": 32, "tie_word_embeddings": True}, "tie_word_embeddings=true"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_parameters"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": "x"}}, "rope_parameters.rope_theta"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial"),
        ({"confidence_calibration": {"greedy": {"temperatures": [1, 1, 1, 1, 0]}}}, "must be > 0"),
        ({"confidence_calibration": {"greedy": {"temperatures": [1] * 5, "margin_slopes": [1] * 5}}}, "or neither"),
        (
            {"confidence_calibration": {"greedy": {"temperatures": [1] * 5, "expected_survival": [[1.5] * 5]}}},
            r"lists of 5 numbers in \[0, 1\]",
        ),
    ],
)
def test_fields_that_contradict_each_other_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        DSparkConfig(**{**SMALL, **fields})


# https://github.com/NVIDIA/Model-Optimizer/pull/2216: the base fell back to 10000 where a file spelled it the other way
@pytest.mark.parametrize("theta", [1e6, 5e5])
def test_both_spellings_of_the_rotary_base_give_the_same_frequencies(theta):
    old = DSparkDrafter(DSparkConfig(**SMALL, rope_theta=theta))
    new = DSparkDrafter(DSparkConfig(**SMALL, rope_parameters={"rope_type": "default", "rope_theta": theta}))
    assert torch.equal(old.rotary_emb.inv_freq, new.rotary_emb.inv_freq)
    assert float(old.rotary_emb.inv_freq[1]) == pytest.approx(theta ** (-2 / 8))


def test_yarn_is_inherited_in_both_spellings():
    yarn = {"factor": 4.0, "original_max_position_embeddings": 128}
    old = DSparkDrafter(DSparkConfig(**SMALL, rope_theta=1e6, rope_scaling={"type": "yarn", **yarn}))
    new = DSparkDrafter(DSparkConfig(**SMALL, rope_parameters={"rope_type": "yarn", "rope_theta": 1e6, **yarn}))
    plain = DSparkDrafter(DSparkConfig(**SMALL, rope_theta=1e6))
    assert torch.equal(old.rotary_emb.inv_freq, new.rotary_emb.inv_freq)
    assert not torch.equal(old.rotary_emb.inv_freq, plain.rotary_emb.inv_freq)


@pytest.mark.parametrize(
    "spelling", [{"rope_theta": 1e6}, {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}]
)
def test_a_published_file_keeps_its_rotary_base(golden, tmp_path, spelling):
    held = json.loads((golden / "qwen3-none" / "drafter" / "config.json").read_text())
    del held["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps({**held, **spelling}))
    assert DSparkConfig.from_pretrained(tmp_path).rope_parameters["rope_theta"] == 1e6


# https://github.com/NVIDIA/TensorRT-LLM/pull/15808: the confidence head crashed without the Markov head
@pytest.mark.parametrize("with_markov", [True, False])
@pytest.mark.parametrize("confidence", [True, False])
@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
@pytest.mark.parametrize("rank", [0, 4])
def test_every_combination_of_heads_runs_or_is_refused(tmp_path, rank, kind, confidence, with_markov):
    heads = {
        "markov_rank": rank,
        "markov_head_type": kind,
        "enable_confidence_head": confidence,
        "confidence_head_with_markov": with_markov,
    }
    if rank == 0 and confidence and with_markov:
        with pytest.raises(ValueError, match="confidence_head_with_markov"):
            DSparkConfig(**{**SMALL, **heads})
        return
    drafter = DSparkDrafter(DSparkConfig(**{**SMALL, **heads})).eval()
    context, ids = torch.randn(2, 6, 64), torch.tensor([3, 9])
    block = drafter.draft_block(ids, context)
    hidden = drafter(drafter.make_block(ids), context)
    logits, confidences = drafter.teacher_forced(hidden, torch.cat([ids[:, None], block.tokens[:, :-1]], dim=1))
    (logits.sum() + (0 if confidences is None else confidences.sum())).backward()
    drafter.save_pretrained(tmp_path)
    again = DSparkDrafter.from_pretrained(tmp_path).draft_block(ids, context)

    assert (block.confidence_logits is None) == (not confidence)
    torch.testing.assert_close(logits, block.logits)
    torch.testing.assert_close(again.logits, block.logits, atol=5e-6, rtol=0)


def test_layers_are_spread_as_the_reference_spreads_them():
    assert spread_layer_ids(36, 5) == [1, 9, 17, 25, 33]
    assert spread_layer_ids(48, 5) == [1, 12, 23, 34, 45]
    assert all(max(spread_layer_ids(count, 5)) < count - 1 for count in range(1, 40))


def test_eos_and_mask_may_be_one_id():
    config = DSparkConfig(**{**SMALL, "mask_token_id": 63, "eos_token_id": [2, 63], "pad_token_id": 63})
    assert config.mask_token_id == 63

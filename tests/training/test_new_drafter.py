"""A fresh drafter: the target's sizes, its frozen weights, a sensible mask token and draft vocabulary."""

from collections import Counter

import pytest
import torch
from torch import nn
from training_runs import rows_of

from dspark_hf.dev.tiny import tiny_target
from dspark_hf.training.new_drafter import (
    choose_mask_token,
    draft_vocabulary,
    drafter_config,
    flatten_first_logits,
    new_drafter,
    scale_features,
)
from dspark_hf.training.recipe import DrafterSection


FAMILIES = ["qwen3", "gemma3", "gemma4", "llama", "gemma3_wrapper"]


def section(**overrides):
    return DrafterSection(**({"num_hidden_layers": 2, "markov_rank": 8, "num_target_features": 3} | overrides))


def build(target, make_tokenizer, **overrides):
    tokenizer = make_tokenizer("chat")
    return new_drafter(target, tokenizer, rows_of(), section(**{"mask_token_id": 63} | overrides), target_name="tiny")


@pytest.mark.parametrize("family", FAMILIES)
def test_sizes_and_frozen_weights_are_the_targets(family, make_tokenizer):
    target = tiny_target(family)
    drafter = build(target, make_tokenizer)
    text = target.config.get_text_config()
    assert drafter.config.hidden_size == text.hidden_size
    assert drafter.config.vocab_size == text.vocab_size
    assert drafter.config.num_target_layers == text.num_hidden_layers
    assert drafter.config.target_name_or_path == "tiny"
    ids = torch.arange(text.vocab_size)
    torch.testing.assert_close(drafter.embed(ids), target.get_input_embeddings()(ids))
    torch.testing.assert_close(drafter.lm_head.weight, target.get_output_embeddings().weight)
    assert {name for name, value in drafter.named_parameters() if not value.requires_grad} == {
        "embed_tokens.weight",
        "lm_head.weight",
    }
    hidden = torch.randn(3, text.hidden_size)
    with torch.no_grad():
        cap = text.to_dict().get("final_logit_softcapping")
        expected = target.get_output_embeddings()(hidden)
        expected = expected if cap is None else torch.tanh(expected / cap) * cap
        torch.testing.assert_close(drafter.base_logits(hidden), expected)


def test_rope_and_head_sizes_follow_the_full_attention_of_the_target():
    target = tiny_target("gemma3", rope_parameters=None)
    config = drafter_config(target, section(), mask_token_id=63)
    assert config.rope_parameters["rope_theta"] == 1_000_000.0
    wide = drafter_config(tiny_target("gemma4"), section(body="gemma4"), mask_token_id=63)
    assert (wide.head_dim, wide.num_key_value_heads) == (16, 2)
    assert wide.embedding_scale == pytest.approx(32**0.5)


def test_the_same_seed_gives_the_same_weights_and_leaves_the_global_generator_alone(make_tokenizer):
    target = tiny_target("qwen3")
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, two = build(target, make_tokenizer), build(target, make_tokenizer)
    assert torch.equal(torch.rand(1), expected)
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name]), name


def test_a_pruned_vocabulary_holds_the_frequent_tokens_and_those_that_end_a_turn(make_tokenizer):
    target = tiny_target("qwen3")
    target.generation_config.eos_token_id = [3, 1]
    config = drafter_config(target, section(draft_vocab_size=6), mask_token_id=63)
    assert draft_vocabulary(Counter({40: 5, 41: 4, 3: 1, 50: 2}), config) == [0, 1, 3, 40, 41, 50]
    assert draft_vocabulary(Counter({40 + i: 9 - i for i in range(9)}), config) == [1, 3, 40, 41, 42, 43]
    drafter = build(target, make_tokenizer, draft_vocab_size=6)
    ids = drafter.draft_to_target()
    assert {1, 3} <= set(ids.tolist())
    assert torch.equal(drafter.lm_head.weight, target.get_output_embeddings().weight[ids])


def test_the_mask_token_is_unused_not_a_zero_row_and_never_a_stop(make_tokenizer):
    tokenizer = make_tokenizer("chat")
    embedding = nn.Embedding(264, 8)
    with torch.no_grad():
        embedding.weight[263] = 0.0
    assert choose_mask_token(tokenizer, embedding) == 262
    full = nn.Embedding(260, 8)
    seen = Counter(dict.fromkeys(range(4, 260), 1))
    assert choose_mask_token(tokenizer, full, seen) == 2
    seen[2] = seen[1] = 5
    seen[77] = 0
    assert choose_mask_token(tokenizer, full, seen) == 77


def test_feature_scaling_is_folded_into_the_projection(make_tokenizer):
    target = tiny_target("qwen3")
    plain = build(target, make_tokenizer, target_layer_ids=[-1, 0, 2])
    scaled = build(target, make_tokenizer, target_layer_ids=[-1, 0, 2], feature_scaling=True)
    medians = torch.tensor(scale_features(plain, target, rows_of()))
    torch.testing.assert_close(plain.fc.weight, scaled.fc.weight)
    assert (medians > 0).all()
    assert len(medians) == 3


@pytest.mark.parametrize(("length", "expected"), [(4.0, 1.0), (0.5, 0.5)])
def test_first_logits_have_at_most_unit_spread_however_long_the_rows_of_the_head_are(length, expected, make_tokenizer):
    drafter = build(tiny_target("qwen3"), make_tokenizer)
    with torch.no_grad():
        rows = torch.randn(drafter.lm_head.weight.shape, generator=torch.Generator().manual_seed(0))
        drafter.lm_head.weight.copy_(length * torch.nn.functional.normalize(rows, dim=1))
        flatten_first_logits(drafter)
        hidden = drafter.norm(torch.randn(200, drafter.config.hidden_size))
    assert drafter.base_logits(hidden).std().item() == pytest.approx(expected, rel=0.05)

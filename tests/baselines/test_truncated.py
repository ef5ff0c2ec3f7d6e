"""The classic assistant made of the target's first layers."""

import pytest
import torch

from dspark_hf.baselines import truncated_target
from dspark_hf.dev.tiny import tiny_target


@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma3"])
def test_it_computes_what_the_target_without_its_last_layers_computes(family):
    target = tiny_target(family)
    ids = torch.arange(3, 11)[None]
    assistant = truncated_target(target, 2)
    with torch.no_grad():
        states = target(ids, output_hidden_states=True).hidden_states
        expected = target.get_decoder().norm(states[2])
        found = assistant(ids, output_hidden_states=True).hidden_states
    torch.testing.assert_close(found[1], states[1])
    torch.testing.assert_close(found[2], expected)


def test_weights_are_shared_and_the_target_is_unchanged():
    target = tiny_target("llama")
    layers = target.config.num_hidden_layers
    assistant = truncated_target(target, 1)
    assert target.config.num_hidden_layers == layers == len(target.model.layers)
    assert (
        assistant.model.layers[0].mlp.up_proj.weight.data_ptr() == target.model.layers[0].mlp.up_proj.weight.data_ptr()
    )


def test_assisted_decoding_with_it_keeps_the_text():
    target = tiny_target("llama")
    ids = torch.arange(3, 11)[None]
    options = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0}
    plain = target.generate(ids, **options)
    assert torch.equal(target.generate(ids, assistant_model=truncated_target(target, 2), **options), plain)


@pytest.mark.parametrize("layers", [0, 99])
def test_a_number_of_layers_out_of_range_is_refused(layers):
    with pytest.raises(ValueError, match="num_layers must be in"):
        truncated_target(tiny_target("llama"), layers)

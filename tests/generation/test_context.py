"""The drafter sees the same context inside the loop as in one pass over the whole text, at the same positions."""

import pytest
import torch

from dspark_hf.dev.tiny import tiny_drafter, tiny_target
from dspark_hf.generation.context import DraftContext


@pytest.mark.parametrize("length", [5, 50, 200])
@pytest.mark.parametrize("anchor_first", [True, False])
def test_drafts_in_the_loop_equal_one_pass_over_the_whole_text(length, anchor_first, make_prompt, monkeypatch):
    target = tiny_target("qwen3")
    drafter = tiny_drafter(target, sample_from_anchor=anchor_first)
    ids = make_prompt(length)
    seen = []
    forward = drafter.forward

    def spy(block_ids, context_hidden_states, position_ids=None, attention_mask=None, cache=None):
        hidden = forward(block_ids, context_hidden_states, position_ids, attention_mask, cache)
        seen.append((block_ids, position_ids, hidden))
        return hidden

    monkeypatch.setattr(drafter, "forward", spy)
    text = target.generate(ids, assistant_model=drafter, do_sample=False, max_new_tokens=20)
    states = target(text, output_hidden_states=True).hidden_states
    features = torch.cat([states[layer + 1] for layer in drafter.config.target_layer_ids], dim=-1)
    assert len(seen) >= 4
    for block_ids, position_ids, hidden in seen:
        anchor = int(position_ids[0, -drafter.config.block_size])
        assert position_ids[0, -drafter.config.block_size :].tolist() == list(range(anchor, anchor + 5))
        assert int(text[0, anchor]) == int(block_ids[0, 0])
        whole = forward(block_ids, features[:, :anchor])
        torch.testing.assert_close(hidden, whole, atol=1e-5, rtol=1e-5)


def test_features_reach_the_drafter_in_its_own_dtype(make_prompt):
    target = tiny_target("qwen3").bfloat16()
    drafter = tiny_drafter(tiny_target("qwen3"))
    target.generate(make_prompt(6), assistant_model=drafter, do_sample=False, max_new_tokens=8)
    keys = drafter.last_generation
    assert keys.rounds
    assert drafter.fc.weight.dtype == torch.float32


def test_rows_write_their_context_at_columns_of_their_own():
    context = DraftContext([0, 0])
    context.add(torch.arange(12.0).view(2, 3, 2), [3, 1])
    inputs = context.prepare(block_rows=2)
    assert inputs.position_ids_RT.tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 1, 2]]
    assert inputs.mask[:, 0, 0].tolist() == [[True] * 5, [True, False, False, True, True]]
    context.settle()
    context.add(torch.zeros(2, 2, 2), [1, 2])
    context.add(torch.ones(2, 2, 2), [2, 1])
    inputs = context.prepare(block_rows=2)
    assert inputs.features_RSF[:, :, 0].tolist() == [[0.0, 1.0, 1.0], [0.0, 0.0, 1.0]]
    assert context.known == [6, 4]
    context.settle()
    for value in range(5):  # plain rounds: one token of every row
        context.add(torch.full((2, 1, 2), float(value)), [1, 1])
    assert context.prepare(block_rows=2).features_RSF[:, :, 1].tolist() == [[0.0, 1.0, 2.0, 3.0, 4.0]] * 2


def test_a_single_row_can_forget_its_latest_tokens():
    context = DraftContext([2])
    context.add(torch.zeros(1, 6, 2), [6])
    context.prepare(block_rows=2)
    context.settle()
    context.add(torch.ones(1, 3, 2), [3])
    assert not context.crop(12)
    assert context.crop(10)
    assert context.pending[0][1] == [2]
    assert context.crop(5)
    assert (context.known, context.cache.held, context.pending) == ([5], 3, [])
    assert not context.crop(1)

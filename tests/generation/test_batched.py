"""Rows of a batch advance by lengths of their own, leave when they end, and never see each other."""

import functools

import pytest
import torch

from dspark_hf.dev.tiny import tiny_drafter, tiny_target
from dspark_hf.generation import layouts
from dspark_hf.generation.batched import ragged_layer_types


GREEDY = {"do_sample": False, "max_new_tokens": 20}


def test_each_row_is_what_it_would_be_alone(pair, make_prompt):
    target, drafter = pair("gemma3")
    drafter.set_policy("threshold", threshold=0.5)
    ids = make_prompt(20, rows=4)
    together = target.generate(ids, assistant_model=drafter, **GREEDY)
    rounds = drafter.last_generation.rounds
    for row in range(4):
        assert torch.equal(target.generate(ids[row : row + 1], assistant_model=drafter, **GREEDY)[0], together[row])
        alone = [entry[1:] for entry in drafter.last_generation.rounds]
        assert [entry[1:] for entry in rounds if entry[0] == row] == alone


def test_rows_accept_unequal_lengths_in_one_round(pair, make_prompt):
    target, drafter = pair("qwen3")
    target.generate(make_prompt(9, rows=6), assistant_model=drafter, **GREEDY)
    first = [accepted for *_, accepted in drafter.last_generation.rounds[:6]]
    assert len(set(first)) > 1


def test_ended_rows_leave_the_batch_and_the_last_row_runs_alone(pair, make_prompt):
    target, drafter = pair("qwen3")
    ids = make_prompt(6, rows=4, seed=2)
    plain = target.generate(ids, **GREEDY)
    options = {**GREEDY, "eos_token_id": [int(plain[0, 8]), int(plain[1, 10])], "pad_token_id": 0}
    widths = []
    forward = target.forward

    @functools.wraps(forward)
    def counted(*args, **kwargs):
        widths.append(kwargs["input_ids"].shape[0])
        return forward(*args, **kwargs)

    expected = target.generate(ids, **options)
    target.forward = counted
    try:
        output = target.generate(ids, assistant_model=drafter, **options)
    finally:
        del target.forward
    assert torch.equal(output, expected)
    assert widths == sorted(widths, reverse=True)
    assert widths[0] == 4
    assert widths[-1] < 4


def test_padding_on_the_right_continues_each_rows_own_text(pair, make_prompt):
    target, drafter = pair("qwen3")
    ids = make_prompt(9, rows=3)
    mask = torch.ones_like(ids)
    mask[0, 5:] = mask[2, 8:] = 0
    output = target.generate(ids * mask, attention_mask=mask, assistant_model=drafter, **GREEDY)
    assert torch.equal(output[:, :9], ids * mask)
    for row, length in enumerate((5, 9, 8)):
        alone = target.generate(ids[row : row + 1, :length], **GREEDY)
        assert torch.equal(output[row, 9:], alone[0, length:])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_sdpa_and_eager_targets_take_the_masks(attention, pair, make_prompt):
    for family in ("gemma3", "llama", "gemma4"):
        target, drafter = pair(family, attn_implementation=attention)
        ids = make_prompt(18, rows=3)
        assert torch.equal(target.generate(ids, assistant_model=drafter, **GREEDY), target.generate(ids, **GREEDY))


def test_a_target_whose_layers_all_slide_takes_a_single_window_mask(make_prompt):
    target = tiny_target("qwen3_moe", sliding_window=8, use_sliding_window=True, max_window_layers=0)
    drafter = tiny_drafter(target)
    for rows in (1, 3):
        ids = make_prompt(12, rows)
        assert torch.equal(target.generate(ids, assistant_model=drafter, **GREEDY), target.generate(ids, **GREEDY))


def test_attention_without_dense_masks_decodes_rows_one_after_another(pair, make_prompt, monkeypatch):
    target, drafter = pair("qwen3")
    ids = make_prompt(7, rows=3)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    options = {**GREEDY, "attention_mask": mask, "repetition_penalty": 1.2}
    expected = target.generate(ids, **options)
    monkeypatch.setattr(layouts, "MASKED_ATTENTION", ())
    assert torch.equal(target.generate(ids, assistant_model=drafter, **options), expected)
    rows = [row for row, *_ in drafter.last_generation.rounds]
    assert rows == sorted(rows)


def test_a_target_that_takes_no_positions_decodes_rows_one_after_another(make_prompt):
    target = tiny_target("qwen3")
    drafter = tiny_drafter(target)
    ids = make_prompt(7, rows=3)
    expected = target.generate(ids, **GREEDY)
    forward = target.forward
    target.forward = lambda **inputs: forward(**inputs)
    assert torch.equal(target.generate(ids, assistant_model=drafter, **GREEDY), expected)


def test_layer_types_decide_whether_rows_share_a_cache(pair):
    assert ragged_layer_types(pair("gemma4")[0].config) == ["sliding_attention", "full_attention", "dummy", "dummy"]
    assert ragged_layer_types(pair("qwen3_5")[0].config) is None


def test_a_long_batch_grows_its_buffers(make_prompt):
    target = tiny_target("qwen3", max_position_embeddings=1024)
    drafter = tiny_drafter(target)
    ids = make_prompt(5, rows=2)
    options = {"do_sample": False, "max_new_tokens": 200}
    assert torch.equal(target.generate(ids, assistant_model=drafter, **options), target.generate(ids, **options))

"""One row in the cache that plain `generate` would use: sliding, static, carried over, recurrent, and what is refused."""

import copy
import itertools

import pytest
import torch
from transformers import DynamicCache, StaticCache

from dspark_hf.dev.tiny import tiny_drafter, tiny_target


GREEDY = {"do_sample": False, "max_new_tokens": 24}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_prompts_around_the_window_equal_plain_decoding_at_every_acceptance(attention, make_prompt, scripted):
    target = tiny_target("gemma3", sliding_window=8, attn_implementation=attention)
    for length in (3, 7, 8, 9, 20):
        ids = make_prompt(length, seed=length)
        expected = target.generate(ids, **GREEDY)
        wrongs = {
            "none": lambda position: False,
            "some": lambda position: position % 3 == 0,
            "all": lambda position: True,
        }
        for wrong in wrongs.values():
            drafter = scripted(target).play(expected[0].tolist(), wrong=wrong)
            assert torch.equal(target.generate(ids, assistant_model=drafter, **GREEDY), expected)


def test_a_drafter_with_a_window_of_its_own_crosses_it(make_prompt):
    target = tiny_target("qwen3")
    drafter = tiny_drafter(target, sliding_window=8)
    for rows in (1, 3):
        ids = make_prompt(4, rows)
        options = {"do_sample": False, "max_new_tokens": 60}
        assert torch.equal(target.generate(ids, assistant_model=drafter, **options), target.generate(ids, **options))


def turns(target, cache, ids, more, **kwargs):
    """Two turns on one cache: the whole text is passed again, as chats do."""
    first = target.generate(ids, cache=cache, **GREEDY, **kwargs)
    return target.generate(torch.cat([first, more], dim=1), cache=cache, **GREEDY, **kwargs)


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "gemma4", "llama", "qwen3_5"])
def test_a_cache_from_the_turn_before_continues_as_in_plain_decoding(family, pair, make_prompt):
    target, drafter = pair(family)
    ids, more = make_prompt(9, seed=1), make_prompt(6, seed=2)
    config = target.config.get_text_config()
    expected = turns(target, DynamicCache(config=config), ids, more)
    assert torch.equal(turns(target, DynamicCache(config=config), ids, more, assistant_model=drafter), expected)


def test_a_second_turn_drafts_with_everything_the_first_one_knew(pair, make_prompt):
    target, drafter = pair("qwen3")
    ids, more = make_prompt(9, seed=1), make_prompt(6, seed=2)
    cache = DynamicCache(config=target.config)
    text = turns(target, cache, ids, more, assistant_model=drafter)
    warm = drafter.last_generation.rounds
    # the same second turn from nothing: context and so acceptance must be the same
    assert torch.equal(target.generate(text[:, :39], assistant_model=drafter, **GREEDY), text)
    assert drafter.last_generation.rounds == warm


def test_a_cache_prefilled_by_hand_or_cropped_in_between_gives_the_right_text(pair, make_prompt):
    target, drafter = pair("qwen3")
    ids = make_prompt(14, seed=3)
    expected = target.generate(ids, **GREEDY)
    for held in (1, 10, 13):
        cache = DynamicCache(config=target.config)
        target(ids[:, :held], cache=cache)
        assert torch.equal(target.generate(ids, cache=cache, assistant_model=drafter, **GREEDY), expected)
    cache.crop(-9)
    other = torch.cat([expected[:, : cache.get_seq_length()], make_prompt(5, seed=8)], dim=1)
    # a mask, because generate takes pad tokens inside a text for padding
    options = {**GREEDY, "attention_mask": torch.ones_like(other)}
    output = target.generate(other, cache=cache, assistant_model=drafter, **options)
    assert torch.equal(output, target.generate(other, **options))


def test_pad_tokens_inside_a_text_are_hidden_as_in_plain_decoding(pair, make_prompt):
    for family, rows in itertools.product(("qwen3", "gemma3"), (1, 3)):
        target, drafter = pair(family)
        ids = make_prompt(20, rows)
        ids[:, 7] = ids[0, 2:4] = 0
        expected = target.generate(ids, **GREEDY)
        assert torch.equal(target.generate(ids, assistant_model=drafter, **GREEDY), expected)


def test_a_copied_cache_may_continue_in_two_ways(pair, make_prompt):
    target, drafter = pair("qwen3")
    cache = DynamicCache(config=target.config)
    first = target.generate(make_prompt(9, seed=1), cache=cache, assistant_model=drafter, **GREEDY)
    branches = [copy.deepcopy(cache), cache]
    for seed, branch in enumerate(branches):
        ids = torch.cat([first, make_prompt(4, seed=seed)], dim=1)
        output = target.generate(ids, cache=branch, assistant_model=drafter, **GREEDY)
        assert torch.equal(output, target.generate(ids, **GREEDY))


def test_new_tokens_alone_continue_a_cache_when_the_mask_covers_the_whole_text(pair, make_prompt):
    target, drafter = pair("qwen3")
    ids = make_prompt(12, seed=5)
    outputs = []
    for kwargs in ({}, {"assistant_model": drafter}):
        cache = DynamicCache(config=target.config)
        target(ids[:, :8], cache=cache)
        mask = torch.ones(1, 12, dtype=torch.long)
        outputs.append(target.generate(ids[:, 8:], attention_mask=mask, cache=cache, **GREEDY, **kwargs))
    assert torch.equal(*outputs)


def test_a_cache_that_already_holds_the_whole_input_is_refused(pair, make_prompt):
    target, drafter = pair("qwen3")
    ids = make_prompt(8)
    cache = DynamicCache(config=target.config)
    target(ids, cache=cache)
    with pytest.raises(ValueError, match="already holds 8 tokens"):
        target.generate(ids, cache=cache, assistant_model=drafter, **GREEDY)


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "gemma4", "qwen3_5"])
def test_a_static_cache_works_within_and_beyond_a_window(family, pair, make_prompt):
    target, drafter = pair(family)
    for length in (4, 18):
        ids = make_prompt(length, seed=length)
        expected = target.generate(ids, **GREEDY)
        output = target.generate(ids, cache_implementation="static", assistant_model=drafter, **GREEDY)
        assert torch.equal(output, expected)


def test_a_static_cache_of_the_user_is_filled_to_its_last_column(pair, make_prompt):
    target, drafter = pair("qwen3")
    ids = make_prompt(6)
    cache = StaticCache(config=target.config, max_cache_len=6 + 24 - 1)
    assert torch.equal(
        target.generate(ids, cache=cache, assistant_model=drafter, **GREEDY), target.generate(ids, **GREEDY)
    )


def test_recurrent_states_survive_forced_rejection_and_partial_acceptance(pair, make_prompt, scripted):
    target, _ = pair("qwen3_5")
    ids = make_prompt(6)
    expected = target.generate(ids, **GREEDY)
    for every in (1, 2, 3, 100):
        drafter = scripted(target).play(
            expected[0].tolist(), wrong=lambda position, every=every: position % every == 0
        )
        assert torch.equal(target.generate(ids, assistant_model=drafter, **GREEDY), expected)


def test_recurrent_targets_decode_padded_rows_one_after_another(pair, make_prompt):
    target, drafter = pair("qwen3_5")
    ids = make_prompt(8, rows=3)
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    options = {**GREEDY, "attention_mask": mask}
    assert torch.equal(target.generate(ids, assistant_model=drafter, **options), target.generate(ids, **options))


def test_long_prompts_may_be_prefilled_in_chunks(pair, make_prompt):
    for family, rows in itertools.product(("qwen3", "gemma3"), (1, 2)):
        target, drafter = pair(family)
        ids = make_prompt(23, rows)
        whole = target.generate(ids, assistant_model=drafter, **GREEDY)
        rounds = drafter.last_generation.rounds
        assert torch.equal(target.generate(ids, prefill_chunk_size=5, assistant_model=drafter, **GREEDY), whole)
        assert drafter.last_generation.rounds == rounds


def test_embeddings_may_stand_in_for_ids(pair, make_prompt):
    target, drafter = pair("qwen3")
    for rows in (1, 3):
        ids = make_prompt(7, rows)
        embeds = target.get_input_embeddings()(ids)
        expected = target.generate(inputs_embeds=embeds, **GREEDY)
        assert torch.equal(target.generate(inputs_embeds=embeds, assistant_model=drafter, **GREEDY), expected)
        both = target.generate(input_ids=ids, inputs_embeds=embeds, assistant_model=drafter, **GREEDY)
        assert torch.equal(both, target.generate(input_ids=ids, inputs_embeds=embeds, **GREEDY))


def test_a_cache_that_cannot_be_cropped_is_refused_before_any_token(pair, make_prompt):
    target, drafter = pair("qwen3")

    class NeverCropped(DynamicCache):
        pass

    cache = NeverCropped(config=target.config)
    for layer in cache.layers:
        layer.is_croppable = False
    with pytest.raises(ValueError, match="cannot take back rejected tokens"):
        target.generate(make_prompt(4), cache=cache, assistant_model=drafter, **GREEDY)
    assert cache.get_seq_length() == 0


def test_a_cache_of_the_user_is_refused_for_several_rows(pair, make_prompt):
    target, drafter = pair("qwen3")
    with pytest.raises(ValueError, match="one row at a time"):
        target.generate(
            make_prompt(4, rows=2), cache=DynamicCache(config=target.config), assistant_model=drafter, **GREEDY
        )


def test_sliding_layers_stop_recording_when_the_call_ends(pair, make_prompt):
    target, drafter = pair("gemma3")
    cache = DynamicCache(config=target.config)
    target.generate(make_prompt(20), cache=cache, assistant_model=drafter, **GREEDY)
    sliding = [layer for layer in cache.layers if layer.is_sliding]
    assert sliding
    assert not any(layer.record_past for layer in sliding)
    assert all(layer.keys.shape[2] == 15 for layer in sliding)

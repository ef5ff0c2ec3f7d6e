"""The cache that grows in place: the same text and the same numbers as transformers' own, in every way it may be used."""

import pytest
import torch
from transformers import DynamicCache

from dspark_hf.dev.tiny import WINDOW, tiny_target
from dspark_hf.generation.dispatch import CACHE_KEYWORD
from dspark_hf.generation.growing import growing_cache


@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma3", "gemma4"])
@pytest.mark.parametrize("sampling", [False, True])
def test_padded_rows_generate_what_plain_decoding_does(family, sampling, make_prompt):
    target = tiny_target(family)
    ids, mask = make_prompt(9, 3), torch.ones(3, 9, dtype=torch.long)
    mask[1, :4] = 0
    # past the window, and past the first buffer
    options = {"attention_mask": mask, "do_sample": sampling, "max_new_tokens": 4 * WINDOW + 20, "pad_token_id": 0}
    torch.manual_seed(3)
    expected = target.generate(ids, **options)
    torch.manual_seed(3)
    found = target.generate(ids, **options, **{CACHE_KEYWORD: growing_cache(target.config.get_text_config())})
    assert torch.equal(found, expected)


def test_nothing_is_copied_while_a_buffer_has_room(make_prompt):
    target = tiny_target("qwen3")
    cache = growing_cache(target.config)
    target(make_prompt(9, 2), **{CACHE_KEYWORD: cache})
    places = set()
    for seed in range(20):
        target(make_prompt(1, 2, seed=seed), **{CACHE_KEYWORD: cache})
        places.add(cache.layers[0].keys.data_ptr())
    assert len(places) == 1
    assert cache.get_seq_length() == 29


def changes():
    def crop(cache):
        cache.crop(-3)

    def reorder(cache):
        cache.reorder_cache(torch.tensor([2, 0, 1]))

    def select(cache):
        cache.batch_select_indices(torch.tensor([0, 2]))

    def repeat(cache):
        cache.batch_repeat_interleave(2)

    def reset(cache):
        cache.reset()

    return [crop, reorder, select, repeat, reset]


@pytest.mark.parametrize("change", changes(), ids=lambda change: change.__name__)
@torch.no_grad()
def test_changing_rows_or_length_continues_as_with_the_dynamic_cache(change, make_prompt):
    target = tiny_target("qwen3")
    prompt, rows = make_prompt(9, 3), {"select": 2, "repeat": 6}.get(change.__name__, 3)
    logits = []
    for cache in (DynamicCache(config=target.config), growing_cache(target.config)):
        target(prompt, **{CACHE_KEYWORD: cache})
        change(cache)
        outputs = [target(make_prompt(2, rows, seed=seed), **{CACHE_KEYWORD: cache}).logits for seed in range(2)]
        logits.append(torch.cat(outputs, dim=1))
    torch.testing.assert_close(logits[1], logits[0])


def test_layers_of_another_kind_keep_transformers_cache():
    assert growing_cache(tiny_target("qwen3_5").config.get_text_config()) is None

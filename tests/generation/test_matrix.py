"""Greedy text equals plain `generate`, token for token in fp32, over everything users combine; sampling runs over the same."""

import itertools
import zlib

import pytest
import torch
from transformers import DynamicCache


FAMILIES = (
    "qwen3",
    "qwen3_moe",
    "qwen2",
    "llama",
    "gemma3",
    "gemma3_wrapper",
    "gemma4",
    "gemma4_wrapper",
    "qwen3_5",
)
POLICIES = {"full": {}, "threshold": {"threshold": 0.5}, "auto": {}}
PROCESSORS = {
    "none": {},
    "penalties": {"repetition_penalty": 1.4, "no_repeat_ngram_size": 3},
    "words": {"bad_words_ids": [[7], [11, 12]], "suppress_tokens": [5], "min_new_tokens": 6},
}
CACHES = ("dynamic", "static", "reused")
NEW_TOKENS = 10
CASES = [
    case
    for case in itertools.product(FAMILIES, (1, 2, 5), ("left", "right", "none"), POLICIES, PROCESSORS)
    # a third of the full product; a hash keeps every pair of values together somewhere
    if zlib.crc32(repr(case).encode()) % 3 == 0
]


def padded(make_prompt, rows: int, side: str, seed: int):
    """Prompts on both sides of the window of 16, with padding on one side."""
    length = (9, 20)[seed % 2]
    ids = make_prompt(length, rows, seed)
    mask = torch.ones_like(ids)
    for row in range(rows):
        missing = (3 * row + (rows == 1) * 4) % length if side != "none" else 0
        if missing:
            mask[row, slice(0, missing) if side == "left" else slice(length - missing, None)] = 0
    return ids * mask, mask


def plain(target, ids, mask, side: str, **options):
    """New tokens of plain `generate`; for right padding of each row alone, because it continues behind the padding."""
    if side != "right":
        return target.generate(ids, attention_mask=mask, **options)[:, ids.shape[1] :]
    rows = [target.generate(row[keep.bool()][None], **options)[0] for row, keep in zip(ids, mask, strict=True)]
    return torch.stack([row[int(keep.sum()) :] for row, keep in zip(rows, mask, strict=True)])


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_rows_equal_plain_generate(family, pair, make_prompt):
    target, drafter = pair(family)
    cases = [case for case in CASES if case[0] == family]
    assert len(cases) >= 15
    for _, rows, side, policy, processors in cases:
        drafter.set_policy(policy, **POLICIES[policy])
        ids, mask = padded(make_prompt, rows, side, seed=zlib.crc32(f"{rows}{side}{policy}".encode()))
        options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, **PROCESSORS[processors]}
        drafted = target.generate(ids, attention_mask=mask, assistant_model=drafter, **options)
        expected = plain(target, ids, mask, side, **options)
        assert torch.equal(drafted, torch.cat([ids, expected], dim=1)), (rows, side, policy, processors)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cache", CACHES)
def test_greedy_text_equals_plain_generate_with_each_cache(family, cache, pair, make_prompt):
    target, drafter = pair(family)
    for policy, length, processors in (
        ("full", 6, "none"),
        ("full", 20, "penalties"),
        ("threshold", 6, "penalties"),
        ("threshold", 20, "none"),
    ):
        drafter.set_policy(policy, **POLICIES[policy])
        ids = make_prompt(length, seed=length)
        options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, **PROCESSORS[processors]}
        kwargs = {}
        if cache == "static":
            kwargs = {"cache_implementation": "static"}
        elif cache == "reused":
            kwargs = {"cache": filled_cache(target, ids[:, :-2])}
        expected = target.generate(ids, **options)
        drafted = target.generate(ids, assistant_model=drafter, **options, **kwargs)
        assert torch.equal(drafted, expected), (policy, length, processors)


def filled_cache(target, ids):
    cache = DynamicCache(config=target.config.get_text_config())
    with torch.no_grad():
        target(ids, cache=cache, use_cache=True)
    return cache


@pytest.mark.parametrize("family", FAMILIES)
def test_sampling_runs_and_respects_masks_for_every_shape(family, pair, make_prompt):
    target, drafter = pair(family)
    for rows, side, policy in (
        (1, "left", "full"),
        (2, "right", "threshold"),
        (5, "left", "threshold"),
        (5, "right", "full"),
    ):
        drafter.set_policy(policy, **POLICIES[policy])
        ids, mask = padded(make_prompt, rows, side, seed=rows)
        torch.manual_seed(rows)
        drafted = target.generate(
            ids,
            attention_mask=mask,
            assistant_model=drafter,
            do_sample=True,
            top_k=5,
            max_new_tokens=6,
            bad_words_ids=[[7]],
        )
        assert drafted.shape == (rows, ids.shape[1] + 6)
        assert not (drafted[:, ids.shape[1] :] == 7).any()
        assert all(0 <= accepted <= verified for _, _, verified, accepted in drafter.last_generation.rounds)


def test_the_matrix_is_as_large_as_it_claims():
    with_caches, sampled = len(FAMILIES) * len(CACHES) * 4, len(FAMILIES) * 4
    assert len(CASES) + with_caches + sampled >= 300

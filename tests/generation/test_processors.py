"""Logits processors see exactly the prefixes they would see in plain decoding, token by token inside a block."""

import logging

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.utils import logging as transformers_logging

from dspark_hf.generation import register_stateless
from dspark_hf.generation.processors import STATELESS, ScorePlan


NEW_TOKENS = 20
GREEDY = {"do_sample": False, "max_new_tokens": NEW_TOKENS}
OPTIONS = {
    "repetition": {"repetition_penalty": 1.7},
    "ngrams": {"no_repeat_ngram_size": 2},
    "words": {"bad_words_ids": [[3], [9, 10], [40, 41, 42]]},
    "minimum": {"min_new_tokens": 9, "eos_token_id": [20, 30, 40, 50], "pad_token_id": 0},
    "forced": {"forced_eos_token_id": 63},
    "suppressed": {"suppress_tokens": [4, 8, 15], "begin_suppress_tokens": [16, 23]},
    "bias": {"sequence_bias": [[[5], 1.5], [[6, 7], -3.0]]},
    "decay": {"exponential_decay_length_penalty": (4, 1.5), "eos_token_id": 63, "pad_token_id": 0},
    "prompt": {"encoder_repetition_penalty": 1.5, "encoder_no_repeat_ngram_size": 2},
    "constraint": {"prefix_allowed_tokens_fn": lambda batch, ids: list(range(2 + int(ids[-1]) % 7, 60, 3))},
    "several": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "bad_words_ids": [[12]], "min_new_tokens": 4},
}


class CountsCalls(LogitsProcessor):
    """Keeps state: favours a token that depends on how often it was called, and notes the lengths it saw."""

    def __init__(self):
        self.lengths = []

    def __call__(self, input_ids, scores):
        self.lengths.append(input_ids.shape[1])
        scores = scores.clone()
        scores[:, (7 * len(self.lengths)) % scores.shape[1]] += 2.0
        return scores


class OddTokens(LogitsProcessor):
    """Pure: after an even token only odd ones."""

    def __call__(self, input_ids, scores):
        even = input_ids[:, -1:] % 2 == 0
        odd_V = torch.arange(scores.shape[1]) % 2 == 1
        return scores.masked_fill(even & ~odd_V, float("-inf"))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", OPTIONS)
def test_greedy_text_with_processors_equals_plain_decoding(name, rows, pair, make_prompt):
    target, drafter = pair("qwen3")
    ids = make_prompt(7, rows=rows, seed=5)
    mask = torch.ones_like(ids)
    if rows > 1:
        mask[0, :3] = 0
    options = {**GREEDY, **OPTIONS[name], "attention_mask": mask}
    expected = target.generate(ids, **options)
    assert torch.equal(target.generate(ids, assistant_model=drafter, **options), expected)


@pytest.fixture
def warnings_of_transformers(caplog):
    """Library warnings, which transformers keeps from the root logger by default."""
    transformers_logging.enable_propagation()
    with caplog.at_level(logging.WARNING):
        yield caplog
    transformers_logging.disable_propagation()


def test_a_stateful_processor_sees_each_committed_prefix_once_and_is_announced(
    pair, make_prompt, warnings_of_transformers
):
    target, drafter = pair("qwen3")
    ids = make_prompt(6, seed=8)
    plain, drafted = CountsCalls(), CountsCalls()
    expected = target.generate(ids, logits_processor=LogitsProcessorList([plain]), **GREEDY)
    output = target.generate(ids, logits_processor=LogitsProcessorList([drafted]), assistant_model=drafter, **GREEDY)
    assert torch.equal(output, expected)
    assert drafted.lengths == plain.lengths
    assert "CountsCalls may keep state" in warnings_of_transformers.text


def test_a_stateful_processor_is_not_asked_behind_an_end_token(pair, make_prompt):
    target, drafter = pair("qwen3")
    ids = make_prompt(6, seed=8)
    text = target.generate(ids, logits_processor=LogitsProcessorList([CountsCalls()]), **GREEDY)
    for token in text[0, 8:14].tolist():
        plain, drafted = CountsCalls(), CountsCalls()
        options = {**GREEDY, "eos_token_id": token, "pad_token_id": 0}
        expected = target.generate(ids, logits_processor=LogitsProcessorList([plain]), **options)
        output = target.generate(
            ids, logits_processor=LogitsProcessorList([drafted]), assistant_model=drafter, **options
        )
        assert torch.equal(output, expected)
        assert drafted.lengths == plain.lengths


def test_rows_with_a_stateful_processor_are_decoded_plainly_and_say_so(pair, make_prompt):
    target, drafter = pair("qwen3")
    ids = make_prompt(6, rows=3, seed=8)
    expected = target.generate(ids, logits_processor=LogitsProcessorList([CountsCalls()]), **GREEDY)
    output = target.generate(
        ids, logits_processor=LogitsProcessorList([CountsCalls()]), assistant_model=drafter, **GREEDY
    )
    assert torch.equal(output, expected)
    assert "CountsCalls" in drafter.last_generation.bypasses[0]
    assert drafter.last_generation.new_tokens == 3 * NEW_TOKENS


def test_classifier_free_guidance_equals_plain_decoding(pair, make_prompt):
    target, drafter = pair("qwen3")
    ids = make_prompt(6, seed=9)
    options = {**GREEDY, "guidance_scale": 1.5, "negative_prompt_ids": make_prompt(4, seed=10)}
    expected = target.generate(ids, **options)
    assert torch.equal(target.generate(ids, assistant_model=drafter, **options), expected)


def test_a_processor_declared_pure_is_applied_to_drafts_and_to_rows(pair, make_prompt):
    target, drafter = pair("qwen3")
    ids = make_prompt(6, rows=3, seed=8)
    processors = LogitsProcessorList([OddTokens()])
    expected = target.generate(ids, logits_processor=processors, **GREEDY)
    register_stateless(OddTokens)
    try:
        output = target.generate(ids, logits_processor=processors, assistant_model=drafter, **GREEDY)
    finally:
        STATELESS.discard(OddTokens)
    assert torch.equal(output, expected)
    assert drafter.last_generation.bypasses == []
    assert drafter.last_generation.accepted > 0


def test_a_constraint_is_never_asked_about_text_behind_its_end(pair, make_prompt):
    target, drafter = pair("qwen3")
    ids = make_prompt(6, seed=3)

    def automaton(batch, prefix):
        generated = prefix[6:].tolist()
        if 63 in generated:
            raise AssertionError("asked behind the end token")
        return [63] if len(generated) >= 7 else [5 + len(generated), 20, 21]

    options = {"do_sample": False, "max_new_tokens": 20, "eos_token_id": 63, "pad_token_id": 0}
    expected = target.generate(ids, prefix_allowed_tokens_fn=automaton, **options)
    output = target.generate(ids, prefix_allowed_tokens_fn=automaton, assistant_model=drafter, **options)
    assert torch.equal(output, expected)
    assert drafter.last_generation.accepted > 0


def test_a_plan_keeps_unknown_processors_off_the_draft():
    plan = ScorePlan([OddTokens()], batch_size=1)
    assert [type(processor) for processor in plan.unknown] == [OddTokens]
    assert plan.for_drafting().processors == []

"""Stopping acts at the token where plain `generate` stops, wherever it falls inside a block."""

import pytest
import torch
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from dspark_hf.generation.stopping import StopRule


NEW_TOKENS = 24


@pytest.fixture
def perfect(pair, scripted, make_prompt):
    """A target, a drafter that drafts its exact text, the prompt and the text."""
    target, _ = pair("qwen3")
    ids = make_prompt(5, seed=11)
    text = target.generate(ids, do_sample=False, max_new_tokens=NEW_TOKENS)
    return target, scripted(target).play(text[0].tolist()), ids, text


def test_every_token_declared_an_end_token_in_turn_ends_the_text_as_in_plain_decoding(perfect):
    target, drafter, ids, text = perfect
    for token in text[0, 5:].unique().tolist():
        options = {"do_sample": False, "max_new_tokens": NEW_TOKENS, "eos_token_id": token, "pad_token_id": 0}
        expected = target.generate(ids, **options)
        assert torch.equal(target.generate(ids, assistant_model=drafter, **options), expected), token


def test_every_token_as_the_end_of_a_stop_string_ends_the_text_as_in_plain_decoding(perfect, tokenizer):
    target, drafter, ids, text = perfect
    tokens = text[0, 5:].tolist()
    for end in range(1, len(tokens)):
        strings = [tokenizer.decode(tokens[end - 1 : end + 1])]
        assert len(strings[0]) == 2
        options = {"do_sample": False, "max_new_tokens": NEW_TOKENS, "stop_strings": strings, "tokenizer": tokenizer}
        expected = target.generate(ids, **options)
        assert torch.equal(target.generate(ids, assistant_model=drafter, **options), expected), end


def test_stop_strings_of_a_generation_config_work_and_leave_it_as_it_was(perfect, tokenizer):
    target, drafter, ids, text = perfect
    strings = [tokenizer.decode([text[0, 9]])]
    config = GenerationConfig(do_sample=False, max_new_tokens=NEW_TOKENS, stop_strings=strings)
    expected = target.generate(ids, generation_config=config, tokenizer=tokenizer)
    drafted = target.generate(ids, generation_config=config, tokenizer=tokenizer, assistant_model=drafter)
    assert torch.equal(drafted, expected)
    assert config.stop_strings == strings


def test_stop_strings_without_a_tokenizer_are_refused_before_any_token(perfect):
    target, drafter, ids, _ = perfect
    with pytest.raises(ValueError, match="tokenizer"):
        target.generate(ids, assistant_model=drafter, stop_strings=["t3"], max_new_tokens=4)


class LastTokenIs(StoppingCriteria):
    """Looks at the newest token only and counts how often it is asked."""

    def __init__(self, token: int):
        self.token, self.lengths = token, []

    def __call__(self, input_ids, scores, **kwargs):
        self.lengths.append(input_ids.shape[1])
        return input_ids[:, -1] == self.token


def test_a_custom_criterion_stops_inside_a_block_and_is_asked_once_per_token(perfect):
    target, drafter, ids, text = perfect
    for position in range(5, text.shape[1]):
        plain, drafted = LastTokenIs(int(text[0, position])), LastTokenIs(int(text[0, position]))
        options = {"do_sample": False, "max_new_tokens": NEW_TOKENS}
        expected = target.generate(ids, stopping_criteria=[plain], **options)
        output = target.generate(ids, stopping_criteria=[drafted], assistant_model=drafter, **options)
        assert torch.equal(output, expected)
        assert drafted.lengths == plain.lengths


def test_criteria_of_a_batch_without_end_tokens_end_all_rows_together_as_in_plain_decoding(pair, make_prompt):
    target, drafter = pair("qwen3")
    ids = make_prompt(6, rows=3, seed=4)
    plain = target.generate(ids, do_sample=False, max_new_tokens=NEW_TOKENS)
    token = int(plain[0, 10])
    options = {"do_sample": False, "max_new_tokens": NEW_TOKENS}

    class Seen(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return (input_ids[:, 6:] == token).any(dim=1) | torch.tensor(input_ids.shape[1] > 20)

    expected = target.generate(ids, stopping_criteria=[Seen()], **options)
    assert torch.equal(target.generate(ids, stopping_criteria=[Seen()], assistant_model=drafter, **options), expected)


def test_a_time_limit_of_zero_ends_after_the_first_token(perfect):
    target, drafter, ids, text = perfect
    output = target.generate(ids, assistant_model=drafter, do_sample=False, max_new_tokens=NEW_TOKENS, max_time=0.0)
    assert torch.equal(output, text[:, :6])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 11])
def test_length_limits_are_exact(perfect, count):
    target, drafter, ids, text = perfect
    output = target.generate(ids, assistant_model=drafter, do_sample=False, max_new_tokens=count)
    assert torch.equal(output, text[:, : 5 + count])


def test_rows_end_on_their_own_and_are_padded(pair, make_prompt):
    target, drafter = pair("qwen3")
    ids = make_prompt(6, rows=4, seed=2)
    plain = target.generate(ids, do_sample=False, max_new_tokens=NEW_TOKENS)
    for token in plain[:, 8].unique().tolist():
        options = {"do_sample": False, "max_new_tokens": NEW_TOKENS, "eos_token_id": [token, 63], "pad_token_id": 0}
        expected = target.generate(ids, **options)
        assert torch.equal(target.generate(ids, assistant_model=drafter, **options), expected)


def test_the_mask_token_may_be_an_end_token_and_may_be_part_of_the_text(pair, make_prompt, scripted):
    target, drafter = pair("qwen3")
    mask_id = drafter.config.mask_token_id
    ids = make_prompt(5, seed=1)
    options = {"do_sample": False, "max_new_tokens": NEW_TOKENS, "pad_token_id": mask_id}
    expected = target.generate(ids, **options)
    assert mask_id not in expected
    assert torch.equal(target.generate(ids, assistant_model=drafter, eos_token_id=[2, mask_id], **options), expected)
    # the target now writes the mask token in the middle of its text
    bias = {"sequence_bias": [[[int(expected[0, 6]), mask_id], 50.0]]}
    expected = target.generate(ids, **bias, **options)
    assert mask_id in expected[0, 5:-1]
    assert torch.equal(target.generate(ids, assistant_model=drafter, **bias, **options), expected)


def test_a_rule_without_a_length_limit_is_refused():
    with pytest.raises(ValueError, match="max_new_tokens"):
        StopRule(StoppingCriteriaList())

"""Dict outputs and streamers are those of plain `generate`: same structure, same shapes, same numbers."""

import pytest
import torch
from transformers import DynamicCache
from transformers.generation import BaseStreamer


NEW_TOKENS = 12
DICT = {
    "do_sample": False,
    "max_new_tokens": NEW_TOKENS,
    "return_dict_in_generate": True,
    "output_scores": True,
    "output_logits": True,
    "output_hidden_states": True,
    "output_attentions": True,
}


def assert_same(mine, theirs, path: str = "") -> None:
    assert type(mine) is type(theirs), path
    if isinstance(mine, tuple):
        assert len(mine) == len(theirs), path
        for index, (left, right) in enumerate(zip(mine, theirs, strict=True)):
            assert_same(left, right, f"{path}[{index}]")
    elif isinstance(mine, torch.Tensor):
        assert mine.shape == theirs.shape, path
        torch.testing.assert_close(mine, theirs, atol=2e-4, rtol=1e-4, msg=lambda text: f"{path}: {text}")


@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma3", "gemma4", "qwen3_5"])
def test_dict_outputs_of_one_row_equal_plain_generate(family, pair, make_prompt):
    target, drafter = pair(family, attn_implementation="eager")
    ids = make_prompt(11, seed=2)
    options = {**DICT, "repetition_penalty": 1.2}
    expected = target.generate(ids, **options)
    output = target.generate(ids, assistant_model=drafter, **options)
    assert torch.equal(output.sequences, expected.sequences)
    for kind in ("scores", "logits", "hidden_states", "attentions"):
        assert_same(output[kind], expected[kind], kind)
    assert output.cache.get_seq_length() == expected.cache.get_seq_length() == 11 + NEW_TOKENS - 1


def test_dict_outputs_of_many_rows_equal_plain_generate(pair, make_prompt):
    target, drafter = pair("qwen3", attn_implementation="eager")
    ids = make_prompt(9, rows=3, seed=2)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    expected = target.generate(ids, attention_mask=mask, **DICT)
    output = target.generate(ids, attention_mask=mask, assistant_model=drafter, **DICT)
    assert torch.equal(output.sequences, expected.sequences)
    for kind in ("scores", "logits"):
        assert_same(output[kind], expected[kind], kind)
    for kind in ("hidden_states", "attentions"):
        # what padding columns of the prompt hold is arbitrary
        assert_same(output[kind][1:], expected[kind][1:], kind)


def test_a_static_cache_shows_its_whole_buffer_in_attentions_as_in_plain_generate(pair, make_prompt):
    target, drafter = pair("qwen3", attn_implementation="eager")
    ids = make_prompt(5, seed=2)
    expected = target.generate(ids, cache_implementation="static", **DICT)
    output = target.generate(ids, cache_implementation="static", assistant_model=drafter, **DICT)
    assert_same(output.attentions[1:], expected.attentions[1:], "attentions")


def test_rows_that_ended_early_hold_zeros(pair, make_prompt):
    target, drafter = pair("qwen3")
    ids = make_prompt(6, rows=3, seed=2)
    plain = target.generate(ids, do_sample=False, max_new_tokens=NEW_TOKENS)
    options = {
        "do_sample": False,
        "max_new_tokens": NEW_TOKENS,
        "return_dict_in_generate": True,
        "output_scores": True,
    }
    options |= {"eos_token_id": int(plain[0, 8]), "pad_token_id": 0}
    output = target.generate(ids, assistant_model=drafter, **options)
    expected = target.generate(ids, **options)
    assert torch.equal(output.sequences, expected.sequences)
    ends = [(row[6:] == options["eos_token_id"]).nonzero() for row in output.sequences]
    first = min(int(end[0]) for end in ends if len(end))
    row = next(index for index, end in enumerate(ends) if len(end) and int(end[0]) == first)
    assert not output.scores[first + 1][row].any()
    torch.testing.assert_close(output.scores[first][row], expected.scores[first][row], atol=2e-4, rtol=1e-4)


class Recorder(BaseStreamer):
    def __init__(self):
        self.puts, self.ended = [], 0

    def put(self, value):
        self.puts.append(value.tolist())

    def end(self):
        self.ended += 1


@pytest.mark.parametrize("rows", [1, 3])
def test_a_streamer_gets_what_plain_generate_puts_in_the_same_order(rows, pair, make_prompt):
    target, drafter = pair("qwen3")
    ids = make_prompt(6, rows=rows, seed=2)
    text = target.generate(ids, do_sample=False, max_new_tokens=NEW_TOKENS)
    options = {"do_sample": False, "max_new_tokens": NEW_TOKENS, "eos_token_id": int(text[0, 12]), "pad_token_id": 0}
    plain, drafted = Recorder(), Recorder()
    target.generate(ids, streamer=plain, **options)
    target.generate(ids, streamer=drafted, assistant_model=drafter, **options)
    assert drafted.puts == plain.puts
    assert drafted.ended == plain.ended == 1


def test_a_streamer_stops_with_a_stop_string(pair, make_prompt, tokenizer):
    target, drafter = pair("qwen3")
    ids = make_prompt(6, seed=2)
    text = target.generate(ids, do_sample=False, max_new_tokens=NEW_TOKENS)
    options = {"do_sample": False, "max_new_tokens": NEW_TOKENS, "tokenizer": tokenizer}
    options["stop_strings"] = [tokenizer.decode(text[0, 9:11])]
    plain, drafted = Recorder(), Recorder()
    target.generate(ids, streamer=plain, **options)
    target.generate(ids, streamer=drafted, assistant_model=drafter, **options)
    assert drafted.puts == plain.puts


def test_criteria_that_read_scores_get_those_of_their_own_row(pair, make_prompt):
    target, drafter = pair("qwen3")
    ids = make_prompt(6, seed=2)
    seen = {"plain": [], "drafted": []}

    def criterion(name):
        def read(input_ids, scores, **kwargs):
            seen[name].append((input_ids.shape[1], len(scores), int(scores[-1].argmax())))
            return torch.zeros(len(input_ids), dtype=torch.bool)

        return read

    options = {
        "do_sample": False,
        "max_new_tokens": NEW_TOKENS,
        "return_dict_in_generate": True,
        "output_scores": True,
    }
    target.generate(ids, stopping_criteria=[criterion("plain")], **options)
    target.generate(ids, stopping_criteria=[criterion("drafted")], assistant_model=drafter, **options)
    assert seen["drafted"] == seen["plain"]


def test_an_empty_user_cache_is_filled_as_plain_generate_fills_it(pair, make_prompt):
    target, drafter = pair("gemma3")
    ids = make_prompt(20, seed=2)
    caches = []
    for kwargs in ({}, {"assistant_model": drafter}):
        cache = DynamicCache(config=target.config)
        target.generate(ids, cache=cache, do_sample=False, max_new_tokens=NEW_TOKENS, **kwargs)
        caches.append(cache)
    for mine, theirs in zip(caches[1].layers, caches[0].layers, strict=True):
        torch.testing.assert_close(mine.keys, theirs.keys, atol=1e-4, rtol=1e-4)

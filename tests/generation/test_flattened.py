"""Rows verified end to end: the text of padded rows and of plain decoding, at the price of the admitted tokens alone."""

import functools
import logging
import threading

import pytest
import torch
from transformers import AttentionInterface

from dspark_hf import ops, ragged_attention
from dspark_hf.dev.tiny import tiny_drafter, tiny_target
from dspark_hf.generation import layouts
from dspark_hf.generation.attention import RAGGED_ATTENTION, release_attention, take_attention
from dspark_hf.scheduling import CostCurve


GREEDY = {"do_sample": False, "max_new_tokens": 24}
FAMILIES = ["qwen3", "qwen3_moe", "qwen2", "llama", "gemma3", "gemma4"]
POLICIES = {
    "full": {},
    "threshold": {"threshold": 0.5},
    "auto": {},
    "early_stop": {},
    "lagged_topk": {},
}
CURVE = CostCurve(tokens=[1, 2, 4, 8, 40], seconds=[1.0, 1.2, 1.3, 1.9, 5.0], draft_seconds=0.05)


@pytest.fixture
def layout(monkeypatch):
    """`layout(name)` chooses how rows are verified from here on."""

    def choose(name: str) -> None:
        monkeypatch.setenv(layouts.ENVIRONMENT, name)

    return choose


@pytest.fixture
def uneven(make_prompt):
    """Four prompts of 20, 3, 11 and 1 tokens, padded on the left: ids and mask."""
    ids = make_prompt(20, rows=4)
    mask = torch.ones_like(ids)
    for row, length in enumerate((20, 3, 11, 1)):
        mask[row, : 20 - length] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def counted_forwards(target, monkeypatch) -> list[tuple[int, ...]]:
    """Shapes of the ids of every forward of the target from here on."""
    shapes, forward = [], target.forward

    @functools.wraps(forward)
    def counted(*args, **kwargs):
        shapes.append(tuple(kwargs["input_ids"].shape))
        return forward(*args, **kwargs)

    monkeypatch.setattr(target, "forward", counted)
    return shapes


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("family", FAMILIES)
def test_text_equals_plain_and_padded_and_only_admitted_tokens_are_computed(
    family, policy, pair, uneven, layout, monkeypatch
):
    target, drafter = pair(family)
    expected = target.generate(**uneven, **GREEDY)
    monkeypatch.setattr(drafter, "cost_curve", CURVE)
    drafter.set_policy(policy, **POLICIES[policy])
    layout("padded")
    assert torch.equal(target.generate(**uneven, assistant_model=drafter, **GREEDY), expected)
    layout("ragged")
    shapes = counted_forwards(target, monkeypatch)
    assert torch.equal(target.generate(**uneven, assistant_model=drafter, **GREEDY), expected)
    stats = drafter.last_generation
    assert shapes[0] == (4, 20)
    assert {rows for rows, _ in shapes[1:]} == {1}
    assert len(shapes) == 1 + stats.target_forwards
    assert sum(tokens for _, tokens in shapes[1:]) == sum(1 + verified for _, _, verified, _ in stats.rounds)
    if policy == "threshold":
        assert len({verified for _, _, verified, _ in stats.rounds}) > 1


def test_a_padded_verification_computes_more_tokens_than_were_admitted(pair, uneven, layout, monkeypatch):
    target, drafter = pair("qwen3")
    drafter.set_policy("threshold", threshold=0.5)
    layout("padded")
    shapes = counted_forwards(target, monkeypatch)
    target.generate(**uneven, assistant_model=drafter, **GREEDY)
    admitted = sum(1 + verified for _, _, verified, _ in drafter.last_generation.rounds)
    assert sum(rows * width for rows, width in shapes[1:]) > admitted


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "gemma4"])
def test_rows_that_meet_their_end_token_leave_and_the_last_goes_on_alone(family, pair, uneven, layout, monkeypatch):
    target, drafter = pair(family)
    plain = target.generate(**uneven, **GREEDY)
    options = {**GREEDY, "eos_token_id": [int(plain[0, 24]), int(plain[1, 30])], "pad_token_id": 0}
    expected = target.generate(**uneven, **options)
    layout("ragged")
    shapes = counted_forwards(target, monkeypatch)
    assert torch.equal(target.generate(**uneven, assistant_model=drafter, **options), expected)
    rounds = drafter.last_generation.rounds
    assert sum(tokens for _, tokens in shapes[1:]) == sum(1 + verified for _, _, verified, _ in rounds)
    assert shapes[-1][1] < shapes[1][1]


def test_slots_grow_with_the_text(make_prompt, layout):
    target = tiny_target("gemma3", max_position_embeddings=1024)
    drafter = tiny_drafter(target)
    ids = make_prompt(5, rows=2)
    options = {"do_sample": False, "max_new_tokens": 150}
    layout("ragged")
    assert torch.equal(target.generate(ids, assistant_model=drafter, **options), target.generate(ids, **options))


def test_a_prompt_read_in_chunks_fills_the_same_slots(pair, uneven, layout):
    target, drafter = pair("gemma3")
    expected = target.generate(**uneven, **GREEDY)
    layout("ragged")
    options = {**GREEDY, "prefill_chunk_size": 6}
    assert torch.equal(target.generate(**uneven, assistant_model=drafter, **options), expected)


def logits_of(target, inputs, **options) -> torch.Tensor:
    options = {**GREEDY, **options, "output_logits": True, "return_dict_in_generate": True}
    return torch.stack(target.generate(**inputs, **options).logits)


@pytest.mark.parametrize("bigram", [True, False], ids=["high acceptance", "strong attention"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_plain_decoding(family, bigram, uneven, layout):
    target = tiny_target(family, bigram=bigram)
    drafter = tiny_drafter(target, bigram=bigram)
    expected = logits_of(target, uneven)
    layout("ragged")
    torch.testing.assert_close(logits_of(target, uneven, assistant_model=drafter), expected, atol=1e-4, rtol=0)


def test_a_target_without_layer_types_slides_in_every_layer(uneven, layout):
    window = {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 0}
    target = tiny_target("qwen3_moe", bigram=False, **window)
    drafter = tiny_drafter(target, bigram=False)
    expected = logits_of(target, uneven)
    layout("ragged")
    torch.testing.assert_close(logits_of(target, uneven, assistant_model=drafter), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("broken", ["window", "keys"])
def test_the_comparison_of_logits_would_notice_a_wrong_window_or_a_missing_key(broken, uneven, layout, monkeypatch):
    target = tiny_target("gemma3")
    drafter = tiny_drafter(target)
    expected = logits_of(target, uneven)
    whole = ragged_attention.attend_ragged

    def wrong(*arguments, window_size, seqused_k, **options):
        if broken == "window":
            return whole(*arguments, window_size=(-1, 0), seqused_k=seqused_k, **options)
        return whole(*arguments, window_size=(6, 0), seqused_k=seqused_k, **options)

    monkeypatch.setattr(ragged_attention, "attend_ragged", wrong)
    layout("ragged")
    assert (logits_of(target, uneven, assistant_model=drafter) - expected).abs().max() > 1e-3


def test_processors_see_each_rows_own_text_and_scores_are_those_of_plain_decoding(pair, uneven, layout):
    target, drafter = pair("llama")
    drafter.set_policy("threshold", threshold=0.5)
    options = {**GREEDY, "repetition_penalty": 1.3, "output_scores": True, "return_dict_in_generate": True}
    expected = target.generate(**uneven, **options)
    layout("ragged")
    output = target.generate(**uneven, assistant_model=drafter, **options)
    assert torch.equal(output.sequences, expected.sequences)
    torch.testing.assert_close(torch.stack(output.scores), torch.stack(expected.scores), atol=1e-4, rtol=0)


def test_sampled_tokens_are_those_of_padded_rows_with_the_same_seed(pair, uneven, layout):
    target, drafter = pair("qwen3")
    drafter.set_policy("threshold", threshold=0.5)
    texts = {}
    for name in ("padded", "ragged"):
        layout(name)
        torch.manual_seed(3)
        texts[name] = target.generate(**uneven, assistant_model=drafter, do_sample=True, max_new_tokens=24)
    assert torch.equal(texts["padded"], texts["ragged"])


def test_the_target_gets_its_attention_back_also_after_an_error(pair, uneven, layout, monkeypatch):
    target, drafter = pair("qwen3")
    layout("ragged")
    during = []
    forward = target.forward

    @functools.wraps(forward)
    def failing(*args, **kwargs):
        during.append(target.config._attn_implementation)
        if len(during) == 3:
            raise RuntimeError("out of memory")
        return forward(*args, **kwargs)

    monkeypatch.setattr(target, "forward", failing)
    with pytest.raises(RuntimeError, match="out of memory"):
        target.generate(**uneven, assistant_model=drafter, **GREEDY)
    assert during == ["sdpa", RAGGED_ATTENTION, RAGGED_ATTENTION]
    assert target.config._attn_implementation == "sdpa"


def test_a_forward_without_a_layout_is_that_of_sdpa(make_prompt):
    target = tiny_target("gemma3")
    ids = make_prompt(20, rows=2)
    mask = torch.ones_like(ids)
    mask[0, :7] = 0
    expected = target(input_ids=ids, attention_mask=mask).logits
    take_attention(target, "sdpa")
    take_attention(target, RAGGED_ATTENTION)
    assert torch.equal(target(input_ids=ids, attention_mask=mask).logits, expected)
    release_attention(target)
    assert target.config._attn_implementation == RAGGED_ATTENTION
    release_attention(target)
    assert target.config._attn_implementation == "sdpa"


def test_two_threads_on_one_target_do_not_disturb_each_other(pair, uneven, layout):
    target, drafter = pair("qwen3")
    other = tiny_drafter(target, seed=5)
    expected = target.generate(**uneven, **GREEDY)
    layout("ragged")
    texts = []

    def run(assistant):
        texts.append(
            target.generate(**uneven, **({} if assistant is None else {"assistant_model": assistant}), **GREEDY)
        )

    threads = [threading.Thread(target=run, args=(assistant,)) for assistant in (drafter, other, None)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 3
    assert all(torch.equal(text, expected) for text in texts)
    assert target.config._attn_implementation == "sdpa"


def test_a_model_that_keeps_the_layout_from_its_attention_is_told_apart(pair, uneven, layout, monkeypatch):
    target, drafter = pair("llama")
    layout("ragged")
    inner = target.model.forward
    monkeypatch.setattr(
        target.model, "forward", lambda **kwargs: inner(**{k: v for k, v in kwargs.items() if k != "ragged_layout"})
    )
    with pytest.raises(RuntimeError, match="DSPARK_HF_LAYOUT=padded"):
        target.generate(**uneven, assistant_model=drafter, **GREEDY)
    assert target.config._attn_implementation == "sdpa"


OBSTACLES = {
    "eager": ("qwen3", {"attn_implementation": "eager"}, {}, "'eager', not 'sdpa'"),
    "several models in one": ("gemma3_wrapper", {}, {}, "more than a text model"),
    "static cache": ("qwen3", {}, {"cache_implementation": "static"}, "StaticCache"),
    "hidden states": (
        "qwen3",
        {},
        {"output_hidden_states": True, "return_dict_in_generate": True},
        "of every step were asked for",
    ),
}


@pytest.mark.parametrize("case", OBSTACLES)
def test_what_does_not_qualify_stays_padded_and_says_why(case, pair, make_prompt, layout, monkeypatch):
    family, overrides, options, reason = OBSTACLES[case]
    target, drafter = pair(family, **overrides)
    ids = make_prompt(9, rows=3)
    expected = target.generate(ids, **GREEDY)
    said = []
    monkeypatch.setattr(layouts.logger, "warning_once", said.append)
    layout("ragged")
    shapes = counted_forwards(target, monkeypatch)
    output = target.generate(ids, assistant_model=drafter, **GREEDY, **options)
    assert torch.equal(getattr(output, "sequences", output), expected)
    assert shapes[1][0] == 3
    assert len(said) == 1
    assert reason in said[0]


def test_recurrent_layers_go_row_by_row_whatever_is_asked(pair, make_prompt, layout):
    target, drafter = pair("qwen3_5")
    ids = make_prompt(6, rows=2)
    layout("ragged")
    assert torch.equal(target.generate(ids, assistant_model=drafter, **GREEDY), target.generate(ids, **GREEDY))


def test_the_default_pads_where_no_fused_attention_runs(pair, uneven, monkeypatch, caplog):
    target, drafter = pair("qwen3")
    monkeypatch.delenv(layouts.ENVIRONMENT, raising=False)
    monkeypatch.setattr(layouts.logger, "propagate", True)
    shapes = counted_forwards(target, monkeypatch)
    with caplog.at_level(logging.DEBUG, logger=layouts.logger.name):
        target.generate(**uneven, assistant_model=drafter, **GREEDY)
    assert shapes[1][0] == 4
    assert "varlen_attn does not run here" in caplog.text


def test_an_unknown_layout_is_an_error_before_any_token(pair, uneven, layout):
    target, drafter = pair("qwen3")
    layout("flat")
    with pytest.raises(ValueError, match="one of auto, ragged, padded"):
        target.generate(**uneven, assistant_model=drafter, **GREEDY)


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "gemma4"])
def test_the_default_hands_varlen_attention_arguments_it_takes(family, pair, uneven, monkeypatch):
    """The fused branch with torch's own signature, computed here by the reference; everything around it is as on a GPU."""
    real = ragged_attention.fused_attention()
    assert real is not None
    calls = []

    @functools.wraps(real)
    def varlen_attn(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, **options):
        rows = len(cu_seq_q) - 1
        assert cu_seq_q.dtype == cu_seq_k.dtype == options["seqused_k"].dtype == torch.int32
        assert int(cu_seq_q[-1]) == query.shape[0]
        assert int(cu_seq_k[-1]) == key.shape[0] == value.shape[0]
        assert cu_seq_k.shape == (rows + 1,)
        assert options["seqused_k"].shape == (rows,)
        assert max_q == int(cu_seq_q.diff().max())
        assert max_k == int(options["seqused_k"].max()) <= int(cu_seq_k.diff().min())
        assert options["enable_gqa"] == (query.shape[1] != key.shape[1])
        # no copy on the way: all slots end to end are the cache's own memory
        assert key.is_contiguous()
        assert query.stride(-1) == 1
        calls.append(options["window_size"])
        return ragged_attention.attend_ragged(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, **options)

    target, drafter = pair(family)
    expected = target.generate(**uneven, **GREEDY)
    monkeypatch.delenv(layouts.ENVIRONMENT, raising=False)
    monkeypatch.setattr(layouts, "is_fused", lambda device, dtype, sizes: sizes in ({8}, {16}))
    monkeypatch.setattr(ragged_attention, "is_fused", lambda device, dtype, sizes: sizes in ({8}, {16}))
    monkeypatch.setattr(ragged_attention, "fused_attention", lambda: varlen_attn)
    assert torch.equal(target.generate(**uneven, assistant_model=drafter, **GREEDY), expected)
    assert len(calls) == 4 * drafter.last_generation.target_forwards
    assert set(calls) == {(-1, 0)} | (set() if family == "qwen3" else {(15, 0)})
    monkeypatch.setenv(ops.ENVIRONMENT, "torch")
    calls.clear()
    assert torch.equal(target.generate(**uneven, assistant_model=drafter, **GREEDY), expected)
    assert calls == []


def test_the_implementation_is_registered_by_name():
    assert RAGGED_ATTENTION in AttentionInterface().valid_keys()


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
def test_end_to_end_rows_on_a_gpu_compute_the_logits_of_padded_rows(family, make_prompt, layout, monkeypatch):
    """Half precision may part two texts at a near-tie, so the first verification's logits are compared."""
    target = tiny_target(family).to("cuda", torch.bfloat16)
    drafter = tiny_drafter(target).to("cuda", torch.bfloat16)
    ids = make_prompt(30, rows=4).cuda()
    mask = torch.ones_like(ids)
    mask[1, :20] = mask[3, :7] = 0
    options = {"do_sample": False, "max_new_tokens": 6, "output_logits": True, "return_dict_in_generate": True}
    results = {}
    for name in ("padded", "auto"):
        layout(name)
        shapes = counted_forwards(target, monkeypatch)
        results[name] = target.generate(ids, attention_mask=mask, assistant_model=drafter, **options).logits
        assert shapes[1][0] == (1 if name == "auto" else 4)
    torch.testing.assert_close(results["auto"][0], results["padded"][0])
    torch.testing.assert_close(results["auto"][1], results["padded"][1], atol=0.1, rtol=0.05)

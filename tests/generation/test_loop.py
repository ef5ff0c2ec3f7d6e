"""Rounds over long texts: perfect and useless drafters, widths, counts of forwards, and what an error leaves behind."""

import pytest
import torch

from dspark_hf.dev.tiny import tiny_drafter, tiny_target


LONG = {"do_sample": False, "max_new_tokens": 512}


@pytest.fixture(scope="module")
def long_text(make_prompt):
    target = tiny_target("qwen3", max_position_embeddings=1024)
    return target, target.generate(make_prompt(6), **LONG)


def test_a_perfect_drafter_needs_one_round_per_block_over_512_tokens(long_text, scripted):
    target, text = long_text
    drafter = scripted(target, block_size=7).play(text[0].tolist())
    assert torch.equal(target.generate(text[:, :6], assistant_model=drafter, **LONG), text)
    stats = drafter.last_generation
    # the prompt gives the first token, every round eight more
    assert len(stats.rounds) == stats.target_forwards == 64
    assert stats.tau == 8.0
    assert stats.acceptance_by_slot == [1.0] * 7


def test_a_drafter_that_is_always_wrong_changes_nothing_over_512_tokens(long_text, scripted):
    target, text = long_text
    drafter = scripted(target, block_size=7).play(text[0].tolist(), wrong=lambda position: True)
    assert torch.equal(target.generate(text[:, :6], assistant_model=drafter, **LONG), text)
    stats = drafter.last_generation
    assert len(stats.rounds) == 511
    assert stats.tau == 1.0
    assert stats.accepted == 0


@pytest.mark.parametrize("width", range(1, 9))
def test_opaque_identifiers_are_echoed_exactly_at_every_width(width, long_text, scripted):
    target, text = long_text
    identifiers = text[0].tolist()
    # every third slot is wrong, so every alignment of accepted and rejected tokens occurs
    drafter = scripted(target, block_size=width).play(identifiers, wrong=lambda position: position % 3 == width % 3)
    output = target.generate(text[:, :6], assistant_model=drafter, do_sample=False, max_new_tokens=96)
    assert output[0].tolist() == identifiers[:102]


def test_a_drafter_without_markov_or_confidence_head_works(pair, make_prompt):
    target, _ = pair("qwen3")
    shapes = [
        {"markov_rank": 0, "enable_confidence_head": False, "confidence_head_with_markov": False},
        {"markov_rank": 0, "confidence_head_with_markov": False},
        {"markov_rank": 8, "enable_confidence_head": False},
        {"markov_rank": 8, "markov_head_type": "gated"},
        {"markov_rank": 8, "markov_head_type": "rnn"},
        {"sample_from_anchor": False},
        {"draft_vocab_size": 32},
    ]
    for overrides in shapes:
        drafter = tiny_drafter(target, bigram=False, **overrides)
        drafter.set_policy("threshold", threshold=0.3)
        for rows, options in ((1, {}), (3, {}), (2, {"repetition_penalty": 1.3})):
            ids = make_prompt(6, rows)
            expected = target.generate(ids, do_sample=False, max_new_tokens=12, **options)
            output = target.generate(ids, assistant_model=drafter, do_sample=False, max_new_tokens=12, **options)
            assert torch.equal(output, expected), (overrides, rows)


def test_an_error_inside_the_drafter_leaves_the_target_as_it_was(make_prompt):
    target, fresh = tiny_target("gemma3"), tiny_target("gemma3")
    drafter = tiny_drafter(target)
    ids = make_prompt(20)
    options = {"do_sample": False, "max_new_tokens": 20}
    expected = fresh.generate(ids, **options)
    forward, calls = drafter.forward, []

    def failing(*args, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("the third draft fails")
        return forward(*args, **kwargs)

    drafter.forward = failing
    with pytest.raises(RuntimeError, match="third draft"):
        target.generate(ids, assistant_model=drafter, **options)
    assert torch.equal(target.generate(ids, **options), expected)
    assert target(ids).hidden_states is None
    assert "forward" not in vars(target)
    assert torch.equal(target.generate(ids, assistant_model=drafter, **options), expected)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_broken_logits_of_the_target_raise_as_in_plain_sampling(broken, make_prompt):
    target = tiny_target("qwen3")
    drafter = tiny_drafter(target)
    forward = target.forward

    def damaged(*args, **kwargs):
        output = forward(*args, **kwargs)
        if kwargs["cache"].get_seq_length() > 8:
            output.logits[:, -1, 3] = broken
        return output

    target.forward = damaged
    for rows, kwargs in ((1, {}), (1, {"assistant_model": drafter}), (2, {}), (2, {"assistant_model": drafter})):
        torch.manual_seed(0)
        with pytest.raises(RuntimeError, match="probability tensor contains either"):
            target.generate(make_prompt(6, rows), do_sample=True, top_k=0, max_new_tokens=12, **kwargs)


def test_a_drafter_equal_to_its_target_never_fails_on_a_vanishing_residual(make_prompt):
    target = tiny_target("qwen3")
    with torch.no_grad():
        # no layers left: the next token depends on the last one alone, and the Markov head knows it exactly
        for layer in target.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    drafter = tiny_drafter(target)
    with torch.no_grad():
        drafter.lm_head.weight.zero_()
    for rows in (1, 4):
        torch.manual_seed(rows)
        output = target.generate(
            make_prompt(4, rows), assistant_model=drafter, do_sample=True, top_k=0, max_new_tokens=200
        )
        assert output.shape == (rows, 204)
        assert drafter.last_generation.accepted > 0.999 * drafter.last_generation.verified - 6 * rows


def test_bf16_text_differs_only_at_near_ties_of_the_target(make_prompt):
    target = tiny_target("qwen3").bfloat16()
    drafter = tiny_drafter(tiny_target("qwen3")).bfloat16()
    differing = 0
    for seed in range(12):
        ids = make_prompt(8, seed=seed)
        expected = target.generate(ids, do_sample=False, max_new_tokens=40)
        output = target.generate(ids, assistant_model=drafter, do_sample=False, max_new_tokens=40)
        unequal = (output != expected)[0].nonzero()
        if not len(unequal):
            continue
        differing += 1
        first = int(unequal[0])
        logits = target(expected[:, :first]).logits[0, -1].float()
        chosen = logits[[int(expected[0, first]), int(output[0, first])]]
        # two roundings of bf16, 8 bits of mantissa
        assert float(chosen[0] - chosen[1]) <= 2 * 2**-7 * float(logits.abs().max())
    assert differing <= 6

"""Calibration records from real rollouts: whole blocks of whole answers, in the regime they were sampled in."""

import logging

import numpy as np
import pytest
import torch

from dspark_hf.dev.tiny import tiny_target
from dspark_hf.evaluation.rollouts import collect_rollouts


PROMPTS = [[5, 9, 14, 3], [7, 7], [20, 4, 11], [33, 2, 8, 21, 6]]


def collect(target, drafter, **options):
    return collect_rollouts(target, drafter, PROMPTS, **{"max_new_tokens": 48, "progress": False, **options})


def test_greedy_rounds_hold_the_targets_own_verdicts(target, drafter):
    records = collect(target, drafter, batch_size=1)
    assert records.regime == "temperature=0"
    assert set(records.prompt) == set(range(len(PROMPTS)))
    assert np.isnan(records.overlap).all()
    assert 0 < records.accepted_count.mean() < records.num_slots
    for prompt, ids in enumerate(PROMPTS):
        text = target.generate(torch.tensor([ids]), max_new_tokens=49, do_sample=False)[0].tolist()
        place = len(ids) + 1  # behind the prompt's own first token
        for record in np.flatnonzero(records.prompt == prompt):
            drafted, accepted = records.tokens[record].tolist(), records.accepted_count[record]
            assert drafted[:accepted] == text[place : place + accepted]
            place += accepted + 1


def test_batches_record_what_single_rows_do(target, drafter):
    alone, together = collect(target, drafter, batch_size=1), collect(target, drafter, batch_size=3)
    assert len(alone) == len(together)
    for prompt in range(len(PROMPTS)):
        one, many = alone.select(alone.prompt == prompt), together.select(together.prompt == prompt)
        assert np.array_equal(one.accepted_count, many.accepted_count)
        assert np.array_equal(one.tokens, many.tokens)
        assert np.allclose(one.confidence_logits, many.confidence_logits, atol=1e-4)


def test_sampled_rounds_know_their_analytic_acceptance(target, drafter):
    records = collect(target, drafter, temperature=1.0, max_new_tokens=200)
    assert records.regime == "temperature=1"
    assert ((records.overlap >= 0) & (records.overlap <= 1 + 1e-5)).all()
    reached = np.concatenate([np.ones((len(records), 1), dtype=bool), records.accepted[:, :-1]], axis=1)
    assert records.overlap[reached].mean() == pytest.approx(records.accepted[reached].mean(), abs=0.08)


def test_the_same_seed_samples_the_same_and_the_global_generator_is_left_alone(target, drafter):
    state = torch.get_rng_state()
    first, again, other = (collect(target, drafter, temperature=1.0, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(first.tokens, again.tokens)
    assert len(first) != len(other) or not np.array_equal(first.tokens, other.tokens)


def test_rounds_that_the_length_limit_cuts_are_left_out(target, drafter):
    records = collect(target, drafter, batch_size=1, max_new_tokens=20)
    for prompt in range(len(PROMPTS)):
        rounds = records.accepted_count[records.prompt == prompt] + 1
        assert 1 + rounds.sum() <= 20


def test_a_round_that_an_end_token_cuts_is_left_out_in_batches_too(drafter):
    target = tiny_target(eos_token_id=list(range(20, 30)))
    target.generation_config.pad_token_id = 0
    records = collect(target, drafter, batch_size=3, temperature=1.0)
    assert len(records) > 0
    inside = np.isin(records.tokens, range(20, 30)) & records.accepted
    # an accepted end token is the last thing its round commits, so the round is cut
    assert not inside.any()


def test_the_policy_of_the_drafter_comes_back_even_after_an_error(target, drafter):
    drafter.set_policy("threshold", threshold=0.9)
    assert len(collect(target, drafter)) > 0
    assert drafter.policy == {"name": "threshold", "threshold": 0.9}
    with pytest.raises(ValueError, match="no round verified a whole block"):
        collect(target, drafter, max_new_tokens=1)
    assert drafter.policy == {"name": "threshold", "threshold": 0.9}


def test_answers_that_meet_the_limit_are_reported(target, drafter, caplog):
    logger = logging.getLogger("dspark_hf.evaluation.rollouts")
    logger.addHandler(caplog.handler)
    collect(target, drafter)
    logger.removeHandler(caplog.handler)
    assert "4 answers met max_new_tokens=48" in caplog.text


def test_collecting_stops_after_the_batch_that_has_enough(target, drafter):
    few = collect(target, drafter, batch_size=1, max_rounds=1)
    assert set(few.prompt) == {1}  # the shortest prompt goes first


def test_no_prompt_raises(target, drafter):
    with pytest.raises(ValueError, match="at least one prompt"):
        collect_rollouts(target, drafter, [])

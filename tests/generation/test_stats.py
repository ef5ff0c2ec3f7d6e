"""Statistics and records say what happened, in plain numbers."""

import json

import pytest
import torch

from dspark_hf.generation import GenerationStats, recording
from dspark_hf.generation.stats import current_listener


GREEDY = {"do_sample": False, "max_new_tokens": 20}


def test_rounds_add_up_to_the_text(pair, make_prompt):
    target, drafter = pair("qwen3")
    for rows in (1, 3):
        target.generate(make_prompt(6, rows), assistant_model=drafter, **GREEDY)
        stats = drafter.last_generation
        assert stats.new_tokens == 20 * rows
        per_row = [sum(accepted + 1 for row, *_, accepted in stats.rounds if row == index) for index in range(rows)]
        # the prompt gives the first token; the last round may look past the limit
        assert all(19 <= tokens <= 19 + 5 for tokens in per_row)
        assert stats.drafted >= stats.verified >= stats.accepted > 0
        assert 0 < stats.host_seconds < stats.total_seconds
        assert stats.tokens_per_second > 0
        assert json.loads(json.dumps(stats.summary()))["tau"] == stats.tau


def test_every_round_tells_its_shape_and_its_time(pair, make_prompt):
    target, drafter = pair("qwen3")
    target.generate(make_prompt(6, 3), assistant_model=drafter, **GREEDY)
    stats = drafter.last_generation
    assert len(stats.round_seconds) == stats.target_forwards
    assert [rows for rows, *_ in stats.round_seconds] == sorted(
        (rows for rows, *_ in stats.round_seconds), reverse=True
    )
    assert sum(rows for rows, *_ in stats.round_seconds) == len(stats.rounds)
    assert {(width, draft is not None) for _, width, draft, _ in stats.round_seconds} <= {(6, True), (1, False)}
    assert sum(draft or 0 for _, _, draft, _ in stats.round_seconds) == pytest.approx(stats.draft_seconds)
    assert 0 < sum(seconds for *_, seconds in stats.round_seconds) < stats.total_seconds


def test_tau_counts_full_rounds_only():
    stats = GenerationStats()
    stats.record(0, 5, 5, 5, cut=False)
    stats.record(0, 5, 3, 1, cut=False)
    stats.record(0, 5, 5, 0, cut=True)
    assert stats.tau == 4.0
    assert stats.full_rounds == [(0, 5, 5, 5), (0, 5, 3, 1)]
    assert stats.acceptance_by_slot == [2 / 3, 1 / 2, 1.0, 1.0, 1.0]


def test_a_call_without_rounds_reports_zeros():
    stats = GenerationStats()
    assert (stats.tau, stats.tokens_per_second, stats.acceptance_by_slot) == (0.0, 0.0, [])


def test_a_round_cut_by_an_end_token_is_counted_apart(pair, make_prompt, scripted):
    target, _ = pair("qwen3")
    ids = make_prompt(5, seed=11)
    text = target.generate(ids, **GREEDY)
    drafter = scripted(target).play(text[0].tolist())
    end = next(index for index in range(7, 11) if int(text[0, index]) not in text[0, 5:index].tolist())
    target.generate(ids, assistant_model=drafter, eos_token_id=int(text[0, end]), pad_token_id=0, **GREEDY)
    assert drafter.last_generation.cut_rounds == {0}
    assert drafter.last_generation.tau == 0.0


def test_records_carry_what_calibration_needs(pair, make_prompt):
    target, drafter = pair("qwen3")
    for rows, sampling in ((1, False), (3, False), (1, True), (3, True)):
        records = []
        options = {"max_new_tokens": 20, "do_sample": sampling}
        with recording(records.append):
            text = target.generate(make_prompt(6, rows), assistant_model=drafter, **options)
        assert [(record.row, 5, record.verified, record.accepted) for record in records] == [
            entry for entry in drafter.last_generation.rounds if entry[1]
        ]
        for record in records:
            assert len(record.tokens) == len(record.confidence_logits) == len(record.margins) == 5
            assert min(record.margins) >= 0
            committed = text[record.row, 6 + record.position :][: record.accepted].tolist()
            assert committed == record.tokens[: len(committed)]
            if sampling:
                assert len(record.acceptance) == record.verified
                assert all(0 <= value <= 1 + 1e-5 for value in record.acceptance)
            else:
                assert record.acceptance is None
    assert current_listener() is None


def test_analytic_acceptance_is_the_overlap_of_both_distributions(pair, make_prompt):
    target, drafter = pair("qwen3")
    records = []
    torch.manual_seed(0)
    with recording(records.append):
        target.generate(make_prompt(6, rows=16), assistant_model=drafter, do_sample=True, top_k=0, max_new_tokens=60)
    first = [record for record in records if record.verified]
    expected = sum(record.acceptance[0] for record in first) / len(first)
    observed = sum(record.accepted > 0 for record in first) / len(first)
    assert observed == pytest.approx(expected, abs=4 * (expected * (1 - expected) / len(first)) ** 0.5)


def test_a_listener_is_removed_after_an_error():
    with pytest.raises(KeyError), recording(print):
        raise KeyError
    assert current_listener() is None

"""Evaluation through the real `generate`, on a tiny target."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from dspark_hf.dev.tiny import tiny_drafter
from dspark_hf.evaluation import EvalResults, Suite, compare, evaluate
from dspark_hf.evaluation import conversations as conversations_module
from dspark_hf.evaluation import suite as suite_module
from dspark_hf.evaluation.contexts import lengthen
from dspark_hf.evaluation.suite import policy_name, weights_digest
from dspark_hf.hub import DrafterCard
from dspark_hf.training.rendering import Renderer


QUICK = {"max_new_tokens": 12, "progress": False}


def test_greedy_text_is_compared_and_equal(target, tokenizer, drafter, suite):
    results = evaluate(target, tokenizer, drafter, [suite], temperatures=[0.0], **QUICK)
    (measured,) = results.suites
    assert (measured.prompts, measured.requests) == (3, 4)
    assert (measured.compared, measured.identical, measured.near_ties, measured.mismatches) == (4, 4, 0, 0)
    assert measured.new_tokens == 4 * 12


def test_accepted_length_agrees_with_the_drafter_s_own_statistics(target, tokenizer, drafter, suite):
    one = Suite("one", "chat", suite.conversations[1:2])
    (measured,) = evaluate(target, tokenizer, drafter, [one], temperatures=[0.0], **QUICK).suites
    stats = drafter.last_generation
    assert measured.accepted_length == pytest.approx(stats.tau)
    assert measured.rounds == len(stats.full_rounds)
    assert measured.accepted_length > 1.2


def test_every_temperature_and_policy_has_its_own_result(target, tokenizer, drafter, suite):
    policies = ["full", {"name": "threshold", "threshold": 0.5}]
    results = evaluate(target, tokenizer, drafter, [suite], policies=policies, **QUICK)
    assert {(s.temperature, s.policy) for s in results.suites} == {
        (0.0, "full"),
        (1.0, "full"),
        (0.0, "threshold 0.5"),
        (1.0, "threshold 0.5"),
    }
    assert drafter.policy == {"name": "full"}


def test_thinking_modes_are_measured_apart(target, tokenizer, drafter, suite):
    results = evaluate(target, tokenizer, drafter, [suite], thinking=[True, False], temperatures=[0.0], **QUICK)
    assert [s.thinking for s in results.suites] == [True, False]


def test_a_later_turn_sees_the_earlier_answer(target, tokenizer, drafter, suite):
    two_turns = Suite("two", "chat", suite.conversations[:1])
    (measured,) = evaluate(target, tokenizer, drafter, [two_turns], temperatures=[0.0], **QUICK).suites
    assert [row["turn"] for row in measured.by_turn] == [1, 2]


def test_sampling_is_repeatable_and_ignores_the_target_s_own_settings(target, tokenizer, drafter, suite):
    first = evaluate(target, tokenizer, drafter, [suite], temperatures=[1.0], **QUICK).suites[0]
    target.generation_config.top_k = 1
    try:
        second = evaluate(target, tokenizer, drafter, [suite], temperatures=[1.0], **QUICK).suites[0]
    finally:
        target.generation_config.top_k = None
    assert first.acceptance_by_slot == second.acceptance_by_slot


def test_a_stopped_run_goes_on_without_repeating_a_prompt(target, tokenizer, drafter, suite, tmp_path, monkeypatch):
    whole = evaluate(target, tokenizer, drafter, [suite], temperatures=[0.0], folder=tmp_path / "whole", **QUICK)
    part = Suite(suite.name, suite.domain, suite.conversations[:2])
    evaluate(target, tokenizer, drafter, [part], temperatures=[0.0], folder=tmp_path / "part", **QUICK)
    records = tmp_path / "part" / "eval_records.jsonl"
    records.write_text(records.read_text() + '{"run": "cut sho')
    asked = []
    original = conversations_module._timed
    monkeypatch.setattr(
        conversations_module, "_timed", lambda *args: asked.append(args[2].shape[1]) or original(*args)
    )
    resumed = evaluate(target, tokenizer, drafter, [suite], temperatures=[0.0], folder=tmp_path / "part", **QUICK)
    assert resumed.suites[0].acceptance_by_slot == whole.suites[0].acceptance_by_slot
    assert len(asked) == 4  # warm-up and the one prompt left, each with and without the drafter
    lines = records.read_text().splitlines()
    assert [json.loads(line)["prompt"] for line in lines if line.endswith("}")][-1] == "letters/three"


def test_records_of_other_weights_are_not_reused(target, tokenizer, drafter, suite, tmp_path):
    evaluate(target, tokenizer, drafter, [suite], temperatures=[0.0], folder=tmp_path, **QUICK)
    before = len((tmp_path / "eval_records.jsonl").read_text().splitlines())
    with torch.no_grad():
        drafter.norm.weight.mul_(1.01)
    evaluate(target, tokenizer, drafter, [suite], temperatures=[0.0], folder=tmp_path, **QUICK)
    assert len((tmp_path / "eval_records.jsonl").read_text().splitlines()) == 2 * before


def test_results_join_those_of_other_suites_in_the_folder(target, tokenizer, drafter, suite, tmp_path):
    other = Suite("other", "code", suite.conversations[1:2])
    evaluate(target, tokenizer, drafter, [suite], temperatures=[0.0], folder=tmp_path, **QUICK)
    evaluate(target, tokenizer, drafter, [other], temperatures=[0.0], folder=tmp_path, **QUICK)
    assert [s.suite for s in EvalResults.load(tmp_path).suites] == ["letters", "other"]


def test_the_clock_stops_between_prompts(target, tokenizer, drafter, suite):
    results = evaluate(target, tokenizer, drafter, [suite], max_minutes=0.0, **QUICK)
    assert results.suites == []


def test_the_clock_is_shared_by_all_temperatures_and_policies(target, tokenizer, drafter, suite, monkeypatch):
    clock, original = [0.0], suite_module.answer

    def slow(*args, **kwargs):
        clock[0] += 1.0
        return original(*args, **kwargs)

    monkeypatch.setattr(suite_module, "answer", slow)
    monkeypatch.setattr(suite_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    policies = ["full", {"name": "threshold", "threshold": 0.5}]
    results = evaluate(target, tokenizer, drafter, [suite], policies=policies, max_minutes=8 / 60, **QUICK)
    # a second of warm-up each: three seconds for the first, which starts with two to spend, then two for each of the others
    assert [measured.prompts for measured in results.suites] == [2, 1, 1, 1]


def test_results_go_into_the_card(target, tokenizer, drafter, suite, tmp_path):
    drafter.save_pretrained(tmp_path)
    evaluate(target, tokenizer, drafter, [suite], folder=tmp_path, command="dspark-hf evaluate x", **QUICK)
    text = DrafterCard.from_folder(tmp_path).render()
    assert "| letters | chat | 0 | 4 |" in text
    assert "4 of 4 identical" in text
    assert "`dspark-hf evaluate x`" in text


def test_long_contexts_are_suites_of_their_own(target, tokenizer, drafter, suite, caplog):
    results = evaluate(target, tokenizer, drafter, [suite], temperatures=[0.0], context_tokens=[200, 600], **QUICK)
    assert [s.suite for s in results.suites] == ["letters", "letters at 200"]  # 600 is more than the target reads
    assert results.suites[1].identical == 4


def test_a_lengthened_prompt_has_the_size_asked_for_and_its_own_question_last(tokenizer, suite):
    renderer = Renderer(tokenizer)
    longer = lengthen(suite, 150, renderer)
    for short, item in zip(suite.conversations, longer.conversations, strict=True):
        prompt = renderer.prompt_ids([{"role": "user", "content": item.user_turns[0]}])
        assert 150 <= len(prompt) < 300
        assert item.user_turns[0].endswith(short.user_turns[0])
        assert item.user_turns[1:] == short.user_turns[1:]
    assert lengthen(suite, 1, renderer).conversations[0].user_turns == suite.conversations[0].user_turns


def test_drafters_side_by_side_in_one_table_with_intervals(target, tokenizer, drafter, suite, tmp_path):
    weak = tiny_drafter(target, bigram=False)
    weak.set_policy("full")
    table = compare(
        target, tokenizer, {"taught": drafter, "random": weak}, [suite], temperatures=[0.0], folder=tmp_path, **QUICK
    )
    header, rows = table.rows("accepted_length", temperature=0.0, policy="full")
    assert header == ["drafter", "letters"]
    assert [row[0] for row in rows] == ["taught", "random"]
    assert "[" in rows[0][1]
    assert float(rows[0][1].split()[0]) > float(rows[1][1].split()[0])
    saved = table.save(tmp_path)
    assert {path.name for path in saved[2:]} == {"accepted_length_t0_full.png", "acceptance_by_slot_t0_full.png"}
    assert json.loads(saved[0].read_text()).keys() == {"taught", "random"}
    assert "| taught |" in saved[1].read_text()


def test_a_negative_temperature_is_refused(target, tokenizer, drafter, suite):
    with pytest.raises(ValueError, match="temperatures must be >= 0, got -1"):
        evaluate(target, tokenizer, drafter, [suite], temperatures=[-1])


def test_nothing_to_compare_is_refused(target, tokenizer, suite):
    with pytest.raises(ValueError, match="at least one drafter"):
        compare(target, tokenizer, {}, [suite])


def test_policies_have_readable_names():
    assert policy_name({"name": "full"}) == "full"
    assert policy_name({"name": "threshold", "threshold": 0.8}) == "threshold 0.8"


def test_the_weights_digest_sees_a_single_changed_number(drafter):
    before = weights_digest(drafter)
    with torch.no_grad():
        drafter.fc.weight[0, 0] += 1e-3
    assert weights_digest(drafter) != before

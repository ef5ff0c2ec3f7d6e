"""Length limits hold on every way to a row: the target's own answers and those that came with the data."""

import pytest

from dspark_hf.dev.tiny import tiny_target
from dspark_hf.training.data import Conversation
from dspark_hf.training.prepare import prepare_rows
from dspark_hf.training.recipe import DataSection
from dspark_hf.training.rows import RowReport, fit_rows


CHAT = Conversation("c", ({"role": "user", "content": "q" * 20}, {"role": "assistant", "content": "a" * 100}))
WAYS = pytest.mark.parametrize("ready_answers", [False, True], ids=["own answers", "ready answers"])


def rows_of(make_tokenizer, folder, report=None, **limits):
    target = tiny_target("qwen3", vocab_size=260, eos_token_id=None)
    data = DataSection(batch_size=1, temperature=1.0, **limits)
    return prepare_rows(target, make_tokenizer("chat"), [CHAT], folder, data=data, target_name="toy", report=report)


@WAYS
def test_an_answer_is_cut_at_the_token_limit_and_has_no_end_of_turn(make_tokenizer, tmp_path, ready_answers):
    (row,) = rows_of(make_tokenizer, tmp_path, max_new_tokens=32, ready_answers=ready_answers)
    assert len(row.completion_ids) == 32
    assert row.finish_reason == "length"


@WAYS
def test_a_prompt_over_the_limit_is_skipped_and_counted(make_tokenizer, tmp_path, ready_answers):
    report = RowReport()
    with pytest.raises(ValueError, match="1 prompt longer than 10 tokens"):
        rows_of(make_tokenizer, tmp_path, report, max_prompt_tokens=10, max_new_tokens=8, ready_answers=ready_answers)
    assert report.skipped == {"prompt longer than 10 tokens": 1}


@WAYS
def test_a_row_and_its_supervision_are_cut_alike(make_tokenizer, tmp_path, ready_answers):
    (row,) = fit_rows(rows_of(make_tokenizer, tmp_path, max_new_tokens=64, ready_answers=ready_answers), 60)
    assert len(row.token_ids) == 60
    assert len(row.prompt_ids) + len(row.completion_ids) == 60


def test_other_limits_are_refused_in_the_same_folder(make_tokenizer, tmp_path):
    rows_of(make_tokenizer, tmp_path, max_new_tokens=32, ready_answers=True)
    with pytest.raises(ValueError, match="was made with sampling="):
        rows_of(make_tokenizer, tmp_path, max_new_tokens=16, ready_answers=True)

"""Prompts: every record shape, bad ones counted by reason, and a split that new data does not move."""

import json

import pytest

from dspark_hf.training.data import Conversation, load_conversations, split_held_out
from dspark_hf.training.rows import RowReport


def write(path, *records):
    path.write_text("\n".join(json.dumps(record) for record in records) + "\n")
    return path


def test_four_record_shapes_are_read(tmp_path):
    path = write(
        tmp_path / "p.jsonl",
        {"id": "m", "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]},
        {"id": "s", "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]},
        {"question_id": 7, "turns": ["one", "two"]},
        {"prompt": "raw"},
    )
    found = load_conversations(path, system_prompt="be brief")
    assert [item.id for item in found][:3] == ["m", "s", "7"]
    assert found[0].messages == found[1].messages
    assert found[2].user_turns == ["one", "two"]
    assert found[3].system == [{"role": "system", "content": "be brief"}]
    assert [item.has_answers for item in found] == [True, True, False, False]


def test_bad_records_are_skipped_with_counted_reasons(tmp_path):
    user, assistant = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
    path = write(
        tmp_path / "p.jsonl",
        {"messages": [assistant, user]},
        {"messages": []},
        {"messages": [{"role": "system", "content": "only"}]},
        {"messages": [{"role": "user", "content": None}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "url": "x"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]}]},
        {"messages": [user, assistant, assistant]},
        {"messages": [user, {"role": "tool", "content": "x"}]},
        {"text": "?"},
    )
    report = RowReport()
    found = load_conversations(path, report=report)
    assert [item.user_turns for item in found] == [["q"]]
    assert report.skipped == {
        "starts with an assistant turn": 1,
        "empty conversation": 1,
        "only a system message": 1,
        "content that is not text": 2,
        "turns that do not alternate": 1,
        "roles other than system, user and assistant": 1,
        "without messages, conversations, turns or prompt": 1,
    }


def test_broken_or_missing_files_are_named(tmp_path):
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n{oops\n')
    with pytest.raises(ValueError, match="line 2 is not JSON"):
        load_conversations(tmp_path / "p.jsonl")
    with pytest.raises(FileNotFoundError, match="No .jsonl file"):
        load_conversations(tmp_path / "none.jsonl")
    with pytest.raises(ValueError, match=r"No usable conversation.*1 empty conversation"):
        load_conversations(write(tmp_path / "q.jsonl", {"turns": []}))


def test_the_split_is_by_conversation_and_stable_when_data_is_added():
    items = [Conversation(id=f"c{i}#{turn}", messages=()) for i in range(200) for turn in range(2)]
    train, held = split_held_out(items, 0.25)
    assert 30 <= len(held) // 2 <= 70
    assert {item.id.split("#")[0] for item in train}.isdisjoint(item.id.split("#")[0] for item in held)
    again, _ = split_held_out(items[:100], 0.25)
    assert set(again) <= set(train)


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_a_line_ends_at_a_newline_and_at_no_other_separator(separator, tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"prompt": f"a{separator}b"}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert load_conversations(path)[0].user_turns == [f"a{separator}b"]

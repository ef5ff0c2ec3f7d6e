"""Where prompts come from."""

from __future__ import annotations

import json

import pytest
from huggingface_hub import CommitOperationAdd, HfApi

from dspark_hf.evaluation.suites import PAPER_SUITES, Suite, load_suite


def write(path, *turns) -> str:
    path.write_text("".join(json.dumps({"turns": list(entry)}) + "\n" for entry in turns))
    return str(path)


def test_the_paper_s_nine_sets_are_known_by_name():
    assert len(PAPER_SUITES) == 9
    assert [name for name, source in PAPER_SUITES.items() if source.domain == "math"] == ["gsm8k", "math500", "aime25"]


def test_a_file_is_a_suite_of_its_own_name(tmp_path):
    suite = load_suite(write(tmp_path / "mine.jsonl", ["a", "b"], ["c"]))
    assert (suite.name, suite.domain) == ("mine", "other")
    assert [item.user_turns for item in suite.conversations] == [["a", "b"], ["c"]]


def test_the_domain_of_a_file_can_be_said_or_is_the_paper_s(tmp_path):
    assert load_suite("code=" + write(tmp_path / "mine.jsonl", ["a"])).domain == "code"
    assert load_suite(write(tmp_path / "gsm8k.jsonl", ["a"])).domain == "math"


def test_a_local_copy_goes_before_the_hub(tmp_path):
    write(tmp_path / "gsm8k.jsonl", ["local"], ["second"])
    suite = load_suite("gsm8k", prompts_folder=tmp_path, limit=1)
    assert [item.user_turns for item in suite.conversations] == [["local"]]


def test_a_paper_s_set_comes_from_the_hub(hub):
    HfApi().create_repo("acme/none", repo_type="dataset")
    hub.repos["datasets/HuggingFaceH4/MATH-500"] = repo = hub.repos.pop("datasets/acme/none")
    repo.id = "HuggingFaceH4/MATH-500"
    repo.add_commit("main", "rows", {"test.jsonl": b'{"problem": "1 + 1"}\n{"problem": "2 + 2"}\n'})
    suite = load_suite("math500", limit=1)
    assert suite.conversations[0].user_turns[0].startswith("1 + 1\nPlease reason step by step")
    assert len(suite.conversations) == 1


def test_any_dataset_of_the_hub_is_a_suite(hub):
    api = HfApi()
    api.create_repo("tester/prompts", repo_type="dataset")
    rows = CommitOperationAdd("train.jsonl", b'{"prompt": "hello"}\n')
    api.create_commit("tester/prompts", [rows], commit_message="rows", repo_type="dataset")
    suite = load_suite("chat=hub:tester/prompts")
    assert (suite.name, suite.domain) == ("tester/prompts", "chat")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gsm8", "no suite 'gsm8'; did you mean 'gsm8k'"),
        ("zzz", "no suite 'zzz'; known are gsm8k"),
        ("poetry=a.jsonl", "the domain in 'poetry=a.jsonl' must be one of math, code, chat, other"),
    ],
)
def test_an_unknown_suite_is_named_with_the_nearest(name, expected):
    with pytest.raises(ValueError, match=expected):
        load_suite(name)


def test_a_missing_file_and_an_empty_suite_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_suite(str(tmp_path / "nowhere.jsonl"))
    with pytest.raises(ValueError, match="holds no prompt"):
        Suite("empty", "math", [])
    with pytest.raises(ValueError, match="must be >= 1, got 0"):
        load_suite("gsm8k", limit=0)

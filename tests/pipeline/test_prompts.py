"""Which prompts are trained on and which are held out."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from dspark_hf.pipeline.builtin_prompts import builtin_conversations
from dspark_hf.pipeline.prompts import load_prompts
from dspark_hf.pipeline.workspace import mixed
from dspark_hf.training.data import Conversation, split_held_out
from dspark_hf.training.recipe import build_recipe


def recipe(**data):
    return build_recipe({"target": {"name_or_path": "x/y"}, "data": data})


def test_prompts_of_our_own_making_are_many_distinct_and_of_three_kinds():
    found = builtin_conversations()
    assert len({item.id for item in found}) == len({item.user_turns[0] for item in found}) == len(found) > 1500
    assert set(Counter(item.source for item in found)) == {"math", "code", "chat"}


def test_a_limit_takes_a_beginning_that_mixes_the_kinds():
    assert builtin_conversations(50) == builtin_conversations()[:50]
    assert len(Counter(item.source for item in builtin_conversations(50))) == 3


def test_domains_choose_among_our_own_prompts():
    split = load_prompts(recipe(prompts="builtin", domains=["code", "math"], held_out_fraction=0.2))
    assert {item.source for item in [*split.training, *split.held_out]} == {"code", "math"}


def test_domains_that_cannot_hold_are_told():
    with pytest.raises(ValueError, match="domains are code, math, chat; got"):
        load_prompts(recipe(prompts="builtin", domains=["maths"]))
    with pytest.raises(ValueError, match=r"set data\.prompts=builtin"):
        load_prompts(recipe(prompts="mine.jsonl", domains=["math"]))


def test_all_wordings_of_a_task_are_on_one_side():
    split = load_prompts(recipe(prompts="builtin", held_out_fraction=0.2))
    tasks = [{item.id.split("#")[0] for item in side} for side in (split.training, split.held_out)]
    assert not tasks[0] & tasks[1]
    assert 0.1 < len(split.held_out) / (len(split.held_out) + len(split.training)) < 0.3


def test_a_system_prompt_is_put_before_each():
    split = load_prompts(recipe(prompts="builtin", system_prompt="Be brief.", max_rows=40, held_out_fraction=0.4))
    assert all(item.system == [{"role": "system", "content": "Be brief."}] for item in split.training)


def test_a_file_of_prompts_is_split_by_id(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(json.dumps({"id": str(n), "prompt": f"Say {n}."}) for n in range(60)))
    split = load_prompts(recipe(prompts=str(path), held_out_fraction=0.3))
    everything = [*split.training, *split.held_out]
    assert (split.training, split.held_out) == split_held_out(sorted(everything, key=lambda i: int(i.id)), 0.3)
    assert {item.source for item in everything} == {"mine"}


def test_a_target_that_is_no_toy_needs_prompts():
    with pytest.raises(ValueError, match=r"data\.prompts is missing"):
        load_prompts(recipe())


def test_the_toy_brings_its_own():
    split = load_prompts(build_recipe({"target": {"toy": {}}, "data": {"max_rows": 40, "held_out_fraction": 0.3}}))
    assert len(split.training) + len(split.held_out) == 40
    assert {item.source for item in split.training} == {"toy-explain", "toy-code"}


def test_a_side_without_prompts_is_an_error():
    with pytest.raises(ValueError, match=r"No held-out prompt is left of 10 at data\.held_out_fraction=0\.0"):
        load_prompts(recipe(prompts="builtin", max_rows=10, held_out_fraction=0.0))


def test_any_beginning_of_mixed_prompts_is_balanced():
    items = [
        Conversation(f"{source}{n}", ({"role": "user", "content": "?"},), source) for source in "ab" for n in range(9)
    ]
    assert Counter(item.source for item in mixed(items)[:6]) == {"a": 3, "b": 3}
    assert mixed(items[::-1]) == mixed(items)

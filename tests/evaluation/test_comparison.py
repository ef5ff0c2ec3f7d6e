"""Tables and pictures of several drafters, from results in memory."""

from __future__ import annotations

import pytest

from dspark_hf.evaluation import Comparison, EvalResults, SuiteResult
from dspark_hf.evaluation.comparison_plots import _pooled


SETS = (("humaneval", "code"), ("gsm8k", "math"), ("math500", "math"))


def results(first: float, *, without: str = "") -> EvalResults:
    found = EvalResults()
    for place, (name, domain) in enumerate(SETS):
        if name != without:
            length = first + place
            interval = [length - 0.1, length + 0.1]
            found.add(SuiteResult(name, domain, 0.0, accepted_length=length, accepted_length_interval=interval))
    return found


def test_sets_are_ordered_by_domain_and_means_stand_behind_them():
    header, rows = Comparison({"a": results(1.0)}).rows(temperature=0.0, policy="full")
    assert header == ["drafter", "gsm8k", "math500", "humaneval", "mean math", "mean"]
    assert rows == [["a", "2.00 [1.90, 2.10]", "3.00 [2.90, 3.10]", "1.00 [0.90, 1.10]", "2.50", "2.00"]]


def test_a_mean_over_fewer_sets_than_the_others_is_not_shown():
    table = Comparison({"a": results(1.0), "b": results(1.0, without="math500")})
    _, rows = table.rows(temperature=0.0, policy="full")
    assert rows[1] == ["b", "2.00 [1.90, 2.10]", "-", "1.00 [0.90, 1.10]", "-", "-"]


def test_markdown_leaves_out_what_was_not_measured():
    text = Comparison({"a": results(1.0)}).to_markdown()
    assert "**accepted length**, T = 0, policy full" in text
    assert "tokens/s against plain" not in text


def test_an_unknown_measure_is_named():
    with pytest.raises(ValueError, match="measure must be one of accepted_length, speedup"):
        Comparison({"a": results(1.0)}).rows("speed", temperature=0.0, policy="full")


def test_slots_are_pooled_by_how_often_they_were_tried():
    one = SuiteResult("x", "math", 0.0, acceptance_by_slot=[1.0, 0.5], trials_by_slot=[3, 2])
    two = SuiteResult("y", "math", 0.0, acceptance_by_slot=[0.0], trials_by_slot=[1])
    never = SuiteResult("z", "math", 0.0, acceptance_by_slot=[0.0, None], trials_by_slot=[0, 0])
    assert _pooled([one, two, never]) == [0.75, 0.5]

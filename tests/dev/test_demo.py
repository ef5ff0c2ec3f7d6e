"""The demo's own decisions; what it runs is tested where it lives."""

from __future__ import annotations

import os

import pytest

from dspark_hf.dev.demo import hub_environment, recipe_path
from dspark_hf.dev.demo_generate import identical, table_row
from dspark_hf.evaluation import SuiteResult


def test_without_a_repo_a_hub_of_its_own_is_started():
    with hub_environment(None) as environment:
        assert environment["HF_ENDPOINT"].startswith("http://127.0.0.1:")
        assert environment["HF_TOKEN"]
    with hub_environment("me/drafter") as environment:
        assert environment == dict(os.environ)


@pytest.mark.parametrize("name", ["toy/cpu.yaml", "smollm2-135m/cpu-quick.yaml"])
def test_recipes_are_found_in_the_repo_and_in_the_package(name, tmp_path, monkeypatch):
    assert recipe_path(name).is_file()
    monkeypatch.chdir(tmp_path)
    assert recipe_path(name).is_file()


def measured(**values) -> SuiteResult:
    given = {"tokens_per_second": 20.0, "plain_tokens_per_second": 10.0, "speedup": 2.0, "accepted_length": 2.5}
    return SuiteResult("held-out", "other", **{"temperature": 0.0, **given, **values})


@pytest.mark.parametrize(
    ("values", "answer"),
    [
        ({"compared": 4, "identical": 4}, "yes, 4 of 4"),
        ({"compared": 4, "identical": 3, "near_ties": 1}, "yes, 3 of 4, 1 apart at a near-tie"),
        ({"compared": 4, "identical": 3, "mismatches": 1}, "NO, 3 of 4, 0 apart at a near-tie"),
        ({"temperature": 1.0}, "same distribution"),
    ],
)
def test_text_that_differs_is_told(values, answer):
    assert identical(measured(**values)) == answer


def test_a_row_holds_every_figure():
    assert table_row(measured(compared=1, identical=1)) == [
        "0",
        "yes, 1 of 1",
        "2.50",
        "20.0",
        "10.0",
        "2.00 [2.00, 2.00]",
    ]

"""A tiny target with a tokenizer of one token a character, and a drafter that is right about half of the time."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from dspark_hf.dev.tiny import tiny_drafter, tiny_target
from dspark_hf.dev.tiny_tokenizer import tiny_tokenizer
from dspark_hf.evaluation import Suite
from dspark_hf.training.data import Conversation


@pytest.fixture(scope="session")
def target():
    return tiny_target()


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return tiny_tokenizer()


@pytest.fixture
def drafter(target):
    drafter = tiny_drafter(target)
    drafter.set_policy("full")
    return drafter


def conversation(identity: str, *turns: str) -> Conversation:
    return Conversation(identity, tuple({"role": "user", "content": turn} for turn in turns))


@pytest.fixture(scope="session")
def suite() -> Suite:
    return Suite(
        "letters",
        "chat",
        [conversation("one", "abc", "def"), conversation("two", "xyz"), conversation("three", "hello")],
    )

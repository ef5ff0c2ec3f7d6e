"""A tiny target with a tokenizer of one token a character, and a drafter that is right about half of the time."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dspark_hf.dev.tiny import tiny_drafter, tiny_target
from dspark_hf.evaluation import Suite
from dspark_hf.training.data import Conversation


LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,:?\n"
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}:{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% if enable_thinking is defined and enable_thinking %}T{% endif %}{% endif %}"
)


@pytest.fixture(scope="session")
def target():
    return tiny_target()


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {letter: index for index, letter in enumerate(["<pad>", "<s>", *LETTERS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="."))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", chat_template=TEMPLATE)


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

"""A prompt in another thinking mode than the drafter's is announced once and changes nothing."""

import logging

import pytest
import torch
from transformers.utils import logging as transformers_logging

from dspark_hf.dev.tiny import tiny_drafter, tiny_target
from dspark_hf.generation.thinking import thinks


@pytest.mark.parametrize(
    ("tail", "mode"),
    [
        ("user: hello assistant:", None),
        ("assistant:\n<think>\n", True),
        ("assistant:\n<think>\n\n</think>\n\n", False),
        ("</think> old answer assistant: <think>", True),
    ],
)
def test_the_end_of_a_prompt_tells_its_mode(tail, mode):
    assert thinks(tail) is mode


class Spelled:
    """A tokenizer whose ids 60 and 61 open and close a think block."""

    def decode(self, ids):
        return " ".join({60: "<think>", 61: "</think>"}.get(token, "w") for token in ids)


def test_another_mode_is_announced_once_and_the_text_is_unchanged(make_prompt, caplog):
    target = tiny_target("qwen3")
    ids = torch.cat([make_prompt(5), torch.tensor([[60]])], dim=1)
    options = {"do_sample": False, "max_new_tokens": 8}
    expected = target.generate(ids, **options)
    transformers_logging.enable_propagation()
    with caplog.at_level(logging.WARNING):
        for trained, warnings in ((True, 0), (None, 0), (False, 1)):
            drafter = tiny_drafter(target, target_thinking=trained)
            caplog.clear()
            for _ in range(2):
                output = target.generate(ids, assistant_model=drafter, tokenizer=Spelled(), **options)
                assert torch.equal(output, expected)
            assert sum("trained on answers" in record.message for record in caplog.records) == warnings
    transformers_logging.disable_propagation()


def test_without_a_tokenizer_nothing_is_said_and_nothing_fails(make_prompt):
    target = tiny_target("qwen3")
    drafter = tiny_drafter(target, target_thinking=False)
    assert target.generate(make_prompt(4), assistant_model=drafter, max_new_tokens=3, do_sample=False).shape == (1, 7)

"""The mask token as an ordinary part of the text, of the padding and of the stop tokens: nothing is found by its value."""

import pytest
import torch

import dspark_hf  # noqa: F401 - teaches `generate` to take a drafter
from dspark_hf.dev.tiny import tiny_drafter, tiny_target


PROMPT = torch.tensor([[1, 7, 22, 9]])


def plain_and_drafted(mask_token_id, **arguments):
    target = tiny_target("qwen3")
    drafter = tiny_drafter(target, mask_token_id=mask_token_id)
    common = {"max_new_tokens": 24, "do_sample": False, **arguments}
    return (
        target.generate(PROMPT, **common),
        target.generate(PROMPT, assistant_model=drafter, **common),
    )


def greedy_choices():
    return tiny_target("qwen3").generate(PROMPT, max_new_tokens=24, do_sample=False)[0, PROMPT.shape[1] :].tolist()


# https://github.com/z-lab/dflash/issues/73: output tokens equal to the mask id vanished from the text
@pytest.mark.parametrize("index", [0, 2, 5])
@pytest.mark.parametrize("role", ["text", "pad", "eos"])
def test_a_mask_token_that_the_target_writes_stays_in_the_text(index, role):
    mask = greedy_choices()[index]
    arguments = {"text": {}, "pad": {"pad_token_id": mask}, "eos": {"eos_token_id": mask, "pad_token_id": 0}}[role]
    plain, drafted = plain_and_drafted(mask, **arguments)
    assert mask in plain[0, PROMPT.shape[1] :]
    assert torch.equal(plain, drafted)


# https://github.com/z-lab/dflash/pull/109: the text ended after one block where the mask id was a stop token
def test_a_mask_token_among_the_stop_tokens_stops_nothing_that_was_not_written():
    written = set(greedy_choices())
    unused = [token for token in range(3, 64) if token not in written]
    plain, drafted = plain_and_drafted(unused[0], eos_token_id=[unused[1], unused[0]], pad_token_id=0)
    assert drafted.shape[1] == PROMPT.shape[1] + 24
    assert torch.equal(plain, drafted)

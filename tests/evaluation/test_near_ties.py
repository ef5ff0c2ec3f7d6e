"""Where two greedy texts part: a near-tie of the target, or a wrong token."""

from __future__ import annotations

import torch

from dspark_hf.evaluation.near_ties import first_difference, tie_width


GREEDY = {"max_new_tokens": 4, "do_sample": False}
PROMPT = torch.tensor([[5, 6, 7]])


def greedy(target, prompt=PROMPT, count=4) -> list[int]:
    return target.generate(prompt, max_new_tokens=count, do_sample=False)[0, prompt.shape[1] :].tolist()


def test_equal_texts_have_no_difference(target):
    assert first_difference(target, PROMPT, [1, 2], [1, 2], GREEDY) is None


def test_a_wrong_token_is_no_near_tie(target):
    plain = greedy(target)
    wrong = [*plain[:2], (plain[2] + 1) % 60, plain[3]]
    found = first_difference(target, PROMPT, plain, wrong, GREEDY)
    assert found["position"] == 2
    assert found["near_tie"] is False
    assert found["gap"] > 0


def test_a_text_that_ends_early_is_no_near_tie(target):
    plain = greedy(target)
    assert first_difference(target, PROMPT, plain, plain[:3], GREEDY) == {
        "position": 3,
        "gap": None,
        "near_tie": False,
    }


def test_two_tokens_with_equal_logits_are_a_near_tie(target):
    plain = greedy(target)
    twin = next(token for token in range(40, 60) if token != plain[0])
    head = target.get_output_embeddings().weight
    kept = head[twin].clone()
    with torch.no_grad():
        head[twin] = head[plain[0]]
    try:
        found = first_difference(target, PROMPT, plain, [twin, *plain[1:]], GREEDY)
    finally:
        with torch.no_grad():
            head[twin] = kept
    assert found["near_tie"] is True


def test_a_tie_is_wider_in_bfloat16_and_grows_with_the_logits():
    logits = torch.tensor([20.0, 19.0, float("-inf")])
    assert tie_width(logits, torch.bfloat16) > 1000 * tie_width(logits, torch.float32)
    assert tie_width(2 * logits, torch.bfloat16) == 2 * tie_width(logits, torch.bfloat16)

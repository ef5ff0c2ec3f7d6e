"""Sampled text has the target's distribution: joints of three tokens against exact enumeration, with controls that must fail."""

# B samples drawn side by side, V vocabulary of 8, J = V ** 3 joint outcomes

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from transformers.generation import logits_process as lp

from dspark_hf import ops
from dspark_hf.dev.tiny import tiny_drafter, tiny_target


VOCAB, TOKENS = 8, 3
# far below what a correct sampler gives in these few tests, far above what a wrong one does
SIGNIFICANT = 1e-4


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    target = tiny_target("qwen3", vocab_size=VOCAB)
    with torch.no_grad():
        target.lm_head.weight.mul_(0.5)
    drafter = tiny_drafter(target)
    with torch.no_grad():
        # a drafter of its own mind: q differs clearly from p, and its confidence from one slot to the next
        drafter.lm_head.weight.mul_(3.0)
        drafter.confidence_head.proj.weight.mul_(2.0)
    return target, drafter


def prompts() -> torch.Tensor:
    return torch.tensor([[3, 5, 1]])


def exact_joint(target, process: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None) -> torch.Tensor:
    """Probability of every text of three tokens, in lexical order."""
    texts_JT = torch.tensor(list(itertools.product(range(VOCAB), repeat=TOKENS)))
    ids = torch.cat([prompts().expand(len(texts_JT), -1), texts_JT], dim=1)
    with torch.no_grad():
        logits = target(ids).logits.float()
    probability_J = torch.ones(len(texts_JT), dtype=torch.float64)
    for step in range(TOKENS):
        end = prompts().shape[1] + step
        scores = logits[:, end - 1]
        scores = process(ids[:, :end], scores) if process else scores
        probability_J *= scores.double().softmax(dim=-1).gather(1, texts_JT[:, step : step + 1])[:, 0]
    return probability_J


def sample(target, drafter, count: int, rows: int, **options) -> torch.Tensor:
    """Counts of every joint outcome."""
    counts_J = torch.zeros(VOCAB**TOKENS, dtype=torch.float64)
    defaults = {"do_sample": True, "top_k": 0, "top_p": 1.0, "temperature": 1.0, "max_new_tokens": TOKENS + 1}
    for _ in range(count // rows):
        output = target.generate(
            prompts(), num_return_sequences=rows, assistant_model=drafter, **{**defaults, **options}
        )
        text_BT = output[:, prompts().shape[1] :][:, :TOKENS]
        index_B = text_BT[:, 0] * VOCAB**2 + text_BT[:, 1] * VOCAB + text_BT[:, 2]
        counts_J.index_add_(0, index_B, torch.ones(len(index_B), dtype=torch.float64))
    return counts_J


def p_value(counts_J: torch.Tensor, probability_J: torch.Tensor) -> float:
    expected_J = probability_J / probability_J.sum() * counts_J.sum()
    assert not counts_J[expected_J == 0].any(), "an impossible text was sampled"
    common = expected_J >= 5
    observed = torch.cat([counts_J[common], counts_J[~common].sum()[None]])
    wanted = torch.cat([expected_J[common], expected_J[~common].sum()[None]])
    if wanted[-1] == 0:
        observed, wanted = observed[:-1], wanted[:-1]
    return float(chisquare(observed.numpy(), wanted.numpy()).pvalue)


def repeated(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    return lp.RepetitionPenaltyLogitsProcessor(1.8)(ids, scores)


def warped(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    for warper in (lp.TemperatureLogitsWarper(0.8), lp.TopKLogitsWarper(6), lp.TopPLogitsWarper(0.9)):
        scores = warper(ids, scores)
    return scores


CASES = {
    "plain": ({}, None, {"name": "full"}),
    "temperature": ({"temperature": 0.7}, lambda ids, scores: scores / 0.7, {"name": "full"}),
    "warpers": ({"temperature": 0.8, "top_k": 6, "top_p": 0.9}, warped, {"name": "full"}),
    "repetition": ({"repetition_penalty": 1.8}, repeated, {"name": "full"}),
    "threshold": ({}, None, {"name": "threshold", "threshold": 0.5}),
    "both": ({"repetition_penalty": 1.8}, repeated, {"name": "threshold", "threshold": 0.5}),
}


@pytest.mark.parametrize("case", CASES)
def test_many_rows_have_the_exact_joint_distribution(case, models):
    target, drafter = models
    options, process, policy = CASES[case]
    drafter.set_policy(**policy)
    torch.manual_seed(1)
    counts_J = sample(target, drafter, 4000, 250, **options)
    assert p_value(counts_J, exact_joint(target, process)) > SIGNIFICANT
    rounds = drafter.last_generation.rounds
    lengths = {verified for _, _, verified, _ in rounds}
    assert len(lengths) > 1 or policy["name"] == "full", "thresholds must give rows unequal lengths"
    assert 0 < sum(accepted for *_, accepted in rounds) < sum(verified for _, _, verified, _ in rounds)


@pytest.mark.parametrize("case", ["plain", "threshold"])
def test_one_row_has_the_exact_joint_distribution(case, models):
    target, drafter = models
    options, process, policy = CASES[case]
    drafter.set_policy(**policy)
    torch.manual_seed(2)
    counts_J = sample(target, drafter, 300, 1, **options)
    assert p_value(counts_J, exact_joint(target, process)) > SIGNIFICANT


def test_a_pruned_vocabulary_keeps_the_exact_joint_distribution(models):
    target, _ = models
    drafter = tiny_drafter(target, draft_vocab_size=5, bigram=False)
    drafter.set_draft_vocabulary(torch.tensor([0, 2, 3, 5, 7]))
    drafter.set_policy("full")
    torch.manual_seed(3)
    for options, process in (({}, None), ({"top_k": 6, "top_p": 0.9, "temperature": 0.8}, warped)):
        counts_J = sample(target, drafter, 4000, 250, **options)
        assert p_value(counts_J, exact_joint(target, process)) > SIGNIFICANT


def test_a_stateful_processor_keeps_the_exact_joint_distribution(models):
    target, drafter = models
    drafter.set_policy("full")

    class Unknown(lp.LogitsProcessor):
        def __call__(self, input_ids, scores):
            return repeated(input_ids, scores)

    torch.manual_seed(4)
    counts_J = sample(target, drafter, 300, 1, logits_processor=lp.LogitsProcessorList([Unknown()]))
    assert p_value(counts_J, exact_joint(target, repeated)) > SIGNIFICANT


def test_a_wrong_q_fails_the_same_test(models, monkeypatch):
    target, drafter = models
    drafter.set_policy("full")
    verify = ops.verify_ragged

    def with_wrong_q(*args, log_q=None, **kwargs):
        wrong = None if log_q is None else log_q - 5
        return verify(*args, log_q=wrong, **kwargs)

    monkeypatch.setattr(ops, "verify_ragged", with_wrong_q)
    torch.manual_seed(1)
    assert p_value(sample(target, drafter, 4000, 250), exact_joint(target)) < SIGNIFICANT


def test_a_wrong_q_fails_the_same_test_for_one_row(models, monkeypatch):
    target, drafter = models
    drafter.set_policy("full")
    verify = ops.verify_ragged
    monkeypatch.setattr(ops, "verify_ragged", lambda *args, log_q, **kwargs: verify(*args, log_q=log_q - 5, **kwargs))
    torch.manual_seed(2)
    assert p_value(sample(target, drafter, 300, 1), exact_joint(target)) < SIGNIFICANT


def test_ignoring_a_processor_fails_the_same_test(models):
    target, drafter = models
    drafter.set_policy("full")
    torch.manual_seed(1)
    counts_J = sample(target, drafter, 4000, 250)
    assert p_value(counts_J, exact_joint(target, repeated)) < SIGNIFICANT


@pytest.mark.parametrize("block_size", [2, 3, 7])
def test_sampling_without_any_processor_works_for_every_block_size(block_size, pair, make_prompt):
    target, _ = pair("qwen3")
    drafter = tiny_drafter(target, block_size=block_size)
    for rows in (1, 2):
        output = target.generate(
            make_prompt(4, rows), assistant_model=drafter, do_sample=True, top_k=0, top_p=1.0, max_new_tokens=9
        )
        assert output.shape == (rows, 13)


def test_a_tiny_temperature_is_greedy_and_zero_is_refused_as_in_plain_generate(pair, make_prompt):
    target, drafter = pair("qwen3")
    ids = make_prompt(5)
    greedy = target.generate(ids, do_sample=False, max_new_tokens=12)
    cold = target.generate(ids, assistant_model=drafter, do_sample=True, temperature=1e-8, max_new_tokens=12)
    assert torch.equal(cold, greedy)
    assert all(0 <= accepted <= 5 for *_, accepted in drafter.last_generation.rounds)
    for kwargs in ({}, {"assistant_model": drafter}):
        with pytest.raises(ValueError, match="temperature"):
            target.generate(ids, do_sample=True, temperature=0.0, max_new_tokens=4, **kwargs)


def test_the_same_seed_gives_the_same_text(pair, make_prompt):
    target, drafter = pair("qwen3")
    texts = []
    for _ in range(2):
        torch.manual_seed(5)
        texts.append(target.generate(make_prompt(5), assistant_model=drafter, do_sample=True, max_new_tokens=12))
    assert torch.equal(*texts)

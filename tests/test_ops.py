"""The ops facade: the right path for the machine, and the same results as the models, the scheduler and the golden data."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dspark_hf import ops
from dspark_hf.dev.tiny import tiny_drafter, tiny_target
from dspark_hf.scheduling import CostCurve, schedule
from dspark_hf.scheduling.history import History


HEADS = ["vanilla", "gated", "rnn"]
PROJECTION = {"vanilla": None, "gated": "gate_proj", "rnn": "joint_proj"}


def head_tensors(state: dict, head: str) -> dict:
    """Arguments of `markov_draft` from tensors with DeepSpec's names."""
    tensors = {
        "w1": state["markov_head.markov_w1.weight"],
        "w2": state["markov_head.markov_w2.weight"],
        "head_type": head,
        "confidence_weight": state["confidence_head.proj.weight"],
        "confidence_bias": state["confidence_head.proj.bias"],
    }
    if PROJECTION[head]:
        tensors["projection_weight"] = state[f"markov_head.{PROJECTION[head]}.weight"]
        tensors["projection_bias"] = state[f"markov_head.{PROJECTION[head]}.bias"]
    return tensors


@pytest.mark.parametrize("body", ["qwen3", "gemma4"])
@pytest.mark.parametrize("head", HEADS)
def test_drafting_equals_the_block_of_the_reference_implementation(golden, body, head):
    folder = golden / f"{body}-{head}"
    wanted = load_file(folder / "tensors.safetensors")
    state = load_file(folder / "drafter" / "model.safetensors")
    logits = wanted["draft.base_logits"].clone()
    hidden = wanted["draft.block_hidden"]
    drafted = ops.markov_draft(logits, wanted["draft.anchor"], hidden=hidden, **head_tensors(state, head))
    assert torch.equal(drafted.tokens, wanted["draft.tokens"])
    torch.testing.assert_close(logits, wanted["draft.logits"], atol=1e-5, rtol=0)
    torch.testing.assert_close(drafted.confidence_logits, wanted["draft.confidence_logits"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("head", HEADS)
def test_drafting_equals_the_drafter_itself(head, pruned):
    target = tiny_target()
    extra = {"draft_vocab_size": 40} if pruned else {}
    drafter = tiny_drafter(target, bigram=False, markov_head_type=head, **extra)
    if pruned:
        drafter.d2t.copy_(torch.randperm(64)[:40].sort().values - torch.arange(40))
    anchors = torch.tensor([3, 17, 5])
    features = torch.randn(3, 6, 3 * 32)
    block = drafter.draft_block(anchors, features)
    base = drafter.base_logits(block.hidden_states)
    mapped = drafter.draft_to_target()
    drafted = ops.markov_draft(
        base, anchors, hidden=block.hidden_states, draft_to_target=mapped, **head_tensors(drafter.state_dict(), head)
    )
    assert torch.equal(drafted.tokens, block.tokens)
    torch.testing.assert_close(drafter.expand_logits(base), block.logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(drafted.confidence_logits, block.confidence_logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("policy", ["early_stop", "lookahead"])
def test_prefix_lengths_equal_those_of_the_scheduling_room(policy):
    torch.manual_seed(0)
    for trial in range(60):
        rows, slots = int(torch.randint(1, 12, ())), int(torch.randint(1, 9, ()))
        survival = (torch.rand(rows, slots) ** 0.4).cumprod(1)
        most = rows * (slots + 1)
        steps = torch.arange(most)
        seconds = 1 + steps // 4 * 0.3 + torch.rand(most) * 0.5 if trial % 2 else 1 + 0.01 * steps
        curve = CostCurve(tokens=list(range(1, most + 1)), seconds=seconds.tolist(), draft_seconds=0.1)
        acceptance = torch.rand(slots)
        options = {} if policy == "early_stop" else {"acceptance": acceptance, "draft_seconds": 0.1}
        result = ops.schedule_prefix(survival, curve.table(most, None, "cpu"), policy=policy, **options)
        expected = schedule(survival, curve, policy=policy, history=History(acceptance=acceptance))
        assert torch.equal(result.lengths.long(), expected)


@pytest.mark.parametrize("slots", [1, 2, 3, 5, 7, 16])
def test_block_sizes_that_are_no_power_of_two_draft_and_verify(slots):
    for vocabulary in (5, 60, 64, 151):
        for rows in (0, 1, 3):
            logits = torch.randn(rows, slots, vocabulary)
            drafted = ops.markov_draft(
                logits,
                torch.zeros(rows, dtype=torch.int64),
                w1=torch.randn(vocabulary, 6),
                w2=torch.randn(vocabulary, 6),
            )
            assert drafted.tokens.shape == (rows, slots)
            lengths = torch.full((rows,), slots)
            lengths[1:2] = 0  # one row verifies nothing
            cu_seqlens = torch.cat([torch.zeros(1), (lengths + 1).cumsum(0)]).int()
            target = torch.randn(int(cu_seqlens[-1]), vocabulary)
            result = ops.verify_ragged(target, drafted.tokens, cu_seqlens)
            assert (result.accepted <= lengths).all()
            if rows > 1:
                assert result.tokens[1, 0] == target[cu_seqlens[1]].argmax()


def test_a_generator_makes_drafting_and_verification_repeatable():
    def round_of(seed):
        generator = torch.Generator().manual_seed(seed)
        logits = torch.linspace(0, 3, 40).repeat(64, 2, 1)
        anchors = torch.zeros(64, dtype=torch.int64)
        drafted = ops.markov_draft(logits, anchors, temperature=1.0, generator=generator)
        cu_seqlens = torch.arange(65, dtype=torch.int32) * 3
        return ops.verify_ragged(
            torch.linspace(3, 0, 40).repeat(192, 1),
            drafted.tokens,
            cu_seqlens,
            temperature=1.0,
            log_q=drafted.log_q,
            q_logits=logits,
            q_log_normalizer=drafted.log_normalizer,
            generator=generator,
        ).tokens

    assert torch.equal(round_of(1), round_of(1))
    assert not torch.equal(round_of(1), round_of(2))


def test_broken_target_logits_raise_as_sampling_does_but_greedy_takes_nan_like_argmax():
    logits = torch.tensor([[0.0, float("nan"), 1.0]])
    tokens, cu_seqlens = torch.zeros(1, 0, dtype=torch.int64), torch.tensor([0, 1], dtype=torch.int32)
    with pytest.raises(RuntimeError, match="probability tensor contains"):
        ops.verify_ragged(logits, tokens, cu_seqlens, temperature=1.0, generator=torch.Generator())
    assert ops.verify_ragged(logits, tokens, cu_seqlens).tokens.tolist() == [[1]]


class OnCuda:
    """Stands for a CUDA tensor where there is no GPU."""

    is_cuda = True


def test_cpu_tensors_take_the_torch_path_and_cuda_tensors_triton(monkeypatch):
    monkeypatch.delenv(ops.ENVIRONMENT, raising=False)
    assert ops.backend(torch.zeros(1)) == "torch"
    monkeypatch.setattr(ops, "_triton_installed", lambda: True)
    assert ops.backend(OnCuda()) == "triton"
    monkeypatch.setenv(ops.ENVIRONMENT, "torch")
    assert ops.backend(OnCuda()) == "torch"


def test_without_triton_a_gpu_falls_back_to_torch_with_one_notice(monkeypatch):
    notices = []
    monkeypatch.delenv(ops.ENVIRONMENT, raising=False)
    monkeypatch.setattr(ops, "_triton_installed", lambda: False)
    monkeypatch.setattr(ops.logger, "warning", lambda message, *rest, **options: notices.append(message))
    assert [ops.backend(OnCuda()) for _ in range(3)] == ["torch"] * 3
    assert len(notices) == 1


def test_an_unknown_choice_names_the_known_ones(monkeypatch):
    monkeypatch.setenv(ops.ENVIRONMENT, "cuda")
    with pytest.raises(ValueError, match="auto, torch, triton"):
        ops.backend(torch.zeros(1))


def test_triton_by_force_says_what_it_lacks(monkeypatch):
    monkeypatch.setenv(ops.ENVIRONMENT, "triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET=1"):
        ops.backend(torch.zeros(1))
    monkeypatch.setattr(ops, "_triton_installed", lambda: False)
    with pytest.raises(RuntimeError, match="not installed"):
        ops.backend(torch.zeros(1))


ROUND = Path(__file__).parent / "kernels" / "one_round.py"


def run_round(**environment) -> dict:
    """One drafted, scheduled and verified round, a generation and a training loss in a fresh process."""
    clean = {name: value for name, value in os.environ.items() if name not in ("TRITON_INTERPRET", ops.ENVIRONMENT)}
    done = subprocess.run(
        [sys.executable, str(ROUND)], env={**clean, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def torch_round() -> dict:
    return run_round()


def test_a_greedy_generation_through_the_interpreted_kernels_equals_the_torch_path(torch_round):
    through_triton = run_round(TRITON_INTERPRET="1", DSPARK_HF_KERNELS="triton")
    assert through_triton["kernels"] == ["accept", "admit", "finish", "loss_row", "rank", "row_stats", "tile"]
    assert torch_round["kernels"] == []
    for name in ("plain", "assisted", "several", "scheduled", "rounds"):
        assert through_triton[name] == torch_round[name], name
    assert through_triton["plain"] == through_triton["assisted"]
    # without a curve nothing is scheduled, so these ran in the generations under a policy
    assert through_triton["scheduling_kernels"] == ["admit", "rank"]
    for setting, texts in through_triton["scheduled"].items():
        assert texts == through_triton["plain" if setting.endswith("one row") else "several"], setting
        lengths = {verified for _, _, verified, _ in through_triton["rounds"][setting]}
        assert len(lengths) > 1, f"{setting} trimmed nothing"
    assert through_triton["loss"] == pytest.approx(torch_round["loss"], abs=1e-5)


def test_a_machine_without_triton_and_kernels_gets_identical_results(torch_round):
    bare = run_round(BLOCK_IMPORTS="triton,kernels", HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="")
    assert bare == torch_round


def test_the_torch_path_imports_neither_our_triton_modules_nor_the_kernels_library(torch_round):
    assert torch_round["imported"] == []

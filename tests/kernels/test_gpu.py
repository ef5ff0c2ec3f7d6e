"""What only a GPU can show: no races, exact acceptance over a million decisions, a whole round in one CUDA graph."""

import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dspark_hf import ops
from dspark_hf.dev.tiny import tiny_drafter, tiny_target
from dspark_hf.scheduling import CostCurve


pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]
KERNEL_TESTS = {
    "dspark-markov": "test_triton_drafts_the_tokens_and_numbers_of_the_reference",
    "dspark-schedule": "test_triton_schedules_like_the_reference",
    "dspark-verify": "test_triton_decides_like_the_reference",
    "dspark-linear-loss": "test_half_precision_stays_within_its_rounding",
}


@pytest.mark.parametrize("name", KERNEL_TESTS)
def test_the_kernel_equals_its_reference_compiled(name):
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not gpu", str(ROOT / "kernels" / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.parametrize("name", KERNEL_TESTS)
def test_racecheck_finds_no_hazard(name):
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    command = [tool, "--tool", "racecheck", "--error-exitcode", "9", "--target-processes", "all"]
    command += [sys.executable, "-m", "pytest", "-q", str(ROOT / "kernels" / name), "-k", KERNEL_TESTS[name]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.parametrize("drafted", ["sampled", "one-hot"])
def test_a_million_decisions_accept_as_often_as_the_mathematics_says(drafted):
    """Over 128 random pairs p, q of 8192 rows each the acceptance count stays within 4.5 sigma of its expectation."""
    rows, vocabulary, pairs = 8192, 16, 128
    generator = torch.Generator("cuda").manual_seed(0)
    total = expected = variance = 0.0
    for _ in range(pairs):
        q_logits, p_logits = torch.randn(2, vocabulary, device="cuda", generator=generator) * 1.5
        q, p = q_logits.softmax(-1).double(), p_logits.softmax(-1).double()
        if drafted == "sampled":
            tokens = torch.multinomial(q, rows, replacement=True, generator=generator)[:, None]
            chance = (p / q).clamp(max=1)[tokens[:, 0]]
            source = {
                "log_q": q.log().float()[tokens],
                "q_logits": q_logits.expand(rows, 1, vocabulary),
                "q_log_normalizer": q_logits.logsumexp(-1).expand(rows, 1),
            }
        else:
            tokens = torch.full((rows, 1), int(p.argsort()[vocabulary // 2]), device="cuda")
            chance, source = p[tokens[:, 0]], {}
        result = ops.verify_ragged(
            p_logits.repeat(2 * rows, 1),
            tokens,
            torch.arange(rows + 1, dtype=torch.int32, device="cuda") * 2,
            temperature=1.0,
            seeds=torch.randint(2**62, (rows,), device="cuda", generator=generator),
            positions=torch.randint(10**6, (rows,), device="cuda", generator=generator),
            **source,
        )
        total += result.accepted.sum().item()
        expected += chance.sum().item()
        variance += (chance * (1 - chance)).sum().item()
    assert abs(total - expected) < 4.5 * math.sqrt(variance)


def test_a_round_of_fixed_width_replays_from_one_cuda_graph():
    """Drafting, scheduling and verification of 8 rows: the lengths change between replays, the shapes do not."""
    rows, slots, vocabulary, rank, hidden_size = 8, 7, 5003, 64, 32
    torch.manual_seed(0)
    make = lambda *shape: torch.randn(*shape, device="cuda")  # noqa: E731
    head = {"w1": make(vocabulary, rank), "w2": make(vocabulary, rank) * 0.1}
    head |= {"hidden": make(rows, slots, hidden_size), "confidence_weight": make(hidden_size + rank) * 0.2}
    base, target = make(rows, slots, vocabulary), make(rows * (slots + 1), vocabulary)
    logits = base.clone()
    anchors = torch.randint(vocabulary, (rows,), device="cuda")
    seeds, positions = torch.arange(rows, device="cuda"), torch.full((rows,), 5, device="cuda")
    seconds = 1 + 0.02 * torch.arange(rows * (slots + 1) + 1, device="cuda").double()

    def one_round():
        keys = {"seeds": seeds, "positions": positions}
        logits.copy_(base)
        draft = ops.markov_draft(logits, anchors, temperature=0.9, **keys, **head)
        prefix = ops.schedule_prefix(draft.survival, seconds)
        q = {"q_logits": logits, "log_q": draft.log_q, "q_log_normalizer": draft.log_normalizer}
        layout = {"row_marker": prefix.row_marker}
        return prefix, ops.verify_ragged(
            target, draft.tokens, prefix.cu_seqlens, temperature=0.9, **layout, **keys, **q
        )

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            one_round()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured_prefix, captured = one_round()
    seen = set()
    for step in range(5):
        head["hidden"].normal_()
        base.normal_()
        positions += 1
        graph.replay()
        prefix, result = one_round()
        assert torch.equal(captured_prefix.lengths, prefix.lengths), step
        assert torch.equal(captured.tokens, result.tokens), step
        seen.add(tuple(prefix.lengths.tolist()))
    assert len(seen) > 1


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("policy", ["early_stop", "lookahead", "lagged_topk"])
def test_a_generation_under_a_policy_schedules_on_the_device_and_keeps_the_text(policy, rows, monkeypatch):
    target = tiny_target().cuda()
    drafter = tiny_drafter(target).cuda()
    drafter.cost_curve = CostCurve(tokens=[1, 2, 4, 24], seconds=[1.0, 1.3, 1.2, 2.0], draft_seconds=0.1)
    drafter.set_policy(policy)
    devices, schedule_prefix = [], ops.schedule_prefix

    def noted(survival, *arguments, **options):
        devices.append((survival.device.type, ops.backend(survival)))
        return schedule_prefix(survival, *arguments, **options)

    monkeypatch.setattr(ops, "schedule_prefix", noted)
    ids = torch.randint(2, 60, (rows, 9), generator=torch.Generator().manual_seed(0)).cuda()
    options = {"do_sample": False, "max_new_tokens": 20}
    assert torch.equal(target.generate(ids, assistant_model=drafter, **options), target.generate(ids, **options))
    assert set(devices) == {("cuda", "triton")}

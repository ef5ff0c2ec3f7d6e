"""Bytes, launches and (on a GPU) times of the kernels of one round, beside the roofline of an H200.

    python benchmarks/kernel_counts.py --count --output benchmarks/results/kernel_counts.json    # any machine
    python benchmarks/kernel_counts.py --output benchmarks/results/h200.json                     # needs a GPU

Sizes are those of a Qwen3-4B drafter. Bytes are the fewest that must move: every input once, every output once. Launches
are counted while a small round runs, in Triton's interpreter where there is no GPU; they do not depend on sizes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import torch


if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("DSPARK_HF_KERNELS", "triton")

import triton
from torch.utils._python_dispatch import TorchDispatchMode

from dspark_hf import ops


VOCABULARY, HIDDEN, RANK, SLOTS = 151_936, 2560, 256, 7
ROWS = (1, 32, 256)
H200_BYTES_PER_SECOND, H200_FLOPS = 4.3e12, 790e12  # published rooflines, not measurements
LOSS_ROWS = 3584
TILE, VERIFY_TILE = 128, 1024
VIEWS = (
    "view t transpose slice select expand detach unsqueeze squeeze alias permute _unsafe_view as_strided empty split"
)


def round_bytes(rows: int) -> dict[str, dict[str, float]]:
    """Compulsory bytes and floating-point operations of each kernel for one round of bf16 logits."""
    logits = 2 * VOCABULARY
    blocks, verify_blocks = -(-VOCABULARY // TILE), -(-VOCABULARY // VERIFY_TILE)
    positions = rows * (SLOTS + 1)
    draft = SLOTS * (VOCABULARY * RANK * 2 + 2 * rows * logits + 2 * 12 * rows * blocks + rows * RANK * 4)
    verify = positions * (logits + 2 * 12 * verify_blocks) + rows * 2 * logits + rows * 8 * verify_blocks
    return {
        "markov_draft": {"bytes": draft, "flops": SLOTS * 2 * rows * VOCABULARY * RANK},
        "schedule_prefix": {"bytes": rows * SLOTS * 16 + 8 * positions, "flops": 2 * (rows * SLOTS) ** 2},
        "verify_ragged": {"bytes": verify, "flops": 10 * positions * VOCABULARY},
    }


def loss_bytes() -> dict[str, float]:
    """Compulsory bytes and operations of one training loss over 3584 slots."""
    logits = 2 * LOSS_ROWS * VOCABULARY
    return {"bytes": 5 * logits, "flops": 6 * LOSS_ROWS * VOCABULARY * (HIDDEN + RANK)}


class CountOperations(TorchDispatchMode):
    """Counts aten operations that launch something; views and allocations do not."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.overloadpacket.__name__ not in VIEWS.split()
        return function(*args, **(kwargs or {}))


def operands(rows: int, vocabulary: int, rank: int, hidden: int, dtype, device) -> dict:
    """Inputs of one round, and the head."""
    torch.manual_seed(0)

    def normal(*shape, scale=1.0):
        return (torch.randn(*shape, device=device) * scale).to(dtype)

    return {
        "base": normal(rows, SLOTS, vocabulary),
        "target": normal(rows * (SLOTS + 1), vocabulary),
        "anchors": torch.randint(vocabulary, (rows,), device=device),
        "seeds": torch.randint(2**62, (rows,), device=device),
        "positions": torch.randint(10**6, (rows,), device=device),
        "ends": torch.arange(rows + 1, dtype=torch.int32, device=device) * (SLOTS + 1),
        "marker": torch.arange(rows, dtype=torch.int32, device=device).repeat_interleave(SLOTS + 1),
        "seconds": 1 + 0.01 * torch.arange(rows * (SLOTS + 1) + 1, device=device).double(),
        "head": {
            "w1": normal(vocabulary, rank),
            "w2": normal(vocabulary, rank, scale=0.1),
            "hidden": normal(rows, SLOTS, hidden),
            "confidence_weight": normal(hidden + rank, scale=0.02),
            "confidence_temperatures": torch.ones(SLOTS, device=device),
        },
    }


def steps_of_a_round(data: dict, temperature: float) -> dict:
    """One callable per kernel; drafting runs once here because the others need its result."""
    rows, device = len(data["anchors"]), data["anchors"].device
    draft_keys = accept_keys = {"seeds": data["seeds"], "positions": data["positions"]}
    if os.environ["DSPARK_HF_KERNELS"] == "torch":  # torch draws its uniforms with one call instead of Philox by hand
        draft_keys = {"uniforms": torch.rand(rows, SLOTS, 2, dtype=torch.float64, device=device)}
        accept_keys = {
            "accept_uniforms": torch.rand(rows, SLOTS, dtype=torch.float64, device=device),
            "resample_uniforms": torch.rand(rows, 2, dtype=torch.float64, device=device),
        }

    def draft():
        return ops.markov_draft(data["base"], data["anchors"], temperature=temperature, **draft_keys, **data["head"])

    drafted = draft()
    q = {"q_logits": data["base"], "log_q": drafted.log_q, "q_log_normalizer": drafted.log_normalizer}
    return {
        "markov_draft": draft,
        "schedule_prefix": lambda: ops.schedule_prefix(drafted.survival, data["seconds"]),
        "verify_ragged": lambda: ops.verify_ragged(
            data["target"],
            drafted.tokens,
            data["ends"],
            row_marker=data["marker"],
            temperature=temperature,
            **accept_keys,
            **(q if temperature else {}),
        ),
    }


def count_launches(backend: str) -> dict[str, dict[str, int]]:
    """Launches of each kernel and temperature on a small round; `torch` counts aten operations alone."""
    os.environ["DSPARK_HF_KERNELS"] = backend
    device = "cuda" if torch.cuda.is_available() else "cpu"
    launched = [0]
    hook = triton.runtime.interpreter.GridExecutor if device == "cpu" else triton.runtime.JITFunction
    method = "__call__" if device == "cpu" else "run"
    original = getattr(hook, method)

    def counted(self, *args, **kwargs):
        launched[0] += 1
        with torch.utils._python_dispatch._disable_current_modes():  # the interpreter copies its arguments
            return original(self, *args, **kwargs)

    setattr(hook, method, counted)
    counts: dict[str, dict[str, int]] = {}
    try:
        for temperature in (0.0, 1.0):
            for name, step in steps_of_a_round(operands(2, 300, 16, 8, torch.float32, device), temperature).items():
                launched[0] = 0
                with CountOperations() as torch_operations:
                    step()
                entry = counts.setdefault(name, {})
                entry[f"T={temperature:g}"] = launched[0] + torch_operations.count
                entry[f"T={temperature:g} kernels"] = launched[0]
    finally:
        setattr(hook, method, original)
        os.environ["DSPARK_HF_KERNELS"] = "triton"
    return counts


def roofline_microseconds(part: dict[str, float]) -> float:
    """The longer of moving the bytes and doing the arithmetic on an H200."""
    return max(part["bytes"] / H200_BYTES_PER_SECOND, part["flops"] / H200_FLOPS) * 1e6


def count_report() -> dict:
    fused, plain = count_launches("triton"), count_launches("torch")
    report = {
        "command": "python benchmarks/kernel_counts.py --count",
        "sizes": {"vocabulary": VOCABULARY, "hidden": HIDDEN, "rank": RANK, "slots": SLOTS, "dtype": "bfloat16"},
        "roofline": {"bytes_per_second": H200_BYTES_PER_SECOND, "flops": H200_FLOPS},
        "launches": {"triton": fused, "torch": plain},
        "rounds": {},
    }
    print(
        f"{'kernel':16s} {'R':>4s} {'MB':>9s} {'GF':>7s} {'roofline us':>12s} {'launches T=0/1':>15s} {'torch':>10s}"
    )
    for rows in ROWS:
        parts = round_bytes(rows)
        for name, part in parts.items():
            part["roofline_microseconds"] = roofline_microseconds(part)
            launches = f"{fused[name]['T=0']}/{fused[name]['T=1']}"
            torch_ops = f"{plain[name]['T=0']}/{plain[name]['T=1']}"
            print(
                f"{name:16s} {rows:4d} {part['bytes'] / 1e6:9.1f} {part['flops'] / 1e9:7.1f} "
                f"{part['roofline_microseconds']:12.1f} {launches:>15s} {torch_ops:>10s}"
            )
        report["rounds"][str(rows)] = parts
    loss = loss_bytes()
    loss["roofline_microseconds"] = roofline_microseconds(loss)
    report["linear_loss"] = loss
    print(
        f"{'linear_loss':16s} {LOSS_ROWS:4d} {loss['bytes'] / 1e6:9.1f} {loss['flops'] / 1e9:7.1f} "
        f"{loss['roofline_microseconds']:12.1f}"
    )
    return report


def copy_rate() -> float:
    """Measured bytes per second of a large device copy, reads and writes counted."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    milliseconds = triton.testing.do_bench(lambda: target.copy_(source), return_mode="median")
    return 2 * source.numel() / (milliseconds / 1e3)


def gpu_report() -> dict:
    rate = copy_rate()
    report = {
        "command": "python benchmarks/kernel_counts.py",
        "device": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
        "copy_gigabytes_per_second": rate / 1e9,
        "rounds": {},
    }
    print(f"{report['device']}: copy {rate / 1e9:.0f} GB/s")
    for rows in ROWS:
        parts = round_bytes(rows)
        for name, part in parts.items():
            for backend in ("triton", "torch"):
                os.environ["DSPARK_HF_KERNELS"] = backend
                data = operands(rows, VOCABULARY, RANK, HIDDEN, torch.bfloat16, "cuda")
                step = steps_of_a_round(data, 1.0)[name]
                part[f"{backend}_microseconds"] = 1e3 * triton.testing.do_bench_cudagraph(step, return_mode="median")
                del data, step
            part["gigabytes_per_second"] = part["bytes"] / part["triton_microseconds"] / 1e3
            part["of_copy_rate"] = part["gigabytes_per_second"] * 1e9 / rate
            print(
                f"{name:16s} R={rows:<4d} triton {part['triton_microseconds']:9.1f} us   torch "
                f"{part['torch_microseconds']:9.1f} us   {part['gigabytes_per_second']:7.0f} GB/s "
                f"({part['of_copy_rate']:.0%} of copy)"
            )
        report["rounds"][str(rows)] = parts
    report["linear_loss"] = time_loss()
    return report


def time_loss() -> dict:
    """Milliseconds of the loss, forward and backward, with Triton and with torch rows."""
    torch.manual_seed(0)
    make = lambda *shape: (torch.randn(*shape, device="cuda") * 0.05).bfloat16()  # noqa: E731
    hidden, latent, w2 = (
        make(*s).requires_grad_() for s in ((LOSS_ROWS, HIDDEN), (LOSS_ROWS, RANK), (VOCABULARY, RANK))
    )
    teacher, head = make(LOSS_ROWS, HIDDEN), make(VOCABULARY, HIDDEN)
    labels = torch.randint(VOCABULARY, (LOSS_ROWS,), device="cuda")
    weight = torch.full((LOSS_ROWS,), 1 / LOSS_ROWS, device="cuda")
    part = loss_bytes()

    def step():
        ops.linear_loss(
            hidden, latent, teacher, head, w2, head, labels, ce_weight=weight, l1_weight=weight
        ).loss.backward()

    for backend in ("triton", "torch"):
        os.environ["DSPARK_HF_KERNELS"] = backend
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        part[f"{backend}_milliseconds"] = triton.testing.do_bench(step, return_mode="median")
        part[f"{backend}_extra_bytes"] = torch.cuda.max_memory_allocated() - before
    print(f"linear_loss      triton {part['triton_milliseconds']:.1f} ms   torch {part['torch_milliseconds']:.1f} ms")
    return part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", action="store_true", help="count bytes and launches instead of timing")
    parser.add_argument("--output", type=Path, help="write the report as JSON here")
    options = parser.parse_args()
    if not options.count and not torch.cuda.is_available():
        parser.error("timing needs a CUDA or ROCm device; --count works anywhere")
    report = count_report() if options.count else gpu_report()
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())

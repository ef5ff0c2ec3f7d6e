"""Peak memory and time of the training loss: full logits against chunks, forward and backward, in one run.

    python benchmarks/linear_loss.py --output benchmarks/results/linear_loss.json

Extra memory is the highest resident size during a call above that before it (Linux: /proc/self/clear_refs resets the
high-water mark). The methods take turns, so that a busy machine slows both; processor seconds hardly feel it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import time
from pathlib import Path

import torch
import transformers

from dspark_hf import ops


def resident(field: str) -> int:
    """A memory figure of this process in bytes: VmRSS (now) or VmHWM (highest since the last reset)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/self/status has no {field}.")


def operands(rows: int, vocabulary: int, hidden: int, rank: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    leaves = {
        "hidden": (rows, hidden),
        "latent": (rows, rank),
        "teacher": (rows, hidden),
        "lm_head": (vocabulary, hidden),
    }
    leaves |= {"w2": (vocabulary, rank), "teacher_head": (vocabulary, hidden)}
    tensors = {name: torch.randn(shape) * 0.1 for name, shape in leaves.items()}
    for name in ("hidden", "latent", "w2"):
        tensors[name].requires_grad_()
    return {**tensors, "labels": torch.randint(vocabulary, (rows,))}


def measure(method, tensors, weights) -> dict:
    """Seconds and extra bytes of one forward and backward."""
    for tensor in tensors.values():
        tensor.grad = None
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before, start, processor = resident("VmRSS"), time.perf_counter(), time.process_time()
    result = method(*tensors.values(), **weights)
    result.loss.backward()
    seconds = time.perf_counter() - start
    processor = time.process_time() - processor
    return {
        "seconds": seconds,
        "processor": processor,
        "extra_bytes": resident("VmHWM") - before,
        "loss": result.loss.item(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 3584), ("vocabulary", 32_768), ("hidden", 640), ("rank", 64), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()

    tensors = operands(options.rows, options.vocabulary, options.hidden, options.rank)
    weights = {
        "ce_weight": torch.rand(options.rows) / options.rows,
        "l1_weight": torch.rand(options.rows) / options.rows,
    }
    methods = {
        "naive": ops.linear_loss_reference,
        "chunked": lambda *args, **kwargs: ops.linear_loss(*args, **kwargs, chunk=options.chunk),
    }
    runs: dict[str, list[dict]] = {name: [] for name in methods}
    for _ in range(options.repeats):
        for name, method in methods.items():
            runs[name].append(measure(method, tensors, weights))
    summary = {
        name: {
            "seconds": statistics.median(run["seconds"] for run in several),
            "fastest_seconds": min(run["seconds"] for run in several),
            "processor_seconds": min(run["processor"] for run in several),
            "extra_megabytes": max(run["extra_bytes"] for run in several) / 2**20,
            "loss": several[0]["loss"],
        }
        for name, several in runs.items()
    }
    naive, chunked = summary["naive"], summary["chunked"]
    report = {
        "command": "python benchmarks/linear_loss.py",
        "sizes": {
            name: getattr(options, name) for name in ("rows", "vocabulary", "hidden", "rank", "chunk", "repeats")
        },
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "threads": torch.get_num_threads(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "methods": summary,
        "memory_ratio": chunked["extra_megabytes"] / naive["extra_megabytes"],
        "time_ratio": chunked["fastest_seconds"] / naive["fastest_seconds"],
        "processor_ratio": chunked["processor_seconds"] / naive["processor_seconds"],
    }
    for name, part in summary.items():
        times = f"{part['fastest_seconds']:7.2f} s  processor {part['processor_seconds']:7.2f} s"
        print(f"{name:8s} {times}  extra {part['extra_megabytes']:6.0f} MiB  loss {part['loss']:.6f}")
    ratios = (report["memory_ratio"], report["time_ratio"], report["processor_ratio"])
    print("chunked / naive: memory {:.3f}, time {:.2f}, processor {:.2f}".format(*ratios))
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()

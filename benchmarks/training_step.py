"""One training step at Gemma 3 270M size (V = 262144, 16 anchors x 7 slots): ours beside a plain one that forms full logits.

    python benchmarks/training_step.py --output benchmarks/results/training_step.json

Both do the same step (forward, backward, AdamW) on the same features, each in a process of its own so that peak memory is its
own; rounds alternate. Written: seconds a step (median, minimum) and peak resident memory, in all and beyond what model,
gradients and optimizer hold at rest. The two losses are compared.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
import transformers

from dspark_hf.models import DSparkConfig, DSparkDrafter
from dspark_hf.training.batches import lay_out
from dspark_hf.training.losses import LossWeights
from dspark_hf.training.objective import DraftObjective
from dspark_hf.training.rows import Row
from dspark_hf.training.teacher import TeacherHead


SIZES = {
    "vocab_size": 262144,
    "hidden_size": 640,
    "intermediate_size": 2048,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "num_hidden_layers": 2,
    "num_target_layers": 18,
    "target_layer_ids": [1, 8, 14],
    "block_size": 7,
    "markov_rank": 64,
    "mask_token_id": 4,
}
TOKENS, ANCHORS = 256, 16


def build():
    """Drafter, one row with its features, and the teacher's head, the same in every process."""
    torch.manual_seed(0)
    config = DSparkConfig(**SIZES)
    drafter = DSparkDrafter(config)
    drafter.lm_head.weight = drafter.embed_tokens.weight
    drafter.embed_tokens.requires_grad_(False)
    ids = np.random.default_rng(0).integers(5, 262144, TOKENS).tolist()
    row = Row(id="row", prompt_ids=ids[:64], completion_ids=ids[64:])
    anchors = np.linspace(64, TOKENS - 1 - config.num_slots, ANCHORS).astype(np.int64)
    batch = lay_out([row], [anchors], num_slots=config.num_slots, decay=4.0)
    context = torch.randn(TOKENS - 1, 3 * config.hidden_size)
    teacher = torch.randn(len(row.completion_ids) - 1, config.hidden_size)
    return drafter, batch, context, teacher, TeacherHead(drafter.embed_tokens.weight)


def plain_loss(drafter, objective, batch, context, teacher, head, weights):
    """The same loss as anybody would write it first: all logits, all probabilities, autograd."""
    hidden_NKD = objective.pack_hidden(batch.packs[0], [context])
    logits_NKV, confidence_NK = drafter.teacher_forced(hidden_NKD, batch.previous_NK)
    target_NKV = head.logits(teacher[batch.teacher_NK])
    weight_K = torch.exp(-torch.arange(drafter.config.num_slots) / weights.decay)
    weight_NK = batch.valid_NK * weight_K / (batch.valid_NK * weight_K).sum()
    ce_NK = torch.nn.functional.cross_entropy(logits_NKV.flatten(0, 1), batch.labels_NK.flatten(), reduction="none")
    l1_NK = (target_NKV.softmax(-1) - logits_NKV.softmax(-1)).abs().sum(-1)
    accept_NK = 1 - l1_NK.detach() / 2
    bce_NK = torch.nn.functional.binary_cross_entropy_with_logits(confidence_NK, accept_NK, reduction="none")
    per_slot = weights.ce * ce_NK.view_as(l1_NK) + weights.l1 * l1_NK + weights.confidence * bce_NK
    return (per_slot * weight_NK).sum()


def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def current_mb():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def worker(kind):
    """Reads "step" lines from standard input, answers each with one step's seconds."""
    drafter, batch, context, teacher, head = build()
    weights = LossWeights()
    objective = DraftObjective(drafter, head, weights=weights)
    optimizer = torch.optim.AdamW([p for p in drafter.parameters() if p.requires_grad], lr=1e-4, fused=True)
    for parameter in drafter.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    rest = current_mb()
    loss = 0.0
    for line in sys.stdin:
        if line.strip() != "step":
            break
        started = time.perf_counter()
        if kind == "ours":
            value = objective(batch, [context], teacher).loss
        else:
            value = plain_loss(drafter, objective, batch, context, teacher, head, weights)
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        print(time.perf_counter() - started, flush=True)
        loss = loss or value.item()
    print(json.dumps({"loss": loss, "rest_mb": rest, "peak_mb": peak_mb()}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5, help="timed steps each, after one for warm-up")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--worker", choices=("ours", "plain"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker)
        return
    kinds = ("plain", "ours")
    command = [sys.executable, __file__, "--worker"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = {kind: subprocess.Popen([*command, kind], **pipes) for kind in kinds}
    seconds = {kind: [] for kind in kinds}
    for _ in range(options.steps + 1):
        for kind, process in workers.items():
            process.stdin.write("step\n")
            process.stdin.flush()
            seconds[kind].append(float(process.stdout.readline()))
    found = {}
    for kind, process in workers.items():
        process.stdin.write("stop\n")
        process.stdin.close()
        memory = json.loads(process.stdout.readline())
        process.wait()
        timed = seconds[kind][1:]
        found[kind] = {
            "seconds_median": round(statistics.median(timed), 3),
            "seconds_min": round(min(timed), 3),
            "slots_per_second": round(ANCHORS * SIZES["block_size"] / statistics.median(timed), 1),
            "peak_mb": round(memory["peak_mb"]),
            "peak_beyond_rest_mb": round(memory["peak_mb"] - memory["rest_mb"]),
            "loss": memory["loss"],
        }
    plain, ours = found["plain"], found["ours"]
    result = {
        "what": f"one training step, V={SIZES['vocab_size']}, d={SIZES['hidden_size']}, {ANCHORS} anchors x 7 slots, fp32",
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "threads": torch.get_num_threads(),
        "steps": options.steps,
        "plain": plain,
        "ours": ours,
        "memory_ratio_beyond_rest": round(plain["peak_beyond_rest_mb"] / ours["peak_beyond_rest_mb"], 2),
        "memory_ratio_in_all": round(plain["peak_mb"] / ours["peak_mb"], 2),
        "speed_ratio": round(plain["seconds_median"] / ours["seconds_median"], 2),
        "loss_difference": abs(plain["loss"] - ours["loss"]),
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()

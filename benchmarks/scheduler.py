"""What each verification policy gives away against the best length in hindsight, and what a decision costs.

    python benchmarks/scheduler.py --records runs/toy-cpu/rollouts/temperature=1.npz --output benchmarks/results/scheduler.json

Survival comes from recorded rollouts (calibrated on half of the prompts, used on the other half), cost from three curves: flat, smooth,
and the staircase of a 2-core CPU in fp32, where a forward of 4 tokens is cheaper than one of 2. Nothing is decoded here.
"""

# N rounds, K slots, R rows

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections import deque
from pathlib import Path
from statistics import median

import torch

from dspark_hf.calibration import RolloutRecords, fit_calibration, survival_from_logits
from dspark_hf.hub.provenance import environment
from dspark_hf.scheduling import CostCurve, History, schedule
from dspark_hf.scheduling.history import AcceptanceHistory


POLICIES = ("full", "threshold", "early_stop", "lookahead", "lagged_topk", "optimal")
SIZES = [1, 2, 3, 4, 8]
CURVES = {
    "flat": CostCurve(tokens=[1, 64], seconds=[0.100, 0.100], draft_seconds=0.005),
    "smooth": CostCurve(tokens=[1, 64], seconds=[0.100, 0.730], draft_seconds=0.005),
    "jagged": CostCurve(tokens=SIZES, seconds=[0.096, 0.191, 0.262, 0.162, 0.155], draft_seconds=0.005),
}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--records", type=Path, nargs="+", required=True, help="rollouts as `collect_rollouts` saves them"
    )
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/scheduler.json"))
    parser.add_argument("--max-rounds", type=int, default=3000, help="of each file")
    return parser.parse_args(arguments)


def regret(records: RolloutRecords, max_rounds: int) -> list[dict]:
    """Throughput of every policy on every curve, as a share of what `optimal` reaches."""
    fitting, judging = records.split()
    calibration = fit_calibration(fitting.confidence_logits, fitting.accepted)
    judging = judging.select(judging.prompt.argsort(kind="stable")[:max_rounds])
    survival_NK = survival_from_logits(judging.confidence_logits, calibration.temperatures, calibration.biases)
    rows = []
    for shape, curve in CURVES.items():
        figures = {policy: _replay(judging, torch.from_numpy(survival_NK), curve, policy) for policy in POLICIES}
        best = figures["optimal"]["expected"]
        for policy, found in figures.items():
            share = found["expected"] / best
            rows.append({"regime": records.regime, "curve": shape, "policy": policy, "of_optimal": share, **found})
    return rows


def _replay(records: RolloutRecords, survival_NK: torch.Tensor, curve: CostCurve, policy: str) -> dict[str, float]:
    """Round by round as in a decode loop of one row: history comes from the rounds before, of the same prompt."""
    tokens = expected = seconds = verified = 0.0
    prompt, history, older = None, AcceptanceHistory(records.num_slots), deque(maxlen=2)
    for index in range(len(records)):
        if records.prompt[index] != prompt:
            prompt, history, older = records.prompt[index], AcceptanceHistory(records.num_slots), deque(maxlen=2)
        survival_1K = survival_NK[index : index + 1]
        past = History(acceptance=torch.tensor(history.rates()))
        if len(older) == 2:
            past.lagged_survival = older[0]
        length = int(schedule(survival_1K, curve, policy, past))
        accepted = min(int(records.accepted_count[index]), length)
        tokens += 1 + accepted
        expected += 1 + float(survival_1K[0, :length].sum())
        seconds += curve.draft_seconds + curve.seconds_at(1 + length)
        verified += length
        history.record(length, accepted)
        older.append(survival_1K)
    rounds = len(records)
    return {
        "expected": expected / seconds,
        "tokens_per_second": tokens / seconds,
        "tokens_per_round": tokens / rounds,
        "verified_length": verified / rounds,
    }


def decision_times(rows: int = 256, slots: int = 16, repeats: int = 300) -> dict[str, dict[str, float]]:
    """Milliseconds of one decision."""
    survival_RK = torch.rand(rows, slots, generator=torch.Generator().manual_seed(0)).cumprod(1)
    curve = CostCurve(tokens=[1, 64, rows * slots], seconds=[1.0, 1.5, 20.0], draft_seconds=0.1)
    past = History(acceptance=torch.full((rows, slots), 0.7), lagged_survival=survival_RK.flip(0))
    found = {}
    for policy in POLICIES:
        samples = []
        for _ in range(repeats):
            start = time.perf_counter()
            schedule(survival_RK, curve, policy, past)
            samples.append(1000 * (time.perf_counter() - start))
        found[policy] = {"median_ms": median(samples), "min_ms": min(samples)}
    return found


def table(rows: list[dict]) -> str:
    """Share of the throughput of `optimal`, one line per policy and one column per regime and curve."""
    columns = list(dict.fromkeys((row["regime"], row["curve"]) for row in rows))
    cells = {(row["policy"], row["regime"], row["curve"]): row for row in rows}
    lines = ["| policy | " + " | ".join(f"{regime}, {curve}" for regime, curve in columns) + " |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for policy in POLICIES:
        found = [cells[policy, regime, curve] for regime, curve in columns]
        shares = [f"{100 * row['of_optimal']:.1f}% ({row['verified_length']:.1f})" for row in found]
        lines.append(f"| {policy} | " + " | ".join(shares) + " |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    rows = [row for path in options.records for row in regret(RolloutRecords.load(path), options.max_rounds)]
    times = decision_times()
    report = {
        "command": f"python benchmarks/scheduler.py {shlex.join(sys.argv[1:])}",
        "environment": environment(),
        "threads": torch.get_num_threads(),
        "curves": {name: {"tokens": curve.tokens, "seconds": curve.seconds} for name, curve in CURVES.items()},
        "regret": rows,
        "decision_of_256_rows_and_16_slots": times,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print("share of the throughput of the best length in hindsight (mean verified length)\n")
    print(table(rows))
    print()
    for policy, found in times.items():
        print(f"{policy:12s} 256 x 16 decision: median {found['median_ms']:.2f} ms, min {found['min_ms']:.2f} ms")


if __name__ == "__main__":
    main()

"""One process of a distributed test: trains a step or two and writes what rank 0 saw. Started by `test_distributed.py`."""

import os
import signal
import sys

import torch
from training_runs import rows_of, run
from transformers import TrainerCallback

from dspark_hf.training.checkpoints import whole_tensor
from dspark_hf.training.trainer import DSparkTrainer


# a lost peer must not leave this process behind
signal.alarm(150)

GRADIENTS: list = []


class KeepGradients(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        trained = {name: value for name, value in model.named_parameters() if value.grad is not None}
        GRADIENTS.append({name: whole_tensor(value.grad).clone() for name, value in trained.items()})


def main(folder, output, case):
    init = DSparkTrainer.__init__

    def with_callback(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self.add_callback(KeepGradients())

    DSparkTrainer.__init__ = with_callback
    options = {"rows_per_batch": 1, "gradient_accumulation_steps": 2, "max_steps": 2, "logging_steps": 1}
    rows = rows_of()
    if case == "empty":
        # an answer of two tokens has one anchor; cut in the collator, one rank has none
        options["gradient_accumulation_steps"] = 1
        rows = rows_of((2, 20))
        draw = sys.modules["dspark_hf.training.batches"].sample_anchors
        without = lambda row, *args, **knobs: draw(row, *args, **knobs)[: 0 if row == "r0" else None]  # noqa: E731
        sys.modules["dspark_hf.training.batches"].sample_anchors = without
    logs = []
    evals = rows_of((30, 25), seed=1, name="e")
    result = run(
        folder, rows=rows, eval_rows=evals, on_progress=lambda progress: logs.append(progress.logs), **options
    )
    if int(os.environ.get("RANK", 0)) == 0:
        weights = {name: value.detach().clone() for name, value in result.drafter.named_parameters()}
        torch.save({"gradients": GRADIENTS, "logs": logs, "metrics": result.metrics, "weights": weights}, output)


if __name__ == "__main__":
    main(*sys.argv[1:])

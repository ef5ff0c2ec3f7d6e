"""The trainer: `transformers.Trainer` with our batches, denominators of whole optimizer steps, and exact resume.

What it adds: micro-batches from an endless stream that skips by index lists; features joined to them; sums divided by the
denominators of all micro-batches of all ranks; weights averaged if asked for; slim checkpoints of the trained weights; validation
with the drafter's own `draft_block`. It knows nothing of recipes, prompts or how a drafter is made (see `train.py`).
"""

# N blocks, K slots, T supervised positions

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import LambdaLR
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from .averaging import WeightAverage
from .batches import BatchStream, Collator, RowDataset, TrainingBatch
from .checkpoints import AVERAGE, WEIGHTS, load_into, save_tensors, whole_tensor
from .features import FeatureSource
from .losses import Denominators, DSparkLoss
from .objective import DraftObjective
from .prepare import write_json
from .rows import Row
from .schedule import StepCosine, TimeCosine
from .validation import accepted_lengths, metrics_from_sums, pack_sums


BEST = "best.safetensors"


@dataclass(frozen=True)
class TrainingProgress:
    """What a progress display is told after every optimizer step.

    Attributes:
        step: optimizer steps done.
        total_steps: planned, or `None` for a run bounded by time.
        fraction: of the run, in [0, 1].
        logs: the latest logged values.
    """

    step: int
    total_steps: int | None
    fraction: float
    logs: dict[str, float]


class DSparkTrainer(Trainer):
    """Trains the drafter inside a [`DraftObjective`].

    Args:
        objective ([`DraftObjective`]): trained parameters are those that require a gradient.
        args (`TrainingArguments`): `max_steps` must be set.
        rows, eval_rows: training and held-out rows.
        features ([`FeatureSource`]): of both.
        collator ([`Collator`]): of training batches.
        max_tokens, rows_per_batch (`int`): limits of a micro-batch.
        optimizer_of (callable): makes the optimizer of the trained parameters, name -> parameter.
        schedule ([`StepCosine`] or [`TimeCosine`]): of the learning rate.
        ema_decay (`float`): 0 is off.
        eval_anchors_per_row (`int`): deterministic anchors of a held-out row.
        on_progress (callable, *optional*): called with a [`TrainingProgress`] after every step on the main process.
    """

    def __init__(
        self,
        objective: DraftObjective,
        args: TrainingArguments,
        *,
        rows: Sequence[Row],
        eval_rows: Sequence[Row],
        features: FeatureSource,
        collator: Collator,
        max_tokens: int,
        rows_per_batch: int,
        optimizer_of: Callable[[Mapping[str, torch.nn.Parameter]], torch.optim.Optimizer],
        schedule: StepCosine | TimeCosine,
        ema_decay: float = 0.0,
        eval_anchors_per_row: int = 16,
        on_progress: Callable[[TrainingProgress], None] | None = None,
    ):
        self.features = features
        self.eval_rows = list(eval_rows)
        self.eval_anchors_per_row = eval_anchors_per_row
        self.max_tokens = max_tokens
        self.rows_per_batch = rows_per_batch
        self.optimizer_of = optimizer_of
        self.schedule = schedule
        self._window: torch.Tensor | None = None
        self._window_tokens = 0
        self._window_started = time.monotonic()
        super().__init__(
            model=objective,
            args=args,
            train_dataset=RowDataset(list(rows)),
            eval_dataset=RowDataset(self.eval_rows) if eval_rows else None,
            data_collator=collator,
            callbacks=[_StepCallback(self, on_progress)],
        )
        self.remove_callback(PrinterCallback)
        if self.is_fsdp_enabled:
            # sharded ranks must make the same forward calls, and the frozen shared weights stay out of the shards
            collator.one_pack = True
            self.accelerator.state.fsdp_plugin.ignored_modules = [
                objective.drafter.embed_tokens,
                objective.drafter.lm_head,
            ]
        self.average: WeightAverage | None = None
        self.ema_decay = ema_decay

    @property
    def trained(self) -> dict[str, torch.nn.Parameter]:
        """Name -> parameter of everything that is trained."""
        return {name: value for name, value in self.model.named_parameters() if value.requires_grad}

    # data

    def get_train_dataloader(self) -> torch.utils.data.DataLoader:
        stream = BatchStream(
            [len(row.token_ids) for row in self.train_dataset.rows],
            max_tokens=self.max_tokens,
            rows_per_batch=self.rows_per_batch,
            seed=self.args.seed,
            rank=self.args.process_index,
            world_size=self.args.world_size,
        )
        return torch.utils.data.DataLoader(
            self.train_dataset,
            batch_sampler=stream,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
        )

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """Micro-batches of an optimizer step and their denominators over all ranks: `[slot weights, blocks]`."""
        batches = [next(epoch_iterator) for _ in range(num_batches)]
        sums = torch.tensor(
            [[batch.weight_sum, float(batch.num_blocks)] for batch in batches], dtype=torch.float64, device=device
        ).sum(dim=0)
        return batches, self._over_ranks(sums)

    # optimization

    def create_optimizer(self, model=None):
        if self.optimizer is None:
            self.optimizer = self.optimizer_of(self.trained)
        return self.optimizer

    def create_scheduler(self, num_training_steps, optimizer=None):
        if self.lr_scheduler is None:
            self.lr_scheduler = LambdaLR(self.optimizer, self.schedule)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        self.accelerator.backward(loss)
        return loss.detach()

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Share of this micro-batch in the loss of the optimizer step, times the world size that averaging divides by."""
        slots, blocks = num_items_in_batch.float()
        result = self._forward(model, inputs, Denominators(slots=slots, blocks=blocks))
        sums = pack_sums(result)
        self._window = sums if self._window is None else self._window + sums
        self._window_tokens += inputs.num_tokens
        loss = result.loss * self.args.world_size
        if inputs.num_blocks == 0:
            # every rank must contribute to every gradient, or the others wait for it
            loss = loss + sum((parameter * 0).sum() for parameter in self.trained.values())
        return (loss, result) if return_outputs else loss

    def _forward(self, model, batch: TrainingBatch, denominators: Denominators | None) -> DSparkLoss:
        device = self.args.device
        features = self.features.read(batch.rows)
        contexts = [each.context.to(device, torch.float32) for each in features]
        teacher_TD = torch.cat([each.teacher.to(device) for each in features])
        outside = [each.outside.to(device) for each in features if each.outside is not None]
        outside_T = torch.cat(outside) if outside else None
        return model(batch.to(device), contexts, teacher_TD, denominators, outside_T)

    def floating_point_ops(self, inputs):
        return 0

    def _over_ranks(self, sums: torch.Tensor) -> torch.Tensor:
        if self.args.world_size > 1:
            dist.all_reduce(sums)
        return sums

    # logging and validation

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self._window is not None:
            now = time.monotonic()
            tokens = self._over_ranks(torch.tensor([float(self._window_tokens)], device=self.args.device)).item()
            logs |= metrics_from_sums(self._over_ranks(self._window.clone()))
            logs["tokens_per_second"] = tokens / max(now - self._window_started, 1e-9)
            self._window, self._window_tokens, self._window_started = None, 0, now
        super().log(logs, start_time)

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
        """Loss terms at fixed anchors and, unless sharded, accepted length of greedy drafts, on the held-out rows.

        The weights that scored best are kept in `best.safetensors`.
        """
        sharded = self.is_fsdp_enabled
        mine = self.eval_rows if sharded else self.eval_rows[self.args.process_index :: self.args.world_size]
        collate = Collator(
            anchors_per_row=self.eval_anchors_per_row,
            num_slots=self.data_collator.num_slots,
            decay=self.data_collator.decay,
            one_pack=self.data_collator.one_pack,
            deterministic=True,
        )
        self.model.eval()
        sums = torch.zeros(0)
        lengths: list[int] = []
        with torch.no_grad(), self._averaged():
            for row in mine:
                part = pack_sums(self._forward(self.model_wrapped, collate([(row, 0)]), None))
                sums = part if not len(sums) else sums + part
                if not sharded:
                    features = self.features.read([row])
                    lengths += accepted_lengths(
                        self.model.drafter, [row], features, anchors_per_row=self.eval_anchors_per_row
                    )
            drafted = torch.tensor([float(sum(lengths)), float(len(lengths))], device=self.args.device)
            if not len(sums):
                sums = torch.zeros(9 + 3 * self.data_collator.num_slots, dtype=torch.float64, device=self.args.device)
            if not sharded:
                sums, drafted = self._over_ranks(sums), self._over_ranks(drafted)
            metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics_from_sums(sums).items()}
            score = metrics[f"{metric_key_prefix}_tau"]
            if drafted[1] > 0:
                score = (drafted[0] / drafted[1]).item()
            metrics[f"{metric_key_prefix}_accepted_length"] = score
            self._keep_best(score)
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _keep_best(self, score: float) -> None:
        if self.state.best_metric is not None and score <= self.state.best_metric:
            return
        self.state.best_metric, self.state.best_global_step = score, self.state.global_step
        weights = {name: whole_tensor(value.detach()) for name, value in self.trained.items()}
        if self.args.should_save:
            folder = Path(self.args.output_dir)
            save_tensors(folder / BEST, weights)
            write_json(folder / "best.json", {"step": self.state.global_step, "accepted_length": score})

    def _determine_best_metric(self, metrics, trial):
        return False  # kept by `evaluate`, whatever the steps of saving are

    @contextlib.contextmanager
    def _averaged(self):
        with contextlib.nullcontext() if self.average is None else self.average.applied():
            yield

    # checkpoints

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the trained weights, and their average, to a checkpoint folder."""
        parts: dict[str, Mapping[str, torch.Tensor]] = {WEIGHTS: self.trained}
        if self.average is not None:
            parts[AVERAGE] = self.average.averages
        for name, tensors in parts.items():
            whole = {key: whole_tensor(value.detach()) for key, value in tensors.items()}
            if self.args.should_save:
                folder = Path(output_dir or self.args.output_dir)
                folder.mkdir(parents=True, exist_ok=True)
                save_tensors(folder / name, whole)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        load_into(self.trained, Path(resume_from_checkpoint) / WEIGHTS)

    def prepare_average(self, checkpoint: Path | None) -> None:
        """Start the weight average, or take it up where the checkpoint left it."""
        if self.ema_decay:
            self.average = WeightAverage(self.trained, self.ema_decay)
            if checkpoint is not None:
                load_into(self.average.averages, checkpoint / AVERAGE)


class _StepCallback(TrainerCallback):
    """What happens between optimizer steps: average, clock, progress."""

    def __init__(self, trainer: DSparkTrainer, on_progress: Callable[[TrainingProgress], None] | None):
        self.trainer = trainer
        self.on_progress = on_progress
        self.logs: dict[str, float] = {}

    def on_train_begin(self, args, state, control, **kwargs):
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}" if state.global_step else None
        self.trainer.prepare_average(checkpoint)
        self.trainer._window_started = time.monotonic()
        if isinstance(self.trainer.schedule, TimeCosine):
            self.trainer.schedule.pause()

    def on_step_end(self, args, state, control, **kwargs):
        trainer = self.trainer
        if trainer.average is not None:
            trainer.average.update(state.global_step)
        timed = isinstance(trainer.schedule, TimeCosine)
        fraction = trainer.schedule.tick() if timed else state.global_step / max(state.max_steps, 1)
        if timed and trainer._over_ranks(torch.tensor([float(fraction >= 1)], device=args.device)).item():
            control.should_training_stop = control.should_save = True
        control.should_log |= control.should_training_stop
        if self.on_progress is not None and state.is_world_process_zero:
            total = None if timed else state.max_steps
            self.on_progress(TrainingProgress(state.global_step, total, min(fraction, 1.0), dict(self.logs)))

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs.update({name: value for name, value in (logs or {}).items() if isinstance(value, float)})

    def on_evaluate(self, args, state, control, **kwargs):
        if isinstance(self.trainer.schedule, TimeCosine):
            self.trainer.schedule.pause()

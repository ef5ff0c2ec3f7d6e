"""From rows to a trained drafter: builds it, wires features, batches and schedule to the trainer, resumes, keeps the best.

One call, `train_drafter`, in one process or under `torchrun` / `accelerate launch`. It knows nothing of prompts, calibration or
the Hub.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments
from transformers.utils.logging import get_logger

from dspark_hf.models import DSparkDrafter

from .adapt import add_adapter, load_start
from .batches import BatchStream, Collator
from .cache import FeatureCache
from .checkpoints import AVERAGE, WEIGHTS, check_contract, last_checkpoint, load_into, resume_contract
from .features import FeatureSource, TargetFeatures, check_teacher_head, describe_target, teacher_head_of
from .losses import LossWeights
from .new_drafter import freeze_shared, new_drafter
from .objective import DraftObjective
from .optimizers import build_optimizer
from .precision import usable_autocast
from .prepare import write_json
from .recipe import Recipe, TrainSection
from .rows import Row, fingerprint, fit_rows
from .schedule import StepCosine, TimeCosine, warmup_steps
from .trainer import BEST, DSparkTrainer, TrainingProgress


logger = get_logger(__name__)

FINISHED = "training.json"
BEFORE = "before.json"
UNBOUNDED = 10**9
CACHE_SECONDS = 7 * 24 * 3600  # other ranks wait while one builds the feature cache


@dataclass(frozen=True)
class TrainingResult:
    """A finished training.

    Attributes:
        drafter: [`DSparkDrafter`] in eval mode with the weights that are to be exported, or a `PeftModel` around one.
        steps: optimizer steps.
        metrics: of the last validation and the last log, plain floats; `best_accepted_length` where there was validation,
            `accepted_length_before` where the run adapted a published drafter.
        folder: of checkpoints and logs.
    """

    drafter: nn.Module
    steps: int
    metrics: dict[str, float]
    folder: Path


def loss_weights_of(train: TrainSection) -> LossWeights:
    """The recipe's loss knobs."""
    return LossWeights(
        ce=train.ce_weight,
        l1=train.l1_weight,
        confidence=train.confidence_weight,
        kl=train.kl_weight,
        tau=train.tau_weight,
        decay=train.loss_decay,
        ce_labels=train.ce_labels,
        confidence_detach=train.confidence_detach,
    )


def train_drafter(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Row],
    output_dir: str | Path,
    *,
    recipe: Recipe,
    eval_rows: Sequence[Row] = (),
    features: FeatureSource | None = None,
    drafter: Any = None,
    on_progress: Callable[[TrainingProgress], None] | None = None,
    on_cache_progress: Callable[[int, int], None] | None = None,
) -> TrainingResult:
    """Train the drafter a recipe describes. Called again after a kill, it goes on from the last whole checkpoint.

    A run bounded by steps or epochs ends with the same weights, bit for bit on a CPU, however often it was killed. One bounded
    by `train.max_minutes` resumes with the time it has left, but is not reproducible.

    Args:
        target (`PreTrainedModel`): frozen; gives features, embedding and head.
        tokenizer: chooses the mask token; not used where `drafter` is given.
        rows: training rows.
        output_dir (`str` or `Path`): of checkpoints, logs and, with `data.features: cache`, the feature cache.
        recipe ([`Recipe`]): its sections `target`, `data` (features only), `drafter` and `train`.
        eval_rows: held-out rows; none means no validation and the last weights are kept.
        features ([`FeatureSource`], *optional*): instead of what `recipe.data.features` says.
        drafter ([`DSparkDrafter`] or `PeftModel`, *optional*): to train instead of a new one.
        on_progress (callable, *optional*): called with a [`TrainingProgress`] after every step.
        on_cache_progress (callable, *optional*): called with (shards done, shards) while the cache is built.

    Returns:
        [`TrainingResult`]

    Raises:
        ValueError: no usable row; a run of other settings in `output_dir` (names the fields); a target whose head is not a
            soft-capped linear one; Muon under FSDP.
    """
    output = Path(output_dir)
    train = recipe.train
    arguments = training_arguments(recipe, output, evaluate=bool(eval_rows))
    target = target.to(arguments.device).eval()
    rows = fit_rows(rows, train.max_row_tokens)
    eval_rows = fit_rows(eval_rows, train.max_row_tokens)[: train.eval_rows] if eval_rows and train.eval_rows else []
    drafter = drafter if drafter is not None else start_drafter(target, tokenizer, rows, recipe)
    plain = drafter if isinstance(drafter, DSparkDrafter) else drafter.get_base_model()
    config = plain.config
    if arguments.device.type == "cuda" if train.attention == "auto" else train.attention == "flex":
        plain.set_attn_implementation("flex_attention")

    contract = resume_contract(
        config,
        recipe,
        target=describe_target(target),
        rows=fingerprint(rows),
        features=recipe.data.cache_dtype if recipe.data.features == "cache" else "online",
        world_size=arguments.world_size,
    )
    check_contract(output, contract, write=arguments.should_save)
    weights = loss_weights_of(train)
    head = teacher_head_of(target)
    if weights.needs_teacher:
        check_teacher_head(target, head)
    if weights.confidence == 0 and drafter.confidence_head is not None:
        # no term reaches it: it must not wait for a gradient
        drafter.confidence_head.requires_grad_(False)
    objective = DraftObjective(drafter, head, weights=weights, backend=train.loss_backend, chunk=train.loss_chunk)
    if (output / FINISHED).is_file():
        return _finished(objective, output, train)

    with arguments.main_process_first(desc="features"):
        # one process a machine builds the cache, the others find it
        features = features if features is not None else feature_source(target, plain, rows, eval_rows, output, recipe)
        if isinstance(features, FeatureCache):
            features.build(on_cache_progress)
    arguments.max_steps = total_steps(rows, train, arguments.world_size)
    trainer = DSparkTrainer(
        objective,
        arguments,
        rows=rows,
        eval_rows=eval_rows,
        features=features,
        collator=Collator(
            anchors_per_row=train.anchors_per_row,
            num_slots=config.num_slots,
            decay=train.loss_decay,
            seed=train.seed,
            one_pack=config._attn_implementation == "flex_attention",
        ),
        max_tokens=train.max_tokens,
        rows_per_batch=train.rows_per_batch,
        optimizer_of=functools.partial(build_optimizer, train=train),
        schedule=schedule_of(train, arguments.max_steps),
        ema_decay=train.ema_decay,
        eval_anchors_per_row=train.eval_anchors_per_row,
        on_progress=on_progress,
    )
    if trainer.is_fsdp_enabled and train.optimizer == "muon":
        raise ValueError(
            "train.optimizer: muon needs whole matrices, FSDP shards them; use adamw, or train without FSDP."
        )
    if recipe.drafter.start_from is not None and eval_rows and not trainer.is_fsdp_enabled:
        measure_start(trainer, output)
    checkpoint = last_checkpoint(output) if arguments.should_save or arguments.world_size > 1 else None
    if checkpoint is not None:
        logger.info(f"Going on from {checkpoint}.")
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    return _finish(trainer, objective, output, train)


def measure_start(trainer: DSparkTrainer, output: Path) -> None:
    """Record, once a run, how long the published drafter's drafts are accepted before it is adapted."""
    path = output / BEFORE
    if path.is_file():
        return
    metrics = trainer.evaluate()
    trainer.state.best_metric = None
    if trainer.args.should_save:
        write_json(path, {"accepted_length": metrics["eval_accepted_length"], "tau": metrics["eval_tau"]})


def start_drafter(target, tokenizer, rows: Sequence[Row], recipe: Recipe) -> nn.Module:
    """A new drafter, or the published one a recipe starts from, with a LoRA adapter if it asks for one."""
    section = recipe.drafter
    if section.start_from is None:
        return new_drafter(
            target,
            tokenizer,
            rows,
            section,
            seed=recipe.train.seed,
            target_name=recipe.target.name_or_path,
            target_revision=recipe.target.revision,
            thinking=recipe.data.thinking,
        )
    drafter = load_start(section.start_from, target)
    freeze_shared(drafter)
    if section.lora_rank is None:
        return drafter
    return add_adapter(drafter, rank=section.lora_rank, alpha=section.lora_alpha, seed=recipe.train.seed)


def feature_source(
    target: PreTrainedModel,
    drafter: DSparkDrafter,
    rows: list[Row],
    eval_rows: list[Row],
    output: Path,
    recipe: Recipe,
) -> FeatureSource:
    """What `data.features` asks for: the target itself, or a cache beside the checkpoints.

    A cache for a pruned drafter also keeps what the loss needs to leave the rest of the target's head alone.
    """
    data, train = recipe.data, recipe.train
    kept = data.features == "cache" and train.loss_backend != "eager" and loss_weights_of(train).needs_teacher
    online = TargetFeatures(
        target,
        drafter.config.target_layer_ids,
        max_tokens=max(train.max_tokens, 2048),
        vocabulary_U=drafter.draft_to_target() if kept and teacher_head_of(target).softcap is None else None,
    )
    if data.features == "online":
        return online
    return FeatureCache(
        output / "features",
        online,
        [*rows, *eval_rows],
        dtype=data.cache_dtype,
        shard_mb=data.cache_shard_mb,
        limit_gb=data.cache_limit_gb,
    )


def total_steps(rows: Sequence[Row], train: TrainSection, world_size: int) -> int:
    """Optimizer steps of a run: `max_steps`, or `epochs` over the rows; unbounded where time decides."""
    if train.max_steps is not None:
        return train.max_steps
    if train.max_minutes is not None:
        return UNBOUNDED
    stream = BatchStream(
        [len(row.token_ids) for row in rows],
        max_tokens=train.max_tokens,
        rows_per_batch=train.rows_per_batch,
        seed=train.seed,
    )
    return max(round(train.epochs * stream.batches_per_epoch() / (train.gradient_accumulation_steps * world_size)), 1)


def schedule_of(train: TrainSection, steps: int) -> StepCosine | TimeCosine:
    """The recipe's learning-rate schedule."""
    floor = train.final_learning_rate_fraction
    if train.max_minutes is not None and train.max_steps is None:
        return TimeCosine(60 * train.max_minutes, train.min_warmup_steps, floor)
    return StepCosine(
        steps, warmup_steps(steps, fraction=train.warmup_fraction, minimum=train.min_warmup_steps), floor
    )


def training_arguments(recipe: Recipe, output: Path, *, evaluate: bool) -> TrainingArguments:
    """The recipe in the words of `transformers.Trainer`. Also starts the process group under `torchrun`."""
    train = recipe.train
    cpu = not torch.cuda.is_available()
    arguments = TrainingArguments(
        output_dir=str(output),
        use_cpu=cpu,
        ddp_backend="gloo" if cpu and "LOCAL_RANK" in os.environ else None,
        max_steps=1,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=train.gradient_accumulation_steps,
        learning_rate=train.learning_rate,
        adam_beta1=train.adam_beta1,
        adam_beta2=train.adam_beta2,
        weight_decay=train.weight_decay,
        max_grad_norm=train.max_grad_norm,
        bf16=usable_autocast(train.bf16, torch.device("cpu" if cpu else "cuda")),
        seed=train.seed,
        dataloader_num_workers=train.dataloader_workers,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        ddp_timeout=CACHE_SECONDS,
        logging_steps=train.logging_steps,
        logging_nan_inf_filter=False,
        eval_strategy="steps" if evaluate and train.eval_rows else "no",
        eval_steps=train.eval_steps,
        save_steps=train.save_steps,
        save_total_limit=train.save_total_limit,
        report_to=train.report_to or "none",
        disable_tqdm=True,
    )
    if arguments.world_size > 1:
        atexit.register(_leave_group)
    return arguments


def _leave_group() -> None:
    """
    End the group's threads while the interpreter still runs: one that asks for its lock later aborts a rank whose work is done.

    They end with the last reference to the group, and a trainer, which holds one, is a cycle that only the collector frees.
    """
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()
    gc.collect()


def _finish(trainer: DSparkTrainer, objective: DraftObjective, output: Path, train: TrainSection) -> TrainingResult:
    """Validate once more if the last step was not, keep the chosen weights, and say that the run is over."""
    if trainer.eval_rows and not any(
        "eval_tau" in entry and entry["step"] == trainer.state.global_step for entry in trainer.state.log_history
    ):
        trainer.evaluate()
    metrics: dict[str, float] = {}
    for entry in trainer.state.log_history:
        metrics |= {name: value for name, value in entry.items() if isinstance(value, (int, float)) and name != "step"}
    if trainer.eval_rows:
        metrics["best_accepted_length"] = trainer.state.best_metric
    if (output / BEFORE).is_file():
        metrics["accepted_length_before"] = json.loads((output / BEFORE).read_text(encoding="utf-8"))[
            "accepted_length"
        ]
    trainer.save_model(str(output / "last"))
    if trainer.args.should_save:
        write_json(output / FINISHED, {"steps": trainer.state.global_step, "metrics": metrics})
    trainer.accelerator.wait_for_everyone()
    return _finished(objective, output, train)


def _finished(objective: DraftObjective, output: Path, train: TrainSection) -> TrainingResult:
    """The result of a run that is over, from its folder."""
    record = json.loads((output / FINISHED).read_text(encoding="utf-8"))
    last = output / "last" / (AVERAGE if train.ema_decay else WEIGHTS)
    chosen = output / BEST if train.keep == "best" and (output / BEST).is_file() else last
    trained = {name: value for name, value in objective.named_parameters() if value.requires_grad}
    load_into(trained, chosen)
    drafter = objective.drafter.eval()
    plain = drafter if isinstance(drafter, DSparkDrafter) else drafter.get_base_model()
    plain.set_attn_implementation("sdpa")
    return TrainingResult(drafter=drafter, steps=record["steps"], metrics=record["metrics"], folder=output)

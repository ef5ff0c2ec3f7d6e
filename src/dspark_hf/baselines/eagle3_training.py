"""Training an Eagle3 drafter on the same rows and features as any other drafter.

Loss: at every entry and depth, the cross entropy of the draft against the target's distribution (over the draft vocabulary),
averaged per depth and weighted `step_loss_decay ** (depth - 1)`. Entry i predicts the token at i + 2 at depth 1; entries count
from the last prompt token on, so that the first token drafted after an answer's first is learned too. It knows nothing of
files or of evaluation.
"""

# B rows, T entries, K depths, N supervised (entry, depth) pairs, D hidden, U draft vocabulary

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import log_softmax
from torch.nn.utils.rnn import pad_sequence
from transformers.utils.logging import get_logger

from dspark_hf.training.features import FeatureSource, RowFeatures
from dspark_hf.training.optimizers import build_optimizer
from dspark_hf.training.precision import usable_autocast
from dspark_hf.training.recipe import TrainSection
from dspark_hf.training.rows import Row
from dspark_hf.training.teacher import TeacherHead, covered_head, with_outside

from .eagle3 import Eagle3Drafter


logger = get_logger(__name__)


@dataclass(frozen=True)
class Eagle3Training:
    """
    Attributes:
        max_steps (`int`, *optional*), max_minutes (`float`, *optional*): whichever comes first ends it; at least one is given.
        rows_per_batch (`int`): rows a step.
        optimizer (`str`), learning_rate, muon_learning_rate (`float`), muon_ns_steps (`int`): as in a recipe's `train` section.
        warmup_steps (`int`): linear warm-up, then cosine to 0.
        bf16 (`bool`): autocast; parameters stay fp32.
        seed (`int`): of the row order.
    """

    max_steps: int | None = None
    max_minutes: float | None = None
    rows_per_batch: int = 4
    optimizer: str = "adamw"
    learning_rate: float = 6e-4
    muon_learning_rate: float = 0.01
    muon_ns_steps: int = 5
    warmup_steps: int = 20
    max_grad_norm: float = 1.0
    bf16: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_steps is None and self.max_minutes is None:
            raise ValueError("Eagle3Training needs max_steps or max_minutes")

    @property
    def optimization(self) -> TrainSection:
        """The same in the words of a recipe."""
        return TrainSection(
            optimizer=self.optimizer,
            learning_rate=self.learning_rate,
            muon_learning_rate=self.muon_learning_rate,
            muon_ns_steps=self.muon_ns_steps,
        )

    def progress(self, step: int, seconds: float) -> float:
        """Part of the training that is done, in [0, 1]."""
        by_steps = 0.0 if self.max_steps is None else step / self.max_steps
        by_time = 0.0 if self.max_minutes is None else seconds / (60 * self.max_minutes)
        return min(max(by_steps, by_time), 1.0)


def train_eagle3(
    drafter: Eagle3Drafter,
    rows: Sequence[Row],
    features: FeatureSource,
    teacher_head: TeacherHead,
    settings: Eagle3Training,
) -> list[float]:
    """
    Trains in place; embedding and head stay as they are.

    Args:
        drafter ([`Eagle3Drafter`]): fp32 parameters.
        rows, features: token-exact answers, and the target's features for them.
        teacher_head ([`TeacherHead`]): rebuilds the target's distribution.

    Returns:
        `list[float]`: the loss of every step.
    """
    for module in (drafter.embed_tokens, drafter.lm_head):
        module.weight.requires_grad_(False)
    trained = {name: parameter for name, parameter in drafter.named_parameters() if parameter.requires_grad}
    optimizer = build_optimizer(trained, settings.optimization)
    peaks = [group["lr"] for group in optimizer.param_groups]
    losses: list[float] = []
    autocast = usable_autocast(settings.bf16, drafter.device)
    started = time.monotonic()
    drafter.train()
    for batch in _endless_batches(rows, settings):
        done = settings.progress(len(losses), time.monotonic() - started)
        if done >= 1:
            break
        warm = min(1.0, (len(losses) + 1) / max(settings.warmup_steps, 1))
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * warm * 0.5 * (1 + math.cos(math.pi * done))
        with torch.autocast(drafter.device.type, torch.bfloat16, enabled=autocast):
            loss = eagle3_loss(drafter, batch, features.read(batch), teacher_head)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained.values(), settings.max_grad_norm)
        optimizer.step()
        losses.append(loss.item())
        if len(losses) % 100 == 0:
            logger.info(f"eagle3: step {len(losses)}, loss {np.mean(losses[-100:]):.3f}, {done:.0%} done")
    drafter.eval()
    return losses


def eagle3_loss(
    drafter: Eagle3Drafter, rows: Sequence[Row], features: Sequence[RowFeatures], teacher_head: TeacherHead
) -> torch.Tensor:
    """Training-time test over whole rows: a scalar."""
    device = drafter.device
    tokens = [torch.tensor(row.token_ids, device=device) for row in rows]
    next_ids_BT = pad_sequence([each[1:] for each in tokens], batch_first=True)
    context_BTF = pad_sequence([each.context.to(device) for each in features], batch_first=True)
    lengths_B1 = torch.tensor([len(each) - 1 for each in tokens], device=device)[:, None]
    entry_T = torch.arange(next_ids_BT.shape[1], device=device)
    depths = drafter.config.block_size
    hidden_BTKD = drafter(next_ids_BT, context_BTF, steps=depths, valid=entry_T < lengths_B1)

    # slot k (from 0) of entry i predicts token i + 2 + k; the teacher row of answer token j is j - 1 - prompt length
    first_B1 = torch.tensor([len(row.prompt_ids) - 1 for row in rows], device=device)[:, None]
    target_TK = entry_T[:, None] + 1 + torch.arange(depths, device=device)
    target_BTK = target_TK.expand(len(rows), -1, -1)
    supervised_BTK = (entry_T >= first_B1)[..., None] & (target_BTK < lengths_B1[..., None])
    starts = np.cumsum([0, *(len(each.teacher) for each in features)])[:-1]
    offset_B1 = torch.from_numpy(starts).to(device)[:, None] - first_B1 - 1
    teacher_ND = torch.cat([each.teacher.to(device) for each in features])
    index_N = (target_BTK + offset_B1[..., None])[supervised_BTK]
    depth_N = torch.arange(depths, device=device).expand_as(target_BTK)[supervised_BTK]

    with torch.no_grad():
        # every teacher row is needed at several depths: its distribution is formed once
        kept_U = drafter.draft_to_target()
        outside = [each.outside for each in features if each.outside is not None]
        if kept_U is not None and outside and teacher_head.softcap is None:
            # one more column stands for all tokens that the drafter cannot propose
            states = with_outside(teacher_ND, torch.cat(outside).to(device), teacher_head.weight_VD.dtype)
            p_NU = TeacherHead(covered_head(teacher_head, kept_U)).logits(states).softmax(-1)[:, :-1]
        else:
            p_NU = teacher_head.logits(teacher_ND).softmax(-1)
            p_NU = p_NU if kept_U is None else p_NU[:, kept_U]
    log_q_NU = log_softmax(drafter.next_logits(hidden_BTKD[supervised_BTK]), dim=-1)
    cross_N = -(p_NU[index_N] * log_q_NU).sum(-1)
    counts_K = torch.bincount(depth_N, minlength=depths).clamp(min=1)
    weight_K = drafter.config.step_loss_decay ** torch.arange(depths, device=device) / counts_K
    return (cross_N * weight_K[depth_N]).sum()


def _endless_batches(rows: Sequence[Row], settings: Eagle3Training) -> Iterator[list[Row]]:
    """Rows in a new order each epoch; a batch holds rows of similar length."""
    generator = np.random.default_rng(settings.seed)
    size = settings.rows_per_batch
    while True:
        order = generator.permutation(len(rows))
        groups = [
            sorted(order[start : start + 16 * size].tolist(), key=lambda index: len(rows[index].token_ids))
            for start in range(0, len(order), 16 * size)
        ]
        batches = [group[start : start + size] for group in groups for start in range(0, len(group), size)]
        for number in generator.permutation(len(batches)).tolist():
            yield [rows[index] for index in batches[number]]

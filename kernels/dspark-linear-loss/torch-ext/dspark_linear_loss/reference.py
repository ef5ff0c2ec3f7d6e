"""The training loss of a drafter written plainly: the definition, which keeps full [N, U] and [N, V] tensors.

    x = softcap(hidden @ lm_head.T) + latent @ w2.T         draft logits, q = softmax(x)
    p = softmax(softcap(teacher @ teacher_head.T))          target distribution
    ce = -log q(label)        l1 = sum over the full vocabulary of |p - q|        accept = 1 - l1 / 2

It knows nothing of weights, anchors or of how losses are averaged.

Legend: N rows, D hidden, Dt target hidden, U draft vocabulary, V target vocabulary, r rank.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn.functional import linear


IGNORED = -100


class LinearLoss(NamedTuple):
    """Loss of every row, and its weighted sum.

    Args:
        ce (`torch.Tensor`): fp32 [N], cross entropy with the label; 0 where the label is ignored or outside the draft
            vocabulary.
        l1 (`torch.Tensor`): fp32 [N] in [0, 2], sum |p - q|; target mass outside the draft vocabulary counts.
        accept (`torch.Tensor`): fp32 [N] in [0, 1], probability that a sample of q is accepted. Not differentiable.
        loss (`torch.Tensor`, *optional*): fp32 scalar, sum(ce * ce_weight + l1 * l1_weight) when weights were given.
    """

    ce: torch.Tensor
    l1: torch.Tensor
    accept: torch.Tensor
    loss: torch.Tensor | None


def cap(logits: torch.Tensor, softcap: float | None) -> torch.Tensor:
    """softcap * tanh(logits / softcap), or the logits where there is no cap."""
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


def draft_labels(labels_N: torch.Tensor, draft_to_target: torch.Tensor | None, vocabulary: int) -> torch.Tensor:
    """Labels in the draft vocabulary; `IGNORED` where they are negative or outside it."""
    if draft_to_target is None:
        return torch.where(labels_N < 0, IGNORED, labels_N)
    target_to_draft = torch.full((vocabulary,), IGNORED, dtype=torch.int64, device=labels_N.device)
    target_to_draft[draft_to_target] = torch.arange(draft_to_target.numel(), device=labels_N.device)
    return torch.where(labels_N < 0, IGNORED, target_to_draft[labels_N.clamp_min(0)])


def linear_loss(
    hidden: torch.Tensor,
    latent: torch.Tensor | None,
    teacher: torch.Tensor,
    lm_head: torch.Tensor,
    w2: torch.Tensor | None,
    teacher_head: torch.Tensor,
    labels: torch.Tensor,
    *,
    softcap: float | None = None,
    teacher_softcap: float | None = None,
    draft_to_target: torch.Tensor | None = None,
    ce_weight: torch.Tensor | None = None,
    l1_weight: torch.Tensor | None = None,
) -> LinearLoss:
    """Loss per row by autograd over materialised logits, in the precision of the inputs.

    Arguments and results are those of [`chunked.linear_loss`].
    """
    base = cap(linear(hidden, lm_head.detach()), softcap)
    draft_logits = base if latent is None else base + linear(latent, w2)
    log_q = draft_logits.log_softmax(-1)
    p = cap(linear(teacher.detach(), teacher_head.detach()), teacher_softcap).softmax(-1)
    covered = p if draft_to_target is None else p[:, draft_to_target]
    l1 = (covered - log_q.exp()).abs().sum(-1)
    if draft_to_target is not None:
        l1 = l1 + (p.sum(-1) - covered.sum(-1))
    picked = draft_labels(labels, draft_to_target, teacher_head.shape[0])
    ce = torch.nn.functional.nll_loss(log_q, picked, ignore_index=IGNORED, reduction="none")
    accept = (1 - l1.detach() / 2).clamp(0, 1)
    loss = None
    if ce_weight is not None or l1_weight is not None:
        loss = sum((part * weight).sum() for part, weight in ((ce, ce_weight), (l1, l1_weight)) if weight is not None)
    return LinearLoss(ce, l1, accept, loss)

"""Loss and gradient of a group of logits rows in plain torch, in place and a few rows at a time.

    d ce / d x_v = q_v - [v = label]          d l1 / d x_v = q_v * (s_v - S),  s = sign(q - p),  S = sum q s

It knows nothing of heads or hidden states.

Legend: C rows of one chunk, U draft vocabulary, V target vocabulary.
"""

from __future__ import annotations

import torch


BLOCK_BYTES = 2 << 20  # fp32 scratch per buffer: three of them stay in the L2 cache of a CPU core


def loss_rows(
    draft_logits_CU: torch.Tensor,
    target_logits_CV: torch.Tensor,
    labels_C: torch.Tensor,
    draft_to_target: torch.Tensor | None,
    ce_weight_C: torch.Tensor,
    l1_weight_C: torch.Tensor,
    *,
    gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`(ce, l1)` of each row; with `gradient`, draft logits become d(ce_weight * ce + l1_weight * l1)/d(logits).

    Negative labels are ignored. Both logits tensors may be overwritten.
    """
    rows, width = draft_logits_CU.shape
    ce_C = torch.zeros(rows, device=draft_logits_CU.device)
    l1_C = torch.zeros(rows, device=draft_logits_CU.device)
    step = max(1, BLOCK_BYTES // (4 * width)) if draft_logits_CU.device.type == "cpu" else rows
    for start in range(0, rows, step):
        part = slice(start, start + step)
        x, y = draft_logits_CU[part].float(), target_logits_CV[part].float()
        label, ce_weight, l1_weight = labels_C[part], ce_weight_C[part, None], l1_weight_C[part, None]
        known = label >= 0
        index = label.clamp_min(0)[:, None]
        label_logit = x.gather(1, index)[:, 0]
        q, normalizer = _softmax(x)
        ce_C[part] = torch.where(known, normalizer - label_logit, 0.0)
        p, _ = _softmax(y)
        outside = 0.0
        if draft_to_target is not None:
            mass = p.sum(-1)
            p = p.index_select(1, draft_to_target)
            outside = mass - p.sum(-1)
        difference = torch.sub(q, p, out=p)
        l1_C[part] = difference.abs().sum(-1) + outside
        if gradient:
            sign = difference.sign_()
            total = torch.linalg.vecdot(q, sign)[:, None]
            known_weight = torch.where(known[:, None], ce_weight, 0.0)
            # q * (ce + l1 * (sign - total)), folded into one multiply-add over the row.
            grad = sign.mul_(l1_weight).add_(known_weight - l1_weight * total).mul_(q)
            grad.scatter_add_(1, index, -known_weight)
            draft_logits_CU[part] = grad
    return ce_C, l1_C


def _softmax(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`(softmax, logsumexp)` of fp32 rows, overwriting them."""
    peak = x.amax(-1, keepdim=True)
    weights = x.sub_(peak).exp_()
    total = weights.sum(-1, keepdim=True)
    return weights.div_(total), (peak + total.log())[:, 0]

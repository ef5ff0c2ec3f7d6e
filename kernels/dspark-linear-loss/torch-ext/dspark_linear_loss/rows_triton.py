"""Loss and gradient of a group of logits rows in one Triton launch; same meaning as `rows_torch.loss_rows`.

Three sweeps over a row that stays in the L2 cache: normalisers; |p - q| and sum q sign(q - p); the gradient, written over
the draft logits.

Legend: C rows of one chunk, U draft vocabulary, V target vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def row_normalizer(row, width, BLOCK: tl.constexpr):
    """logsumexp of one row, kept per lane until the end."""
    lane = tl.arange(0, BLOCK)
    peak = tl.full([BLOCK], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, width, BLOCK):
        x = tl.load(row + start + lane, mask=start + lane < width, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(peak, x)
        safe = tl.where(higher > -float("inf"), higher, 0.0)
        total = total * tl.exp(peak - safe) + tl.exp(x - safe)
        peak = higher
    highest = tl.max(peak, 0)
    return highest + tl.log(tl.sum(tl.where(peak > -float("inf"), total * tl.exp(peak - highest), 0.0), 0))


@triton.jit
def probabilities(draft_row, target_row, draft_to_target, vocab, U, draft_normalizer, target_normalizer):
    """`(q, p)` over one block of the draft vocabulary."""
    mask = vocab < U
    column = vocab
    if draft_to_target is not None:
        column = tl.load(draft_to_target + vocab, mask=mask, other=0)
    x = tl.load(draft_row + vocab, mask=mask, other=-float("inf")).to(tl.float32)
    y = tl.load(target_row + column, mask=mask, other=-float("inf")).to(tl.float32)
    return tl.exp(x - draft_normalizer), tl.exp(y - target_normalizer)


@triton.jit
def loss_row_kernel(
    draft,  # [C, U], overwritten by d(loss)/d(logits) if GRADIENT
    draft_stride,
    target,  # [C, V]
    target_stride,
    labels,  # [C] int64, negative is ignored
    draft_to_target,  # [U] int64 or None
    ce_weights,  # [C] fp32, also l1_weights
    l1_weights,
    ce,  # out [C] fp32, also l1
    l1,
    U,
    V,
    BLOCK: tl.constexpr,
    GRADIENT: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    draft_row, target_row = draft + row * draft_stride, target + row * target_stride
    draft_normalizer = row_normalizer(draft_row, U, BLOCK)
    target_normalizer = row_normalizer(target_row, V, BLOCK)
    lane = tl.arange(0, BLOCK)
    distance = tl.zeros([BLOCK], tl.float32)
    covered = tl.zeros([BLOCK], tl.float32)
    signed = tl.zeros([BLOCK], tl.float32)
    for start in range(0, U, BLOCK):
        vocab = start + lane
        q, p = probabilities(draft_row, target_row, draft_to_target, vocab, U, draft_normalizer, target_normalizer)
        difference = q - p
        distance += tl.abs(difference)
        covered += p
        signed += tl.where(difference > 0, q, tl.where(difference < 0, -q, 0.0))
    total = tl.sum(signed, 0)
    outside = 0.0
    if draft_to_target is not None:
        outside = tl.maximum(1.0 - tl.sum(covered, 0), 0.0)
    label = tl.load(labels + row)
    known = label >= 0
    label_logit = tl.load(draft_row + tl.maximum(label, 0)).to(tl.float32)
    tl.store(ce + row, tl.where(known, draft_normalizer - label_logit, 0.0))
    tl.store(l1 + row, tl.sum(distance, 0) + outside)
    if GRADIENT:
        ce_weight = tl.where(known, tl.load(ce_weights + row), 0.0)
        l1_weight = tl.load(l1_weights + row)
        for start in range(0, U, BLOCK):
            vocab = start + lane
            q, p = probabilities(draft_row, target_row, draft_to_target, vocab, U, draft_normalizer, target_normalizer)
            difference = q - p
            sign = tl.where(difference > 0, 1.0, tl.where(difference < 0, -1.0, 0.0))
            grad = q * (ce_weight + l1_weight * (sign - total)) - tl.where(vocab == label, ce_weight, 0.0)
            tl.store(draft_row + vocab, grad.to(draft.dtype.element_ty), mask=vocab < U)


def loss_rows(draft_logits_CU, target_logits_CV, labels_C, draft_to_target, ce_weight_C, l1_weight_C, *, gradient):
    """See [`rows_torch.loss_rows`]."""
    rows, width = draft_logits_CU.shape
    ce_C, l1_C = torch.empty(2, rows, device=draft_logits_CU.device)
    loss_row_kernel[(rows,)](
        draft_logits_CU,
        draft_logits_CU.stride(0),
        target_logits_CV,
        target_logits_CV.stride(0),
        labels_C,
        draft_to_target,
        ce_weight_C.contiguous(),
        l1_weight_C.contiguous(),
        ce_C,
        l1_C,
        width,
        target_logits_CV.shape[1],
        BLOCK=min(4096 if draft_to_target is None else 2048, triton.next_power_of_2(width)),
        GRADIENT=gradient,
        num_warps=8,
    )
    return ce_C, l1_C

"""Fused linear + Markov + cross entropy + L1 loss, a few rows at a time: never a full [N, V] tensor.

With weights known beforehand the gradients of hidden, latent and w2 are formed during the forward pass, in place of the
logits, so nothing of vocabulary size is kept and no product is repeated. Without weights, `ce` and `l1` of each row are
differentiable and the backward pass computes the chunk's logits again.

The matrix products are the library's; the row arithmetic is `rows_torch` or `rows_triton`, passed in as `rows`.

Legend: N rows, C rows of a chunk, D hidden, Dt target hidden, U draft vocabulary, V target vocabulary, r rank.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .reference import LinearLoss, draft_labels
from .rows_torch import loss_rows


CHUNK = 512


def _product_dtype(head: torch.Tensor) -> torch.dtype:
    kind = head.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else head.dtype


def _cap_(logits: torch.Tensor, softcap: float | None) -> torch.Tensor:
    return logits if softcap is None else logits.div_(softcap).tanh_().mul_(softcap)


class _Chunks:
    """Logits and products of one call, chunk by chunk, in the type of the heads."""

    def __init__(self, hidden, latent, teacher, lm_head, w2, teacher_head, softcap, teacher_softcap, chunk):
        draft_dtype, teacher_dtype = _product_dtype(lm_head), _product_dtype(teacher_head)
        self.hidden, self.lm_head = hidden.detach().to(draft_dtype), lm_head.detach().to(draft_dtype)
        self.latent = None if latent is None else latent.detach().to(draft_dtype)
        self.w2 = None if w2 is None else w2.detach().to(draft_dtype)
        self.teacher, self.teacher_head = teacher.detach().to(teacher_dtype), teacher_head.detach().to(teacher_dtype)
        self.softcap, self.teacher_softcap = softcap, teacher_softcap
        size = min(chunk, hidden.shape[0])
        # Two buffers for the whole call: a fresh 64 MB tensor per chunk costs more in page faults than its arithmetic.
        self.draft_buffer = self.hidden.new_empty(size, lm_head.shape[0])
        self.teacher_buffer = self.teacher.new_empty(size, teacher_head.shape[0])
        self.parts = [slice(start, min(start + size, len(hidden))) for start in range(0, len(hidden), max(size, 1))]

    def logits(self, part: slice):
        """`(draft logits, teacher logits, d softcap)` of one chunk; the first two live in the buffers."""
        rows = part.stop - part.start
        x, y = self.draft_buffer[:rows], self.teacher_buffer[:rows]
        _cap_(torch.mm(self.hidden[part], self.lm_head.t(), out=x), self.softcap)
        slope = None if self.softcap is None else 1 - (x / self.softcap).square_()
        if self.latent is not None:
            torch.addmm(x, self.latent[part], self.w2.t(), out=x)
        _cap_(torch.mm(self.teacher[part], self.teacher_head.t(), out=y), self.teacher_softcap)
        return x, y, slope

    def products(self, part: slice, grad, slope, d_hidden, d_latent, d_w2) -> None:
        """Turn d(logits) of one chunk into the wanted gradients; None is not wanted."""
        if d_latent is not None:
            d_latent[part] = grad @ self.w2
        if d_w2 is not None:
            d_w2.addmm_(grad.t().to(d_w2.dtype), self.latent[part].to(d_w2.dtype))
        if d_hidden is not None:
            d_hidden[part] = (grad if slope is None else grad.mul_(slope)) @ self.lm_head


def _zeros(chunks: _Chunks, need: tuple[bool, bool, bool]):
    """Buffers for d hidden, d latent and (fp32) d w2 where they are needed."""
    d_hidden = torch.empty_like(chunks.hidden) if need[0] else None
    d_latent = torch.empty_like(chunks.latent) if need[1] else None
    d_w2 = torch.zeros_like(chunks.w2, dtype=torch.float32) if need[2] else None
    return d_hidden, d_latent, d_w2


def _as(dtypes, grads):
    """The gradients in the types of their inputs."""
    return [None if grad is None else grad.to(dtypes[i]) for i, grad in enumerate(grads)]


class _WeightedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, latent, w2, chunks, labels, draft_to_target, ce_weight, l1_weight, rows):
        need = tuple(t is not None and t.requires_grad for t in (hidden, latent, w2))
        grads = _zeros(chunks, need)
        ce, l1 = labels.new_zeros(2, len(labels), dtype=torch.float32)
        with torch.autocast(chunks.hidden.device.type, enabled=False):
            for part in chunks.parts:
                x, y, slope = chunks.logits(part)
                ce[part], l1[part] = rows(
                    x, y, labels[part], draft_to_target, ce_weight[part], l1_weight[part], gradient=any(need)
                )
                if any(need):
                    chunks.products(part, x, slope, *grads)
        ctx.save_for_backward(*grads)
        ctx.dtypes = [None if t is None else t.dtype for t in (hidden, latent, w2)]
        ctx.mark_non_differentiable(ce, l1)
        return (ce * ce_weight + l1 * l1_weight).sum(), ce, l1

    @staticmethod
    def backward(ctx, d_loss, *_):
        ready = _as(ctx.dtypes, [None if grad is None else grad * d_loss for grad in ctx.saved_tensors])
        return (*ready, None, None, None, None, None, None)


class _RowLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, latent, w2, chunks, labels, draft_to_target, rows):
        ce, l1 = labels.new_zeros(2, len(labels), dtype=torch.float32)
        zero = torch.zeros(len(labels), device=labels.device)
        with torch.autocast(chunks.hidden.device.type, enabled=False):
            for part in chunks.parts:
                x, y, _ = chunks.logits(part)
                ce[part], l1[part] = rows(x, y, labels[part], draft_to_target, zero[part], zero[part], gradient=False)
        ctx.save_for_backward(labels, draft_to_target)
        ctx.need = tuple(t is not None and t.requires_grad for t in (hidden, latent, w2))
        ctx.dtypes = [None if t is None else t.dtype for t in (hidden, latent, w2)]
        ctx.chunks, ctx.rows = chunks, rows
        return ce, l1

    @staticmethod
    def backward(ctx, d_ce, d_l1):
        labels, draft_to_target = ctx.saved_tensors
        chunks, grads = ctx.chunks, _zeros(ctx.chunks, ctx.need)
        with torch.autocast(chunks.hidden.device.type, enabled=False):
            for part in chunks.parts:
                x, y, slope = chunks.logits(part)
                ctx.rows(x, y, labels[part], draft_to_target, d_ce[part], d_l1[part], gradient=True)
                chunks.products(part, x, slope, *grads)
        return (*_as(ctx.dtypes, grads), None, None, None, None)


def check_shapes(hidden, latent, teacher, lm_head, w2, teacher_head, labels, draft_to_target) -> None:
    """Refuse operands that do not fit together."""
    if (latent is None) != (w2 is None):
        raise ValueError("a Markov head needs both `latent` [N, r] and `w2` [U, r]; pass both, or neither for none.")
    if hidden.dim() != 2 or len(teacher) != len(hidden) or len(labels) != len(hidden):
        raise ValueError(
            f"expected hidden [N, D], teacher [N, Dt] and labels [N]; got {tuple(hidden.shape)}, {tuple(teacher.shape)} "
            f"and {tuple(labels.shape)}. Flatten the anchors and slots first."
        )
    draft, target = lm_head.shape[0], teacher_head.shape[0]
    if draft_to_target is None and draft != target:
        raise ValueError(
            f"the draft vocabulary has {draft} entries and the target's {target}; pass `draft_to_target` [{draft}]."
        )
    if draft_to_target is not None and draft_to_target.shape != (draft,):
        raise ValueError(f"draft_to_target must be [{draft}], got {tuple(draft_to_target.shape)}.")


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
    chunk: int = CHUNK,
    rows: Callable = loss_rows,
) -> LinearLoss:
    """Cross entropy, L1 distance and acceptance of every row from hidden states, without full logits.

    Args:
        hidden (`torch.Tensor`): [N, D], drafter's final-norm hidden states; differentiable.
        latent (`torch.Tensor`, *optional*): [N, r], Markov latents; differentiable.
        teacher (`torch.Tensor`): [N, Dt], target's post-norm last hidden states of the predicted positions.
        lm_head (`torch.Tensor`): [U, D], frozen.
        w2 (`torch.Tensor`, *optional*): [U, r]; differentiable.
        teacher_head (`torch.Tensor`): [V, Dt], frozen.
        labels (`torch.Tensor`): int64 [N], target vocabulary; negative ones are ignored by `ce`.
        softcap, teacher_softcap (`float`, *optional*): logits become `cap * tanh(logits / cap)` before the Markov bias.
        draft_to_target (`torch.Tensor`, *optional*): int64 [U] for a pruned draft vocabulary.
        ce_weight, l1_weight (`torch.Tensor`, *optional*): fp32 [N], already divided by their denominators. With either,
            `loss` is the one differentiable result and its gradient is formed in the forward pass (the fast way); with
            neither, `ce` and `l1` are differentiable and the backward pass recomputes.
        chunk (`int`): rows at a time.
        rows (`Callable`): row arithmetic, [`rows_torch.loss_rows`] or [`rows_triton.loss_rows`].

    Returns:
        [`LinearLoss`].

    Raises:
        ValueError: for operands that do not fit together.
    """
    check_shapes(hidden, latent, teacher, lm_head, w2, teacher_head, labels, draft_to_target)
    picked = draft_labels(labels, draft_to_target, teacher_head.shape[0])
    chunks = _Chunks(hidden, latent, teacher, lm_head, w2, teacher_head, softcap, teacher_softcap, chunk)
    loss = None
    if ce_weight is None and l1_weight is None:
        ce, l1 = _RowLosses.apply(hidden, latent, w2, chunks, picked, draft_to_target, rows)
    else:
        zero = torch.zeros(len(labels), device=labels.device)
        weights = [zero if w is None else w.detach().float() for w in (ce_weight, l1_weight)]
        loss, ce, l1 = _WeightedLoss.apply(hidden, latent, w2, chunks, picked, draft_to_target, *weights, rows)
    return LinearLoss(ce, l1, (1 - l1.detach() / 2).clamp(0, 1), loss)

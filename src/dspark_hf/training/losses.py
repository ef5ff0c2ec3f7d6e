"""The DSpark loss of a micro-batch: cross entropy, distance to the target's distribution, and confidence.

    ce          = -log q(x_k)                                  x_k: the data's token, or the target's argmax or sample
    l1          = sum over the full vocabulary of |p - q|      twice the total variation
    accept      = 1 - l1 / 2                                   P(slot k accepted | slots before it accepted)
    confidence  = BCE(sigmoid(confidence logit), accept)       accept detached
    loss        = sum_j weight_j * sum_slots w_k term_j / sum_slots w_k,     w_k = exp(-(k - 1) / decay)

Everything is returned as sums, so that a caller can divide by the denominators of a whole optimizer step on all ranks.
Three backends with one signature: `eager` forms full logits and is the oracle; `chunked` and `triton` go through
`dspark_hf.ops` and never hold them. It knows nothing of rows, packs, anchors or the optimizer. Source: DSpark paper section 3.
"""

# N blocks, K slots, M valid slots of all blocks, D hidden, r Markov rank, T supervised positions, V target / U draft vocabulary

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.checkpoint import checkpoint

from dspark_hf import ops

from .anchors import slot_weights
from .teacher import TeacherHead, covered_head, with_outside


BACKENDS = ("eager", "chunked", "triton")
IGNORED = -100
CPU_LOGITS_BYTES = 128 << 20
DEVICE_LOGITS_BYTES = 1 << 30


@dataclass(frozen=True)
class LossWeights:
    """Weights of the terms, and how they are formed; the defaults are the paper's.

    Attributes:
        ce, l1, confidence, kl, tau: weights, 0 switches a term off. `kl` is KL(p || q) over the draft vocabulary; `tau` is
            minus the expected number of accepted tokens of a block.
        decay: slot k weighs `exp(-(k - 1) / decay)`.
        ce_labels: `"data"`, `"argmax"` or `"sample"` of the target's distribution.
        confidence_detach: keep the confidence head's gradient out of the body and the Markov head.
    """

    ce: float = 0.1
    l1: float = 0.9
    confidence: float = 1.0
    kl: float = 0.0
    tau: float = 0.0
    decay: float = 4.0
    ce_labels: str = "data"
    confidence_detach: bool = False

    def __post_init__(self) -> None:
        if self.ce_labels not in ("data", "argmax", "sample"):
            raise ValueError(f"ce_labels must be 'data', 'argmax' or 'sample', not {self.ce_labels!r}.")

    @property
    def needs_teacher(self) -> bool:
        """Whether any term asks for the target's distribution; the mere presence of a confidence head does not."""
        return bool(self.l1 or self.confidence or self.kl or self.tau) or self.ce_labels != "data"


@dataclass(frozen=True)
class Denominators:
    """What the sums are divided by: the slot weights, and the number of blocks, of a whole optimizer step."""

    slots: torch.Tensor | float
    blocks: torch.Tensor | float


class DSparkLoss(NamedTuple):
    """Loss and its parts, a tuple so that wrappers such as FSDP2 find its tensors. All but `loss` are detached.

    Attributes:
        loss: scalar to differentiate, divided by the denominators given.
        ce_num, l1_num, confidence_num, kl_num, tau_num: weighted sums over valid slots (tau: over blocks).
        slot_den, block_den: this batch's own denominators.
        count_K, accept_K, confidence_K: per slot, the number of valid slots, the sum of `accept` and of the predicted
            confidence (zeros where there is no teacher or no head).
        whole_blocks, tau_sum: blocks with all K slots, and the sum of their expected accepted length, bonus included.
    """

    loss: torch.Tensor
    ce_num: torch.Tensor
    l1_num: torch.Tensor
    confidence_num: torch.Tensor
    kl_num: torch.Tensor
    tau_num: torch.Tensor
    slot_den: torch.Tensor
    block_den: torch.Tensor
    count_K: torch.Tensor
    accept_K: torch.Tensor
    confidence_K: torch.Tensor
    whole_blocks: torch.Tensor
    tau_sum: torch.Tensor


def dspark_loss(
    drafter,
    hidden_NKD: torch.Tensor,
    previous_NK: torch.Tensor,
    labels_NK: torch.Tensor,
    valid_NK: torch.Tensor,
    *,
    teacher_TD: torch.Tensor | None = None,
    teacher_NK: torch.Tensor | None = None,
    teacher_head: TeacherHead | None = None,
    outside_T: torch.Tensor | None = None,
    weights: LossWeights | None = None,
    denominators: Denominators | None = None,
    backend: str = "chunked",
    chunk: int | None = None,
) -> DSparkLoss:
    """Loss of N blocks.

    Args:
        drafter ([`DSparkDrafter`]): lends both heads. Its output head is frozen: no gradient reaches it.
        hidden_NKD (`torch.Tensor`): `[N, K, D]` final-norm hidden states of the slots.
        previous_NK, labels_NK (`torch.Tensor`): `[N, K]` int64, target ids before and at each slot.
        valid_NK (`torch.Tensor`): `[N, K]` bool, a prefix of each row; nothing else is read.
        teacher_TD (`torch.Tensor`, *optional*): `[T, D]` post-norm last hidden states of the target.
        teacher_NK (`torch.Tensor`, *optional*): `[N, K]` int64, which of them predicts the slot's token.
        teacher_head ([`TeacherHead`], *optional*): the target's head.
        outside_T (`torch.Tensor`, *optional*): `[T]` logits of all tokens outside a pruned draft vocabulary; the fused backends
            then read U rows of the target's head instead of V (see `teacher.py`).
        weights ([`LossWeights`], *optional*): the paper's by default.
        denominators ([`Denominators`], *optional*): of the whole optimizer step; this batch's own by default.
        backend (`str`): `"eager"` (oracle), `"chunked"`, or `"triton"` (an error where it cannot run).
        chunk (`int`, *optional*): slots at a time; by default as many as `chunk_size` allows.

    Returns:
        [`DSparkLoss`]

    Raises:
        ValueError: a term needs the target's distribution and one of the `teacher_*` arguments is missing; unknown backend.
    """
    weights = LossWeights() if weights is None else weights
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, not {backend!r}.")
    if chunk is None:
        chunk = chunk_size(drafter.config, hidden_NKD.device)
    num_slots = valid_NK.shape[1]
    chosen_M = valid_NK.flatten().nonzero()[:, 0]
    weight_K = torch.from_numpy(slot_weights(num_slots, weights.decay)).to(hidden_NKD.device)
    weight_M = weight_K.repeat(len(valid_NK))[chosen_M]
    block_den = valid_NK[:, 0].sum().float()
    slot_den = weight_M.sum()
    own = Denominators(slots=slot_den, blocks=block_den)
    over = own if denominators is None else denominators
    # an empty batch has denominator 0 and must give 0, not NaN
    per_slot = weight_M / torch.as_tensor(over.slots, device=weight_M.device).clamp_min(1e-30)

    teacher_MD = _teacher_rows(weights, teacher_TD, teacher_NK, teacher_head, chosen_M)
    latents_NKr, embeddings_NKr = (None, None)
    if drafter.markov_head is not None:
        latents_NKr, embeddings_NKr = drafter.markov_head.latents(hidden_NKD, previous_NK)
    hidden_MD, latent_Mr, embedding_Mr = (_rows(part, chosen_M) for part in (hidden_NKD, latents_NKr, embeddings_NKr))
    labels_M = _labels(weights.ce_labels, labels_NK.flatten()[chosen_M], teacher_MD, teacher_head, chunk)

    outside_M = None
    if outside_T is not None and teacher_MD is not None and teacher_NK is not None:
        outside_M = outside_T.index_select(0, teacher_NK.flatten()[chosen_M])
    terms = _distribution_terms if backend == "eager" else _fused_terms
    weighted, ce_M, l1_M, kl_M = terms(
        drafter, hidden_MD, latent_Mr, teacher_MD, teacher_head, labels_M, weights, per_slot, chunk, backend, outside_M
    )
    accept_M = (1 - l1_M / 2).clamp(0, 1)
    loss = weighted
    tau_num = hidden_NKD.new_zeros(())
    if weights.tau:
        tau_num = _scatter(accept_M, chosen_M, valid_NK).cumprod(dim=1).sum()
        loss = loss - weights.tau * tau_num / torch.as_tensor(over.blocks, device=loss.device).clamp_min(1.0)
    confidence_M = bce_M = torch.zeros_like(weight_M)
    if drafter.confidence_head is not None and weights.confidence:
        inputs: tuple[torch.Tensor | None, ...] = (hidden_MD, embedding_Mr)
        if weights.confidence_detach:
            inputs = tuple(None if part is None else part.detach() for part in inputs)
        logits_M = drafter.confidence_head(*inputs)
        bce_M = binary_cross_entropy_with_logits(logits_M, accept_M.detach(), reduction="none")
        confidence_M = logits_M.detach().sigmoid()
        loss = loss + weights.confidence * (bce_M * per_slot).sum()

    with torch.no_grad():
        has_teacher = teacher_MD is not None
        accept_NK = _scatter(accept_M if has_teacher else torch.zeros_like(accept_M), chosen_M, valid_NK)
        whole_N = valid_NK.all(dim=1)
        tau_N = 1 + accept_NK.cumprod(dim=1).sum(dim=1)
        return DSparkLoss(
            loss=loss,
            ce_num=(ce_M * weight_M).sum(),
            l1_num=(l1_M * weight_M).sum(),
            confidence_num=(bce_M * weight_M).sum(),
            kl_num=(kl_M * weight_M).sum(),
            tau_num=tau_num.detach(),
            slot_den=slot_den,
            block_den=block_den,
            count_K=valid_NK.sum(dim=0).float(),
            accept_K=accept_NK.sum(dim=0),
            confidence_K=_scatter(confidence_M, chosen_M, valid_NK).sum(dim=0),
            whole_blocks=whole_N.sum().float(),
            tau_sum=(tau_N * whole_N).sum(),
        )


def chunk_size(config, device: torch.device) -> int:
    """Slots whose float32 logits, draft's and target's, fit a budget: 128 MiB on a CPU, 1 GiB elsewhere; 16 at least."""
    budget = CPU_LOGITS_BYTES if device.type == "cpu" else DEVICE_LOGITS_BYTES
    return max(budget // (4 * (config.output_vocab_size + config.vocab_size)), 16)


def _teacher_rows(weights, teacher_TD, teacher_NK, teacher_head, chosen_M) -> torch.Tensor | None:
    """`[M, D]` last hidden states of the valid slots, or `None` where no term asks for them."""
    if not weights.needs_teacher:
        return None
    given = {"teacher_TD": teacher_TD, "teacher_NK": teacher_NK, "teacher_head": teacher_head}
    missing = [name for name, value in given.items() if value is None]
    if missing:
        raise ValueError(
            f"The l1, confidence, kl and tau terms and target labels need the target's distribution: pass {missing}, or set "
            "those weights to 0."
        )
    return teacher_TD.detach().index_select(0, teacher_NK.flatten()[chosen_M])


def _rows(part_NKx: torch.Tensor | None, chosen_M: torch.Tensor) -> torch.Tensor | None:
    return None if part_NKx is None else part_NKx.flatten(0, 1).index_select(0, chosen_M)


def _scatter(values_M: torch.Tensor, chosen_M: torch.Tensor, valid_NK: torch.Tensor) -> torch.Tensor:
    """`[M]` -> `[N, K]`, 0 where not valid."""
    flat = torch.zeros(valid_NK.numel(), dtype=values_M.dtype, device=values_M.device)
    return flat.index_put((chosen_M,), values_M).view(valid_NK.shape)


@torch.no_grad()
def _labels(kind: str, data_M: torch.Tensor, teacher_MD, head: TeacherHead | None, chunk: int) -> torch.Tensor:
    """Labels of the cross entropy in the target's vocabulary; `sample` draws from torch's own generator."""
    if kind == "data" or not len(data_M):
        return data_M
    assert head is not None
    picked = []
    for part in teacher_MD.split(chunk):
        logits = head.logits(part)
        picked.append(logits.argmax(-1) if kind == "argmax" else torch.multinomial(logits.softmax(-1), 1)[:, 0])
    return torch.cat(picked)


def _draft_labels(labels_M: torch.Tensor, mapped_U: torch.Tensor | None, vocab_size: int) -> torch.Tensor:
    """Target ids -> draft ids; a token that the drafter cannot propose is ignored by the cross entropy."""
    if mapped_U is None:
        return labels_M
    table_V = torch.full((vocab_size,), IGNORED, dtype=torch.long, device=labels_M.device)
    table_V[mapped_U] = torch.arange(len(mapped_U), device=labels_M.device)
    return table_V[labels_M]


def _distribution_terms(drafter, hidden, latent, teacher, head, labels, weights, per_slot, chunk, backend, outside):
    """Oracle: `(weighted sum, ce [M], l1 [M], kl [M])` from full logits by autograd."""
    logits_MU = drafter.base_logits(hidden)
    if latent is not None:
        logits_MU = logits_MU + drafter.markov_head.bias(latent).float()
    log_q = logits_MU.log_softmax(-1)
    mapped = drafter.draft_to_target()
    picked = _draft_labels(labels, mapped, drafter.config.vocab_size)
    ce = torch.nn.functional.nll_loss(log_q, picked, ignore_index=IGNORED, reduction="none")
    l1 = kl = torch.zeros_like(ce)
    if teacher is not None:
        log_p = head.logits(teacher).log_softmax(-1)
        covered = log_p if mapped is None else log_p[:, mapped]
        uncovered = 0 if mapped is None else (1 - covered.exp().sum(-1)).clamp_min(0)
        l1 = (covered.exp() - log_q.exp()).abs().sum(-1) + uncovered
        if weights.kl:
            kl = (covered.exp() * (covered - log_q)).sum(-1)
    weighted = ((weights.ce * ce + weights.l1 * l1 + weights.kl * kl) * per_slot).sum()
    return weighted, ce, l1, kl


def _fused_terms(drafter, hidden, latent, teacher, head, labels, weights, per_slot, chunk, backend, outside):
    """As `_distribution_terms`, through the fused operation; never more than `chunk` rows of logits."""
    if backend == "triton" and ops.backend(hidden) != "triton":
        raise ValueError("The triton loss backend needs a CUDA or ROCm device and Triton; use 'chunked' here.")
    if teacher is None:
        # cross entropy alone: a target of width one and no weight costs nothing and is never looked at
        teacher, teacher_weight = hidden.new_zeros(len(hidden), 1), hidden.new_zeros(drafter.config.vocab_size, 1)
        softcap, known = None, False
    else:
        teacher_weight, softcap, known = head.weight_VD, head.softcap, True
    w2 = None if drafter.markov_head is None else drafter.markov_head.markov_w2.weight
    mapped = drafter.draft_to_target()
    states, places = teacher, mapped
    if outside is not None and mapped is not None and softcap is None:
        states, teacher_weight = with_outside(teacher, outside, head.weight_VD.dtype), covered_head(head, mapped)
        labels, places = (
            _draft_labels(labels, mapped, drafter.config.vocab_size),
            torch.arange(len(mapped), device=mapped.device),
        )
    # the expected length is no sum over slots, so its gradient cannot be formed in the forward pass
    ahead = {} if weights.tau else {"ce_weight": weights.ce * per_slot, "l1_weight": weights.l1 * per_slot}
    result = ops.linear_loss(
        hidden,
        latent,
        states,
        drafter.lm_head.weight,
        w2,
        teacher_weight,
        labels,
        softcap=drafter.config.final_logit_softcapping,
        teacher_softcap=softcap,
        draft_to_target=places,
        chunk=chunk,
        **ahead,
    )
    weighted = ((weights.ce * result.ce + weights.l1 * result.l1) * per_slot).sum() if weights.tau else result.loss
    kl = torch.zeros_like(result.ce)
    if weights.kl:
        kl = _chunked_kl(drafter, hidden, latent, teacher, head, mapped, chunk)
        weighted = weighted + weights.kl * (kl * per_slot).sum()
    return weighted, result.ce, result.l1 if known else torch.zeros_like(result.l1), kl


def _chunked_kl(drafter, hidden, latent, teacher, head, mapped, chunk) -> torch.Tensor:
    """KL(p || q) over the draft vocabulary, `[M]`, recomputed chunk by chunk in the backward pass."""

    def rows(hidden_CD, latent_Cr, teacher_CD):
        logits = drafter.base_logits(hidden_CD)
        if latent_Cr is not None:
            logits = logits + drafter.markov_head.bias(latent_Cr).float()
        log_p = head.logits(teacher_CD).log_softmax(-1)
        covered = log_p if mapped is None else log_p[:, mapped]
        return (covered.exp() * (covered - logits.log_softmax(-1))).sum(-1)

    starts = range(0, len(hidden), chunk)
    latents = [None if latent is None else latent[start : start + chunk] for start in starts]
    parts = [
        checkpoint(rows, hidden[start : start + chunk], part, teacher[start : start + chunk], use_reentrant=False)
        for start, part in zip(starts, latents, strict=True)
    ]
    return torch.cat(parts) if parts else hidden.new_zeros(0)

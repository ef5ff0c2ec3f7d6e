"""The hot operations behind one door: torch on CPU, Triton on CUDA and ROCm, the same signatures and results.

| function | what it does | who calls it |
|---|---|---|
| `markov_draft` | all K Markov steps of a block: corrected logits, tokens, log q, confidence, survival | generation |
| `schedule_prefix` | survival and cost table -> prefix lengths, cu_seqlens, row marker, on the device | generation |
| `verify_ragged` | accept, resample or bonus over ragged rows | generation |
| `attend_ragged` | attention of rows of unequal length, end to end (no Triton: torch's `varlen_attn`) | generation |
| `linear_loss` | CE, L1 and acceptance from hidden states, never a full [N, V] tensor | training |

`DSPARK_HF_KERNELS` overrides the choice: `auto` (default), `torch`, or `triton` (CPU tensors then need
`TRITON_INTERPRET=1` set before Triton is first imported). Triton is imported only when a call uses it. This module knows
nothing of models; it is the only importer of `dspark_hf._kernels`.

Randomness is passed in: explicit `uniforms`, or `seeds` and `positions` (int64 [R], Philox keyed by row and position,
drafting and verification in disjoint streams), or a `torch.Generator` from which uniforms are drawn here.

Legend: R rows, K slots, V target vocabulary, U draft vocabulary, N training rows, M flattened target positions.
"""

import importlib.util
import os
from functools import lru_cache

import torch
from transformers.utils import logging

from dspark_hf._kernels.dspark_linear_loss import chunked as _chunked_loss
from dspark_hf._kernels.dspark_linear_loss import reference as _reference_loss
from dspark_hf._kernels.dspark_linear_loss.reference import LinearLoss
from dspark_hf._kernels.dspark_markov import reference as _reference_markov
from dspark_hf._kernels.dspark_markov.reference import MarkovDraft
from dspark_hf._kernels.dspark_schedule import reference as _reference_schedule
from dspark_hf._kernels.dspark_schedule.reference import PrefixSchedule
from dspark_hf._kernels.dspark_verify import reference as _reference_verify
from dspark_hf._kernels.dspark_verify.reference import STATUS_NOT_A_DISTRIBUTION, Verification

from . import ragged_attention as _ragged_attention


__all__ = [
    "LinearLoss",
    "MarkovDraft",
    "PrefixSchedule",
    "Verification",
    "attend_ragged",
    "backend",
    "linear_loss",
    "linear_loss_reference",
    "markov_draft",
    "schedule_prefix",
    "verify_ragged",
]

logger = logging.get_logger(__name__)

ENVIRONMENT = "DSPARK_HF_KERNELS"
CHOICES = ("auto", "torch", "triton")

linear_loss_reference = _reference_loss.linear_loss


@lru_cache(maxsize=1)
def _triton_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def backend(tensor: torch.Tensor) -> str:
    """`"triton"` or `"torch"`: what a call with this tensor runs on.

    Raises:
        ValueError: if `DSPARK_HF_KERNELS` is none of `auto`, `torch`, `triton`.
        RuntimeError: if `triton` is asked for and cannot run here.
    """
    choice = os.environ.get(ENVIRONMENT, "auto")
    if choice not in CHOICES:
        raise ValueError(f"{ENVIRONMENT} must be one of {', '.join(CHOICES)}; got {choice!r}.")
    if choice == "torch" or (choice == "auto" and not tensor.is_cuda):
        return "torch"
    if choice == "auto":
        if _triton_installed():
            return "triton"
        logger.warning_once("Triton is not installed: dspark_hf uses its torch path, which is slower on this device.")
        return "torch"
    if not _triton_installed():
        raise RuntimeError(f"{ENVIRONMENT}=triton, but Triton is not installed; run `pip install dspark-hf[triton]`.")
    if not tensor.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError(
            f"{ENVIRONMENT}=triton got a {tensor.device.type} tensor; Triton needs CUDA or ROCm tensors, or TRITON_INTERPRET=1."
        )
    return "triton"


def _samples(temperature) -> bool:
    return torch.is_tensor(temperature) or temperature != 0


def _uniforms(generator: torch.Generator, device, *shape: int) -> torch.Tensor:
    return torch.rand(*shape, dtype=torch.float64, device=generator.device, generator=generator).to(device)


def markov_draft(base_logits, anchor_ids, *, temperature=0.0, uniforms=None, generator=None, **head) -> MarkovDraft:
    """Draft K tokens per row; see [`dspark_markov.reference.markov_draft`] for every argument.

    Args:
        base_logits (`torch.Tensor`): [R, K, U]; with `store` (the default) overwritten by the corrected logits.
        anchor_ids (`torch.Tensor`): int64 [R], target vocabulary.
        temperature (`float` or `torch.Tensor`): >= 0; 0 is greedy; fp32 [R] for one per row.
        uniforms (`torch.Tensor`, *optional*): fp64 [R, K, 2] in [0, 1).
        generator (`torch.Generator`, *optional*): used where `uniforms` and `seeds` are None.
        **head: `w1, w2, head_type, projection_weight, projection_bias, hidden, confidence_weight, confidence_bias,
            confidence_temperatures, confidence_biases, draft_to_target, seeds, positions, store`.

    Returns:
        [`MarkovDraft`]: tokens (target vocabulary), log_q, log_normalizer, confidence_logits, survival, latents.
    """
    if uniforms is None and generator is not None and _samples(temperature):
        uniforms = _uniforms(generator, base_logits.device, *base_logits.shape[:2], 2)
    if backend(base_logits) == "triton":
        from dspark_hf._kernels.dspark_markov import draft as implementation
    else:
        implementation = _reference_markov
    return implementation.markov_draft(base_logits, anchor_ids, temperature=temperature, uniforms=uniforms, **head)


def schedule_prefix(survival, seconds, **policy) -> PrefixSchedule:
    """Prefix lengths and the flattened layout; see [`dspark_schedule.reference.schedule_prefix`] for every argument.

    Args:
        survival (`torch.Tensor`): fp32 [R, K] in [0, 1].
        seconds (`torch.Tensor`): fp64 [T], seconds of one target forward over B = 0..T-1 tokens.
        **policy: `draft_seconds, policy, limits, acceptance, capacity, base_tokens`.

    Returns:
        [`PrefixSchedule`]: lengths, cu_seqlens, row_marker, admitted, throughput; nothing is copied to the host.
    """
    if backend(survival) == "triton":
        from dspark_hf._kernels.dspark_schedule import prefix as implementation
    else:
        implementation = _reference_schedule
    return implementation.schedule_prefix(survival, seconds, **policy)


def verify_ragged(
    target_logits, draft_tokens, cu_seqlens, *, temperature=0.0, accept_uniforms=None, generator=None, **draft
) -> Verification:
    """Accept a prefix per row and emit one token more; see [`dspark_verify.reference.verify_ragged`] for every argument.

    Args:
        target_logits (`torch.Tensor`): [M, V], after all logits processors.
        draft_tokens (`torch.Tensor`): int64 [R, K], target vocabulary.
        cu_seqlens (`torch.Tensor`): int32 [R + 1]; row r owns length + 1 positions.
        temperature (`float` or `torch.Tensor`): >= 0 (0 is greedy); 1 where processors already divided by it.
        accept_uniforms (`torch.Tensor`, *optional*): fp64 [R, K].
        generator (`torch.Generator`, *optional*): used where `accept_uniforms` and `seeds` are None.
        **draft: `row_marker, draft_temperature, log_q, q_logits, q_log_normalizer, q_latents, q_w2, draft_to_target,
            resample_uniforms, seeds, positions`.

    Returns:
        [`Verification`]: tokens [R, K + 1] padded with -1, accepted [R], status [R].

    Raises:
        RuntimeError: on CPU, where logits of a sampled row are no distribution. On other devices `status` says so (2),
            because raising would cost a host sync.
    """
    if accept_uniforms is None and generator is not None and _samples(temperature):
        rows, slots = draft_tokens.shape
        accept_uniforms = _uniforms(generator, target_logits.device, rows, slots)
        draft["resample_uniforms"] = _uniforms(generator, target_logits.device, rows, 2)
    if backend(target_logits) == "triton":
        from dspark_hf._kernels.dspark_verify import ragged as implementation
    else:
        implementation = _reference_verify
    result = implementation.verify_ragged(
        target_logits, draft_tokens, cu_seqlens, temperature=temperature, accept_uniforms=accept_uniforms, **draft
    )
    if not target_logits.is_cuda and bool((result.status == STATUS_NOT_A_DISTRIBUTION).any()):
        raise RuntimeError(
            "probability tensor contains either `inf`, `nan` or element < 0: the target's logits are broken."
        )
    return result


def attend_ragged(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, **options) -> torch.Tensor:
    """Attention of rows end to end; see [`ragged_attention.attend_ragged`] for every argument.

    Runs on `torch.nn.attention.varlen.varlen_attn` where that works (CUDA, half precision, one head size up to 256) and
    `DSPARK_HF_KERNELS` is not `torch`, else row by row.

    Args:
        query (`torch.Tensor`): [M, Hq, E], the tokens of all rows.
        key, value (`torch.Tensor`): [T, Hk, E], the slots of all rows.
        cu_seq_q, cu_seq_k (`torch.Tensor`): int32 [R + 1].
        max_q, max_k (`int`): of the longest row.
        **options: `scale, window_size, enable_gqa, seqused_k`.

    Returns:
        `torch.Tensor`: [M, Hq, E].
    """
    sizes = {query.shape[-1], key.shape[-1], value.shape[-1]}
    fused = None
    if os.environ.get(ENVIRONMENT) != "torch" and _ragged_attention.is_fused(query.device, query.dtype, sizes):
        fused = _ragged_attention.fused_attention()
    implementation = fused or _ragged_attention.attend_ragged
    return implementation(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, **options)


def linear_loss(hidden, latent, teacher, lm_head, w2, teacher_head, labels, **options) -> LinearLoss:
    """CE, L1 and acceptance per row; see [`dspark_linear_loss.chunked.linear_loss`] for every argument.

    Args:
        hidden, latent, teacher (`torch.Tensor`): [N, D], [N, r] or None, [N, Dt].
        lm_head, w2, teacher_head (`torch.Tensor`): [U, D] frozen, [U, r] or None, [V, Dt] frozen.
        labels (`torch.Tensor`): int64 [N], target vocabulary; negative ones are ignored.
        **options: `softcap, teacher_softcap, draft_to_target, ce_weight, l1_weight, chunk`. With weights, differentiate
            `loss` (fast: gradients are formed in the forward pass); without, differentiate `ce` and `l1` (recomputes).

    Returns:
        [`LinearLoss`]: ce, l1, accept (fp32 [N]) and loss.
    """
    if backend(hidden) == "triton":
        from dspark_hf._kernels.dspark_linear_loss.rows_triton import loss_rows
    else:
        loss_rows = _chunked_loss.loss_rows
    return _chunked_loss.linear_loss(
        hidden, latent, teacher, lm_head, w2, teacher_head, labels, rows=loss_rows, **options
    )

"""Launches the verification kernels; same signature and meaning as `reference.verify_ragged`.

Legend: R rows, K slots, M target positions, V target vocabulary, U draft vocabulary, r rank.
"""

from __future__ import annotations

import torch
import triton

from .ragged_kernels import accept_kernel, emit_kernel, residual_kernel, row_stats_kernel
from .reference import BLOCK, Verification, check_draft, check_randomness, derive_marker, samples


def _per_row(temperature, rows: int, device) -> torch.Tensor:
    if torch.is_tensor(temperature):
        return temperature.to(device, torch.float32).contiguous()
    return torch.full((rows,), float(temperature), device=device)


def _inverse_map(draft_to_target, vocabulary: int):
    if draft_to_target is None:
        return None
    inverse = torch.full((vocabulary,), -1, dtype=torch.int32, device=draft_to_target.device)
    inverse[draft_to_target] = torch.arange(draft_to_target.numel(), dtype=torch.int32, device=inverse.device)
    return inverse


def verify_ragged(
    target_logits,
    draft_tokens,
    cu_seqlens,
    *,
    row_marker=None,
    temperature=0.0,
    draft_temperature=None,
    log_q=None,
    q_logits=None,
    q_log_normalizer=None,
    q_latents=None,
    q_w2=None,
    draft_to_target=None,
    accept_uniforms=None,
    resample_uniforms=None,
    seeds=None,
    positions=None,
) -> Verification:
    """See [`reference.verify_ragged`]."""
    check_draft(draft_tokens, cu_seqlens, q_logits, q_log_normalizer, log_q, q_latents, q_w2)
    check_randomness(temperature, accept_uniforms, resample_uniforms, seeds, positions)
    if target_logits.stride(-1) != 1:
        raise ValueError(
            f"target_logits must be contiguous along the vocabulary; got strides {target_logits.stride()}."
        )
    rows, slots = draft_tokens.shape
    positions_M, vocabulary = target_logits.shape
    device = target_logits.device
    if row_marker is None:
        row_marker = derive_marker(cu_seqlens, positions_M)
    blocks = triton.cdiv(vocabulary, BLOCK)
    blocks_p2 = triton.next_power_of_2(blocks)
    sample = samples(temperature)
    temperature_R = _per_row(temperature, rows, device)
    draft_temperature_R = temperature_R if draft_temperature is None else _per_row(draft_temperature, rows, device)
    keyed = accept_uniforms is None
    mode = "one_hot" if q_logits is None else "logits" if q_w2 is None else "recomputed"
    rank = 16 if q_w2 is None else q_w2.shape[1]
    warps = 8 if mode == "recomputed" else 4  # a W2 tile beside the logits would fill the registers of four
    contiguous = [None if part is None else part.contiguous() for part in (log_q, q_log_normalizer, q_latents, q_w2)]
    log_q, q_log_normalizer, q_latents, q_w2 = contiguous
    q_strides = (0, 0) if q_logits is None else q_logits.stride()[:2]
    inverse = _inverse_map(draft_to_target, vocabulary) if sample and q_logits is not None else None

    peaks, sums = torch.empty(2, positions_M, blocks, device=device)
    bests = torch.empty(positions_M, blocks, dtype=torch.int32, device=device)
    accepted, emitting = torch.empty(2, rows, dtype=torch.int64, device=device)
    normalizers = torch.empty(rows, device=device)
    status = torch.empty(rows, dtype=torch.int32, device=device)
    tokens = torch.empty(rows, slots + 1, dtype=torch.int64, device=device)
    draft = draft_tokens if draft_tokens.stride(-1) == 1 else draft_tokens.contiguous()
    stride = target_logits.stride(0)

    row_stats_kernel[(positions_M, blocks)](
        target_logits,
        stride,
        row_marker,
        temperature_R,
        peaks,
        sums,
        bests,
        vocabulary,
        blocks,
        BLOCK=BLOCK,
        num_warps=4,
    )
    accept_kernel[(rows,)](
        target_logits,
        stride,
        cu_seqlens,
        draft,
        draft.stride(0),
        temperature_R,
        draft_temperature_R,
        None if keyed else accept_uniforms.contiguous(),
        seeds,
        positions,
        log_q,
        peaks,
        sums,
        bests,
        accepted,
        emitting,
        normalizers,
        status,
        tokens,
        slots,
        blocks,
        Q=mode,
        BLOCKS=blocks_p2,
        SLOTS_P2=triton.next_power_of_2(slots + 1),
        SAMPLE=sample,
        KEYED=keyed,
        num_warps=4,
    )
    if not sample:
        return Verification(tokens, accepted, status)
    residuals = torch.empty(rows, blocks, device=device)
    source = (q_logits, *q_strides, q_log_normalizer, q_latents, q_w2, inverse)
    sizes = (vocabulary, 0 if q_logits is None else q_logits.shape[-1], slots, blocks)
    common = (target_logits, stride, cu_seqlens, draft, draft.stride(0), temperature_R, draft_temperature_R)
    residual_kernel[(rows, blocks)](
        *common,
        *source,
        accepted,
        emitting,
        normalizers,
        residuals,
        *sizes,
        RANK=rank,
        BLOCK=BLOCK,
        Q=mode,
        num_warps=warps,
    )
    resample, strides = None, (0, 0)
    if not keyed:
        resample = resample_uniforms.contiguous()
        strides = (resample.stride(0), resample.stride(1) if resample.dim() == 3 else 0)
    emit_kernel[(rows,)](
        *common,
        resample,
        *strides,
        seeds,
        positions,
        *source,
        accepted,
        emitting,
        normalizers,
        peaks,
        sums,
        residuals,
        tokens,
        status,
        *sizes,
        RANK=rank,
        BLOCK=BLOCK,
        BLOCKS=blocks_p2,
        Q=mode,
        KEYED=keyed,
        num_warps=warps,
    )
    return Verification(tokens, accepted, status)

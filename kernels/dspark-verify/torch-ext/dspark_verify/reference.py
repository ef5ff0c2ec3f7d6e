"""Lossless verification of ragged drafts in plain torch: the definition, and the path on CPU.

    token x of slot j is accepted while   u * q(x) < p(x)             (u uniform, p target, q draft)
    the first rejected slot emits         v ~ (p - q)+ / sum (p - q)+   and p itself where that sum underflows to 0
    an all-accepted row emits a bonus     v ~ p
    temperature 0: accepted while x is the target's argmax, which is emitted at the first difference

It knows nothing of models, caches or logits processors: `target_logits` are what `generate` would sample from.

Legend: R rows (requests), K slots, M flattened target positions, V target vocabulary, U draft vocabulary, r rank.
Row r owns target positions cu_seqlens[r] .. cu_seqlens[r + 1] - 1: one per drafted token, and the bonus position last.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from .sampling import STREAM_ACCEPT, STREAM_RESAMPLE, inverse_cdf, keyed_uniforms


BLOCK = 1024  # vocabulary block of the two-level inverse CDF; equals the tile of the Triton kernel
STATUS_OK, STATUS_RESIDUAL_VANISHED, STATUS_NOT_A_DISTRIBUTION = 0, 1, 2


class Verification(NamedTuple):
    """What one verification committed.

    Args:
        tokens (`torch.Tensor`): int64 [R, K + 1]: accepted tokens, then the emitted one, then -1.
        accepted (`torch.Tensor`): int64 [R], number of accepted drafted tokens; `accepted + 1` tokens are committed.
        status (`torch.Tensor`): int32 [R]: 0; 1 where the residual vanished and p was sampled instead; 2 where the
            target's logits are no distribution (NaN, +inf or all -inf) under sampling, and the emitted token is -1.
    """

    tokens: torch.Tensor
    accepted: torch.Tensor
    status: torch.Tensor


def verify_uniforms(seeds_R, positions_R, slots: int):
    """`(accept [R, K], resample [R, K + 1, 2])` keyed by position; the streams are disjoint from drafting's."""
    steps = torch.arange(slots + 1, device=seeds_R.device)
    positions = positions_R[:, None] + steps
    accept = keyed_uniforms(seeds_R[:, None], positions[:, :slots], STREAM_ACCEPT)[..., 0]
    return accept, keyed_uniforms(seeds_R[:, None], positions, STREAM_RESAMPLE)


def samples(temperature) -> bool:
    """Whether any row may be sampled: a tensor may hold zeros, but looking would cost a host sync."""
    return torch.is_tensor(temperature) or temperature != 0


def check_randomness(temperature, accept_uniforms, resample_uniforms, seeds, positions) -> None:
    """Refuse to sample without a source of randomness."""
    explicit = accept_uniforms is not None and resample_uniforms is not None
    if samples(temperature) and not explicit and (seeds is None or positions is None):
        raise ValueError(
            "verifying a sampled draft needs `accept_uniforms` and `resample_uniforms`, or `seeds` and `positions`; "
            "got neither. Pass one pair, or temperature=0.0 for greedy decoding."
        )


def derive_marker(cu_seqlens: torch.Tensor, positions: int) -> torch.Tensor:
    """int32 [M]: the row of each flattened position, -1 past the end."""
    index_M = torch.arange(positions, dtype=cu_seqlens.dtype, device=cu_seqlens.device)
    marker_M = torch.searchsorted(cu_seqlens, index_M, right=True, out_int32=True) - 1
    return marker_M.masked_fill(index_M >= cu_seqlens[-1], -1)


def check_draft(draft_tokens, cu_seqlens, q_logits, q_log_normalizer, log_q, q_latents, q_w2) -> None:
    """Refuse a description of q that is not one of the three known ones."""
    if draft_tokens.dim() != 2 or cu_seqlens.numel() != draft_tokens.shape[0] + 1:
        raise ValueError(
            f"expected draft_tokens [R, K] and cu_seqlens [R + 1], got {tuple(draft_tokens.shape)} and "
            f"{tuple(cu_seqlens.shape)}."
        )
    if q_logits is not None and (log_q is None or q_log_normalizer is None):
        raise ValueError(
            "`q_logits` come with `log_q` and `q_log_normalizer` [R, K]; pass what markov_draft returned."
        )
    if (q_latents is None) != (q_w2 is None) or (q_w2 is not None and q_logits is None):
        raise ValueError("recomputing q needs base logits in `q_logits`, `q_latents` [R, K, r] and `q_w2` [U, r].")


def greedy_chain(best_RK1, draft_tokens, lengths_R):
    """Accepted count and emitted token when the target's argmax at every position is known."""
    slots = draft_tokens.shape[1]
    steps = torch.arange(slots, device=draft_tokens.device)
    matches = (best_RK1[:, :slots] == draft_tokens) & (steps < lengths_R[:, None])
    accepted_R = matches.cumprod(-1).sum(-1)
    return accepted_R, best_RK1.gather(1, accepted_R[:, None])[:, 0]


def commit(draft_tokens, accepted_R, emitted_R):
    """Lay out accepted tokens, the emitted one and -1 as [R, K + 1]."""
    rows, slots = draft_tokens.shape
    steps = torch.arange(slots + 1, device=draft_tokens.device)
    padded = torch.cat([draft_tokens, draft_tokens.new_full((rows, 1), -1)], dim=1)
    tokens = torch.where(steps < accepted_R[:, None], padded, -1)
    return torch.where(steps == accepted_R[:, None], emitted_R[:, None], tokens)


def draft_probabilities(rows_R, slot_R, draft_tokens, vocabulary, draft_temperature_R, q_source):
    """q of one slot per row over the target vocabulary, [R, V] fp32."""
    q_logits, q_log_normalizer, q_latents, q_w2, draft_to_target = q_source
    one_hot = torch.zeros(len(rows_R), vocabulary, device=draft_tokens.device)
    one_hot.scatter_(1, draft_tokens[rows_R, slot_R][:, None], 1.0)
    if q_logits is None:
        return one_hot
    logits = q_logits[rows_R, slot_R].float()
    if q_w2 is not None:
        logits = logits + q_latents[rows_R, slot_R].float() @ q_w2.float().T
    greedy = (draft_temperature_R == 0)[:, None]
    scale = torch.where(greedy, torch.ones_like(logits[:, :1]), draft_temperature_R[:, None])
    q = (logits / scale - q_log_normalizer[rows_R, slot_R][:, None]).exp()
    if draft_to_target is not None:
        q = torch.zeros_like(one_hot).index_copy_(1, draft_to_target, q)
    return torch.where(greedy, one_hot, q)


def verify_ragged(
    target_logits: torch.Tensor,
    draft_tokens: torch.Tensor,
    cu_seqlens: torch.Tensor,
    *,
    row_marker: torch.Tensor | None = None,
    temperature: float | torch.Tensor = 0.0,
    draft_temperature: float | torch.Tensor | None = None,
    log_q: torch.Tensor | None = None,
    q_logits: torch.Tensor | None = None,
    q_log_normalizer: torch.Tensor | None = None,
    q_latents: torch.Tensor | None = None,
    q_w2: torch.Tensor | None = None,
    draft_to_target: torch.Tensor | None = None,
    accept_uniforms: torch.Tensor | None = None,
    resample_uniforms: torch.Tensor | None = None,
    seeds: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
) -> Verification:
    """Accept a prefix of every row's draft and emit one more token, exactly distributed as the target.

    Args:
        target_logits (`torch.Tensor`): [M, V], any float type; positions past `cu_seqlens[-1]` are padding.
        draft_tokens (`torch.Tensor`): int64 [R, K], target vocabulary; entries past a row's length are ignored.
        cu_seqlens (`torch.Tensor`): int32 or int64 [R + 1]; row r verifies `cu[r + 1] - cu[r] - 1` in 0..K tokens.
        row_marker (`torch.Tensor`, *optional*): int32 [M], row of each position, -1 for padding; derived when None.
        temperature (`float` or `torch.Tensor`): of the target, one number or fp32 [R]; 0 is greedy.
        draft_temperature (`float` or `torch.Tensor`, *optional*): of the draft; the target's when None; 0 is one-hot q.
        log_q (`torch.Tensor`, *optional*): fp32 [R, K], log q of the drafted tokens.
        q_logits (`torch.Tensor`, *optional*): [R, K, U]; None means one-hot q (greedy drafts). With `q_latents` and
            `q_w2` these are base logits, and q is recomputed from base + w2 @ latent.
        q_log_normalizer (`torch.Tensor`, *optional*): fp32 [R, K], logsumexp(q logits / draft temperature).
        q_latents, q_w2 (`torch.Tensor`, *optional*): [R, K, r] and [U, r].
        draft_to_target (`torch.Tensor`, *optional*): int64 [U] for a pruned draft vocabulary.
        accept_uniforms (`torch.Tensor`, *optional*): fp64 [R, K].
        resample_uniforms (`torch.Tensor`, *optional*): fp64 [R, 2], or [R, K + 1, 2] by accepted count.
        seeds, positions (`torch.Tensor`, *optional*): int64 [R], used where uniforms are None.

    Returns:
        [`Verification`].

    Raises:
        ValueError: for an incomplete description of q, or sampling without randomness.
    """
    check_draft(draft_tokens, cu_seqlens, q_logits, q_log_normalizer, log_q, q_latents, q_w2)
    check_randomness(temperature, accept_uniforms, resample_uniforms, seeds, positions)
    rows, slots = draft_tokens.shape
    starts_R = cu_seqlens[:-1].long()
    lengths_R = (cu_seqlens[1:].long() - starts_R - 1).clamp_max(slots)
    last = target_logits.shape[0] - 1
    steps = torch.arange(slots + 1, device=draft_tokens.device)
    index_RK1 = (starts_R[:, None] + steps).clamp_max(last)
    if not samples(temperature):
        accepted_R, emitted_R = greedy_chain(target_logits.argmax(-1)[index_RK1], draft_tokens, lengths_R)
        status_R = torch.zeros(rows, dtype=torch.int32, device=draft_tokens.device)
        return Verification(commit(draft_tokens, accepted_R, emitted_R), accepted_R, status_R)

    if accept_uniforms is None:
        accept_uniforms, resample_uniforms = verify_uniforms(seeds, positions, slots)
    ones_R = torch.ones(rows, device=draft_tokens.device)
    temperature_R = temperature if torch.is_tensor(temperature) else ones_R * temperature
    draft_temperature_R = temperature_R if draft_temperature is None else draft_temperature
    if not torch.is_tensor(draft_temperature_R):
        draft_temperature_R = ones_R * draft_temperature_R
    greedy_R = temperature_R == 0
    scale_R = torch.where(greedy_R, ones_R, temperature_R)

    scaled_MV = target_logits.float()
    if torch.is_tensor(temperature):
        marker_M = derive_marker(cu_seqlens, last + 1) if row_marker is None else row_marker
        scaled_MV = scaled_MV / scale_R[marker_M.clamp_min(0)][:, None]
    elif temperature != 1:
        scaled_MV = scaled_MV / temperature
    normalizer_RK1 = scaled_MV.logsumexp(-1)[index_RK1]
    log_p_RK = (
        scaled_MV[index_RK1[:, :slots], draft_tokens.clamp(0, scaled_MV.shape[1] - 1)] - normalizer_RK1[:, :slots]
    )
    q_RK = torch.ones_like(log_p_RK) if q_logits is None else log_q.exp()
    q_RK = torch.where((draft_temperature_R == 0)[:, None], torch.ones_like(q_RK), q_RK)
    wins = (accept_uniforms * q_RK.double() < log_p_RK.double().exp()) & (steps[:slots] < lengths_R[:, None])
    accepted_R = wins.cumprod(-1).sum(-1)

    rows_R = torch.arange(rows, device=draft_tokens.device)
    normalizer_R = normalizer_RK1[rows_R, accepted_R]
    p_RV = (scaled_MV[index_RK1[rows_R, accepted_R]] - normalizer_R[:, None]).exp_()
    rejected_R = accepted_R < lengths_R
    weights_RV = p_RV
    vanished_R = torch.zeros_like(rejected_R)
    if slots:
        source = (q_logits, q_log_normalizer, q_latents, q_w2, draft_to_target)
        slot_R = accepted_R.clamp_max(slots - 1)
        q_RV = draft_probabilities(
            rows_R, slot_R, draft_tokens.clamp_min(0), p_RV.shape[1], draft_temperature_R, source
        )
        residual_RV = (p_RV - q_RV).clamp_min_(0.0)
        vanished_R = rejected_R & (residual_RV.sum(-1) <= 0)
        weights_RV = torch.where((rejected_R & ~vanished_R)[:, None], residual_RV, p_RV)
    if resample_uniforms.dim() == 3:
        resample_uniforms = resample_uniforms[rows_R, accepted_R]
    emitted_R = inverse_cdf(weights_RV, resample_uniforms, block=BLOCK)
    invalid_R = ~normalizer_R.isfinite()
    emitted_R = emitted_R.masked_fill(invalid_R, -1)
    status_R = (vanished_R.int() * STATUS_RESIDUAL_VANISHED).masked_fill(invalid_R, STATUS_NOT_A_DISTRIBUTION)
    if torch.is_tensor(temperature):
        best_RK1 = target_logits.argmax(-1)[index_RK1]
        chain_accepted_R, chain_emitted_R = greedy_chain(best_RK1, draft_tokens, lengths_R)
        accepted_R = torch.where(greedy_R, chain_accepted_R, accepted_R)
        emitted_R = torch.where(greedy_R, chain_emitted_R, emitted_R)
        status_R = status_R.masked_fill(greedy_R, STATUS_OK)
    return Verification(commit(draft_tokens, accepted_R, emitted_R), accepted_R, status_R)

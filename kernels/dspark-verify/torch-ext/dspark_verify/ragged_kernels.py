"""Triton kernels of lossless verification: at most four launches a round, no host sync.

    row_stats   peak, exp-sum and argmax of every vocabulary block of every target position
    accept      one program a row walks its drafted tokens until the first rejection
    residual    block sums of (p - q)+ at the rejected position only
    emit        two-level inverse CDF over the residual, or over p for the bonus token

Legend: R rows, K slots, M target positions, V target vocabulary, U draft vocabulary, r rank, NB vocabulary blocks.
Q says how q is given: "logits", "recomputed" (base logits + w2 @ latent) or "one_hot".
"""

import triton
import triton.language as tl

from .random_triton import combine_blocks, pick, two_uniforms


STREAM_ACCEPT = tl.constexpr(2)
STREAM_RESAMPLE = tl.constexpr(3)


@triton.jit
def row_stats_kernel(
    logits,  # [M, V]
    logits_stride,
    row_marker,  # [M] int32, -1 for padding
    temperature,  # [R] fp32
    peaks,  # out [M, NB] fp32, also sums; bests int32
    sums,
    bests,
    V,
    NB,
    BLOCK: tl.constexpr,
):
    position = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1).to(tl.int64)
    row = tl.load(row_marker + position)
    if row >= 0:
        t = tl.load(temperature + row)
        inside = tl.arange(0, BLOCK)
        vocab = block * BLOCK + inside
        x = tl.load(logits + position * logits_stride + vocab, mask=vocab < V, other=-float("inf")).to(tl.float32)
        scaled = x / tl.where(t == 0.0, 1.0, t)
        broken = scaled != scaled
        clean = tl.where(broken, -float("inf"), scaled)
        peak = tl.max(clean, 0)
        # exp(inf - 0) stays inf and exp(nan) nan, so a row that is no distribution ends with a normaliser that says so.
        finite = (peak > -float("inf")) & (peak < float("inf"))
        weight = tl.exp(scaled - tl.where(finite, peak, 0.0))
        first_nan = tl.min(tl.where(broken, inside, BLOCK), 0)
        # torch.argmax takes the first NaN for the largest number.
        best = tl.where(first_nan < BLOCK, first_nan, tl.argmax(clean, 0))
        tl.store(peaks + position * NB + block, peak)
        tl.store(sums + position * NB + block, tl.sum(weight, 0))
        tl.store(bests + position * NB + block, (block * BLOCK + best).to(tl.int32))


@triton.jit
def best_token(peaks, sums, bests, position, NB, BLOCKS: tl.constexpr):
    """argmax of a position's logits from its blocks, the first NaN before everything."""
    index = tl.arange(0, BLOCKS)
    mask = index < NB
    peak = tl.load(peaks + position * NB + index, mask=mask, other=-float("inf"))
    total = tl.load(sums + position * NB + index, mask=mask, other=0.0)
    nan_block = tl.min(tl.where(total != total, index, BLOCKS), 0)
    block = tl.where(nan_block < BLOCKS, nan_block, tl.argmax(peak, 0))
    return tl.load(bests + position * NB + block).to(tl.int64)


@triton.jit
def normalizer_of(peaks, sums, position, NB, BLOCKS: tl.constexpr):
    """logsumexp of a position's scaled logits from its blocks."""
    index = tl.arange(0, BLOCKS)
    mask = index < NB
    peak = tl.load(peaks + position * NB + index, mask=mask, other=-float("inf"))
    total = tl.load(sums + position * NB + index, mask=mask, other=0.0)
    highest, normalizer = combine_blocks(peak, total)
    return normalizer


@triton.jit
def accept_kernel(
    logits,
    logits_stride,
    cu_seqlens,  # [R + 1]
    draft,  # [R, K] int64
    draft_stride,
    temperature,
    draft_temperature,
    uniforms,  # [R, K] fp64 or None
    seeds,  # [R] int64 or None
    positions,
    log_q,  # [R, K] fp32 or None
    peaks,
    sums,
    bests,
    accepted,  # out [R] int64
    emitting,  # out [R] int64: target position of the emitted token
    normalizers,  # out [R] fp32: its logsumexp
    status,  # out [R] int32
    tokens,  # out [R, K + 1] int64
    K,
    NB,
    Q: tl.constexpr,
    BLOCKS: tl.constexpr,
    SLOTS_P2: tl.constexpr,
    SAMPLE: tl.constexpr,
    KEYED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    start = tl.load(cu_seqlens + row).to(tl.int64)
    length = tl.minimum(tl.load(cu_seqlens + row + 1).to(tl.int64) - start - 1, K)
    t = tl.load(temperature + row)
    count = row * 0
    going = length > 0
    while going:
        position = start + count
        token = tl.load(draft + row * draft_stride + count)
        ok = best_token(peaks, sums, bests, position, NB, BLOCKS) == token
        if SAMPLE:  # noqa: SIM102 (a compile-time test around a run-time one)
            if t > 0.0:
                normalizer = normalizer_of(peaks, sums, position, NB, BLOCKS)
                log_p = tl.load(logits + position * logits_stride + token).to(tl.float32) / t - normalizer
                q = log_p.to(tl.float64) * 0.0 + 1.0
                if Q != "one_hot":  # noqa: SIM102
                    if tl.load(draft_temperature + row) > 0.0:
                        q = tl.exp(tl.load(log_q + row * K + count)).to(tl.float64)
                key = row * 0
                if KEYED:
                    key = tl.load(positions + row) + count
                    u, unused = two_uniforms(uniforms, seeds, row, key, STREAM_ACCEPT, True)
                else:
                    u = tl.load(uniforms + row * K + count)
                ok = u * q < tl.exp(log_p.to(tl.float64))
        if ok:
            count += 1
        going = ok & (count < length)
    position = start + count
    normalizer = normalizer_of(peaks, sums, position, NB, BLOCKS)
    slot = tl.arange(0, SLOTS_P2)
    kept = tl.load(draft + row * draft_stride + slot, mask=slot < count, other=-1)
    tl.store(tokens + row * (K + 1) + slot, kept, mask=(slot <= K) & (slot != count))
    emitted = best_token(peaks, sums, bests, position, NB, BLOCKS)
    valid = (normalizer > -float("inf")) & (normalizer < float("inf"))
    broken = (t > 0.0) & (valid == 0)
    tl.store(tokens + row * (K + 1) + count, tl.where(broken, -1, emitted))
    tl.store(status + row, tl.where(broken, 2, 0))
    tl.store(accepted + row, count)
    tl.store(emitting + row, position)
    tl.store(normalizers + row, normalizer)


@triton.jit
def residual_block(
    logits,
    logits_stride,
    position,
    normalizer,
    t,
    token,
    row,
    slot,
    vocab,
    q_logits,
    q_row_stride,
    q_slot_stride,
    q_normalizers,
    q_latents,
    q_w2,
    draft_temperature,
    target_to_draft,
    V,
    U,
    K,
    RANK: tl.constexpr,
    Q: tl.constexpr,
):
    """(p - q)+ over one block of the target vocabulary."""
    mask = vocab < V
    x = tl.load(logits + position * logits_stride + vocab, mask=mask, other=-float("inf")).to(tl.float32)
    p = tl.exp(x / t - normalizer)
    q = tl.where(vocab == token, 1.0, 0.0)
    if Q != "one_hot":
        draft_t = tl.load(draft_temperature + row)
        if draft_t > 0.0:
            index = vocab
            if target_to_draft is not None:
                index = tl.load(target_to_draft + vocab, mask=mask, other=-1).to(tl.int64)
            inside = mask & (index >= 0) & (index < U)
            at = row * q_row_stride + slot * q_slot_stride + index
            y = tl.load(q_logits + at, mask=inside, other=-float("inf")).to(tl.float32)
            if Q == "recomputed":
                for start in range(0, RANK, 16):
                    k = start + tl.arange(0, 16)
                    z = tl.load(q_latents + (row * K + slot) * RANK + k, mask=k < RANK, other=0.0).to(tl.float32)
                    w_mask = inside[:, None] & (k < RANK)[None, :]
                    w = tl.load(q_w2 + index[:, None] * RANK + k[None, :], mask=w_mask, other=0.0).to(tl.float32)
                    y += tl.sum(w * z[None, :], 1)
            q = tl.exp(y / draft_t - tl.load(q_normalizers + row * K + slot))
    return tl.where(mask, tl.maximum(p - q, 0.0), 0.0)


@triton.jit
def residual_kernel(
    logits,
    logits_stride,
    cu_seqlens,
    draft,
    draft_stride,
    temperature,
    draft_temperature,
    q_logits,
    q_row_stride,
    q_slot_stride,
    q_normalizers,
    q_latents,
    q_w2,
    target_to_draft,  # [V] int32, -1 outside the draft vocabulary, or None
    accepted,
    emitting,
    normalizers,
    residuals,  # out [R, NB] fp32
    V,
    U,
    K,
    NB,
    RANK: tl.constexpr,
    BLOCK: tl.constexpr,
    Q: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1).to(tl.int64)
    t = tl.load(temperature + row)
    slot = tl.load(accepted + row)
    length = tl.minimum(tl.load(cu_seqlens + row + 1).to(tl.int64) - tl.load(cu_seqlens + row).to(tl.int64) - 1, K)
    if (t > 0.0) & (slot < length):  # a bonus row reuses the row statistics
        weights = residual_block(
            logits,
            logits_stride,
            tl.load(emitting + row),
            tl.load(normalizers + row),
            t,
            tl.load(draft + row * draft_stride + slot),
            row,
            slot,
            block * BLOCK + tl.arange(0, BLOCK),
            q_logits,
            q_row_stride,
            q_slot_stride,
            q_normalizers,
            q_latents,
            q_w2,
            draft_temperature,
            target_to_draft,
            V,
            U,
            K,
            RANK,
            Q,
        )
        tl.store(residuals + row * NB + block, tl.sum(weights, 0))


@triton.jit
def emit_kernel(
    logits,
    logits_stride,
    cu_seqlens,
    draft,
    draft_stride,
    temperature,
    draft_temperature,
    uniforms,  # [R, 2] or [R, K + 1, 2] fp64, or None
    uniform_row_stride,
    uniform_slot_stride,
    seeds,
    positions,
    q_logits,
    q_row_stride,
    q_slot_stride,
    q_normalizers,
    q_latents,
    q_w2,
    target_to_draft,
    accepted,
    emitting,
    normalizers,
    peaks,
    sums,
    residuals,
    tokens,
    status,
    V,
    U,
    K,
    NB,
    RANK: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    Q: tl.constexpr,
    KEYED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    t = tl.load(temperature + row)
    if (t > 0.0) & (tl.load(status + row) != 2):
        slot = tl.load(accepted + row)
        position = tl.load(emitting + row)
        normalizer = tl.load(normalizers + row)
        length = tl.minimum(tl.load(cu_seqlens + row + 1).to(tl.int64) - tl.load(cu_seqlens + row).to(tl.int64) - 1, K)
        key = row * 0
        if KEYED:
            key = tl.load(positions + row) + slot
            block_u, inner_u = two_uniforms(uniforms, seeds, row, key, STREAM_RESAMPLE, True)
        else:
            at = uniforms + row * uniform_row_stride + slot * uniform_slot_stride
            block_u, inner_u = two_uniforms(at, seeds, row, key, STREAM_RESAMPLE, False)
        index = tl.arange(0, BLOCKS)
        mask = index < NB
        peak = tl.load(peaks + position * NB + index, mask=mask, other=-float("inf"))
        total = tl.load(sums + position * NB + index, mask=mask, other=0.0)
        from_p = tl.where(peak > -float("inf"), total * tl.exp(peak - normalizer), 0.0)
        rejected = slot < length
        # `mask & rejected` would be a vector and a scalar bool, which the interpreter refuses.
        from_residual = tl.load(residuals + row * NB + index, mask=index < tl.where(rejected, NB, 0), other=0.0)
        use_p = tl.sum(from_residual, 0) <= 0.0
        block = tl.maximum(pick(tl.where(use_p, from_p, from_residual), index, block_u, BLOCKS), 0).to(tl.int64)
        inside = tl.arange(0, BLOCK)
        vocab = block * BLOCK + inside
        if use_p:
            x = tl.load(logits + position * logits_stride + vocab, mask=vocab < V, other=-float("inf")).to(tl.float32)
            weights = tl.where(vocab < V, tl.exp(x / t - normalizer), 0.0)
        else:
            weights = residual_block(
                logits,
                logits_stride,
                position,
                normalizer,
                t,
                tl.load(draft + row * draft_stride + slot),
                row,
                slot,
                vocab,
                q_logits,
                q_row_stride,
                q_slot_stride,
                q_normalizers,
                q_latents,
                q_w2,
                draft_temperature,
                target_to_draft,
                V,
                U,
                K,
                RANK,
                Q,
            )
        chosen = block * BLOCK + tl.maximum(pick(weights, inside, inner_u, BLOCK), 0)
        tl.store(tokens + row * (K + 1) + slot, chosen)
        tl.store(status + row, tl.where(use_p & rejected, 1, 0))

"""Triton kernels of Markov drafting: two launches per slot.

`tile` reads one block of W2 once for BLOCK_R rows, adds the base logits, stores the corrected ones and keeps the block's
peak, exp-sum and argmax. `finish` turns the blocks of a row into its token, log q and normaliser, and prepares the next
slot: latent, confidence and survival.

Legend: R rows, K slots, U draft vocabulary, V target vocabulary, r rank, NB vocabulary blocks.
"""

import triton
import triton.language as tl

from .random_triton import combine_blocks, pick, two_uniforms


STREAM_DRAFT = tl.constexpr(1)


@triton.jit
def tile_kernel(
    base,  # [R, U] logits of this slot, overwritten if STORE
    base_stride,
    w2,  # [U, r], None without a Markov head
    latent,  # [R, r]
    temperature,  # [R] fp32
    peaks,  # [R, NB] fp32, also sums; argmax int32
    sums,
    bests,
    R,
    U,
    NB,
    RANK: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    STORE: tl.constexpr,
    DOT_FP32: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    rows = tl.program_id(1).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    vocab = block * BLOCK + tl.arange(0, BLOCK)
    row_mask, vocab_mask = rows < R, vocab < U
    mask = row_mask[:, None] & vocab_mask[None, :]
    pointers = base + rows[:, None] * base_stride + vocab[None, :]
    stored = tl.load(pointers, mask=mask, other=0.0)  # [BLOCK_R, BLOCK]
    logits = stored.to(tl.float32)
    if HAS_BIAS:
        bias = tl.zeros([BLOCK_R, BLOCK], dtype=tl.float32)
        for start in range(0, RANK, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            k_mask = k < RANK
            w = tl.load(w2 + vocab[:, None] * RANK + k[None, :], mask=vocab_mask[:, None] & k_mask[None, :], other=0.0)
            x = tl.load(
                latent + rows[:, None] * RANK + k[None, :], mask=row_mask[:, None] & k_mask[None, :], other=0.0
            )
            x = x.to(w.dtype)
            if DOT_FP32:
                w, x = w.to(tl.float32), x.to(tl.float32)
            bias = tl.dot(x, tl.trans(w), bias, input_precision="ieee")
        logits += bias
    if STORE:
        # Rounded to the storage type BEFORE sampling, so that q is exactly softmax(stored / temperature).
        rounded = logits.to(stored.dtype)
        tl.store(pointers, rounded, mask=mask)
        logits = rounded.to(tl.float32)
    t = tl.load(temperature + rows, mask=row_mask, other=1.0)
    scaled = tl.where(mask, logits / tl.where(t == 0.0, 1.0, t)[:, None], -float("inf"))
    peak = tl.max(scaled, 1)
    weight = tl.exp(scaled - tl.where(peak > -float("inf"), peak, 0.0)[:, None])
    out = rows * NB + block
    tl.store(peaks + out, peak, mask=row_mask)
    tl.store(sums + out, tl.sum(weight, 1), mask=row_mask)
    tl.store(bests + out, (block * BLOCK + tl.argmax(scaled, 1)).to(tl.int32), mask=row_mask)


@triton.jit
def choose(
    base,
    base_stride,
    w2,
    latent,
    temperature,
    peaks,
    sums,
    bests,
    uniforms,
    seeds,
    position,
    row,
    U,
    NB,
    RANK: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    STORE: tl.constexpr,
    SAMPLE: tl.constexpr,
    KEYED: tl.constexpr,
):
    """`(token, log q, normaliser)` of one row from the block statistics."""
    index = tl.arange(0, BLOCKS)
    peak = tl.load(peaks + row * NB + index, mask=index < NB, other=-float("inf"))
    total = tl.load(sums + row * NB + index, mask=index < NB, other=0.0)
    highest, normalizer = combine_blocks(peak, total)
    t = tl.load(temperature + row)
    token = tl.load(bests + row * NB + tl.argmax(peak, 0)).to(tl.int64)
    log_q = t * 0.0
    if SAMPLE:  # noqa: SIM102 (a compile-time test around a run-time one)
        if t > 0.0:
            block_uniform, inner_uniform = two_uniforms(uniforms, seeds, row, position, STREAM_DRAFT, KEYED)
            weights = tl.where(peak > -float("inf"), total * tl.exp(peak - highest), 0.0)
            block = tl.maximum(pick(weights, index, block_uniform, BLOCKS), 0).to(tl.int64)
            inside = tl.arange(0, BLOCK)
            vocab = block * BLOCK + inside
            logits = tl.load(base + row * base_stride + vocab, mask=vocab < U, other=-float("inf")).to(tl.float32)
            if HAS_BIAS and not STORE:  # the corrected logits of this one block again
                for start in range(0, RANK, 16):
                    k = start + tl.arange(0, 16)
                    z = tl.load(latent + row * RANK + k, mask=k < RANK, other=0.0).to(tl.float32)
                    w_mask = (vocab < U)[:, None] & (k < RANK)[None, :]
                    w = tl.load(w2 + vocab[:, None] * RANK + k[None, :], mask=w_mask, other=0.0).to(tl.float32)
                    logits += tl.sum(w * z[None, :], 1)
            scaled = logits / t
            weights = tl.where(vocab < U, tl.exp(scaled - highest), 0.0)
            chosen = tl.maximum(pick(weights, inside, inner_uniform, BLOCK), 0)
            token = block * BLOCK + chosen
            log_q = tl.sum(tl.where(inside == chosen, scaled, 0.0), 0) - normalizer
    return token, log_q, tl.where(t == 0.0, 0.0, normalizer)


@triton.jit
def matvec(weight, row_stride, rows, row_mask, column, vector, RANK: tl.constexpr, RANK_P2: tl.constexpr):
    """weight[rows, column : column + RANK] @ vector in fp32."""
    k = tl.arange(0, RANK_P2)
    mask = row_mask[:, None] & (k < RANK)[None, :]
    w = tl.load(weight + rows[:, None] * row_stride + (column + k)[None, :], mask=mask, other=0.0)
    return tl.sum(w.to(tl.float32) * vector[None, :], 1)


@triton.jit
def next_latent(
    embedding_row,  # [r], w1 at the token before
    projected_row,  # hidden part of the projection, [r] (gated) or [3r] (rnn), None for vanilla
    projection,  # gate_proj or joint_proj
    projection_stride,
    embedding_column,  # first column of the embedding in the projection
    state_row,  # [r], None but for rnn; the new state goes to state_out
    state_out,
    latent_out,  # [r]
    HEAD: tl.constexpr,
    RANK: tl.constexpr,
    RANK_P2: tl.constexpr,
    BLOCK_O: tl.constexpr,
):
    """Latent (and state) of the next slot, BLOCK_O outputs at a time."""
    k = tl.arange(0, RANK_P2)
    embedding = tl.load(embedding_row + k, mask=k < RANK, other=0.0)
    if HEAD == "vanilla":
        tl.store(latent_out + k, embedding, mask=k < RANK)
    else:
        embedding = embedding.to(tl.float32)
        if HEAD == "rnn":
            state = tl.load(state_row + k, mask=k < RANK, other=0.0).to(tl.float32)
        for start in range(0, RANK, BLOCK_O):
            o = start + tl.arange(0, BLOCK_O)
            o_mask = o < RANK
            gate = tl.load(projected_row + o, mask=o_mask, other=0.0).to(tl.float32)
            gate += matvec(projection, projection_stride, o, o_mask, embedding_column, embedding, RANK, RANK_P2)
            if HEAD == "gated":
                part = tl.load(embedding_row + o, mask=o_mask, other=0.0).to(tl.float32)
                latent = tl.sigmoid(gate) * part
            else:
                gate += matvec(projection, projection_stride, o, o_mask, 0, state, RANK, RANK_P2)
                candidate = tl.load(projected_row + RANK + o, mask=o_mask, other=0.0).to(tl.float32)
                candidate += matvec(projection, projection_stride, RANK + o, o_mask, 0, state, RANK, RANK_P2)
                candidate += matvec(
                    projection, projection_stride, RANK + o, o_mask, embedding_column, embedding, RANK, RANK_P2
                )
                output = tl.load(projected_row + 2 * RANK + o, mask=o_mask, other=0.0).to(tl.float32)
                output += matvec(projection, projection_stride, 2 * RANK + o, o_mask, 0, state, RANK, RANK_P2)
                output += matvec(
                    projection, projection_stride, 2 * RANK + o, o_mask, embedding_column, embedding, RANK, RANK_P2
                )
                gate = tl.sigmoid(gate)
                before = tl.load(state_row + o, mask=o_mask, other=0.0).to(tl.float32)
                # tanh(x) = 2 * sigmoid(2x) - 1: libdevice functions do not run in the interpreter.
                after = gate * before + (1 - gate) * (2 * tl.sigmoid(2 * candidate) - 1)
                tl.store(state_out + o, after.to(state_out.dtype.element_ty), mask=o_mask)
                latent = 2 * tl.sigmoid(2 * output) - 1
            tl.store(latent_out + o, latent.to(latent_out.dtype.element_ty), mask=o_mask)


@triton.jit
def finish_kernel(
    base,  # this slot's logits, corrected if STORE
    base_stride,
    w1,  # [V, r]
    w2,
    latents,  # [K + 1, R, r], latents[slot] is this slot's
    states,  # [K + 1, R, r] for rnn
    projected,  # [R, K, r or 3r]
    projection,
    projection_stride,
    embedding_column,
    anchor,  # [R] int64
    draft_to_target,  # [U] int64 or None
    temperature,
    peaks,
    sums,
    bests,
    uniforms,  # [R, K, 2] fp64 or None
    seeds,  # [R] int64 or None
    positions,
    tokens,  # out [R, K] int64
    log_q,  # out [R, K] fp32, also normalizers
    normalizers,
    hidden_confidence,  # [R, K] fp32: w_h . hidden_k + bias
    confidence_weight,  # [r] fp32, part of the embedding, None if it sees hidden states only
    confidence_temperatures,  # [K] fp32 or None, also biases
    confidence_biases,
    confidence_logits,  # out [R, K] fp32, also survival
    survival,
    slot,  # -1 before the first slot
    R,
    K,
    U,
    NB,
    HEAD: tl.constexpr,
    RANK: tl.constexpr,
    RANK_P2: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK_O: tl.constexpr,
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    STORE: tl.constexpr,
    SAMPLE: tl.constexpr,
    KEYED: tl.constexpr,
    CONFIDENCE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    if FIRST:
        token = tl.load(anchor + row)
    else:
        at = row * K + slot
        position = row * 0
        if KEYED:
            position = tl.load(positions + row) + slot
        token, chosen_log_q, normalizer = choose(
            base,
            base_stride,
            w2,
            latents + (row * 0 + slot) * R * RANK if HAS_BIAS else None,
            temperature,
            peaks,
            sums,
            bests,
            uniforms + 2 * at if SAMPLE and not KEYED else None,
            seeds,
            position,
            row,
            U,
            NB,
            RANK,
            BLOCK,
            BLOCKS,
            HAS_BIAS,
            STORE,
            SAMPLE,
            KEYED,
        )
        if draft_to_target is not None:
            token = tl.load(draft_to_target + token)
        tl.store(tokens + at, token)
        tl.store(log_q + at, chosen_log_q)
        tl.store(normalizers + at, normalizer)
    if not LAST:
        if HAS_BIAS:
            following = row * 0 + slot + 1
            here = (following * R + row) * RANK
            next_latent(
                w1 + token * RANK,
                projected + (row * K + following) * (3 * RANK if HEAD == "rnn" else RANK)
                if HEAD != "vanilla"
                else None,
                projection,
                projection_stride,
                embedding_column,
                states + here if HEAD == "rnn" else None,
                states + here + (row * 0 + R) * RANK if HEAD == "rnn" else None,
                latents + here,
                HEAD,
                RANK,
                RANK_P2,
                BLOCK_O,
            )
        if CONFIDENCE:
            logit = tl.load(hidden_confidence + row * K + slot + 1)
            if confidence_weight is not None:
                k = tl.arange(0, RANK_P2)
                embedding = tl.load(w1 + token * RANK + k, mask=k < RANK, other=0.0).to(tl.float32)
                logit += tl.sum(embedding * tl.load(confidence_weight + k, mask=k < RANK, other=0.0), 0)
            scaled = logit
            if confidence_temperatures is not None:
                scaled = scaled / tl.load(confidence_temperatures + slot + 1)
            if confidence_biases is not None:
                scaled = scaled + tl.load(confidence_biases + slot + 1)
            alive = tl.sigmoid(scaled)
            if not FIRST:
                alive *= tl.load(survival + row * K + slot)
            tl.store(confidence_logits + row * K + slot + 1, logit)
            tl.store(survival + row * K + slot + 1, alive)

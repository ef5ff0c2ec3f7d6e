"""Triton kernels of the prefix scheduler: two launches, nothing leaves the device.

`rank` counts, for every candidate, how many come before it: no sort, and a tie-break that no token value can touch.
`admit` is one program that walks the ranking in chunks with the cost table until the first refusal, and writes lengths,
cu_seqlens and the row marker.

Legend: R rows, K slots, N = R * K candidates; candidate i is slot i // R of row i % R, so i itself breaks ties.
"""

import triton
import triton.language as tl


@triton.jit
def live_survival(survival, limits, index, R, K, N):
    """Survival of candidates, -1 where a row's limit or the end excludes them."""
    row, slot = index % R, index // R
    mask = index < N
    value = tl.load(survival + row * K + slot, mask=mask, other=-1.0)
    if limits is not None:
        value = tl.where(slot < tl.load(limits + row, mask=mask, other=0), value, -1.0)
    return value


@triton.jit
def rank_kernel(
    survival,  # [R, K] fp32
    limits,  # [R] int32 or None
    ranked,  # out [N] fp32, survival in falling order
    order,  # out [N] int32, candidate at each rank
    ranks,  # out [N] int32, rank of each candidate
    R,
    K,
    N,
    BLOCK: tl.constexpr,
    BLOCK_OTHER: tl.constexpr,
):
    # Candidates are few, and 64-bit indices would double the registers of the comparison.
    index = (tl.program_id(0).to(tl.int64) * BLOCK).to(tl.int32) + tl.arange(0, BLOCK)
    mine = live_survival(survival, limits, index, R, K, N)
    before = tl.zeros([BLOCK], dtype=tl.int32)
    for start in range(0, N, BLOCK_OTHER):
        other = start + tl.arange(0, BLOCK_OTHER)
        theirs = live_survival(survival, limits, other, R, K, N)
        wins = (theirs[None, :] > mine[:, None]) | (
            (theirs[None, :] == mine[:, None]) & (other[None, :] < index[:, None])
        )
        before += tl.sum((wins & (other < N)[None, :]).to(tl.int32), 1)
    mask = index < N
    tl.store(ranks + index, before, mask=mask)
    tl.store(ranked + before, mine, mask=mask)
    tl.store(order + before, index, mask=mask)


@triton.jit
def pays_ahead(gain, before, order, seconds, draft_seconds, acceptance, acceptance_stride, base, rank, R, K, N):
    """Whether some m >= 1 makes this slot, with the m - 1 slots of its row behind it, beat the present rate.

    Both sides are in seconds: what the expected tokens are worth at the present rate against what the forward takes.
    """
    row, slot = order % R, order // R
    inside = rank < N
    worth = tl.load(seconds + base + rank, mask=inside, other=1.0).to(tl.float64) + draft_seconds
    gain = gain * (worth / before)
    pays = rank < 0
    for m in range(1, K + 1):
        worth = worth + gain
        mask = inside & (slot + m <= K)
        later = tl.load(seconds + base + rank + m, mask=mask, other=0.0).to(tl.float64) + draft_seconds
        pays = pays | (mask & (worth > later))
        rho_mask = inside & (slot + m < K)
        gain = gain * tl.load(acceptance + row * acceptance_stride + slot + m, mask=rho_mask, other=0.0).to(tl.float64)
    return pays


@triton.jit
def admit_kernel(
    ranked,
    order,
    ranks,
    seconds,  # [T] fp64
    draft_seconds,  # [1] fp64
    acceptance,  # [K] or [R, K] fp32, None but for lookahead
    acceptance_stride,
    capacity,  # [1] int32, None but for top_k
    lengths,  # out [R] int32
    cu_seqlens,  # out [R + 1] int32
    marker,  # out [R * (K + 1)] int32
    admitted,  # out [1] int32
    throughput,  # out [1] fp64
    base,
    R,
    K,
    N,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
    POLICY: tl.constexpr,
):
    draft = tl.load(draft_seconds)
    lane = tl.arange(0, CHUNK)
    tau = draft * 0.0 + R
    count = 0
    start = 0
    going = N > 0
    while going:
        rank = start + lane
        mask = rank < N
        survival = tl.load(ranked + rank, mask=mask, other=-1.0)
        gain = tl.where(survival > 0.0, survival, 0.0).to(tl.float64)
        previous = tl.load(ranked + rank - 1, mask=mask & (lane > 0), other=0.0).to(tl.float64)
        before = tl.cumsum(tl.where(lane == 0, tau, tl.maximum(previous, 0.0)), 0)
        if POLICY == "top_k":
            better = rank < tl.load(capacity)
        else:
            if POLICY == "early_stop":
                now = tl.load(seconds + base + rank, mask=mask, other=1.0).to(tl.float64) + draft
                later = tl.load(seconds + base + 1 + rank, mask=mask, other=1.0).to(tl.float64) + draft
                better = (before + gain) / later > before / now
            else:
                candidate = tl.load(order + rank, mask=mask, other=0)
                better = pays_ahead(
                    gain, before, candidate, seconds, draft, acceptance, acceptance_stride, base, rank, R, K, N
                )
        taken = tl.min(tl.where(better & (survival >= 0.0), CHUNK, lane), 0)
        tau += tl.sum(tl.where(lane < taken, gain, 0.0), 0)
        count = start + taken
        start += CHUNK
        going = (taken == CHUNK) & (start < N)
    tl.store(admitted, count)
    tl.store(throughput, tau / (tl.load(seconds + base + count).to(tl.float64) + draft))

    slot = tl.arange(0, SLOTS)
    used = 0
    tl.store(cu_seqlens, 0)
    for first in range(0, R, ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row[:, None] < R) & (slot[None, :] < K)
        place = tl.load(ranks + slot[None, :] * R + row[:, None], mask=inside, other=N)
        # Within a row survival does not rise and ties go to the lower slot, so the admitted slots are a prefix.
        length = tl.sum((place < count).to(tl.int32), 1)
        width = tl.where(row < R, length + 1, 0)
        end = used + tl.cumsum(width, 0)
        tl.store(lengths + row, length, mask=row < R)
        tl.store(cu_seqlens + 1 + row, end, mask=row < R)
        owned = (row[:, None] < R) & (slot[None, :] < width[:, None])
        owner = row[:, None] + slot[None, :] * 0
        tl.store(marker + (end - width)[:, None] + slot[None, :], owner, mask=owned)
        used += tl.sum(width, 0)
    for first in range(used, R * (K + 1), CHUNK):
        tl.store(marker + first + lane, lane * 0 - 1, mask=first + lane < R * (K + 1))

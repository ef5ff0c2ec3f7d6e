"""Launches the scheduler's kernels; same signature and meaning as `reference.schedule_prefix`.

Legend: R rows, K slots, N = R * K candidates.
"""

from __future__ import annotations

import torch
import triton

from . import reference
from .prefix_kernels import admit_kernel, rank_kernel
from .reference import PrefixSchedule, check_schedule


# Ranking counts all pairs; above this the torch path, which sorts and does not sync either, takes over.
MOST_CANDIDATES = 16384


def schedule_prefix(
    survival,
    seconds,
    *,
    draft_seconds=0.0,
    policy="early_stop",
    limits=None,
    acceptance=None,
    capacity=None,
    base_tokens=None,
) -> PrefixSchedule:
    """See [`reference.schedule_prefix`]."""
    rows, slots = survival.shape
    base = rows if base_tokens is None else base_tokens
    check_schedule(survival, seconds, policy, acceptance, capacity, base)
    candidates = rows * slots
    if not 0 < candidates <= MOST_CANDIDATES:
        return reference.schedule_prefix(
            survival,
            seconds,
            draft_seconds=draft_seconds,
            policy=policy,
            limits=limits,
            acceptance=acceptance,
            capacity=capacity,
            base_tokens=base,
        )
    device = survival.device
    ranked = torch.empty(candidates, device=device)
    order, ranks = torch.empty(2, candidates, dtype=torch.int32, device=device)
    lengths = torch.empty(rows, dtype=torch.int32, device=device)
    cu_seqlens = torch.empty(rows + 1, dtype=torch.int32, device=device)
    marker = torch.empty(rows * (slots + 1), dtype=torch.int32, device=device)
    admitted = torch.empty(1, dtype=torch.int32, device=device)
    throughput = torch.empty(1, dtype=torch.float64, device=device)
    block = 16
    rank_kernel[(triton.cdiv(candidates, block),)](
        survival.float().contiguous(),
        limits,
        ranked,
        order,
        ranks,
        rows,
        slots,
        candidates,
        BLOCK=block,
        BLOCK_OTHER=min(128, max(16, triton.next_power_of_2(candidates))),
        num_warps=4,
    )
    admit_kernel[(1,)](
        ranked,
        order,
        ranks,
        seconds,
        torch.full((1,), float(draft_seconds), dtype=torch.float64, device=device),
        None if policy != "lookahead" else acceptance.contiguous(),
        slots if acceptance is not None and acceptance.dim() == 2 else 0,
        capacity if policy == "top_k" else None,
        lengths,
        cu_seqlens,
        marker,
        admitted,
        throughput,
        base,
        rows,
        slots,
        candidates,
        CHUNK=min(1024, triton.next_power_of_2(candidates)),
        ROWS=min(64, triton.next_power_of_2(rows)),
        SLOTS=triton.next_power_of_2(slots + 1),
        POLICY=policy,
        num_warps=4,
    )
    return PrefixSchedule(lengths, cu_seqlens, marker, admitted, throughput)

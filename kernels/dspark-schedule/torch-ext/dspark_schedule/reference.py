"""Choose how many drafted tokens of each row to verify, in plain torch and without a host sync.

Every (row, slot) is a candidate; candidates are ranked by survival (high first), then slot, then row, so ties never
depend on token values and a row's slots are admitted in order. With tau the expected tokens of what is admitted so far,
B the tokens it costs, D the seconds of a draft and T(B) those of a target forward, candidate i is admitted iff

    early_stop   (tau + a_i) / (D + T(B + 1)) > tau / (D + T(B))
    lookahead    (tau + a_i * (1 + sum_{n<m} rho_{k+1}..rho_{k+n})) / (D + T(B + m)) > tau / (D + T(B))   for some m >= 1
    top_k        i < capacity, a budget from older rounds

and admission ends at the first refusal. rho is the historical conditional acceptance of a slot. As in Algorithm 1, a slot
of survival 0 is a candidate like any other: it is admitted where T(B) falls. Only slots beyond a row's limit are none. The
module knows nothing of models or of how the cost was measured.

Legend: R rows, K slots, N = R * K candidates, T entries of the cost table.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


POLICIES = ("early_stop", "lookahead", "top_k")
EXCLUDED = -1.0  # survival of a slot beyond its row's limit: ranks last and is never admitted


class PrefixSchedule(NamedTuple):
    """Lengths and the flattened layout that follows from them.

    Args:
        lengths (`torch.Tensor`): int32 [R], drafted tokens to verify, 0..K.
        cu_seqlens (`torch.Tensor`): int32 [R + 1], running sum of `lengths + 1`.
        row_marker (`torch.Tensor`): int32 [R * (K + 1)], row of each flattened position, -1 past the end.
        admitted (`torch.Tensor`): int32 [1], sum of the lengths.
        throughput (`torch.Tensor`): fp64 [1], expected tokens per second of this choice.
    """

    lengths: torch.Tensor
    cu_seqlens: torch.Tensor
    row_marker: torch.Tensor
    admitted: torch.Tensor
    throughput: torch.Tensor


def check_schedule(survival, seconds, policy, acceptance, capacity, base_tokens) -> None:
    """Refuse inputs that do not fit together."""
    rows, slots = survival.shape
    most = base_tokens + rows * slots
    if policy not in POLICIES:
        raise ValueError(f"policy must be one of {POLICIES}, got {policy!r}.")
    if seconds.numel() <= most:
        raise ValueError(
            f"`seconds` has {seconds.numel()} entries, but {most} tokens can be verified; pass 0..{most}."
        )
    if policy == "lookahead" and (acceptance is None or acceptance.shape not in ((slots,), (rows, slots))):
        raise ValueError(f"lookahead needs `acceptance` [{slots}] or [{rows}, {slots}], the history of each slot.")
    if policy == "top_k" and capacity is None:
        raise ValueError("top_k needs `capacity`, an int tensor [1] on the device of `survival`.")


def pays_ahead(gain_N, before_N, order_N, round_seconds, acceptance_RK, base: int) -> torch.Tensor:
    """bool [N]: whether some m >= 1 makes a slot, with the m - 1 slots of its row behind it, beat the present rate.

    Both sides are in seconds: what the expected tokens are worth at the present rate against what the forward takes. With
    equal prices and no chance a tie stays a tie.
    """
    rows, slots = acceptance_RK.shape
    rank_N = torch.arange(len(gain_N), device=gain_N.device)
    row_N, slot_N = order_N % rows, order_N // rows
    worth_N = round_seconds[base + rank_N]
    gain_N = gain_N * (worth_N / before_N)
    pays_N = torch.zeros_like(rank_N, dtype=torch.bool)
    for ahead in range(1, slots + 1):
        worth_N = worth_N + gain_N
        exists_N = slot_N + ahead <= slots
        price_N = round_seconds[(base + rank_N + ahead).clamp_max(len(round_seconds) - 1)]
        pays_N |= exists_N & (worth_N > price_N)
        gain_N = gain_N * acceptance_RK[row_N, (slot_N + ahead).clamp_max(slots - 1)].double()
    return pays_N


def schedule_prefix(
    survival: torch.Tensor,
    seconds: torch.Tensor,
    *,
    draft_seconds: float = 0.0,
    policy: str = "early_stop",
    limits: torch.Tensor | None = None,
    acceptance: torch.Tensor | None = None,
    capacity: torch.Tensor | None = None,
    base_tokens: int | None = None,
) -> PrefixSchedule:
    """Prefix lengths of R rows from live survival and a measured cost table.

    Args:
        survival (`torch.Tensor`): fp32 [R, K], non-increasing along K, in [0, 1].
        seconds (`torch.Tensor`): fp64 [T], `seconds[B]` = one target forward over B tokens, T > base_tokens + R * K.
        draft_seconds (`float`): one draft. Algorithm 1 of the paper leaves it at 0.
        policy (`str`): "early_stop", "lookahead" or "top_k".
        limits (`torch.Tensor`, *optional*): int32 [R], at most so many slots of a row.
        acceptance (`torch.Tensor`, *optional*): [K] or [R, K], historical conditional acceptance; for "lookahead".
        capacity (`torch.Tensor`, *optional*): int32 [1], budget of all rows together; for "top_k".
        base_tokens (`int`, *optional*): tokens of the forward without drafts; R when None.

    Returns:
        [`PrefixSchedule`].

    Raises:
        ValueError: for an unknown policy, a short table or a missing input of the policy.
    """
    rows, slots = survival.shape
    base = rows if base_tokens is None else base_tokens
    check_schedule(survival, seconds, policy, acceptance, capacity, base)
    device = survival.device
    candidates = rows * slots
    live_RK = survival
    if limits is not None:
        live_RK = survival.masked_fill(torch.arange(slots, device=device) >= limits[:, None], EXCLUDED)
    # Candidate index k * R + r is itself the tie-break: slot first, then row.
    ranked_N, order_N = torch.sort(live_RK.t().reshape(-1), descending=True, stable=True)
    steps_N = torch.arange(candidates, device=device)
    round_seconds = seconds.double() + draft_seconds
    gain_N = ranked_N.double()
    tau_N1 = torch.cat([gain_N.new_full((1,), rows), gain_N]).cumsum(0)
    before_N = tau_N1[:-1]
    possible = (ranked_N >= 0).sum()
    if policy == "top_k":
        admitted = torch.minimum(capacity.reshape(()).long(), possible)
    else:
        if policy == "early_stop":
            rate_N1 = tau_N1 / round_seconds[base : base + candidates + 1]
            better_N = rate_N1[1:] > rate_N1[:-1]
        else:
            better_N = pays_ahead(gain_N, before_N, order_N, round_seconds, acceptance.expand(rows, slots), base)
        admitted = torch.minimum(better_N.cumprod(0).sum(), possible)
    chosen_N = (steps_N < admitted).int()
    lengths_R = torch.zeros_like(chosen_N).scatter_(0, order_N, chosen_N).view(slots, rows).sum(0, dtype=torch.int32)
    cu_seqlens = torch.zeros(rows + 1, dtype=torch.int32, device=device)
    torch.cumsum(lengths_R + 1, 0, dtype=torch.int32, out=cu_seqlens[1:])
    positions = torch.arange(rows * (slots + 1), dtype=torch.int32, device=device)
    marker = torch.searchsorted(cu_seqlens, positions, right=True, out_int32=True) - 1
    marker = marker.masked_fill(positions >= cu_seqlens[-1], -1)
    # not by brackets: an index that is a scalar tensor would be read on the host
    spent = round_seconds.index_select(0, (base + admitted).reshape(1))
    throughput = (rows + (gain_N * chosen_N).sum()) / spent
    return PrefixSchedule(lengths_R, cu_seqlens, marker, admitted.int().reshape(1), throughput)

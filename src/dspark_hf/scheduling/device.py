"""
The policies through a kernel that ranks and admits on the device: the same lengths as `scheduler.py`, in two launches.

The kernel is passed in (`dspark_hf.ops.schedule_prefix`), so this room imports none. Nothing is copied to the host.
"""

# R rows that drafted, P plain rows, K slots

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .history import PRIOR_ACCEPTANCE, History
from .scheduler import lagged_budget, pooled, step_of


if TYPE_CHECKING:
    from .cost import CostCurve


# policy -> the kernel's name of it
KERNEL_POLICIES = {"early_stop": "early_stop", "lookahead": "lookahead", "lagged_topk": "top_k"}


def schedule_on_device(
    kernel: Callable[..., Any],
    survival_RK: torch.Tensor,
    curve: CostCurve,
    policy: str,
    history: History | None = None,
    *,
    layout: str = "ragged",
    plain_rows: int = 0,
    context: int | None = None,
) -> torch.Tensor:
    """
    [`schedule`] for the policies that a kernel knows.

    Args:
        kernel (`Callable`): `schedule_prefix(survival, seconds, *, policy, draft_seconds, limits, acceptance, capacity)`.
        survival_RK (`torch.Tensor`): fp32 `[R, K]`.
        policy (`str`): a key of `KERNEL_POLICIES`.
        curve, history, layout, plain_rows, context: as in [`schedule`].

    Returns:
        `torch.Tensor`: `[R]` int64, on the device of `survival_RK`.
    """
    rows, slots = survival_RK.shape
    device, history = survival_RK.device, history or History()
    step = step_of(policy, curve, rows, slots, list(range(slots + 1)), layout, plain_rows, context, device)
    plain = 0 if layout == "padded" else plain_rows
    if layout == "padded":
        survival_RK, history = pooled(survival_RK.double(), history, plain_rows)
    options: dict[str, Any] = {}
    if policy == "lagged_topk":
        budget, survival_RK = lagged_budget(survival_RK.double(), step, history)
        options["capacity"] = budget.int().reshape(1)
    elif policy == "lookahead":
        rates = history.acceptance
        if rates is None:
            rates = torch.full((slots,), PRIOR_ACCEPTANCE, dtype=torch.float64)
        options["acceptance"] = _with_plain_rows(rates.to(device), plain)
    if plain:
        # plain rows bring their one token and no candidates
        rank_R = torch.arange(rows + plain, device=device)
        options["limits"] = torch.where(rank_R < rows, slots, 0).int()
    chosen = kernel(
        _with_plain_rows(survival_RK.float(), plain),
        step.seconds.contiguous(),
        policy=KERNEL_POLICIES[policy],
        draft_seconds=step.draft_seconds,
        **options,
    )
    lengths_R = chosen.lengths.long()
    return lengths_R.expand(rows).contiguous() if layout == "padded" else lengths_R[:rows]


def _with_plain_rows(values: torch.Tensor, plain_rows: int) -> torch.Tensor:
    if plain_rows == 0 or values.dim() == 1:
        return values
    return torch.nn.functional.pad(values, (0, 0, 0, plain_rows))

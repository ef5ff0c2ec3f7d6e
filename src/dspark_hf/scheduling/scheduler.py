"""
Verification lengths from survival and cost: the policies, batched (paper sections 3.2.2 and 5.2, Algorithm 1, Appendix A).

Pure arithmetic on tensors, without a host sync on a device. Knows nothing of models, rows' identities or rounds.

Why not simply take the best length: whether slot k is verified may depend on the confidences c_1..c_k, on other rows and on the
past, never on the token of slot k or on anything after it. c_{k+1} is a function of that token, so a length chosen by comparing
all lengths keeps or drops the token *because of* what it is, and sampled text is biased (0.85 instead of 0.70 in the paper's
Appendix A). Every policy here but `optimal` decides slot by slot, in falling order of survival, from what is known at that slot.
"""

# R rows, K slots, N = R * K candidate tokens

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers.utils import logging

from .history import PRIOR_ACCEPTANCE, History


if TYPE_CHECKING:
    from collections.abc import Sequence

    from .cost import CostCurve


logger = logging.get_logger(__name__)

POLICIES = ("full", "threshold", "early_stop", "lookahead", "lagged_topk", "optimal", "auto")
DEFAULT_THRESHOLD = 0.5
# fp32 products of confidences carry a few ulp each; a confidence that equals the threshold must pass.
RELATIVE_ROUNDING = 1e-6


def schedule(
    survival: torch.Tensor,
    curve: CostCurve | None,
    policy: str = "auto",
    history: History | None = None,
    *,
    threshold: float | None = None,
    sampling: bool = False,
    tiers: Sequence[int] | None = None,
    layout: str = "ragged",
    plain_rows: int = 0,
    context: int | None = None,
) -> torch.Tensor:
    """
    Chooses how many drafted tokens of each row go to verification.

    Args:
        survival (`torch.Tensor`): `[R, K]` floats in [0, 1], not rising along K: the chance that slots 1..k are all accepted.
        curve (`CostCurve` or `None`): T(B) and D of this machine. Without one nothing is trimmed, except by `threshold`.
        policy (`str`, *optional*, defaults to `"auto"`):
            - `full`: every slot;
            - `threshold`: up to the first slot whose own confidence `c_k = a_k / a_{k-1}` is below `threshold` (DeepSpec);
            - `early_stop`: Algorithm 1: slots in falling survival, until `tau * SPS(B)` does not rise for the first time. Ties:
              lower slot first, then lower row. Uses T(B) alone;
            - `lookahead`: as `early_stop` on `tau / (D + T(B))`, but a slot is also taken if it pays together with the slots behind
              it, whose survival is guessed from `history.acceptance`. Sees past cliffs of T(B);
            - `lagged_topk`: the number of tokens from `history.lagged_survival` (section 5.2), given to the live top survivals;
            - `optimal`: the best lengths in hindsight; greedy decoding only;
            - `auto`: `lookahead` with a curve, else `full`.
        history (`History`, *optional*): what older rounds say.
        threshold (`float`, *optional*, defaults to 0.5): for `threshold`, in [0, 1]. 0 verifies the whole block.
        sampling (`bool`, *optional*, defaults to `False`): tokens are sampled; refuses `optimal`.
        tiers (`Sequence[int]`, *optional*): the only lengths allowed besides 0. Lengths round *up* to a tier (rounding down would
            drop a slot for what came after it) and the price of the rounding is part of the decision.
        layout (`str`, *optional*, defaults to `"ragged"`): `"padded"` if every row costs as much as the longest one.
        plain_rows (`int`, *optional*, defaults to 0): rows of the same forward that did not draft; one token each.
        context (`int`, *optional*): cached tokens per row, for curves measured at two depths.

    Returns:
        `torch.Tensor`: `[R]` int64, each in 0..K, on the device of `survival`.

    Raises:
        ValueError: unknown policy, a threshold or survival out of range (values are checked on CPU tensors only: a check on a
            device would wait for it), `optimal` under sampling.

    Example:

    ```python
    >>> curve = CostCurve(tokens=[1, 2, 3], seconds=[1.0, 2.0, 2.222])
    >>> schedule(torch.tensor([[0.8, 0.72]]), curve, policy="early_stop")
    tensor([0])
    ```
    """
    survival_RK = torch.as_tensor(survival)
    check_policy(policy, threshold=threshold, sampling=sampling, layout=layout)
    _check_survival(survival_RK)
    rows, slots = survival_RK.shape
    tier_of = rounded_lengths(slots, tiers)
    if policy == "auto":
        policy = "full" if curve is None else "lookahead"
    if curve is None and policy not in ("full", "threshold"):
        logger.warning_once(
            f"policy {policy!r} has no cost curve, so the whole block is verified; CostCurve.measure makes one"
        )
        policy = "full"

    if policy == "full" or rows == 0 or slots == 0:
        return torch.full((rows,), tier_of[-1], dtype=torch.int64, device=survival_RK.device)
    if policy == "threshold":
        lengths_R = _threshold(survival_RK, DEFAULT_THRESHOLD if threshold is None else threshold)
        return _round_up(lengths_R, tier_of)
    assert curve is not None
    survival_RK, history = survival_RK.double(), history or History()
    step = step_of(policy, curve, rows, slots, tier_of, layout, plain_rows, context, survival_RK.device)
    if layout == "padded":
        survival_1K, history = pooled(survival_RK, history, plain_rows)
        return _decide(policy, survival_1K, step, history).expand(rows).contiguous()
    return _decide(policy, survival_RK, step, history)


def check_policy(
    policy: str, *, threshold: float | None = None, sampling: bool = False, layout: str = "ragged"
) -> None:
    """
    Raises:
        ValueError: a name that is no policy or layout, a threshold outside [0, 1], or a policy that sampling forbids.
    """
    if policy not in POLICIES:
        close = difflib.get_close_matches(str(policy), POLICIES, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(f"unknown policy {policy!r}{hint}; choose one of {', '.join(POLICIES)}")
    if policy == "optimal" and sampling:
        raise ValueError(
            "policy 'optimal' compares all lengths after the tokens are known, which biases sampled text (paper, Appendix A); "
            "use it with do_sample=False, or choose lookahead, early_stop or lagged_topk"
        )
    if threshold is not None and (isinstance(threshold, bool) or not 0 <= threshold <= 1):
        raise ValueError(f"threshold must be a number in [0, 1] (0 verifies the whole block), got {threshold!r}")
    if layout not in ("ragged", "padded"):
        raise ValueError(f"layout must be 'ragged' or 'padded', got {layout!r}")


def rounded_lengths(slots: int, tiers: Sequence[int] | None) -> list[int]:
    """The length verified for each wanted length 0..slots: the next tier up, or the highest tier within the block."""
    if tiers is None:
        return list(range(slots + 1))
    allowed = sorted({0, *(int(tier) for tier in tiers if 0 <= tier <= slots)})
    if len(allowed) == 1:
        raise ValueError(f"tiers must hold a length in 1..{slots}, got {list(tiers)}")
    return [next((tier for tier in allowed if tier >= length), allowed[-1]) for length in range(slots + 1)]


@dataclass
class Step:
    """One target forward to fill: table of seconds by tokens, seconds of the draft, and the tier of each length."""

    rows: int  # that drafted
    base: int  # tokens without drafts: one of every row, plain ones too
    slots: int
    seconds: torch.Tensor  # [> base * (1 + slots)]
    draft_seconds: float
    tier_of: list[int]  # [slots + 1]

    def added(self, ahead: int, device: torch.device) -> torch.Tensor:
        """Tokens that `ahead` more slots add, for each slot (and row) with so many left: `[(slots - ahead + 1) * rows]`."""
        tiers = self.tier_of
        added = [tiers[slot + ahead] - tiers[slot] for slot in range(self.slots - ahead + 1)]
        return torch.tensor(added, device=device).repeat_interleave(self.rows)

    @property
    def tiered(self) -> bool:
        return any(tier != length for length, tier in enumerate(self.tier_of))


def step_of(
    policy: str,
    curve: CostCurve,
    rows: int,
    slots: int,
    tier_of: list[int],
    layout: str,
    plain_rows: int,
    context: int | None,
    device: torch.device,
) -> Step:
    """The forward that a policy fills; Algorithm 1 prices the target alone."""
    base = rows + plain_rows
    draft_seconds = 0.0 if policy == "early_stop" else curve.draft_seconds_at(base)
    seconds = curve.table(base * (1 + slots), context, device, rows=base)
    if layout == "padded":
        # All rows share one length and cost R * (1 + length): one row of mean survival on a curve read in steps of R.
        return Step(1, 1, slots, seconds[::base], draft_seconds, tier_of)
    return Step(rows, base, slots, seconds, draft_seconds, tier_of)


def _decide(policy: str, survival_RK: torch.Tensor, step: Step, history: History) -> torch.Tensor:
    if policy == "lagged_topk":
        return _lagged_topk(survival_RK, step, history)
    survival_N, order_N = _ranked(survival_RK)
    tau_before_N, tau_N = _expected_tokens(survival_N, step)
    size_before_N, size_N = _sizes(order_N, step)
    if policy == "lookahead":
        admitted_N = _pays_ahead(survival_N, order_N, tau_before_N, size_before_N, step, history)
        return _lengths(admitted_N.to(torch.int8).cumprod(0), order_N, step)
    rate_before_N = tau_before_N / (step.draft_seconds + step.seconds[size_before_N])
    rate_N = tau_N / (step.draft_seconds + step.seconds[size_N])
    if policy == "early_stop":
        return _lengths((rate_N > rate_before_N).to(torch.int8).cumprod(0), order_N, step)
    best = torch.cat([rate_before_N[:1], rate_N]).argmax()
    return _lengths(torch.arange(len(rate_N), device=best.device) < best, order_N, step)


def _expected_tokens(survival_N: torch.Tensor, step: Step) -> tuple[torch.Tensor, torch.Tensor]:
    """Expected tokens of the step before and after each candidate is admitted; every row is sure of its bonus token."""
    tau_N1 = torch.cat([survival_N.new_full((1,), step.base), survival_N]).cumsum(0)
    return tau_N1[:-1], tau_N1[1:]


def _ranked(survival_RK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Candidates in falling survival; ties by slot, then row. An index n stands for slot n // R of row n % R."""
    return survival_RK.T.reshape(-1).sort(descending=True, stable=True)


def _sizes(order_N: torch.Tensor, step: Step) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of the forward before and after each candidate is admitted, tiers included."""
    if not step.tiered:
        size_N = torch.arange(step.base + 1, step.base + 1 + len(order_N), device=order_N.device)
        return size_N - 1, size_N
    added_N = torch.tensor(step.tier_of, device=order_N.device).diff()[order_N // step.rows]
    size_N = step.base + added_N.cumsum(0)
    return size_N - added_N, size_N


def _pays_ahead(
    survival_N: torch.Tensor,
    order_N: torch.Tensor,
    tau_before_N: torch.Tensor,
    size_before_N: torch.Tensor,
    step: Step,
    history: History,
) -> torch.Tensor:
    """
    Whether some m >= 1 makes `(tau + a * (1 + rho_2 + rho_2 rho_3 + ..)) / (D + T(B + m))` exceed `tau / (D + T(B))`.

    a is live; the rho are historical conditional acceptances of the m - 1 slots behind it in the same row.
    """
    size = _unranked(size_before_N, order_N)
    price = step.draft_seconds + step.seconds
    worth = price.index_select(0, size)
    gain = _unranked(survival_N, order_N) * (worth / _unranked(tau_before_N, order_N))
    arrays: list[Any] = [size, price, worth, gain, _acceptance(history, step, survival_N)]
    added: list[Any] = [
        step.added(ahead + 1, order_N.device) if step.tiered else ahead + 1 for ahead in range(step.slots)
    ]
    if order_N.device.type == "cpu":
        # The same steps on numpy views: 80 small operations take 0.17 ms less there than through torch's dispatcher.
        arrays = [array.numpy() for array in arrays]
        added = [array.numpy() if step.tiered else array for array in added]
    return torch.as_tensor(_worth_its_price(step, added, *arrays))[order_N]


def _worth_its_price(step: Step, added: list[Any], size: Any, price: Any, worth: Any, gain: Any, rates: Any) -> Any:
    """
    For every candidate in slot-major order, whether some look-ahead is worth its price; torch or numpy alike.

    In that order the slots with `ahead` more behind them are one leading slice. Both sides are in seconds: what the expected
    tokens are worth at the rate so far, against what the forward takes; with equal prices and no chance a tie stays a tie.
    """
    pays: Any = None
    for ahead in range(step.slots):
        count = (step.slots - ahead) * step.rows
        if ahead:
            gain = gain[:count] * rates[ahead * step.rows :]
        worth = worth[:count] + gain
        now = worth > (
            price.take(size[:count] + added[ahead]) if step.tiered else price[ahead + 1 :].take(size[:count])
        )
        if pays is None:
            pays = now
        else:
            pays[:count] |= now
    return pays


def _unranked(values_N: torch.Tensor, order_N: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(values_N).scatter_(0, order_N, values_N)


def _lagged_topk(survival_RK: torch.Tensor, step: Step, history: History) -> torch.Tensor:
    budget, ranking_RK = lagged_budget(survival_RK, step, history)
    _, order_N = _ranked(ranking_RK)
    return _lengths(torch.arange(len(order_N), device=budget.device) < budget, order_N, step)


def lagged_budget(survival_RK: torch.Tensor, step: Step, history: History) -> tuple[torch.Tensor, torch.Tensor]:
    """
    The best number of tokens in hindsight of an older round, and the survival by which today's tokens compete for it.

    Rows without an older round verify all.
    """
    new_R = history.new_rows
    if history.lagged_survival is None:
        new_R = survival_RK.new_ones(step.rows, dtype=torch.bool)
        lagged_RK = torch.ones_like(survival_RK)
    else:
        lagged_RK = history.lagged_survival.to(survival_RK)
    if new_R is not None:
        # A new row's slots rank first in both orders, so the budget that pays for them goes to them.
        lagged_RK = torch.where(new_R[:, None], 2.0, lagged_RK)
        survival_RK = torch.where(new_R[:, None], 2.0, survival_RK)
    lagged_N, order_N = _ranked(lagged_RK)
    tau_N = torch.cat([lagged_N.new_full((1,), step.base), step.base + lagged_N.clamp(max=1.0).cumsum(0)])
    size_N = _sizes(order_N, step)[1]
    sizes_N = torch.cat([size_N.new_full((1,), step.base), size_N])
    rate_N = tau_N / (step.draft_seconds + step.seconds[sizes_N])
    certain = (lagged_N > 1.0).sum()  # tokens of new rows, verified whatever they cost
    rate_N = torch.where(torch.arange(len(rate_N), device=rate_N.device) < certain, -1.0, rate_N)
    return rate_N.argmax(), survival_RK


def _threshold(survival_RK: torch.Tensor, threshold: float) -> torch.Tensor:
    before_RK = torch.cat([torch.ones_like(survival_RK[:, :1]), survival_RK[:, :-1]], dim=1)
    passes_RK = survival_RK >= threshold * before_RK * (1 - RELATIVE_ROUNDING)
    return passes_RK.to(torch.int64).cumprod(1).sum(1)


def _lengths(admitted_N: torch.Tensor, order_N: torch.Tensor, step: Step) -> torch.Tensor:
    lengths_R = torch.zeros(step.rows, dtype=torch.int64, device=order_N.device)
    lengths_R.scatter_add_(0, order_N % step.rows, admitted_N.to(torch.int64))
    return _round_up(lengths_R, step.tier_of) if step.tiered else lengths_R


def _round_up(lengths_R: torch.Tensor, tier_of: list[int]) -> torch.Tensor:
    return torch.tensor(tier_of, device=lengths_R.device)[lengths_R]


def _acceptance(history: History, step: Step, like: torch.Tensor) -> torch.Tensor:
    """Historical conditional acceptance in slot-major order, `[K * R]`."""
    rows, slots = step.rows, step.slots
    if history.acceptance is None:
        return like.new_full((slots * rows,), PRIOR_ACCEPTANCE)
    rates_RK = torch.as_tensor(history.acceptance).to(like)
    rates_RK = rates_RK[None] if rates_RK.dim() == 1 else rates_RK
    if rates_RK.shape not in ((1, slots), (rows, slots)):
        raise ValueError(f"history.acceptance must be [{rows}, {slots}] or [{slots}], got {list(rates_RK.shape)}")
    return rates_RK.expand(rows, slots).T.reshape(-1)


def pooled(survival_RK: torch.Tensor, history: History, plain_rows: int) -> tuple[torch.Tensor, History]:
    """One row that stands for all, for the padded layout; plain rows gain nothing, and it is new if any row is."""
    total = survival_RK.shape[0] + plain_rows
    rates, lagged, new = history.acceptance, history.lagged_survival, history.new_rows
    if rates is not None and rates.dim() == 2:
        rates = rates.sum(0) / total
    # fp32, the precision in which kernels rank: equal means stay equal there
    survival_1K = (survival_RK.sum(0, keepdim=True) / total).float().double()
    return survival_1K, History(
        rates,
        None if lagged is None else lagged.sum(0, keepdim=True) / total,
        None if new is None else new.any(0, keepdim=True),
    )


def _check_survival(survival_RK: torch.Tensor) -> None:
    if survival_RK.dim() != 2 or not survival_RK.is_floating_point():
        raise ValueError(
            f"survival must be a [rows, slots] float tensor, got {survival_RK.dtype} of shape {list(survival_RK.shape)}"
        )
    if survival_RK.device.type != "cpu" or survival_RK.numel() == 0:
        return
    lowest, highest = survival_RK.aminmax()
    if not (lowest >= 0 and highest <= 1):
        raise ValueError(f"survival must lie in [0, 1], got {lowest.item()} to {highest.item()}")
    if survival_RK.shape[1] > 1 and survival_RK.diff(dim=1).max() > RELATIVE_ROUNDING:
        raise ValueError("survival must not rise along the slots: pass the running product of the confidences")

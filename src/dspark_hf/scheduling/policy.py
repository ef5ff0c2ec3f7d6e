"""
A verification policy in a decode loop: what it remembers about rows, and its decisions round by round.

How a loop uses it, one object per `generate` call:

    policy = DecodingPolicy(drafter.policy, drafter.cost_curve, num_slots=K, sampling=do_sample,
                            temperatures=calibration.temperatures, biases=calibration.biases, layout="padded")
    drafts = policy.should_draft(row_ids, context=n, remaining=m)   # list[bool], one per row of this round
    length = policy.held(len(row_ids))                                # an int: the batch keeps its length this round; else
    lengths = policy(confidence_logits, drafting_ids, plain_rows=p, context=n)  # [R] int64; logits raw [R, K], or None
    length = policy.length_of_one(confidence_list, row_id, context=n)  # the same for one row, on Python floats
    policy.observe(row_ids, drafted, verified, accepted, context=n)  # after verification, ALL rows of the forward
    policy.forget(row_id)                                           # a finished row

`row_ids` are any hashables that stay with a row while the batch is compacted. `drafted`, `verified` and `accepted` count tokens
per row without the bonus token; a row that did not draft reports 0, 0, 0. `context` (cached tokens per row, a mean for many) is
optional.

Under sampling every decision is non-anticipating: it uses older rounds, the confidences up to the slot it decides, and other
rows. Knows nothing of models, caches or tokens.
"""

# R rows, K slots

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .batch import BatchBypass, rounds_to_hold
from .bypass import Account
from .device import KERNEL_POLICIES, schedule_on_device
from .expectation import conditional_rates, expected_gain, mean_survival
from .history import AcceptanceHistory, History, survival_of
from .scheduler import DEFAULT_THRESHOLD, check_policy, rounded_lengths, schedule
from .single import early_stop_one, lookahead_one, optimal_one, threshold_one


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from .cost import CostCurve


# Policies with a twin on Python floats, and the confidences up to which it is faster than a dozen tensor operations.
_OF_ONE = ("early_stop", "lookahead", "optimal")
MOST_ON_HOST = 512


@dataclass
class _Row:
    acceptance: AcceptanceHistory
    account: Account | None = None


class DecodingPolicy:
    """
    Decides per round which rows draft and how much of each draft is verified.

    Args:
        policy (`Mapping`): `{"name": ..., **knobs}` as `drafter.policy` holds it. Knobs: `threshold`, `tiers`, `bypass`.
        curve (`CostCurve` or `None`): cost of this machine; without it nothing is trimmed (except by `threshold`) or bypassed.
        num_slots (`int`): K, drafted tokens per round.
        sampling (`bool`): tokens are sampled; `optimal` is refused.
        temperatures, biases (`Sequence[float]`, *optional*): calibration of this regime, one per slot:
            `c_k = sigmoid(logit_k / temperature_k + bias_k)`. Default: identity.
        expected_survival (`Sequence[Sequence[float]]`, *optional*): survival by slot of some typical rounds of this regime, equally
            likely, from calibration. A new row starts from them: plainly, where they say that drafting loses. Default: new
            rows draft.
        layout (`str`, *optional*, defaults to `"ragged"`): `"padded"` if every row of a forward is as wide as the longest.
        kernel (`Callable`, *optional*): `dspark_hf.ops.schedule_prefix`, to decide where the confidences are. Used for
            `early_stop`, `lookahead` and `lagged_topk` without tiers; the lengths are those of the host.

    Raises:
        ValueError: unknown or forbidden policy, threshold out of range, calibration of another number of slots.
    """

    def __init__(
        self,
        policy: Mapping[str, Any],
        curve: CostCurve | None,
        *,
        num_slots: int,
        sampling: bool,
        temperatures: Sequence[float] | None = None,
        biases: Sequence[float] | None = None,
        expected_survival: Sequence[Sequence[float]] | None = None,
        layout: str = "ragged",
        kernel: Callable[..., Any] | None = None,
    ):
        self.name: str = policy["name"]
        threshold = policy.get("threshold")
        check_policy(self.name, threshold=threshold, sampling=sampling, layout=layout)
        self.threshold = DEFAULT_THRESHOLD if threshold is None else threshold
        self.tiers = policy.get("tiers")
        self.curve = curve
        self.num_slots = num_slots
        self.sampling = sampling
        self.layout = layout
        self.temperatures = _per_slot(temperatures, num_slots, "temperatures", 1.0)
        self.biases = _per_slot(biases, num_slots, "biases", 0.0)
        self._temperatures_K = torch.tensor(self.temperatures, dtype=torch.float64)
        self._biases_K = torch.tensor(self.biases, dtype=torch.float64)
        self._expected = [_per_slot(group, num_slots, "expected_survival", 1.0) for group in expected_survival or ()]
        self._prior = conditional_rates(mean_survival(self._expected))
        self.bypasses = self.name == "auto" and curve is not None and policy.get("bypass", True)
        self._active = _active_policy(self.name, curve)
        self.kernel = kernel if self._active in KERNEL_POLICIES and self.tiers is None else None
        self._tier_of = rounded_lengths(num_slots, self.tiers)
        self._rows: dict[Hashable, _Row] = {}
        self._batch: BatchBypass | None = None
        if self.bypasses and layout == "padded":
            assert curve is not None
            self._batch = BatchBypass(curve, self._tier_of)
        self._held_length, self._held_rows, self._held_rounds = 0, 0, 0
        self._survivals: deque[tuple[dict[Hashable, int], torch.Tensor]] = deque(maxlen=2)
        self._seconds: dict[Any, list[float]] = {}

    def should_draft(
        self, row_ids: Sequence[Hashable], *, context: int | None = None, remaining: Sequence[int] | None = None
    ) -> list[bool]:
        """
        One bool per row: draft, or take a plain decoding step. From older rounds only; asked twice, it answers the same.

        `remaining` are the tokens that each row may still write: rows of a padded batch are waited for together.
        """
        if not self.bypasses or not row_ids:
            return [True] * len(row_ids)
        if self._batch is not None:
            self._batch.forecast([self._row(row).acceptance for row in row_ids], remaining, context)
            return [self._batch.drafts] * len(row_ids)
        return [self._account(row, len(row_ids), context).drafts for row in row_ids]

    def held(self, rows: int) -> int | None:
        """The length that the `rows` rows of a padded batch keep from an older round, or `None`: choose anew."""
        if self._held_rounds == 0 or rows != self._held_rows or (self._batch is not None and self._batch.loses):
            return None
        self._held_rounds -= 1
        return self._held_length

    def __call__(
        self,
        confidence_logits: torch.Tensor | None,
        row_ids: Sequence[Hashable],
        *,
        plain_rows: int = 0,
        context: int | None = None,
    ) -> torch.Tensor:
        """
        Lengths to verify of the rows that drafted.

        Args:
            confidence_logits (`torch.Tensor` or `None`): `[R, K]`, raw. `None` (a drafter without the head) stands for what
                older rounds say.
            row_ids (`Sequence`): the R rows.
            plain_rows (`int`, *optional*, defaults to 0): rows of the same forward that did not draft.
            context (`int`, *optional*): cached tokens per row.

        Returns:
            `torch.Tensor`: `[R]` int64 in 0..K, on the device of the logits (CPU without logits).
        """
        rows = len(row_ids)
        if confidence_logits is not None and confidence_logits.shape != (rows, self.num_slots):
            raise ValueError(
                f"confidence_logits must be [{rows}, {self.num_slots}], got {list(confidence_logits.shape)}"
            )
        on_host = confidence_logits is None or (confidence_logits.device.type == "cpu" and self.kernel is None)
        if rows == 1 and plain_rows == 0 and on_host and self._active != "lagged_topk":
            logits = None if confidence_logits is None else confidence_logits[0].tolist()
            return torch.tensor([self.length_of_one(logits, row_ids[0], context=context)])
        if self.layout == "padded" and on_host and self._active in _OF_ONE and rows * self.num_slots <= MOST_ON_HOST:
            length = self._length_together(confidence_logits, row_ids, plain_rows, context)
            lengths_R = torch.full((rows,), length, dtype=torch.int64)
            if self.name == "auto":  # the named policies decide every round, as they are defined
                self._held_length, self._held_rows = length, rows + plain_rows
                self._held_rounds = rounds_to_hold(self._held_rows) - 1
        else:
            survival_RK = self._survival(confidence_logits, row_ids)
            lengths_R = self._schedule(survival_RK, row_ids, plain_rows, context)
        if self.bypasses and not self._expected:
            # A probe that verified nothing would learn nothing, unless the confidences are calibrated and say so themselves.
            together = rows + plain_rows
            probing = [row for row, row_id in enumerate(row_ids) if self._probing(row_id, together, context)]
            if probing:
                least = self._tier_of[1] if self._batch is None else self._probe_length(rows, context)
                lengths_R[probing] = lengths_R[probing].clamp(min=least)
        return lengths_R

    def _length_together(
        self,
        confidence_logits: torch.Tensor | None,
        row_ids: Sequence[Hashable],
        plain_rows: int,
        context: int | None,
    ) -> int:
        """The one length of all rows of the padded layout: that of a row of mean survival, on a curve read in steps of R."""
        total = len(row_ids) + plain_rows
        rates = [self._row(row).acceptance.rates() for row in row_ids]
        confidences = rates if confidence_logits is None else map(self._calibrated, confidence_logits.tolist())
        survival = [sum(column) / total for column in zip(*map(survival_of, confidences), strict=True)]
        mean_rates = [sum(column) / total for column in zip(*rates, strict=True)]
        return self._length_of(survival, self._seconds_at(total, context)[::total], total, mean_rates)

    def _length_of(
        self, survival: Sequence[float], seconds: Sequence[float], rows: int, rates: Sequence[float]
    ) -> int:
        """What a policy with a twin on Python floats takes of one row; `rows` share the draft, `seconds[w]` is for width w."""
        assert self.curve is not None
        if self._active == "early_stop":
            return early_stop_one(survival, seconds, self._tier_of)
        draft_seconds = self.curve.draft_seconds_at(rows)
        if self._active == "optimal":
            return optimal_one(survival, seconds, draft_seconds, self._tier_of)
        return lookahead_one(survival, seconds, draft_seconds, self._tier_of, rates)

    def length_of_one(
        self, confidence_logits: Sequence[float] | None, row_id: Hashable, *, context: int | None = None
    ) -> int:
        """The length for a batch of one row, from raw logits as Python floats; 0..K."""
        row = self._row(row_id)
        if self._active == "full":
            return self._tier_of[-1]
        if self._active == "lagged_topk":
            logits = None if confidence_logits is None else torch.tensor([confidence_logits])
            return int(self(logits, [row_id], context=context))
        rates = row.acceptance.rates()
        confidences = rates if confidence_logits is None else self._calibrated(confidence_logits)
        if self._active == "threshold":
            return threshold_one(confidences, self.threshold, self._tier_of)
        length = self._length_of(survival_of(confidences), self._seconds_at(1, context), 1, rates)
        if self.bypasses and not self._expected and self._probing(row_id, 1, context):
            return max(length, self._probe_length(1, context))
        return length

    def observe(
        self,
        row_ids: Sequence[Hashable],
        drafted: Sequence[int],
        verified: Sequence[int],
        accepted: Sequence[int],
        *,
        context: int | None = None,
    ) -> None:
        """Learns from one finished forward: every row of it, tokens drafted, verified and accepted (bonus not counted)."""
        for row_id, drafts, checked, stood in zip(row_ids, drafted, verified, accepted, strict=True):
            if drafts:
                self._row(row_id).acceptance.record(checked, stood)
        if self._batch is not None:
            self._batch.observe(any(drafted), max(verified), accepted, context)
        elif self.bypasses:
            self._settle_accounts(row_ids, drafted, verified, accepted, context)

    def _settle_accounts(
        self,
        row_ids: Sequence[Hashable],
        drafted: Sequence[int],
        verified: Sequence[int],
        accepted: Sequence[int],
        context: int | None,
    ) -> None:
        """What each row gained over a plain round."""
        rows, drafting = len(row_ids), sum(count > 0 for count in drafted)
        accounts = [self._account(row_id, rows, context) for row_id in row_ids]
        if not drafting:
            for account in accounts:
                account.wait()
            return
        seconds = self._seconds_at(rows, context)
        token_seconds = seconds[rows] / rows  # of a token without drafting
        draft_seconds = self.curve.draft_seconds_at(drafting) if self.curve is not None else 0.0
        extra = (seconds[rows + sum(verified)] - seconds[rows]) / max(sum(verified), 1)
        for account, drafts, checked, stood in zip(accounts, drafted, verified, accepted, strict=True):
            if drafts:
                account.record(stood - (draft_seconds / drafting + extra * checked) / token_seconds)
            else:
                account.wait()

    def forget(self, row_id: Hashable) -> None:
        """Drops what is known of a finished row, so that a new row of the same id starts fresh."""
        self._rows.pop(row_id, None)
        for positions, _ in self._survivals:
            positions.pop(row_id, None)

    def _row(self, row_id: Hashable) -> _Row:
        if row_id not in self._rows:
            self._rows[row_id] = _Row(AcceptanceHistory(self.num_slots, self._prior))
        return self._rows[row_id]

    def _probing(self, row_id: Hashable, rows: int, context: int | None) -> bool:
        return self._account(row_id, rows, context).probing if self._batch is None else self._batch.probing

    def _account(self, row_id: Hashable, rows: int, context: int | None) -> Account:
        row = self._row(row_id)
        if row.account is None:
            row.account = Account.expecting(self._expected_gain(rows, context))
        return row.account

    def _expected_gain(self, rows: int, context: int | None) -> float:
        """Tokens that a drafted round of a typical row gains over a plain one, on average; 0 if unknown."""
        if not self._expected or self.curve is None:
            return 0.0
        seconds, draft_seconds = self._seconds_at(rows, context)[::rows], self.curve.draft_seconds_at(rows)
        return expected_gain(self._expected, seconds, draft_seconds, self._tier_of)

    def _calibrated(self, logits: Sequence[float]) -> list[float]:
        return [
            _sigmoid(logit / temperature + bias)
            for logit, temperature, bias in zip(logits, self.temperatures, self.biases, strict=True)
        ]

    def _survival(self, logits_RK: torch.Tensor | None, row_ids: Sequence[Hashable]) -> torch.Tensor:
        """Calibrated survival `[R, K]` in fp32; in fp64 from older rounds where there are no logits."""
        if logits_RK is None:
            return torch.tensor(
                [survival_of(self._row(row).acceptance.rates()) for row in row_ids], dtype=torch.float64
            )
        temperatures_K, biases_K = (
            each.to(logits_RK.device, torch.float32) for each in (self._temperatures_K, self._biases_K)
        )
        return torch.sigmoid(logits_RK.float() / temperatures_K + biases_K).cumprod(1)

    def _schedule(
        self, survival_RK: torch.Tensor, row_ids: Sequence[Hashable], plain_rows: int, context: int | None
    ) -> torch.Tensor:
        history = History()
        if self._active == "lookahead":
            rates = [self._row(row).acceptance.rates() for row in row_ids]
            history.acceptance = torch.tensor(rates, dtype=torch.float64).to(survival_RK.device, non_blocking=True)
        elif self._active == "lagged_topk":
            history = self._lagged(survival_RK, row_ids)
        if self.kernel is not None and survival_RK.dtype == torch.float32:
            assert self.curve is not None
            return schedule_on_device(
                self.kernel,
                survival_RK,
                self.curve,
                self._active,
                history,
                layout=self.layout,
                plain_rows=plain_rows,
                context=context,
            )
        return schedule(
            survival_RK,
            self.curve,
            self._active,
            history,
            threshold=self.threshold,
            sampling=self.sampling,
            tiers=self.tiers,
            layout=self.layout,
            plain_rows=plain_rows,
            context=context,
        )

    def _lagged(self, survival_RK: torch.Tensor, row_ids: Sequence[Hashable]) -> History:
        """Survival two rounds back by row, and remembers this round's."""
        older = self._survivals[0] if len(self._survivals) == 2 else ({}, survival_RK)
        self._survivals.append(({row: index for index, row in enumerate(row_ids)}, survival_RK))
        positions, older_RK = older
        new = [row not in positions for row in row_ids]
        lagged_RK = older_RK[[positions.get(row, 0) for row in row_ids]]
        return History(lagged_survival=lagged_RK, new_rows=torch.tensor(new, device=survival_RK.device))

    def _seconds_at(self, rows: int, context: int | None) -> list[float]:
        assert self.curve is not None
        key = (rows, self.curve.depth_of(context))
        if key not in self._seconds:
            self._seconds[key] = self.curve.table(rows * (1 + self.num_slots), context, rows=rows).tolist()
        return self._seconds[key]

    def _probe_length(self, rows: int, context: int | None) -> int:
        """The longest prefix of all rows that costs at most 5% more than the cheapest verification."""
        seconds = self._seconds_at(rows, context)
        price = {length: seconds[rows * (1 + length)] for length in self._tier_of if length > 0}
        cheapest = min(price.values())
        return max(length for length, paid in price.items() if paid <= 1.05 * cheapest)


def _active_policy(name: str, curve: CostCurve | None) -> str:
    if curve is None:
        return name if name == "threshold" else "full"
    return "lookahead" if name == "auto" else name


def _per_slot(values: Sequence[float] | None, num_slots: int, name: str, default: float) -> list[float]:
    if values is None:
        return [default] * num_slots
    if len(values) != num_slots:
        raise ValueError(
            f"{name} must hold one value for each of the {num_slots} slots, got {len(values)}; calibrate again"
        )
    if name == "temperatures" and not all(0 < value < math.inf for value in values):
        raise ValueError(f"temperatures must be positive and finite, got {list(values)}")
    return [float(value) for value in values]


def _sigmoid(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-value)) if value > -700 else 0.0

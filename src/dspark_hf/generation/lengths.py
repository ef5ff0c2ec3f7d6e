"""How much of each draft goes to verification: the bridge from a round's draft to the drafter's policy.

Chooses the calibration of the call's sampling regime and asks the policy; decides nothing itself.
"""

# R rows, K slots

from __future__ import annotations

from typing import Any

import torch

from dspark_hf import ops
from dspark_hf.calibration import Calibration, find_calibration, quantization_name
from dspark_hf.calibration.margin import LARGEST_MARGIN
from dspark_hf.scheduling import DecodingPolicy
from dspark_hf.scheduling.sweep import SWEEP, Sweep

from .candidates import Draft
from .request import GenerationRequest
from .rows import TokenRows


class VerificationLengths:
    """
    Args:
        request (`GenerationRequest`): one call; its drafter holds the policy and the cost curve.
        layout (`str`): `"padded"` if every row of a verification is as wide as the longest, else `"ragged"`.
    """

    def __init__(self, request: GenerationRequest, layout: str):
        drafter = request.drafter
        self.num_slots = min(drafter.config.num_slots, request.num_assistant_tokens or drafter.config.num_slots)
        knobs = dict(drafter.policy)
        if request.confidence_threshold is not None:
            knobs = {"name": "threshold", "threshold": request.confidence_threshold}
        # without a curve `auto` verifies everything: no need to wait for confidences, nor to calibrate them
        self.everything = knobs["name"] == "full" or (knobs["name"] == "auto" and drafter.cost_curve is None)
        calibration = Calibration([1.0] * drafter.config.num_slots) if self.everything else _calibration(request)
        self.margin = calibration.margin
        self._line: tuple[torch.Tensor, torch.Tensor] | None = None
        if knobs["name"] == SWEEP:
            self.policy: DecodingPolicy = Sweep(self.num_slots)
            return
        self.policy = DecodingPolicy(
            knobs,
            drafter.cost_curve,
            num_slots=self.num_slots,
            sampling=request.do_sample,
            # the logistic on the margin is calibrated as it is
            temperatures=None if self.margin is not None else calibration.temperatures[: self.num_slots],
            biases=None if self.margin is not None else _first(calibration.biases, self.num_slots),
            expected_survival=[group[: self.num_slots] for group in calibration.expected_survival or []],
            layout=layout,
            kernel=ops.schedule_prefix if _on_device(drafter) else None,
        )

    def should_draft(self, rows: TokenRows, remaining: list[int]) -> list[bool]:
        """One answer per row, from older rounds and the tokens it may still write."""
        if self.everything:
            return [True] * len(rows)
        return self.policy.should_draft(rows.origins, context=_context(rows), remaining=remaining)

    def choose(self, draft: Draft, rows: TokenRows, wants: list[bool]) -> list[int]:
        """Drafted tokens to verify per row; 0 for rows that did not want a draft."""
        if self.everything and self.policy.tiers is None:
            return [self.num_slots if want else 0 for want in wants]
        if (held := self.policy.held(len(rows))) is not None:
            return [held if want else 0 for want in wants]
        confidence_RK, missing = self._confidence(draft), self.num_slots - draft.tokens_RK.shape[1]
        if confidence_RK is not None and missing > 0:
            # slots that were not drafted survive with probability 0
            confidence_RK = torch.nn.functional.pad(confidence_RK, (0, missing), value=float("-inf"))
        if len(rows) == 1 and self.policy.kernel is None:
            logits = None if confidence_RK is None else confidence_RK[0].tolist()
            return [self.policy.length_of_one(logits, rows.origins[0], context=_context(rows))]
        chosen = [row for row, want in enumerate(wants) if want]
        if confidence_RK is not None and len(chosen) < len(rows):
            confidence_RK = confidence_RK[chosen]
        # the round's one wait for the draft: widths are decided on the host
        answer = self.policy(
            confidence_RK,
            [rows.origins[row] for row in chosen],
            plain_rows=len(rows) - len(chosen),
            context=_context(rows),
        ).tolist()
        lengths = [0] * len(rows)
        for row, length in zip(chosen, answer, strict=True):
            lengths[row] = length
        return lengths

    def _confidence(self, draft: Draft) -> torch.Tensor | None:
        """Logits of every slot's acceptance given the slots before it; neither source knows the token of the slot itself."""
        if self.margin is None:
            return draft.confidence_RK
        margins_RK = draft.margins_RK.clamp(max=LARGEST_MARGIN)
        slots = margins_RK.shape[1]
        if self._line is None or self._line[0].shape[0] != slots or self._line[0].device != margins_RK.device:
            self._line = (
                torch.tensor(self.margin.slopes[:slots], device=margins_RK.device),
                torch.tensor(self.margin.intercepts[:slots], device=margins_RK.device),
            )
        slopes_K, intercepts_K = self._line
        return torch.addcmul(intercepts_K, margins_RK, slopes_K)

    def observe(self, rows: TokenRows, drafted: list[int], verified: list[int], accepted: list[int]) -> None:
        """Tells the policy how the round went."""
        if not self.everything:
            self.policy.observe(rows.origins, drafted, verified, accepted, context=_context(rows))

    def forget(self, origin: int) -> None:
        """A row has ended."""
        self.policy.forget(origin)


def _calibration(request: GenerationRequest) -> Calibration:
    """What the drafter's configuration holds for the regime of this call, or for the nearest one."""
    config, drafter_config = request.config, request.drafter.config
    return find_calibration(
        drafter_config.confidence_calibration,
        num_slots=drafter_config.num_slots,
        temperature=(1.0 if config.temperature is None else config.temperature) if request.do_sample else 0.0,
        top_p=1.0 if config.top_p is None else config.top_p,
        thinking=drafter_config.target_thinking,
        quantization=quantization_name(request.target.config),
    )


def _on_device(drafter: Any) -> bool:
    """Whether confidences arrive where a kernel can schedule them."""
    weight = next(drafter.parameters())
    return weight.is_cuda or ops.backend(weight) == "triton"


def _context(rows: TokenRows) -> int:
    return sum(rows.lengths) // len(rows)


def _first(values: list[float] | None, count: int) -> list[float] | None:
    return None if values is None else list(values)[:count]

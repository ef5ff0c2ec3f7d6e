"""Which drafted tokens stand and which token follows them, for every row of a round.

Asks `ops.verify_ragged` with the rows end to end; processors that keep state are walked through token by token instead. Knows
nothing of caches, stopping criteria beyond the end tokens, or of how drafts were made. Source: speculative sampling,
https://huggingface.co/papers/2211.17192, algorithm 1; a residual that underflows (p = q up to rounding) falls back to p.
"""

# R rows, L longest verified draft, Q = L + 1 positions, M = all rows' positions, V vocabulary; p target, q drafter

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch

from dspark_hf import ops

from .candidates import Draft
from .processors import ScorePlan
from .rows import TokenRows
from .scores import RowScores


@dataclass
class Verdict:
    """
    Attributes:
        scores (`RowScores`): fp32, after the processors.
        tokens (`list[list[int]]`): per row the tokens to commit, the first `accepted + 1` of each entry.
        accepted (`list[int]`): drafted tokens that stand.
    """

    scores: RowScores
    tokens: list[list[int]]
    accepted: list[int]


class Verifier:
    """
    Args:
        plan (`ScorePlan`): all processors of the call.
        drafter (`DSparkDrafter`): maps a pruned vocabulary.
        do_sample (`bool`): sample, else take the target's first choice.
        eos_ids (`frozenset[int]`): end tokens, behind which no processor is asked.
    """

    def __init__(self, plan: ScorePlan, drafter: Any, *, do_sample: bool, eos_ids: frozenset[int]):
        self.plan = plan
        self.drafter = drafter
        self.do_sample = do_sample
        self.eos_ids = eos_ids

    def judge(self, logits: RowScores, rows: TokenRows, draft: Draft | None, lengths: list[int]) -> Verdict:
        """Writes the tokens to commit behind each row's committed ones and returns them."""
        if self.plan.unknown:
            return self._in_order(logits.padded_RQV, rows, draft, lengths[0])
        scores = logits
        if self.plan.processors:
            counts = _positions_that_matter(draft, lengths)
            scores = RowScores(self.plan.process(logits.padded_RQV, rows.ids_RC, rows.lengths, counts, rows.origins))
        scores_MV = scores.flat_MV(lengths)
        if draft is None or max(lengths) == 0:
            chosen_R = self._pick(scores_MV)
            rows.write(chosen_R[:, None])
            return Verdict(scores, [[token] for token in chosen_R.tolist()], [0] * len(rows))
        verification = ops.verify_ragged(
            scores_MV,
            draft.tokens_RK[:, : max(lengths)].to(scores_MV.device),
            _starts(lengths, scores_MV.device),
            temperature=1.0 if self.do_sample else 0.0,
            **(self._distribution(draft, max(lengths), scores_MV.device) if self.do_sample else {}),
        )
        rows.write(verification.tokens.clamp(min=0))
        # one transfer tells the host everything it needs of the round
        packed = torch.cat([verification.accepted[:, None], verification.tokens], dim=1).tolist()
        return Verdict(scores, [entry[1:] for entry in packed], [entry[0] for entry in packed])

    def _distribution(self, draft: Draft, longest: int, device: torch.device) -> dict[str, Any]:
        """q of the verified slots, and the random numbers of one verification."""
        rows = draft.tokens_RK.shape[0]
        return {
            "draft_temperature": draft.temperature,
            "log_q": draft.log_q_RK[:, :longest].to(device),
            "q_logits": draft.logits_RKU[:, :longest].to(device),
            "q_log_normalizer": draft.log_normalizer_RK[:, :longest].to(device),
            "draft_to_target": None if draft.draft_to_target is None else draft.draft_to_target.to(device),
            "accept_uniforms": torch.rand(rows, longest, dtype=torch.float64, device=device),
            "resample_uniforms": torch.rand(rows, 2, dtype=torch.float64, device=device),
        }

    def _in_order(self, logits_1QV: torch.Tensor, rows: TokenRows, draft: Draft | None, length: int) -> Verdict:
        """One row, position by position: each committed prefix reaches the processors once, and nothing else does."""
        drafted = [] if draft is None else draft.tokens_RK[0, :length].tolist()
        scores, tokens = [], []
        for position in range(length + 1):
            prefix = rows.ids_RC[:, : rows.lengths[0] + position]
            scores_1V = self.plan.at_prefix(prefix, logits_1QV[:, position].clone())
            scores.append(scores_1V)
            if position == length or draft is None:
                token = int(self._pick(scores_1V))
            else:
                token = self._token_of_slot(scores_1V, draft, position)
            tokens.append(token)
            rows.write(torch.tensor([[token]]), position)
            if position == length or token != drafted[position] or token in self.eos_ids:
                break
        return Verdict(RowScores(torch.stack(scores, dim=1)), [tokens], [len(tokens) - 1])

    def _token_of_slot(self, scores_1V: torch.Tensor, draft: Draft, slot: int) -> int:
        """The token committed at one slot of the only row: the drafted one if it stands."""
        if not self.do_sample:
            return int(scores_1V.argmax(dim=-1))
        p_V = scores_1V.softmax(dim=-1)[0]
        q_U = draft.logits_RKU[0, slot].to(p_V.device) / draft.temperature
        q_V = (q_U if draft.draft_to_target is None else self.drafter.expand_logits(q_U)).softmax(dim=-1)
        token = int(draft.tokens_RK[0, slot])
        if torch.rand((), dtype=torch.float64) * q_V[token] < p_V[token]:
            return token
        rest_V = (p_V - q_V).clamp_(min=0)
        return int(torch.multinomial(rest_V if rest_V.sum() > 0 else p_V, 1))

    def _pick(self, scores_RV: torch.Tensor) -> torch.Tensor:
        if self.do_sample:
            return torch.multinomial(scores_RV.softmax(dim=-1), 1)[:, 0]
        return scores_RV.argmax(dim=-1)


def _positions_that_matter(draft: Draft | None, lengths: list[int]) -> list[int]:
    """Positions of each row to process: one per verified token and the bonus, none behind a drafted end token."""
    if draft is None:
        return [1] * len(lengths)
    return [
        length if length == limit and ended else length + 1
        for length, limit, ended in zip(lengths, draft.limits, draft.ended, strict=True)
    ]


def _starts(lengths: list[int], device: torch.device) -> torch.Tensor:
    """Where each row begins among all positions, end to end: cu_seqlens `[R + 1]`."""
    starts = [0, *itertools.accumulate(length + 1 for length in lengths)]
    return torch.tensor(starts, dtype=torch.int32, device=device)


def overlap(scores_RQV: torch.Tensor, draft: Draft, longest: int) -> list[list[float]]:
    """Analytic acceptance `1 - |p - q| / 2 = sum min(p, q)` of the first slots, per row."""
    p_RLV = scores_RQV[:, :longest].softmax(dim=-1)
    q_RLU = (draft.logits_RKU[:, :longest] / draft.temperature).softmax(dim=-1).to(p_RLV.device)
    if draft.draft_to_target is not None:
        p_RLV = p_RLV[..., draft.draft_to_target.to(p_RLV.device)]
    return torch.minimum(p_RLV, q_RLU).sum(dim=-1).tolist()

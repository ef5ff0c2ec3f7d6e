"""The target's distribution, rebuilt from its last hidden state; for a pruned draft vocabulary, its own tokens and one for the rest.

    p(v) = exp(z_v) / (sum over U of exp(z_u) + exp(z_out)),     z_out = logsumexp of the logits outside U

`z_out` is one number a supervised position. With it at hand a loss multiplies with U rows of the target's head instead of V, and
the distances stay exact, because a drafter's mass outside U is 0. It enters the product as two more columns of the hidden
state, a high and a low part, so that half-precision heads do not round it.

It knows nothing of drafters, rows or files.
"""

# T supervised positions, M slots, D hidden, V target vocabulary, U draft vocabulary

from __future__ import annotations

from dataclasses import dataclass

import torch


FLOOR = -1e4  # nothing outside: exp underflows to 0, and no infinity enters a matrix product


@dataclass(frozen=True)
class TeacherHead:
    """The target's output head, frozen: logits = softcap(last_hidden @ weight.T)."""

    weight_VD: torch.Tensor
    softcap: float | None = None

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Post-norm last hidden states `[..., D]` -> fp32 logits `[..., V]`."""
        logits = torch.nn.functional.linear(hidden.to(self.weight_VD.dtype), self.weight_VD.detach()).float()
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap


@torch.no_grad()
def outside_logits(
    head: TeacherHead, teacher_TD: torch.Tensor, vocabulary_U: torch.Tensor, *, chunk: int
) -> torch.Tensor:
    """`[T]` float32: the logit of "any token outside the draft vocabulary".

    Args:
        head ([`TeacherHead`]): without soft-cap.
        teacher_TD (`torch.Tensor`): `[T, D]` post-norm last hidden states.
        vocabulary_U (`torch.Tensor`): `[U]` int64 target ids of the draft vocabulary.
        chunk (`int`): positions whose full logits exist at a time.
    """
    parts = []
    for part in teacher_TD.split(chunk):
        logits = head.logits(part)
        logits[:, vocabulary_U] = float("-inf")
        parts.append(logits.logsumexp(-1).clamp_min(FLOOR))
    return torch.cat(parts) if parts else teacher_TD.new_zeros(0, dtype=torch.float32)


def covered_head(head: TeacherHead, vocabulary_U: torch.Tensor) -> torch.Tensor:
    """`[U + 1, D + 2]`: the head's rows of the draft vocabulary, and the row that picks `z_out`."""
    rows_UD = head.weight_VD.detach().index_select(0, vocabulary_U)
    weight = rows_UD.new_zeros(len(rows_UD) + 1, rows_UD.shape[1] + 2)
    weight[:-1, :-2] = rows_UD
    weight[-1, -2:] = 1
    return weight


def with_outside(teacher_MD: torch.Tensor, outside_M: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`[M, D + 2]`: hidden states followed by the high and the low part of `z_out`, in the head's dtype."""
    high_M = outside_M.to(dtype)
    low_M = (outside_M - high_M.float()).to(dtype)
    return torch.cat([teacher_MD.to(dtype), high_M[:, None], low_M[:, None]], dim=1)

"""
Muon in a number format that the machine computes in.

The step of a matrix is its momentum with all singular values brought near 1, by Newton-Schulz products. torch's own Muon does them
in bfloat16 only, which is fifty times slower than float32 on a CPU without arithmetic for it (a step of the toy target: 8.9 s against
0.16), and came with torch 2.9. In bfloat16 both take the same steps, bit for bit.

Sources: https://kellerjordan.github.io/posts/muon; learning rates on AdamW's scale: https://huggingface.co/papers/2502.16982.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from .precision import computes_in


# x -> a x + b x^3 + c x^5 moves singular values in (0, 1] to about 0.7 .. 1.2 in five rounds (first source)
A, B, C = 3.4445, -4.7750, 2.0315
SMALLEST_NORM = 1e-7


class Muon(torch.optim.Optimizer):
    """
    Momentum with orthogonalized steps, Nesterov's variant.

    Args:
        params (`Iterable`): matrices, or groups of them.
        lr (`float`): of a step whose singular values are about 1, before `adjust_lr_fn`.
        weight_decay (`float`): decoupled, as AdamW's.
        momentum (`float`): in [0, 1).
        ns_steps (`int`): rounds of Newton-Schulz.
        adjust_lr_fn (`str`): `"original"`: rows over columns under the root, at least 1; `"match_rms_adamw"`: steps as large as
            AdamW's, so that its learning rates hold.

    Raises:
        ValueError: a parameter that is no matrix, or another `adjust_lr_fn`.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        ns_steps: int = 5,
        adjust_lr_fn: str = "original",
    ):
        if adjust_lr_fn not in ("original", "match_rms_adamw"):
            raise ValueError(f"adjust_lr_fn must be 'original' or 'match_rms_adamw', got {adjust_lr_fn!r}")
        knobs = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "ns_steps": ns_steps}
        super().__init__(params, {**knobs, "adjust_lr_fn": adjust_lr_fn})
        shapes = [list(value.shape) for group in self.param_groups for value in group["params"] if value.ndim != 2]
        if shapes:
            raise ValueError(f"Muon steps matrices only, got a parameter of shape {shapes[0]}")

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step of every matrix that has a gradient."""
        loss = loss_of(closure)
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    self._move(matrix, matrix.grad, group)
        return loss

    def _move(self, matrix: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        state, momentum = self.state[matrix], group["momentum"]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        average = state["momentum_buffer"]
        average.lerp_(gradient, 1 - momentum)
        step = orthogonalized(gradient.lerp(average, momentum), group["ns_steps"])
        matrix.mul_(1 - group["lr"] * group["weight_decay"])
        matrix.add_(step, alpha=-group["lr"] * _scale(matrix, group["adjust_lr_fn"]))


def loss_of(closure: Any) -> Any:
    """What an optimizer's `step(closure)` evaluates first and returns; `None` without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def orthogonalized(matrix: torch.Tensor, rounds: int) -> torch.Tensor:
    """
    Args:
        matrix (`torch.Tensor`): `[M, N]`.
        rounds (`int`): of Newton-Schulz.

    Returns:
        `torch.Tensor`: `[M, N]`, the same singular vectors with all values near 1; bfloat16 where the device computes in it, else float32.
    """
    tall = matrix.shape[0] > matrix.shape[1]
    wide = (matrix.T if tall else matrix).to(
        torch.bfloat16 if computes_in(torch.bfloat16, matrix.device) else torch.float32
    )
    wide = wide / wide.norm().clamp(min=SMALLEST_NORM)
    for _ in range(rounds):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=B, alpha=C), wide, beta=A)
    return wide.T if tall else wide


def _scale(matrix: torch.Tensor, adjust_lr_fn: str) -> float:
    rows, columns = matrix.shape
    return (
        0.2 * math.sqrt(max(rows, columns)) if adjust_lr_fn == "match_rms_adamw" else math.sqrt(max(1, rows / columns))
    )

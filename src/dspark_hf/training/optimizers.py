"""The optimizer of a run: AdamW for everything, or Muon for the matrices of the body and AdamW for the rest.

Muon steps along the orthogonalized momentum of a matrix, so that directions with small gradients are learned as fast as those with
large ones (see `muon.py`). A step costs a few products of the matrix with itself, which pays where steps are few. It knows nothing of
schedules or losses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from .muon import Muon, loss_of
from .recipe import TrainSection


def build_optimizer(trained: Mapping[str, nn.Parameter], train: TrainSection) -> torch.optim.Optimizer:
    """
    The optimizer a recipe asks for.

    Args:
        trained (`Mapping`): name -> parameter.
        train ([`TrainSection`]): `optimizer`, its learning rates, betas and weight decay.

    Raises:
        ValueError: Muon is asked for and nothing but heads and norms is trained.
    """
    matrices = [value for name, value in trained.items() if is_body_matrix(name, value)]
    rest = [value for name, value in trained.items() if not is_body_matrix(name, value)]
    groups = [{"params": matrices, "weight_decay": train.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    if train.optimizer == "muon":
        if not matrices:
            raise ValueError("train.optimizer: muon found no matrix of the body to train; use adamw.")
        muon = Muon(
            [groups.pop(0)],
            lr=train.muon_learning_rate,
            ns_steps=train.muon_ns_steps,
            adjust_lr_fn="match_rms_adamw",
        )
        if not rest:
            return muon
    adamw = torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=train.learning_rate,
        betas=(train.adam_beta1, train.adam_beta2),
        fused=True,
    )
    return Joined(muon, adamw) if train.optimizer == "muon" else adamw


def is_body_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Matrices of the body; not norms, biases, or either head."""
    return parameter.dim() >= 2 and "markov_head" not in name and "confidence_head" not in name


class Joined(torch.optim.Optimizer):
    """
    Several optimizers as one, for schedulers and checkpoints: their groups side by side and one state.

    Args:
        parts (`torch.optim.Optimizer`): of disjoint parameters.
    """

    def __init__(self, *parts: torch.optim.Optimizer):
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Every part works on the joined groups and state, so that what a scheduler sets or a checkpoint brings is theirs."""
        start = 0
        for part in self.parts:
            count = len(part.param_groups)
            part.param_groups = self.param_groups[start : start + count]
            part.state = self.state
            start += count

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step of every part."""
        loss = loss_of(closure)
        for part in self.parts:
            part.step()
        return loss

    def load_state_dict(self, state_dict: Any) -> None:
        """As every optimizer does; the parts go on with what was loaded."""
        super().load_state_dict(state_dict)
        self._share()

"""One forward pass of training: packs of context features and blocks in, `DSparkLoss` out.

The whole step is the forward of one module, so that DDP and FSDP2 wrap a single call. It knows nothing of where features come
from, of the optimizer or of schedules.
"""

# N blocks of a pack, B block size, K slots, S context tokens of a pack, D hidden, T supervised positions of a batch

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from .attention_mask import dense_mask, flex_mask
from .batches import Pack, TrainingBatch
from .losses import Denominators, DSparkLoss, LossWeights, dspark_loss
from .teacher import TeacherHead


class DraftObjective(nn.Module):
    """The drafter with its loss.

    Args:
        drafter ([`DSparkDrafter`] or a `PeftModel` around one): what is trained. Embedding and head are frozen.
        teacher_head ([`TeacherHead`], *optional*): the target's; may be missing where no term needs it.
        weights ([`LossWeights`]): of the loss terms.
        backend (`str`), chunk (`int`, *optional*): see `dspark_loss`.
    """

    _no_split_modules = ["DSparkLayer"]

    def __init__(
        self,
        drafter: Any,
        teacher_head: TeacherHead | None,
        *,
        weights: LossWeights,
        backend: str = "chunked",
        chunk: int | None = None,
    ):
        super().__init__()
        self.drafter = drafter
        self.teacher_head = teacher_head
        self.weights = weights
        self.backend = backend
        self.chunk = chunk

    def forward(
        self,
        batch: TrainingBatch,
        contexts: Sequence[torch.Tensor],
        teacher_TD: torch.Tensor | None,
        denominators: Denominators | None = None,
        outside_T: torch.Tensor | None = None,
    ) -> DSparkLoss:
        """Loss of a micro-batch.

        Args:
            batch ([`TrainingBatch`]): R rows.
            contexts: per row, `[L - 1, F * target_hidden]` features of all tokens but the last.
            teacher_TD (`torch.Tensor`, *optional*): `[T, target_hidden]` post-norm last hidden states at the supervised
                positions of all rows.
            denominators ([`Denominators`], *optional*): of the whole optimizer step.
            outside_T (`torch.Tensor`, *optional*): `[T]` logits of all tokens outside a pruned draft vocabulary.
        """
        slots = [self.pack_hidden(pack, [contexts[row] for row in pack.rows]) for pack in batch.packs]
        return dspark_loss(
            self.drafter,
            torch.cat(slots),
            batch.previous_NK,
            batch.labels_NK,
            batch.valid_NK,
            teacher_TD=teacher_TD,
            teacher_NK=batch.teacher_NK,
            outside_T=outside_T,
            teacher_head=self.teacher_head,
            weights=self.weights,
            denominators=denominators,
            backend=self.backend,
            chunk=self.chunk,
        )

    def pack_hidden(self, pack: Pack, contexts: Sequence[torch.Tensor]) -> torch.Tensor:
        """`[N, K, D]` final-norm hidden states of every slot of a pack."""
        if not len(pack.anchors_N):
            # sharded ranks wait for one another's forward passes: one block is computed, none is kept
            first = torch.zeros(1, dtype=torch.long, device=pack.anchors_N.device)
            lone: dict[str, Any] = {
                "anchor_ids_N": first,
                "anchors_N": first,
                "anchor_positions_N": first,
                "starts_N": first,
            }
            return self.pack_hidden(replace(pack, **lone), contexts)[:0]
        drafter = self.drafter
        context_SF = torch.cat(list(contexts))
        block_ids = drafter.make_block(pack.anchor_ids_N)
        size = block_ids.shape[1]
        offsets = torch.arange(size, device=block_ids.device)
        block_positions = (pack.anchor_positions_N[:, None] + offsets).flatten()
        flex = drafter.config._attn_implementation == "flex_attention"
        mask = (flex_mask if flex else dense_mask)(
            pack.anchors_N, pack.starts_N, block_size=size, context_length=len(context_SF)
        )
        hidden_1QD = drafter(
            block_ids.reshape(1, -1),
            context_SF[None],
            torch.cat([pack.context_positions_S, block_positions])[None],
            mask,
        )
        return drafter.slot_hidden(hidden_1QD.view(len(block_ids), size, -1))

"""Which context a training block may see: its own document, strictly before its anchor, and itself.

One rule (`is_visible`) in two forms: a dense boolean mask for SDPA (CPU, small packs) and a `BlockMask` for flex attention
(CUDA), which never holds the `[Q, S + Q]` square. Blocks of one pack may overlap; they never see each other.

It knows nothing of models. Sizes: N blocks, Q = N * block_size rows, S context tokens.
"""

from __future__ import annotations

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask


def is_visible(
    row: torch.Tensor,
    column: torch.Tensor,
    *,
    anchors_N: torch.Tensor,
    starts_N: torch.Tensor,
    block_size: int,
    context_length: int,
) -> torch.Tensor:
    """Whether block row `row` (of Q) sees column `column` (of S context tokens followed by the Q block rows)."""
    block = row // block_size
    in_context = (column >= starts_N[block]) & (column < anchors_N[block]) & (column < context_length)
    own_block = (column >= context_length) & ((column - context_length) // block_size == block)
    return in_context | own_block


def dense_mask(
    anchors_N: torch.Tensor, starts_N: torch.Tensor, *, block_size: int, context_length: int
) -> torch.Tensor:
    """Boolean mask for SDPA.

    Args:
        anchors_N (`torch.Tensor`): `[N]` positions of the anchors in the pack.
        starts_N (`torch.Tensor`): `[N]` where each anchor's document starts in the pack.
        block_size (`int`): rows a block.
        context_length (`int`): S, context tokens of the pack.

    Returns:
        `torch.Tensor`: `[1, 1, Q, S + Q]` bool, true where visible.
    """
    num_rows = anchors_N.numel() * block_size
    rows = torch.arange(num_rows, device=anchors_N.device)[:, None]
    columns = torch.arange(context_length + num_rows, device=anchors_N.device)[None, :]
    visible = is_visible(
        rows,
        columns,
        anchors_N=anchors_N,
        starts_N=starts_N,
        block_size=block_size,
        context_length=context_length,
    )
    return visible[None, None]


def flex_mask(anchors_N: torch.Tensor, starts_N: torch.Tensor, *, block_size: int, context_length: int) -> BlockMask:
    """As `dense_mask`, for `attn_implementation="flex_attention"`."""
    num_rows = anchors_N.numel() * block_size

    def visible(batch, head, row, column):
        return is_visible(
            row,
            column,
            anchors_N=anchors_N,
            starts_N=starts_N,
            block_size=block_size,
            context_length=context_length,
        )

    return create_block_mask(
        visible, B=None, H=None, Q_LEN=num_rows, KV_LEN=context_length + num_rows, device=anchors_N.device
    )

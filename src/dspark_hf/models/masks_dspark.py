"""Attention masks of the drafter: which context tokens and block rows each block row sees.

Pure arithmetic over positions; knows nothing of models. A block is bidirectional, so a mask is needed only for padding,
for several blocks side by side and for sliding windows.
"""

# B rows, Q block rows, S new context tokens, C all context tokens

from __future__ import annotations

from typing import Any

import torch


def block_attention_mask(
    config,
    attention_mask: Any,
    position_ids: torch.Tensor,
    num_cached: int,
    num_new: int,
    num_rows: int,
    *,
    dtype: torch.dtype,
) -> dict[str, Any]:
    """
    Mask per layer type, `None` where everything is visible.

    Args:
        config ([`DSparkConfig`]): layer types, window, attention implementation.
        attention_mask: as in [`DSparkDrafter.forward`].
        position_ids (`[B or 1, S + Q]`): positions of the new context tokens, then of the block rows.
        num_cached, num_new, num_rows (`int`): tokens in the cache, new context tokens S, block rows Q.
        dtype (`torch.dtype`): of the additive mask that eager attention wants.

    Raises:
        ValueError: the mask has a shape that fits neither the new nor all context tokens, or a layer type has none.
    """
    kinds = set(config.layer_types)
    if isinstance(attention_mask, dict):
        if not kinds <= set(attention_mask):
            raise ValueError(
                f"attention_mask must hold a mask for each of {sorted(kinds)}, got {sorted(attention_mask)}"
            )
        return attention_mask
    if attention_mask is not None and not isinstance(attention_mask, torch.Tensor):
        if "sliding_attention" in kinds:
            raise ValueError(
                "sliding layers need masks of their own: pass attention_mask={'sliding_attention': ..., ...}"
            )
        return dict.fromkeys(kinds, attention_mask)
    full = _visible(attention_mask, num_cached, num_new, num_rows)
    masks: dict[str, Any] = {}
    for kind in kinds:
        visible = full
        if kind == "sliding_attention":
            window = _window(config, position_ids, attention_mask, full, num_cached, num_new, num_rows)
            visible = window if full is None else full & window
        if visible is not None and config._attn_implementation == "eager":
            visible = torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(
                ~visible, torch.finfo(dtype).min
            )
        masks[kind] = visible
    return masks


def _visible(mask: torch.Tensor | None, num_cached: int, num_new: int, num_rows: int) -> torch.Tensor | None:
    """Boolean `[B, 1, 1 or Q, C + Q]`, or `None` where nothing is hidden."""
    if mask is None:
        return None
    total = num_cached + num_new
    if mask.dim() == 4:
        # a ragged cache may hold fewer columns than it reports; its owner sizes the mask
        return mask.bool()
    if mask.dim() != 2 or mask.shape[1] not in (num_new, total):
        raise ValueError(
            f"attention_mask must be [rows, {num_new}] (new context) or [rows, {total}] (all context), or boolean "
            f"[rows, 1, {num_rows}, {total + num_rows}], got {list(mask.shape)}"
        )
    mask = mask.bool()
    ones = mask.new_ones(mask.shape[0], total - mask.shape[1])
    rows = mask.new_ones(mask.shape[0], num_rows)
    return torch.cat([ones, mask, rows], dim=1)[:, None, None, :]


def _window(
    config,
    position_ids: torch.Tensor,
    mask: torch.Tensor | None,
    full: torch.Tensor | None,
    num_cached: int,
    num_new: int,
    num_rows: int,
) -> torch.Tensor:
    """What a sliding layer's window leaves visible: boolean `[B, 1, Q, C + Q]`; other blocks are hidden elsewhere."""
    rows = position_ids[:, num_new:]
    new = position_ids[:, :num_new]
    if mask is not None and mask.dim() == 4 and full is not None and num_cached:
        # per-row caches write token p into column p
        columns = torch.arange(full.shape[-1] - num_rows, device=rows.device)[None]
    else:
        first = new[:, :1] if num_new else rows[:, :1]
        columns = torch.cat([first + torch.arange(-num_cached, 0, device=rows.device), new], dim=1)
    if config.sliding_window_from == "anchor":
        anchors = rows[:, :: config.block_size].repeat_interleave(config.block_size, dim=1)[:, :num_rows]
        near = anchors[:, None, :, None] - columns[:, None, None, :] <= config.sliding_window
    else:
        near = rows[:, None, :, None] - columns[:, None, None, :] < config.sliding_window
    if config.causal_layers == "sliding":
        own = rows[:, None, :, None] >= rows[:, None, None, :]
    else:
        own = near.new_ones(*near.shape[:2], num_rows, num_rows)
    return torch.cat([near, own.expand(near.shape[0], -1, -1, -1)], dim=-1)

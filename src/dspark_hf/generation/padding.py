"""Right-padded prompts are moved to the left before `generate` sees them, and put back into the result.

Plain `generate` continues behind the padding, which is never what was meant; here each row continues its own text.
"""

# B rows, L prompt columns

from __future__ import annotations

from typing import Any

import torch


ALIGNED = ("input_ids", "inputs", "inputs_embeds", "token_type_ids", "mm_token_type_ids", "attention_mask")


def move_padding_left(kwargs: dict[str, Any]) -> torch.Tensor | None:
    """
    Rolls every row of the prompt so that its padding comes first; changes `kwargs` in place.

    Returns:
        the original ids `[B, L]`, to be put back, or `None` where nothing was moved.
    """
    mask_BL = kwargs.get("attention_mask")
    ids_BL = kwargs.get("input_ids") if kwargs.get("input_ids") is not None else kwargs.get("inputs")
    if not isinstance(mask_BL, torch.Tensor) or mask_BL.dim() != 2 or bool(mask_BL[:, -1].all()):
        return None
    if ids_BL is not None and ids_BL.shape != mask_BL.shape:
        return None
    columns = mask_BL.shape[1]
    # trailing padding of a row = columns behind its last real token
    trailing_B = columns - 1 - (mask_BL.long() * torch.arange(columns, device=mask_BL.device)).amax(dim=1)
    index_BL = (torch.arange(columns, device=mask_BL.device) - trailing_B[:, None]) % columns
    for key in ALIGNED:
        value = kwargs.get(key)
        if isinstance(value, torch.Tensor) and value.shape[:2] == mask_BL.shape:
            index = index_BL.to(value.device)
            kwargs[key] = value[torch.arange(len(value), device=value.device)[:, None], index]
    return ids_BL

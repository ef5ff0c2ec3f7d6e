"""How the rows of a batch are decoded: together end to end, together and padded, or one after another; decided once per call.

`DSPARK_HF_LAYOUT` overrides the choice between the first two: `auto` (default) verifies rows end to end where torch's
`varlen_attn` runs (CUDA, half precision), `ragged` wherever the target allows it, `padded` never.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from transformers import DynamicCache
from transformers.utils import logging

from dspark_hf.ragged_attention import is_fused

from .attention import RAGGED_ATTENTION
from .batched import RaggedRows, ragged_layer_types
from .flattened import FlattenedRows
from .request import GenerationRequest
from .target import PROMPT_ONLY, TOKEN_TYPES


logger = logging.get_logger(__name__)

ENVIRONMENT = "DSPARK_HF_LAYOUT"
CHOICES = ("auto", "ragged", "padded")
# implementations that take a dense mask; others would read lengths instead
MASKED_ATTENTION = ("sdpa", "eager", RAGGED_ATTENTION)
HEAD_SIZES = ("head_dim", "v_head_dim", "qk_head_dim")


def rows_together(request: GenerationRequest, origins: list[int]) -> RaggedRows | None:
    """
    The object that decodes several rows in one batch, or `None` where they must go one after another.

    Raises:
        ValueError: `DSPARK_HF_LAYOUT` is none of `auto`, `ragged`, `padded`.
    """
    # rows of unequal length need masks and positions of their own
    together = request.attention_implementation in MASKED_ATTENTION and "position_ids" in request.model_kwargs
    layer_types = ragged_layer_types(request.target.config.get_text_config()) if together else None
    if layer_types is None:
        logger.debug(
            "rows are decoded one after another: the target's layers, attention or positions allow nothing else"
        )
        return None
    choice = os.environ.get(ENVIRONMENT, "auto")
    if choice not in CHOICES:
        raise ValueError(f"{ENVIRONMENT} must be one of {', '.join(CHOICES)}; got {choice!r}")
    obstacle = f"{ENVIRONMENT}=padded asks for it" if choice == "padded" else obstacle_to_ragged(request)
    if obstacle is None and choice == "auto" and not _runs_fused(request.target):
        obstacle = "torch's varlen_attn does not run here (it needs CUDA, half precision and one head size up to 256)"
    if obstacle is None:
        logger.debug("rows are verified end to end")
        return FlattenedRows(request, origins, layer_types)
    message = f"rows are padded to the longest in verification: {obstacle}"
    logger.warning_once(message) if choice == "ragged" else logger.debug(message)
    return RaggedRows(request, origins, layer_types)


def obstacle_to_ragged(request: GenerationRequest) -> str | None:
    """Why a target's rows cannot be verified end to end, if so; about the call, not the machine."""
    model: Any = request.target
    text = model.config.get_text_config()
    inputs = {key: value for key, value in request.model_kwargs.items() if key not in PROMPT_ONLY}
    per_row = sorted(key for key, value in inputs.items() if isinstance(value, torch.Tensor) and value.dim() > 0)
    types = sorted(key for key in TOKEN_TYPES if request.model_kwargs.get(key) is not None)
    if request.attention_implementation not in ("sdpa", RAGGED_ATTENTION):
        return f"its attention is {request.attention_implementation!r}, not 'sdpa'"
    if not model.is_backend_compatible():
        return f"{type(model).__name__} does not take an attention implementation from outside"
    if text is not model.config:
        return f"{type(model).__name__} is more than a text model"
    if getattr(text, "attn_logit_softcapping", None) is not None:
        return "its attention scores are soft-capped"
    if type(request.cache) is not DynamicCache:
        return f"its cache is a {type(request.cache).__name__}, not a DynamicCache"
    if request.wants("hidden_states") or request.wants("attentions"):
        return "hidden states or attentions of every step were asked for"
    if types or per_row or request.model_kwargs["position_ids"].dim() != 2:
        return f"it has inputs for every token or row ({', '.join(types + per_row) or 'position_ids'})"
    return None


def _runs_fused(target: Any) -> bool:
    for layer in target.config.get_text_config().per_layer_config:
        sizes = {getattr(layer, name) for name in HEAD_SIZES if getattr(layer, name, None)}
        if not is_fused(target.device, target.dtype, sizes or {layer.hidden_size // layer.num_attention_heads}):
            return False
    return True

"""What is refused before the first token: pairs that do not fit, and options that have no exact meaning with a drafter."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.generation import GenerationMode
from transformers.integrations import is_deepspeed_zero3_enabled, is_fsdp_managed_module

from .request import GenerationRequest
from .rollback import check_cache


def check_pair(target: PreTrainedModel, drafter: Any) -> None:
    """
    Raises:
        ValueError: the drafter was made for another target; names the sizes that differ.
    """
    if target.config.is_encoder_decoder:
        raise ValueError(
            f"a DSpark drafter needs a decoder-only target, got the encoder-decoder {type(target).__name__}"
        )
    text, config = target.config.get_text_config(), drafter.config
    expected = {
        "vocab_size": (text.vocab_size, config.vocab_size),
        "hidden_size": (text.hidden_size, config.target_hidden_size),
        "num_hidden_layers": (text.num_hidden_layers, config.num_target_layers),
    }
    for name, (found, made_for) in expected.items():
        if found != made_for:
            raise ValueError(
                f"this drafter was made for a target with {name} {made_for} ({config.target_name_or_path or 'unnamed'}), "
                f"the target has {found}; use the drafter of this target"
            )


def check_request(request: GenerationRequest) -> None:
    """
    Raises:
        ValueError: an option that cannot be combined with a drafter.
    """
    config = request.config
    if config.assistant_ensemble_weight is not None:
        raise ValueError(
            "assistant_ensemble_weight changes the distribution; a DSpark drafter only speeds the target up: leave it out"
        )
    if config.speculation_type is not None:
        raise ValueError(
            f"speculation_type={config.speculation_type!r} belongs to another drafter; leave it out for DSpark"
        )
    mode = config.get_generation_mode()
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise ValueError(
            f"a DSpark drafter works with greedy decoding and sampling, not with {mode.value.replace('_', ' ')}; drop the option "
            "that asks for it or the drafter"
        )
    if not config.use_cache:
        raise ValueError("use_cache=False leaves nothing to verify drafts against; use the cache or drop the drafter")
    check_cache(request.cache, type(request.target).__name__)
    check_not_sharded(request.target)


def check_not_sharded(target: PreTrainedModel) -> None:
    """
    Raises:
        ValueError: ranks that share a model would make different numbers of forwards and wait for each other for ever.
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return
    if torch.distributed.get_world_size() > 1 and (is_deepspeed_zero3_enabled() or is_fsdp_managed_module(target)):
        raise ValueError(
            "a DSpark drafter cannot run on a target sharded by FSDP or ZeRO-3; gather it on one rank first"
        )

"""Adapting a published drafter to a fine-tuned target or a domain: in full, or by a LoRA adapter of a few percent of its size.

It knows nothing of rows, features or the trainer.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.utils.logging import get_logger

from dspark_hf.models import DSparkDrafter


logger = get_logger(__name__)

LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "fc")


def load_start(name_or_path: str, target: PreTrainedModel) -> DSparkDrafter:
    """A published drafter of any format, in float32 on the target's device, with the target's embedding and head shared.

    Raises:
        ValueError: it does not fit the target.
    """
    drafter = DSparkDrafter.from_pretrained(name_or_path, target=target, dtype=torch.float32).to(target.device)
    text = target.config.get_text_config()
    if drafter.config.target_hidden_size != text.hidden_size:
        raise ValueError(
            f"{name_or_path} reads features of width {drafter.config.target_hidden_size}, the target's are "
            f"{text.hidden_size} wide; it was made for another model."
        )
    drafter.tie_to(target)
    if drafter.config.confidence_calibration:
        logger.warning("The temperatures of the published drafter are dropped; calibrate again after training.")
        drafter.config.confidence_calibration = None
    return drafter


def add_adapter(drafter: DSparkDrafter, *, rank: int, alpha: float | None = None, seed: int = 0) -> nn.Module:
    """Wrap a drafter for LoRA training: adapters on the projections of its body.

    The heads get none: they are a table as large as the vocabulary, and drafting reads their weights as they are stored.

    Args:
        drafter ([`DSparkDrafter`]): its own weights are frozen.
        rank (`int`): of every adapter.
        alpha (`float`, *optional*): scale; twice the rank by default.
        seed (`int`): of the initial adapter.

    Returns:
        `PeftModel`: `save_pretrained` writes the adapter alone.
    """
    from peft import LoraConfig, get_peft_model

    linear = [name for name, module in drafter.named_modules() if isinstance(module, nn.Linear)]
    names = [name for name in linear if name.split(".")[-1] in LORA_TARGETS and "_head." not in name]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = LoraConfig(
            r=rank,
            lora_alpha=2 * rank if alpha is None else alpha,
            target_modules=names,
            base_model_name_or_path=drafter.name_or_path or None,
        )
        return get_peft_model(drafter, config)

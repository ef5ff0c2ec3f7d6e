"""Tiny random models in memory, for tests and benchmarks: one target per family and a drafter that fits it.

`bigram=True` damps a target's layers so that its next token depends almost on the last token alone, and gives the
drafter a Markov head that knows this: acceptance is then high but not total, without any training.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from dspark_hf.models import DSparkConfig, DSparkDrafter


SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}
WINDOW = 16
GEMMA4: dict[str, Any] = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "global_head_dim": 16,
    "num_global_key_value_heads": 2,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 64,
    "attention_k_eq_v": False,
    "final_logit_softcapping": 30.0,
}


def _text(config_name: str, model_name: str, **extra: Any) -> Callable[..., PreTrainedModel]:
    def build(**overrides: Any) -> PreTrainedModel:
        config = getattr(transformers, config_name)(**{**SIZES, **extra, **overrides})
        return getattr(transformers, model_name)(config)

    return build


def _gemma3_wrapper(**overrides: Any) -> PreTrainedModel:
    text = {**SIZES, "sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 2, **overrides}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Gemma3Config(
        text_config=text, vision_config={**vision, "image_size": 16, "patch_size": 8}, mm_tokens_per_image=4
    )
    return transformers.Gemma3ForConditionalGeneration(config)


FAMILIES: dict[str, Callable[..., PreTrainedModel]] = {
    "qwen3": _text("Qwen3Config", "Qwen3ForCausalLM"),
    "qwen3_moe": _text(
        "Qwen3MoeConfig", "Qwen3MoeForCausalLM", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32
    ),
    "qwen2": _text("Qwen2Config", "Qwen2ForCausalLM"),
    "llama": _text("LlamaConfig", "LlamaForCausalLM"),
    "gemma3": _text(
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention"] * 2,
        final_logit_softcapping=30.0,
    ),
    "gemma3_wrapper": _gemma3_wrapper,
    "gemma4": _text("Gemma4TextConfig", "Gemma4ForCausalLM", **GEMMA4),
}


def tiny_target(family: str = "qwen3", *, seed: int = 0, bigram: bool = True, **overrides: Any) -> PreTrainedModel:
    """
    A random causal language model of a few thousand weights in eval mode.

    Args:
        family (`str`): a key of `FAMILIES`.
        seed (`int`): same seed, same weights.
        bigram (`bool`): damp the layers, see the module's docstring.
        overrides: configuration fields.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = FAMILIES[family](**overrides).float().eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "vision" in name:
                    continue
                if "norm" in name:
                    weight.uniform_(0.6, 1.4)
                elif weight.dim() >= 2:
                    weight.normal_(std=0.05 if bigram and "layers." in name else 0.4)
                if bigram and "gemma" in family and re.search(r"\.post_\w+norm\.", name):
                    # sandwich norms undo small weights; Gemma 3 multiplies by 1 + weight
                    weight.fill_(0.1 if "gemma4" in family else -0.9)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model


def tiny_drafter(target: PreTrainedModel, *, seed: int = 1, bigram: bool = True, **overrides: Any) -> DSparkDrafter:
    """A random drafter that fits the target: three features, two layers, block of five; see `tiny_target`."""
    text = target.config.get_text_config()
    fields: dict[str, Any] = {
        "vocab_size": text.vocab_size,
        "hidden_size": text.hidden_size,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": text.max_position_embeddings,
        "target_layer_ids": [-1, 0, 2],
        "num_target_layers": text.num_hidden_layers,
        "target_model_type": text.model_type,
        "block_size": 5,
        "mask_token_id": text.vocab_size - 1,
        "markov_rank": text.hidden_size if bigram else 8,
        "pad_token_id": text.pad_token_id,
        "bos_token_id": text.bos_token_id,
        "eos_token_id": text.eos_token_id,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        drafter = DSparkDrafter(DSparkConfig(**{**fields, **overrides})).eval()
        with torch.no_grad():
            for name, weight in drafter.named_parameters():
                if weight.dim() >= 2:
                    weight.normal_(std=0.3)
                elif "norm" in name:
                    weight.uniform_(0.6, 1.4)
            if bigram and drafter.config.markov_rank == text.hidden_size and drafter.config.draft_vocab_size is None:
                _teach_bigram(drafter, target)
    return drafter


def _teach_bigram(drafter: DSparkDrafter, target: PreTrainedModel) -> None:
    """Markov head = the target without its layers: embedding, final norm, head."""
    assert drafter.markov_head is not None
    text = target.config.get_text_config()
    embedded = target.get_input_embeddings()(torch.arange(text.vocab_size))
    final_norm = next(module for name, module in target.named_modules() if re.search(r"(^|model)\.norm$", name))
    drafter.markov_head.markov_w1.weight.copy_(final_norm(embedded))
    drafter.markov_head.markov_w2.weight.copy_(target.get_output_embeddings().weight)
    drafter.lm_head.weight.mul_(0.1)

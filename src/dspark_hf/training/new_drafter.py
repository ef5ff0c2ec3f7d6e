"""A fresh drafter for a target: sizes from the target, embedding and head frozen and shared, everything else new.

It knows nothing of rows beyond token counts, of losses or of the optimizer.
"""

# V target vocabulary, U draft vocabulary, D hidden, F feature layers

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import get_logger

from dspark_hf.models import DSparkConfig, DSparkDrafter
from dspark_hf.models.configuration_dspark import spread_layer_ids
from dspark_hf.models.validation_dspark import ROPE_TYPES

from .features import TargetFeatures
from .recipe import DrafterSection
from .rows import Row


logger = get_logger(__name__)

FROZEN = ("embed_tokens", "lm_head")


def drafter_config(
    target: PreTrainedModel,
    section: DrafterSection,
    *,
    mask_token_id: int,
    target_name: str | None = None,
    target_revision: str | None = None,
    thinking: bool | None = None,
) -> DSparkConfig:
    """The configuration a recipe asks for, with the target's own sizes where it leaves them open.

    Args:
        target (`PreTrainedModel`): only its configuration and embedding size are read.
        section ([`DrafterSection`]): of the recipe.
        mask_token_id (`int`): see `choose_mask_token`.
        target_name, target_revision (`str`, *optional*), thinking (`bool`, *optional*): recorded.

    Raises:
        ValueError: from [`DSparkConfig`], naming the field.
    """
    text = target.config.get_text_config()
    known = text.to_dict()
    gemma = section.body == "gemma4"
    heads = section.num_attention_heads or text.num_attention_heads
    # Gemma 4's last layer is one of full attention, whose sizes differ from those of its sliding layers
    last = (known.get("per_layer_config") or {}).get(str(text.num_hidden_layers - 1), {}) if gemma else {}
    own_head_dim = last.get("head_dim") or known.get("head_dim")
    own_kv_heads = last.get("num_key_value_heads") or text.num_key_value_heads
    layer_ids = section.target_layer_ids
    if layer_ids is None:
        layer_ids = spread_layer_ids(text.num_hidden_layers, section.num_target_features)
    return DSparkConfig(
        body=section.body,
        vocab_size=target.get_input_embeddings().weight.shape[0],
        draft_vocab_size=section.draft_vocab_size,
        hidden_size=text.hidden_size,
        target_hidden_size=text.hidden_size,
        intermediate_size=section.intermediate_size or _one(known.get("intermediate_size"), 4 * text.hidden_size),
        num_hidden_layers=section.num_hidden_layers,
        num_attention_heads=heads,
        num_key_value_heads=section.num_key_value_heads or min(own_kv_heads, heads),
        head_dim=section.head_dim or own_head_dim or text.hidden_size // text.num_attention_heads,
        hidden_act=known.get("hidden_act") or known.get("hidden_activation") or "silu",
        rms_norm_eps=known.get("rms_norm_eps", 1e-6),
        max_position_embeddings=text.max_position_embeddings,
        rope_parameters=_rope(known.get("rope_parameters") or {}),
        attention_k_eq_v=gemma and bool(known.get("attention_k_eq_v")),
        embedding_scale=text.hidden_size**0.5 if gemma else 1.0,
        final_logit_softcapping=known.get("final_logit_softcapping"),
        target_layer_ids=layer_ids,
        num_target_layers=text.num_hidden_layers,
        target_name_or_path=target_name,
        target_revision=target_revision,
        target_model_type=text.model_type,
        target_thinking=thinking,
        block_size=section.block_size,
        sample_from_anchor=section.sample_from_anchor,
        mask_token_id=mask_token_id,
        markov_rank=section.markov_rank,
        markov_head_type=section.markov_head_type,
        enable_confidence_head=section.enable_confidence_head,
        confidence_head_with_markov=section.confidence_head_with_markov and section.markov_rank > 0,
        pad_token_id=known.get("pad_token_id"),
        bos_token_id=known.get("bos_token_id"),
        eos_token_id=target.generation_config.eos_token_id,
    )


def _rope(parameters: dict[str, Any]) -> dict[str, Any] | None:
    """The target's rotary parameters of full attention; a kind the drafter does not know keeps its base only."""
    chosen = parameters.get("full_attention", parameters)
    if not chosen.get("rope_theta"):
        return None
    kind = chosen.get("rope_type", "default")
    if kind == "default" or kind not in ROPE_TYPES:
        return {"rope_type": "default", "rope_theta": chosen["rope_theta"]}
    return dict(chosen)


def _one(value: Any, default: int) -> int:
    """One size where a configuration lists one a layer."""
    sizes = value if isinstance(value, (list, tuple)) else [value]
    return max((size for size in sizes if size is not None), default=default)


def new_drafter(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Row],
    section: DrafterSection,
    *,
    seed: int = 0,
    target_name: str | None = None,
    target_revision: str | None = None,
    thinking: bool | None = None,
) -> DSparkDrafter:
    """A drafter ready to train, in float32 on the target's device.

    Args:
        target (`PreTrainedModel`), tokenizer: what it drafts for.
        rows: training rows; their tokens choose the draft vocabulary, and their features the scaling where it is asked for.
        section ([`DrafterSection`]): of the recipe.
        seed (`int`): of the initial weights.
        target_name, target_revision, thinking: recorded in the configuration.
    """
    counts = Counter(token for row in rows for token in row.completion_ids)
    mask = section.mask_token_id
    if mask is None:
        mask = choose_mask_token(tokenizer, target.get_input_embeddings(), counts)
    config = drafter_config(
        target,
        section,
        mask_token_id=mask,
        target_name=target_name,
        target_revision=target_revision,
        thinking=thinking,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        drafter = DSparkDrafter(config).float()
    borrow(drafter, target, draft_vocabulary(counts, config) if config.draft_vocab_size is not None else None)
    flatten_first_logits(drafter)
    drafter.to(target.device)
    drafter.tie_to(target)
    if section.feature_scaling:
        scale_features(drafter, target, rows)
    freeze_shared(drafter)
    return drafter


def freeze_shared(drafter: DSparkDrafter) -> None:
    """Embedding and head are the target's: no gradient, no optimizer state."""
    drafter.embed_tokens.requires_grad_(False)
    drafter.lm_head.requires_grad_(False)


@torch.no_grad()
def borrow(drafter: DSparkDrafter, target: PreTrainedModel, vocabulary: list[int] | None) -> None:
    """Copy the target's embedding and head into the drafter.

    The `qwen3` body has no embedding scale, so what the target's embedding module returns is stored, scaled where it scales.
    """
    module = target.get_input_embeddings()
    embedding = module.weight
    if drafter.config.embedding_scale == 1.0:
        embedding = module(torch.arange(len(embedding), device=embedding.device))
    drafter.embed_tokens.weight.copy_(embedding)
    head = target.get_output_embeddings().weight
    if vocabulary is not None:
        drafter.set_draft_vocabulary(torch.tensor(vocabulary))
        head = head[torch.tensor(vocabulary, device=head.device)]
    drafter.lm_head.weight.copy_(head)


@torch.no_grad()
def flatten_first_logits(drafter: DSparkDrafter) -> None:
    """Start the final norm at a weight that gives logits of a random hidden state at most unit variance.

    The target's head may have long rows (SmolLM2-135M: 3.2). With weight 1 the first cross entropy was then 14 instead of 9, and
    the first hundred steps went into undoing it.
    """
    length = drafter.lm_head.weight.float().norm(dim=1).median().item()
    assert drafter.norm.weight is not None
    drafter.norm.weight.fill_(min(1.0, 1.0 / max(length, 1e-6)))


def draft_vocabulary(counts: Counter[int], config: DSparkConfig) -> list[int]:
    """The U target ids the drafter may propose, ascending: those that end a turn, then the most frequent, then the lowest."""
    size = config.output_vocab_size
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    chosen = [token for token in ends if token is not None]
    chosen += [token for token, _ in counts.most_common(size) if token not in set(chosen)]
    chosen = chosen[:size]
    present = set(chosen)
    chosen += [token for token in range(config.vocab_size) if token not in present][: size - len(chosen)]
    covered = sum(counts[token] for token in chosen) / max(counts.total(), 1)
    logger.info(f"Draft vocabulary of {size} tokens covers {covered:.1%} of the answers' tokens.")
    return sorted(chosen)


def choose_mask_token(
    tokenizer: PreTrainedTokenizerBase, embedding: nn.Module, counts: Counter[int] | None = None
) -> int:
    """An id whose embedding can stand for "unknown": never in the data, not a zero row, not one that ends or pads a turn.

    Preferred are ids beyond the tokenizer's vocabulary, then special tokens, then the rarest token.
    """
    counts = Counter() if counts is None else counts
    weight_VD = embedding.get_parameter("weight").detach()
    norms_V = weight_VD.float().norm(dim=-1)
    usable = (norms_V > 0.1 * norms_V.median()).tolist()
    busy = {tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id}
    ordinary = set(tokenizer.get_vocab().values())
    special = set(tokenizer.all_special_ids) | set(tokenizer.get_added_vocab().values())

    def order(token: int) -> tuple[int, int, int]:
        kind = 0 if token not in ordinary else 1 if token in special else 2
        return (counts[token], kind, -token)

    candidates = [token for token in range(len(usable)) if usable[token] and token not in busy]
    return min(candidates, key=order)


@torch.no_grad()
def scale_features(
    drafter: DSparkDrafter, target: PreTrainedModel, rows: Iterable[Row], *, sample: int = 16
) -> list[float]:
    """Divide each layer's columns of the initial `fc` weight by that layer's median token RMS; the format stays the same.

    Residual streams grow with depth and their first token can be 30 times larger, hence the median.

    Returns:
        `list[float]`: the medians, one a feature layer.
    """
    source = TargetFeatures(target, drafter.config.target_layer_ids)
    features = source.read(list(rows)[:sample])
    context = torch.cat([each.context.float() for each in features]).view(-1, len(source.layer_ids), source.width)
    medians_F = context.pow(2).mean(-1).sqrt().median(dim=0).values.clamp_min(1e-6)
    weight = drafter.fc.weight.view(-1, len(source.layer_ids), source.width)
    weight.div_(medians_F[None, :, None].to(weight.device))
    return medians_F.tolist()

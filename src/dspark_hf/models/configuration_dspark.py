"""Configuration of a DSpark drafter: the body's own sizes, the block layout and the two heads.

Knows nothing of training (anchors, loss weights) nor of any published dialect: `dialects_dspark.py` translates those
into these fields before they arrive here.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from .dialects_dspark import to_native
from .validation_dspark import check_heads, check_layout, check_rope, check_sizes, check_types


@strict
class DSparkConfig(PreTrainedConfig):
    r"""
    Sizes and layout of a [`DSparkDrafter`].

    Args:
        body (`str`, defaults to `"qwen3"`): layer recipe, `"qwen3"` (serves every target family) or `"gemma4"` (sandwich
            norms, `layer_scalar`, attention scale 1).
        vocab_size (`int`): rows of the *target's* embedding; `generate` compares it with the target's.
        draft_vocab_size (`int`, *optional*): tokens the drafter can propose; `None` means all `vocab_size`.
        hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim (`int`):
            sizes of the drafter's own layers.
        target_hidden_size (`int`, *optional*): width of one captured target layer; `None` means `hidden_size`.
        block_size (`int`, defaults to 7): rows of one draft pass: the anchor and `block_size - 1` mask tokens.
        sample_from_anchor (`bool`, defaults to `True`): whether the anchor's row already predicts. `True` gives
            `block_size` slots (DeepSpec), `False` gives `block_size - 1` (z-lab DFlash).
        mask_token_id (`int`): id of the mask token, inside `[0, vocab_size)` and unused by the tokenizer.
        target_layer_ids (`list[int]`): target layers whose *outputs* are read (`hidden_states[i + 1]`); -1 is the
            embedding output. The last layer is refused: transformers returns it normed.
        num_target_layers (`int`, *optional*): layers of the target; `None` where the checkpoint does not say.
        markov_rank (`int`, defaults to 256): rank of the Markov head; 0 switches it off.
        markov_head_type (`str`, defaults to `"vanilla"`): `"vanilla"`, `"gated"` or `"rnn"`.
        enable_confidence_head (`bool`, defaults to `True`): whether each slot's survival is estimated.
        confidence_head_with_markov (`bool`, defaults to `True`): whether that head also sees the Markov embedding.
        embedding_scale (`float`, defaults to 1.0): factor on the embeddings of the block.
        final_logit_softcapping (`float`, *optional*): cap of the base logits, applied before the Markov bias.
        attention_k_eq_v (`bool`, defaults to `False`): gemma4 only, values are the normed key projections.
        layer_types (`list[str]`, *optional*): `"full_attention"` or `"sliding_attention"` per layer.
        sliding_window (`int`, *optional*): context tokens a sliding layer sees; at least `block_size`.
        sliding_window_from (`str`, defaults to `"row"`): where the window of a sliding layer is counted from: each `"row"`
            (a context token is visible if it is less than `sliding_window` positions before the row) or the block's
            `"anchor"` (at most `sliding_window` positions before the anchor, alike for all rows; speculators).
        causal_layers (`str`, defaults to `"none"`): `"sliding"` where a row of a sliding layer does not see later rows of
            its block (z-lab, speculators); full-attention layers always see the whole block.
        target_name_or_path, target_revision (`str`, *optional*): the target it was trained for.
        target_thinking (`bool`, *optional*): whether the training answers were written in thinking mode.
        confidence_calibration (`dict`, *optional*): sampling regime -> `{"temperatures": [...], "biases": [...]}`, one
            number per slot (paper section 3.2.1). Optional: `"margin_slopes"` and `"margin_intercepts"`, a logistic on the
            margin of the two best draft scores that replaces the confidence head, and `"expected_survival"`, lists of one number
            per slot from which new rows start.
        source_config (`dict`, *optional*): the untouched `config.json` of the published checkpoint it came from; used when
            it is written back in that format.

    Raises:
        ValueError: a field is out of range or contradicts another; the message names it.

    Source: DSpark paper sections 3.1 and 3.2; field names follow the DeepSpec checkpoints.
    """

    model_type = "dspark"

    body: str = "qwen3"
    vocab_size: int = 151936
    draft_vocab_size: int | None = None
    hidden_size: int = 2560
    intermediate_size: int = 9728
    num_hidden_layers: int = 5
    num_attention_heads: int = 32
    num_key_value_heads: int = 8
    head_dim: int = 128
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 40960
    initializer_range: float = 0.02
    rope_parameters: dict | None = None
    attention_bias: bool = False
    attention_dropout: float | int = 0.0
    attention_k_eq_v: bool = False
    # `None` in these means "derived", and is replaced before anybody sees it
    layer_types: list[str] = None  # type: ignore[assignment]
    sliding_window: int | None = None
    sliding_window_from: str = "row"
    causal_layers: str = "none"
    embedding_scale: float | int = 1.0
    final_logit_softcapping: float | int | None = None
    tie_word_embeddings: bool = False

    target_hidden_size: int = None  # type: ignore[assignment]
    target_layer_ids: list[int] = None  # type: ignore[assignment]
    num_target_layers: int | None = 36
    target_name_or_path: str | None = None
    target_revision: str | None = None
    target_model_type: str | None = None
    target_thinking: bool | None = None

    block_size: int = 7
    sample_from_anchor: bool = True
    mask_token_id: int = None  # type: ignore[assignment]
    markov_rank: int = 256
    markov_head_type: str = "vanilla"
    enable_confidence_head: bool = True
    confidence_head_with_markov: bool = True
    confidence_calibration: dict | None = None
    source_config: dict | None = None

    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        check_types(self)
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.head_dim is None:
            self.head_dim = max(self.hidden_size // self.num_attention_heads, 1)
        if self.target_hidden_size is None:
            self.target_hidden_size = self.hidden_size
        if self.draft_vocab_size == self.vocab_size:
            self.draft_vocab_size = None
        if self.layer_types is None:
            kind = "sliding_attention" if self.sliding_window is not None else "full_attention"
            self.layer_types = [kind] * self.num_hidden_layers
        if self.mask_token_id is None:
            self.mask_token_id = self.vocab_size - 1
        if self.target_layer_ids is None:
            if self.num_target_layers is None:
                raise ValueError("target_layer_ids is missing, and without num_target_layers it cannot be chosen")
            self.target_layer_ids = spread_layer_ids(self.num_target_layers, min(5, self.num_hidden_layers))
        try:
            super().__post_init__(**kwargs)
        except (KeyError, TypeError, AttributeError) as error:
            # the base class standardises the rotary parameters with plain dictionary accesses
            raise ValueError(f"rope_parameters, rope_scaling or rope_theta is malformed: {error}") from error
        check_rope(self)
        check_sizes(self)
        check_layout(self)
        check_heads(self)

    @classmethod
    def get_config_dict(cls, pretrained_model_name_or_path, **kwargs):
        try:
            config_dict, kwargs = super().get_config_dict(pretrained_model_name_or_path, **kwargs)
        except (TypeError, AttributeError) as error:
            # the base class takes it for granted that the file holds a mapping
            raise ValueError(f"{pretrained_model_name_or_path}: config.json must hold a mapping ({error})") from error
        if not config_dict:
            raise OSError(
                f"{pretrained_model_name_or_path} is no drafter checkpoint: its config.json is missing or empty"
            )
        try:
            return to_native(config_dict, native_fields={field.name for field in fields(cls)}), kwargs
        except ValueError as error:
            raise ValueError(f"{pretrained_model_name_or_path}: {error}") from error

    @property
    def num_slots(self) -> int:
        """Drafted tokens per round (gamma)."""
        return self.block_size if self.sample_from_anchor else self.block_size - 1

    @property
    def output_vocab_size(self) -> int:
        """Rows of the drafter's head: the pruned vocabulary where there is one."""
        return self.draft_vocab_size or self.vocab_size


def spread_layer_ids(num_target_layers: int, count: int) -> list[int]:
    """
    Layers spread evenly from the second to the fourth last, as DeepSpec chooses them (36 layers, 5 -> 1, 9, 17, 25, 33).

    Small targets get fewer layers rather than a repeated one.
    """
    first, last = min(1, max(num_target_layers - 2, -1)), max(num_target_layers - 3, min(1, num_target_layers - 2))
    if count == 1 or last <= first:
        return [first]
    return sorted({round(first + (last - first) * i / (count - 1)) for i in range(count)})


__all__ = ["DSparkConfig", "spread_layer_ids"]

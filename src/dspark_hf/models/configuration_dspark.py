"""Configuration of a DSpark drafter: the body's own sizes, the block layout and the two heads.

Knows nothing of training (anchors, loss weights) nor of any published dialect: `dialects_dspark.py` translates those
into these fields before they arrive here.
"""

from __future__ import annotations

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from .dialects_dspark import to_native


BODIES = ("qwen3", "gemma4")
MARKOV_HEADS = ("vanilla", "gated", "rnn")
ROPE_TYPES = ("default", "linear", "llama3", "yarn", "proportional")


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
        num_target_layers (`int`): layers of the target.
        markov_rank (`int`, defaults to 256): rank of the Markov head; 0 switches it off.
        markov_head_type (`str`, defaults to `"vanilla"`): `"vanilla"`, `"gated"` or `"rnn"`.
        enable_confidence_head (`bool`, defaults to `True`): whether each slot's survival is estimated.
        confidence_head_with_markov (`bool`, defaults to `True`): whether that head also sees the Markov embedding.
        embedding_scale (`float`, defaults to 1.0): factor on the embeddings of the block.
        final_logit_softcapping (`float`, *optional*): cap of the base logits, applied before the Markov bias.
        attention_k_eq_v (`bool`, defaults to `False`): gemma4 only, values are the normed key projections.
        layer_types (`list[str]`, *optional*): `"full_attention"` or `"sliding_attention"` per layer.
        sliding_window (`int`, *optional*): context tokens a sliding layer sees; at least `block_size`.
        target_name_or_path, target_revision (`str`, *optional*): the target it was trained for.
        target_thinking (`bool`, *optional*): whether the training answers were written in thinking mode.
        confidence_calibration (`dict`, *optional*): sampling regime -> `{"temperatures": [...], "biases": [...]}`, one
            number per slot (paper section 3.2.1).

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
    num_key_value_heads: int | None = 8
    head_dim: int | None = 128
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 40960
    initializer_range: float = 0.02
    rope_parameters: dict | None = None
    attention_bias: bool = False
    attention_dropout: float | int = 0.0
    attention_k_eq_v: bool = False
    layer_types: list[str] | None = None
    sliding_window: int | None = None
    embedding_scale: float | int = 1.0
    final_logit_softcapping: float | int | None = None
    tie_word_embeddings: bool = False

    target_hidden_size: int | None = None
    target_layer_ids: list[int] | None = None
    num_target_layers: int = 36
    target_name_or_path: str | None = None
    target_revision: str | None = None
    target_model_type: str | None = None
    target_thinking: bool | None = None

    block_size: int = 7
    sample_from_anchor: bool = True
    mask_token_id: int | None = None
    markov_rank: int = 256
    markov_head_type: str = "vanilla"
    enable_confidence_head: bool = True
    confidence_head_with_markov: bool = True
    confidence_calibration: dict | None = None

    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.head_dim is None:
            self.head_dim = self.hidden_size // max(self.num_attention_heads, 1)
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
            self.target_layer_ids = spread_layer_ids(self.num_target_layers, min(5, self.num_hidden_layers))
        super().__post_init__(**kwargs)
        self._check_sizes()
        self._check_layout()
        self._check_heads()

    @classmethod
    def get_config_dict(cls, pretrained_model_name_or_path, **kwargs):
        config_dict, kwargs = super().get_config_dict(pretrained_model_name_or_path, **kwargs)
        return to_native(config_dict), kwargs

    @property
    def num_slots(self) -> int:
        """Drafted tokens per round (gamma)."""
        return self.block_size if self.sample_from_anchor else self.block_size - 1

    @property
    def output_vocab_size(self) -> int:
        """Rows of the drafter's head: the pruned vocabulary where there is one."""
        return self.draft_vocab_size or self.vocab_size

    def _check_sizes(self) -> None:
        if self.body not in BODIES:
            raise ValueError(f"body must be one of {', '.join(BODIES)}, got {self.body!r}")
        for name in (
            "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads "
            "head_dim target_hidden_size max_position_embeddings num_target_layers"
        ).split():
            if self.__dict__[name] < 1:
                raise ValueError(f"{name} must be >= 1, got {self.__dict__[name]}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of num_key_value_heads "
                f"({self.num_key_value_heads})"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even for rotary embeddings, got {self.head_dim}")
        if self.rms_norm_eps <= 0:
            raise ValueError(f"rms_norm_eps must be > 0, got {self.rms_norm_eps}")
        if self.attention_k_eq_v and self.body != "gemma4":
            raise ValueError("attention_k_eq_v=true needs body 'gemma4', got body 'qwen3'")
        rope_type = (self.rope_parameters or {}).get("rope_type", "default")
        if rope_type not in ROPE_TYPES:
            raise ValueError(
                f"rope_parameters.rope_type must be one of {', '.join(ROPE_TYPES)} (their frequencies do not depend on "
                f"the sequence length), got {rope_type!r}"
            )
        if self.draft_vocab_size is not None and not 1 <= self.draft_vocab_size < self.vocab_size:
            raise ValueError(f"draft_vocab_size must be in [1, {self.vocab_size}], got {self.draft_vocab_size}")

    def _check_layout(self) -> None:
        if self.block_size < (1 if self.sample_from_anchor else 2):
            raise ValueError(
                f"block_size must leave at least one slot, got {self.block_size} with "
                f"sample_from_anchor={self.sample_from_anchor}"
            )
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise ValueError(f"mask_token_id must be in [0, {self.vocab_size - 1}], got {self.mask_token_id}")
        if not self.target_layer_ids:
            raise ValueError("target_layer_ids must name at least one layer of the target, got an empty list")
        for layer in self.target_layer_ids:
            if layer == self.num_target_layers - 1:
                raise ValueError(
                    f"target_layer_ids must not hold the target's last layer ({layer}): transformers returns it after "
                    "the final norm; choose an earlier layer"
                )
            if not -1 <= layer < self.num_target_layers:
                raise ValueError(
                    f"target_layer_ids must be in [-1, {self.num_target_layers - 2}] for a target of "
                    f"{self.num_target_layers} layers, got {layer}"
                )
        if len(set(self.target_layer_ids)) != len(self.target_layer_ids):
            raise ValueError(f"target_layer_ids must not repeat a layer, got {self.target_layer_ids}")
        if len(self.layer_types) != self.num_hidden_layers:
            raise ValueError(
                f"layer_types must have one entry per layer ({self.num_hidden_layers}), got {len(self.layer_types)}"
            )
        for kind in self.layer_types:
            if kind not in ("full_attention", "sliding_attention"):
                raise ValueError(f"layer_types must be full_attention or sliding_attention, got {kind!r}")
        if "sliding_attention" in self.layer_types and (self.sliding_window or 0) < self.block_size:
            raise ValueError(
                f"sliding_window must be >= block_size ({self.block_size}) for sliding layers, got {self.sliding_window}"
            )

    def _check_heads(self) -> None:
        if self.markov_rank < 0:
            raise ValueError(f"markov_rank must be >= 0 (0 switches the Markov head off), got {self.markov_rank}")
        if self.markov_head_type not in MARKOV_HEADS:
            raise ValueError(
                f"markov_head_type must be one of {', '.join(MARKOV_HEADS)}, got {self.markov_head_type!r}"
            )
        if self.markov_rank == 0 and self.enable_confidence_head and self.confidence_head_with_markov:
            raise ValueError(
                "confidence_head_with_markov=true needs markov_rank > 0, got 0; set it to false or give the Markov head a rank"
            )
        for regime, entry in (self.confidence_calibration or {}).items():
            for key in ("temperatures", "biases"):
                values = entry.get(key) if isinstance(entry, dict) else None
                if key == "temperatures" and values is None:
                    raise ValueError(f"confidence_calibration[{regime!r}] must hold 'temperatures', got {entry!r}")
                if values is not None and len(values) != self.num_slots:
                    raise ValueError(
                        f"confidence_calibration[{regime!r}].{key} must hold {self.num_slots} numbers, one per slot, "
                        f"got {len(values)}"
                    )
                if key == "temperatures" and any(not value > 0 for value in values):
                    raise ValueError(f"confidence_calibration[{regime!r}].temperatures must be > 0, got {values}")


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

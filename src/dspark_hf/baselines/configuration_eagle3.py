"""Configuration of an Eagle3 drafter, and the translation of DeepSpec's `eagle3_*` folders into it.

Knows nothing of tensors. Fields that only block drafters have are fixed here: no Markov head, no confidence head.
"""

from __future__ import annotations

from typing import Any

from huggingface_hub.dataclasses import strict

from dspark_hf.models import DSparkConfig


# spelled alike in DeepSpec's files and here
SHARED_FIELDS = (
    "vocab_size hidden_size intermediate_size num_attention_heads num_key_value_heads head_dim hidden_act rms_norm_eps "
    "max_position_embeddings initializer_range rope_parameters rope_theta rope_scaling attention_bias attention_dropout "
    "pad_token_id bos_token_id eos_token_id dtype torch_dtype draft_vocab_size target_layer_ids num_target_layers "
    "step_loss_decay"
).split()


@strict
class Eagle3Config(DSparkConfig):
    r"""
    Sizes of an [`Eagle3Drafter`].

    Args:
        block_size (`int`, defaults to 7): tokens drafted a round, one after another; the depth of the training-time test.
        step_loss_decay (`float`, defaults to 0.8): step k of the training-time test weighs `step_loss_decay ** (k - 1)`.
        kwargs: sizes as in [`DSparkConfig`].

    Raises:
        ValueError: more than one layer, or a field of a block drafter that a serial one cannot have.

    Source: EAGLE-3 (https://arxiv.org/abs/2503.01840) as DeepSpec trains it; its key `ttt_length` is `block_size` here.
    """

    model_type = "eagle3"

    step_loss_decay: float = 0.8

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.num_hidden_layers != 1:
            raise ValueError(
                f"an Eagle3 drafter has one layer, got num_hidden_layers={self.num_hidden_layers}: with more, the keys of a "
                "committed token would depend on how it was drafted"
            )
        if self.markov_rank or self.enable_confidence_head:
            raise ValueError(
                "an Eagle3 drafter has no Markov head and no confidence head: set markov_rank=0 and none of it"
            )
        if not self.sample_from_anchor:
            raise ValueError("an Eagle3 drafter always predicts from the anchor: sample_from_anchor must be true")
        if not 0 < self.step_loss_decay <= 1:
            raise ValueError(f"step_loss_decay must be in (0, 1], got {self.step_loss_decay}")

    @classmethod
    def get_config_dict(cls, pretrained_model_name_or_path, **kwargs):
        config, kwargs = super(DSparkConfig, cls).get_config_dict(pretrained_model_name_or_path, **kwargs)
        return from_deepspec(config, pretrained_model_name_or_path), kwargs


def eagle3_config(**fields: Any) -> Eagle3Config:
    """An [`Eagle3Config`] with the fields that a serial drafter fixes already set."""
    fixed = {
        "num_hidden_layers": 1,
        "markov_rank": 0,
        "enable_confidence_head": False,
        "confidence_head_with_markov": False,
    }
    return Eagle3Config(**{**fixed, **fields})


def from_deepspec(config: dict[str, Any], source: Any = "config.json") -> dict[str, Any]:
    """
    Native form of the `config.json` of a DeepSpec Eagle3 folder; a native one is returned as it is.

    Raises:
        ValueError: the folder holds something else, or a field is missing; names it.
    """
    if config.get("model_type") == Eagle3Config.model_type or not config:
        return config
    architectures = config.get("architectures") or []
    if "Qwen3Eagle3Model" not in architectures:
        raise ValueError(
            f"{source} is no Eagle3 drafter that this package opens: expected architectures ['Qwen3Eagle3Model'], got "
            f"{architectures}"
        )
    missing = [name for name in ("target_layer_ids", "ttt_length") if name not in config]
    if missing:
        raise ValueError(f"{source} is not a complete Eagle3 configuration: {', '.join(missing)} is missing")
    native = {name: config[name] for name in SHARED_FIELDS if name in config}
    native |= {
        "model_type": Eagle3Config.model_type,
        "architectures": ["Eagle3Drafter"],
        "block_size": config["ttt_length"],
        "num_hidden_layers": config.get("draft_num_hidden_layers", config.get("num_hidden_layers", 1)),
        "markov_rank": 0,
        "enable_confidence_head": False,
        "confidence_head_with_markov": False,
        "tie_word_embeddings": False,
        "source_config": config,
    }
    return native


__all__ = ["Eagle3Config", "eagle3_config", "from_deepspec"]

"""Tiny targets and drafters for the decoding tests, and drafters whose proposals are written down in advance."""

from __future__ import annotations

import string
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from dspark_hf import DSparkConfig, DSparkDrafter
from dspark_hf.dev.tiny import FAMILIES, GEMMA4, SIZES, tiny_drafter, tiny_target


def _qwen3_5(**overrides: Any):
    linear = {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 4,
        "layer_types": ["linear_attention", "full_attention"] * 2,
    }
    return transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(**{**SIZES, **linear, **overrides}))


def _gemma4_wrapper(**overrides: Any):
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "global_head_dim": 8,
    }
    config = transformers.Gemma4Config(
        text_config={**SIZES, **GEMMA4, **overrides}, vision_config=vision, audio_config=None
    )
    return transformers.Gemma4ForConditionalGeneration(config)


for _name, _build in {"qwen3_5": _qwen3_5, "gemma4_wrapper": _gemma4_wrapper}.items():
    FAMILIES.setdefault(_name, _build)


@cache
def _pair(family: str, overrides: tuple[tuple[str, Any], ...]):
    target = tiny_target(family, **dict(overrides))
    return target, tiny_drafter(target)


@pytest.fixture(scope="session")
def pair() -> Callable[..., tuple[Any, DSparkDrafter]]:
    """`pair(family, **config)` -> a target and a drafter whose acceptance is high but not total; built once."""

    def build(family: str = "qwen3", **overrides: Any):
        target, drafter = _pair(family, tuple(sorted(overrides.items())))
        drafter.set_policy("full")
        return target, drafter

    return build


def prompt(length: int, rows: int = 1, seed: int = 0, vocab: int = 60) -> torch.Tensor:
    return torch.randint(2, vocab, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="session")
def make_prompt() -> Callable[..., torch.Tensor]:
    """`make_prompt(length, rows=1, seed=0)` -> random ids without special tokens."""
    return prompt


@pytest.fixture(scope="session")
def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """One character per id, for the 64 ids of the tiny targets."""
    characters = string.ascii_letters + string.digits + "-_"
    tokens = Tokenizer(models.BPE(vocab={character: index for index, character in enumerate(characters)}, merges=[]))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="a")


class ScriptedDrafter(DSparkDrafter):
    """Proposes the tokens of a script (position -> token), or always another token than the script's."""

    def play(self, script: list[int], *, wrong: Callable[[int], bool] = lambda position: False) -> ScriptedDrafter:
        self.script, self.wrong = script, wrong
        return self

    def forward(self, block_ids, context_hidden_states, position_ids=None, attention_mask=None, cache=None):
        self.positions = position_ids[:, -block_ids.shape[1] :]
        return torch.zeros(*block_ids.shape, self.config.hidden_size)

    def base_logits(self, hidden):
        logits = torch.full((*hidden.shape[:-1], self.config.vocab_size), -8.0)
        for row, positions in enumerate(self.positions.tolist()):
            for slot in range(hidden.shape[1]):
                position = positions[0] + slot + 1
                token = self.script[position] if position < len(self.script) else 0
                token = (token + 1) % self.config.vocab_size if self.wrong(position) else token
                logits[row, slot, token] = 8.0
        return logits


@pytest.fixture(scope="session")
def scripted() -> Callable[..., ScriptedDrafter]:
    """`scripted(target, block_size=5)` -> a [`ScriptedDrafter`] for the target."""

    def build(target, block_size: int = 5) -> ScriptedDrafter:
        text = target.config.get_text_config()
        config = DSparkConfig(
            vocab_size=text.vocab_size,
            hidden_size=8,
            target_hidden_size=text.hidden_size,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
            head_dim=8,
            target_layer_ids=[0],
            num_target_layers=text.num_hidden_layers,
            block_size=block_size,
            markov_rank=0,
            enable_confidence_head=False,
            confidence_head_with_markov=False,
            pad_token_id=text.pad_token_id,
        )
        drafter = ScriptedDrafter(config).eval()
        drafter.set_policy("full")
        return drafter

    return build

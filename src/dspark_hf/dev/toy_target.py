"""The toy target: a small Qwen3 with its own tokenizer, trained here from the standard library's text in about 90 seconds.

It stands in for a real model where nothing may be downloaded. What it writes has the form of Python documentation and little
sense; under greedy decoding it repeats itself, which flatters any drafter. It knows nothing of drafters.
"""

# B rows, L tokens

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import os
import platform
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.constants import HF_HOME
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from dspark_hf.training.muon import Muon
from dspark_hf.training.precision import usable_autocast

from .toy_corpus import ToySample, library_samples


MARKERS = PAD, END, TURN, MASK = "<|pad|>", "<|end|>", "<|turn|>", "<|mask|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|turn|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}<|end|>{% endgeneration %}"
    "{% else %}{{ message['content'] }}<|end|>{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ToySettings:
    """Every knob of the toy target; the defaults give 3.4 M parameters in about 90 seconds on 2 cores.

    Attributes:
        samples: questions it is trained on; few, so that each is read several times.
        vocab_size: of its byte-level BPE, four markers included.
        hidden_size, num_hidden_layers, intermediate_size, head_dim: of the Qwen3.
        steps, batch_rows, row_tokens: of training.
        matrix_learning_rate: of Muon, for the layers' matrices.
        learning_rate: of AdamW, for embeddings and norms.
        seed: of weights and batches.
    """

    samples: int = 1500
    vocab_size: int = 1024
    hidden_size: int = 256
    num_hidden_layers: int = 4
    intermediate_size: int = 768
    head_dim: int = 64
    steps: int = 340
    batch_rows: int = 8
    row_tokens: int = 128
    matrix_learning_rate: float = 0.02
    learning_rate: float = 3e-3
    seed: int = 0

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> ToySettings:
        """
        Raises:
            ValueError: an unknown key; the nearest known one is named.
        """
        known = [item.name for item in dataclasses.fields(cls)]
        for key in values:
            if key not in known:
                nearest = difflib.get_close_matches(str(key), known, n=1, cutoff=0.0)[0]
                raise ValueError(f"Unknown key {key!r} in target.toy; the nearest known one is {nearest!r}.")
        return cls(**values)

    def folder_name(self) -> str:
        """Differs for other settings, another template, and other Python versions, whose libraries hold other text."""
        identity = json.dumps([dataclasses.asdict(self), CHAT_TEMPLATE, platform.python_version()], sort_keys=True)
        return f"toy-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


def build_toy_target(
    settings: ToySettings | None = None, *, cache: str | Path | None = None, progress: Progress | None = None
) -> Path:
    """
    Trains the toy target and saves it as an ordinary transformers folder, or finds the one made before.

    Args:
        settings ([`ToySettings`], *optional*): defaults give the one of the demo.
        cache (`str` or `Path`, *optional*): where folders lie; `dspark_hf/toy` under `HF_HOME` by default.
        progress (callable, *optional*): called with (steps done, steps).

    Returns:
        `Path`: for `AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained`.
    """
    settings = ToySettings() if settings is None else settings
    cache = Path(HF_HOME) / "dspark_hf" / "toy" if cache is None else Path(cache)
    folder = cache / settings.folder_name()
    if (folder / "config.json").is_file():
        return folder
    samples = library_samples(limit=settings.samples)
    tokenizer = build_tokenizer(samples, settings.vocab_size)
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        model = Qwen3ForCausalLM(toy_config(settings))
        _train(model, _token_rows(samples, tokenizer, settings), settings, progress)
    partial = cache / f".{folder.name}.{os.getpid()}.part"
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.replace(folder)
    return folder


def build_tokenizer(samples: list[ToySample], vocab_size: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE of the samples' text; ids 0 to 3 are padding, end of turn, start of turn and the drafters' mask."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(MARKERS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator((f"{sample.prompt}\n{sample.answer}" for sample in samples), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token=PAD, eos_token=END, mask_token=MASK, additional_special_tokens=[TURN]
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.padding_side = "left"
    return tokenizer


def toy_config(settings: ToySettings) -> Qwen3Config:
    """Sizes of the toy; ids of padding and end are those of `build_tokenizer`."""
    heads = settings.hidden_size // settings.head_dim
    return Qwen3Config(
        vocab_size=settings.vocab_size,
        hidden_size=settings.hidden_size,
        intermediate_size=settings.intermediate_size,
        num_hidden_layers=settings.num_hidden_layers,
        num_attention_heads=heads,
        num_key_value_heads=max(heads // 2, 1),
        head_dim=settings.head_dim,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        pad_token_id=MARKERS.index(PAD),
        bos_token_id=None,
        eos_token_id=MARKERS.index(END),
    )


def _token_rows(samples: list[ToySample], tokenizer: PreTrainedTokenizerFast, settings: ToySettings) -> torch.Tensor:
    """All conversations end to end, cut into rows `[N, L]`."""
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": sample.prompt}, {"role": "assistant", "content": sample.answer}],
            tokenize=False,
        )
        for sample in samples
    ]
    ids = torch.tensor([token for row in tokenizer(texts)["input_ids"] for token in row])
    return ids[: len(ids) // settings.row_tokens * settings.row_tokens].view(-1, settings.row_tokens)


def _train(model: Qwen3ForCausalLM, rows_NL: torch.Tensor, settings: ToySettings, progress: Progress | None) -> None:
    """Muon on the layers' matrices reaches in 230 steps a loss (2.8) that AdamW alone misses after 300 (3.2)."""
    matrices = [weight for weight in model.model.layers.parameters() if weight.ndim == 2]
    others = [weight for weight in model.parameters() if not any(weight is matrix for matrix in matrices)]
    optimizers = [
        Muon(matrices, lr=settings.matrix_learning_rate, weight_decay=0.0),
        torch.optim.AdamW(others, lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(each, lambda step: _scale(step, settings.steps)) for each in optimizers
    ]
    generator = torch.Generator().manual_seed(settings.seed)
    order: list[int] = []
    # 1.6x the steps of float32 where the CPU has bfloat16 arithmetic, a fiftieth where it has none
    autocast = usable_autocast(True, torch.device("cpu"))
    model.train()
    for step in range(settings.steps):
        while len(order) < settings.batch_rows:
            order += torch.randperm(len(rows_NL), generator=generator).tolist()
        batch_BL, order = rows_NL[order[: settings.batch_rows]], order[settings.batch_rows :]
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(input_ids=batch_BL, labels=batch_BL, use_cache=False).loss
        loss.backward()
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        if progress is not None:
            progress(step + 1, settings.steps)
    model.eval()
    model.generation_config = GenerationConfig(
        eos_token_id=model.config.eos_token_id, pad_token_id=model.config.pad_token_id
    )


def _scale(step: int, steps: int) -> float:
    """Warm-up, plateau, and a linear fall over the second half."""
    return min(1.0, (step + 1) / 20, max((steps - step) / (0.5 * steps), 0.02))

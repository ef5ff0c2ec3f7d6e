"""Tokenizers in memory: one token a byte, with the chat templates of two families."""

import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


# `training_runs` is shared with worker processes, so it is a module and not a fixture
sys.path.insert(0, str(Path(__file__).parent))

CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# as Qwen3 does it: the history loses its think blocks, and thinking switched off closes an empty one
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and '</think>' in m.content and not loop.last %}"
    "{{ m.content.split('</think>')[-1].lstrip('\n') }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
# as Qwen3.5 does it: the generation prompt opens the think block
OPENED = THINKING.replace("<|im_start|>assistant\n{% if", "<|im_start|>assistant\n<think>\n{% if")
SPECIAL = ("<pad>", "<eos>", "<|im_start|>", "<|im_end|>")
TEMPLATES = {"chat": CHAT, "thinking": THINKING, "opened": OPENED, "none": None}


def byte_tokenizer(template=CHAT, eos="<|im_end|>"):
    """Ids 0 .. 3 are special, 4 .. 259 are bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate((*SPECIAL, *alphabet))}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(list(SPECIAL))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token=eos)
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture
def make_tokenizer():
    """`make_tokenizer("chat" | "thinking" | "opened" | "none", eos=...)`."""
    return lambda kind="chat", **options: byte_tokenizer(TEMPLATES[kind], **options)

"""A tokenizer for tiny targets: one token a character, a chat template with a thinking switch, no file and no training."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,:?\n"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}:{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:"
    "{% if enable_thinking is defined and enable_thinking %}T{% endif %}{% endif %}"
)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """60 tokens, so that it fits the 64 of `tiny_target`; other characters become full stops."""
    vocabulary = {word: index for index, word in enumerate(["<pad>", "<s>", *LETTERS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="."))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", chat_template=CHAT_TEMPLATE)

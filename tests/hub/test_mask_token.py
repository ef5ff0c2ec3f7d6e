"""The mask token is a row of the embedding that no text uses."""

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from dspark_hf.hub.mask_token import check_mask_token_id, choose_mask_token_id


def tokenizer(*tokens, **special):
    core = Tokenizer(models.WordLevel(vocab={token: index for index, token in enumerate(tokens)}, unk_token=tokens[0]))
    return PreTrainedTokenizerFast(tokenizer_object=core, **special)


WORDS = [f"word{index}" for index in range(60)]


# https://github.com/NVIDIA/Model-Optimizer/pull/1621: a mask token beyond the embedding was neither trained nor shipped
def test_a_free_row_comes_first():
    assert choose_mask_token_id(tokenizer(*WORDS, mask_token="word3"), 64) == 60
    assert choose_mask_token_id(tokenizer(*WORDS), 61) == 60


def test_without_a_free_row_the_tokenizers_own_mask_token_is_taken():
    assert choose_mask_token_id(tokenizer(*WORDS[:58], "<mask>", "tail"), 60) == 58
    assert choose_mask_token_id(tokenizer(*WORDS, mask_token="word7"), 60) == 7


@pytest.mark.parametrize(
    "name",
    ["<unused99>", "<|reserved_special_token_4|>", "<|extra_7|>", "[unused3]", "<reserved_9>", "<|placeholder12|>"],
)
def test_then_a_reserved_token(name):
    assert choose_mask_token_id(tokenizer(*WORDS[:30], name, *WORDS[30:]), 61) == 30


def test_a_full_vocabulary_says_what_to_do():
    with pytest.raises(ValueError, match="choose mask_token_id yourself"):
        choose_mask_token_id(tokenizer(*WORDS), 60)


def test_a_token_added_to_the_tokenizer_alone_is_no_row():
    grown = tokenizer(*WORDS)
    grown.add_tokens(["<|MASK|>"])
    with pytest.raises(ValueError, match=r"\[0, 59\].*got 60"):
        check_mask_token_id(grown, 60, 60)
    with pytest.raises(ValueError, match="mask_token_id must be in"):
        check_mask_token_id(tokenizer(*WORDS), 64, 64)


def test_a_doubtful_choice_is_told_in_words():
    made = tokenizer(*WORDS[:58], "<mask>", "<unused1>", eos_token="word1")
    assert check_mask_token_id(made, 64, 63) is None
    assert check_mask_token_id(made, 64, 58) is None
    assert check_mask_token_id(made, 64, 59) is None
    assert "ordinary token 'word5'" in check_mask_token_id(made, 64, 5)
    assert "special token 'word1'" in check_mask_token_id(made, 64, 1)

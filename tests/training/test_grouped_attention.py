"""Decoding with grouped queries gives the text of plain decoding and leaves no trace."""

import pytest
import torch

from dspark_hf.dev.tiny import tiny_target
from dspark_hf.training.grouped_attention import NAME, grouped_decoding


@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma3"])
def test_padded_rows_get_the_logits_and_text_of_plain_decoding(family):
    target = tiny_target(family)
    config = target.config.get_text_config()
    assert config.num_attention_heads > config.num_key_value_heads
    torch.manual_seed(0)
    ids, mask = torch.randint(3, config.vocab_size, (3, 8)), torch.ones(3, 8, dtype=torch.long)
    mask[1, :2], mask[2, :5] = 0, 0
    options = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    options |= {"return_dict_in_generate": True, "output_logits": True}
    plain = target.generate(ids, **options)
    with grouped_decoding(target):
        grouped = target.generate(ids, **options)
    assert torch.equal(grouped.sequences, plain.sequences)
    torch.testing.assert_close(torch.stack(grouped.logits), torch.stack(plain.logits), atol=1e-4, rtol=1e-4)


def test_it_is_on_inside_the_block_only_and_also_ends_on_an_error():
    target = tiny_target("llama")

    def fail_inside():
        with grouped_decoding(target):
            assert target.config._attn_implementation == NAME
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail_inside()
    assert target.config._attn_implementation == "sdpa"


def test_another_attention_is_left_alone():
    target = tiny_target("llama")
    target.set_attn_implementation("eager")
    with grouped_decoding(target):
        assert target.config._attn_implementation == "eager"

"""Visibility of training blocks: one oracle for the dense and the flex mask."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_mask

from dspark_hf.training.attention_mask import dense_mask, flex_mask


ANCHORS = torch.tensor([5, 6, 7, 14])
STARTS = torch.tensor([0, 0, 0, 10])
SIZE, CONTEXT = 4, 18


def oracle():
    """The rule, written as loops."""
    rows = len(ANCHORS) * SIZE
    mask = torch.zeros(rows, CONTEXT + rows, dtype=torch.bool)
    for block, (anchor, start) in enumerate(zip(ANCHORS.tolist(), STARTS.tolist(), strict=True)):
        for row in range(block * SIZE, (block + 1) * SIZE):
            mask[row, start:anchor] = True
            mask[row, CONTEXT + block * SIZE : CONTEXT + (block + 1) * SIZE] = True
    return mask


def test_the_dense_mask_follows_the_rule():
    assert torch.equal(dense_mask(ANCHORS, STARTS, block_size=SIZE, context_length=CONTEXT)[0, 0], oracle())


def test_the_flex_mask_follows_the_rule():
    mask = flex_mask(ANCHORS, STARTS, block_size=SIZE, context_length=CONTEXT)
    rows = len(ANCHORS) * SIZE
    dense = create_mask(mask.mask_mod, 1, 1, rows, CONTEXT + rows, device="cpu")
    assert torch.equal(dense[0, 0].bool(), oracle())


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_flex_attention_gives_the_same_output_as_dense_attention():
    from torch.nn.attention.flex_attention import flex_attention

    generator = torch.Generator().manual_seed(0)
    rows = len(ANCHORS) * SIZE
    query = torch.randn(1, 2, rows, 16, generator=generator)
    key, value = torch.randn(2, 1, 2, CONTEXT + rows, 16, generator=generator)
    flex = flex_attention(
        query, key, value, block_mask=flex_mask(ANCHORS, STARTS, block_size=SIZE, context_length=CONTEXT)
    )
    mask = dense_mask(ANCHORS, STARTS, block_size=SIZE, context_length=CONTEXT)
    dense = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    torch.testing.assert_close(flex, dense, atol=1e-5, rtol=0)

"""Which context tokens and block rows a row sees, against one plain loop."""

import pytest
import torch

from dspark_hf.models import DSparkConfig, DSparkDrafter
from dspark_hf.models.masks_dspark import block_attention_mask


WINDOW, SIZE = 6, 4


def make_config(**fields):
    base = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "markov_rank": 4, "block_size": SIZE}
    return DSparkConfig(**{**base, **heads, "num_target_layers": 8, "target_layer_ids": [1], **fields})


def visible(window_from, causal, row, column, anchor):
    """By position: `row` and `column` are positions, `column` is context where it is before the anchor."""
    if column >= anchor:
        return not causal or column <= row
    return anchor - column <= WINDOW if window_from == "anchor" else row - column < WINDOW


@pytest.mark.parametrize("cached", [0, 5])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window_from", ["row", "anchor"])
def test_a_sliding_layer_sees_its_window(window_from, causal, cached):
    config = make_config(
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=WINDOW,
        sliding_window_from=window_from,
        causal_layers="sliding" if causal else "none",
    )
    anchor = 13
    positions = torch.arange(cached, anchor + SIZE)[None]
    masks = block_attention_mask(config, None, positions, cached, anchor - cached, SIZE, dtype=torch.float32)

    assert masks["full_attention"] is None
    expected = [
        [visible(window_from, causal, anchor + row, column, anchor) for column in range(anchor + SIZE)]
        for row in range(SIZE)
    ]
    assert masks["sliding_attention"][0, 0].tolist() == expected


@pytest.mark.parametrize("window_from", ["row", "anchor"])
def test_blocks_side_by_side_have_windows_of_their_own(window_from):
    config = make_config(
        layer_types=["sliding_attention"] * 2,
        sliding_window=WINDOW,
        sliding_window_from=window_from,
        causal_layers="sliding",
    )
    drafter = DSparkDrafter(config).eval()
    ids, context = torch.randint(0, 32, (1, 16)), torch.randn(1, 16, 16)
    anchors = torch.tensor([9, 14])
    rows = torch.arange(2 * SIZE)
    mask = torch.cat(
        [torch.arange(16)[None] < anchors[rows // SIZE][:, None], rows[:, None] // SIZE == rows[None] // SIZE], dim=1
    )
    positions = torch.cat([torch.arange(16), (anchors[:, None] + torch.arange(SIZE)).flatten()])[None]
    with torch.no_grad():
        together = drafter(drafter.make_block(ids[0, anchors]).reshape(1, -1), context, positions, mask[None, None])
        for number, anchor in enumerate(anchors.tolist()):
            alone = drafter(drafter.make_block(ids[:, anchor]), context[:, :anchor])
            torch.testing.assert_close(together[:, number * SIZE : (number + 1) * SIZE], alone)


def test_masks_by_layer_type_are_taken_as_they_are():
    config = make_config(layer_types=["sliding_attention", "full_attention"], sliding_window=WINDOW)
    positions = torch.arange(10 + SIZE)[None]
    given = block_attention_mask(config, None, positions, 0, 10, SIZE, dtype=torch.float32)
    assert block_attention_mask(config, given, positions, 0, 10, SIZE, dtype=torch.float32) is given
    with pytest.raises(ValueError, match="sliding_attention"):
        block_attention_mask(config, {"full_attention": None}, positions, 0, 10, SIZE, dtype=torch.float32)


def test_an_opaque_mask_cannot_stand_for_a_window():
    config = make_config(layer_types=["sliding_attention"] * 2, sliding_window=WINDOW)
    with pytest.raises(ValueError, match="sliding layers need masks of their own"):
        block_attention_mask(config, object(), torch.arange(14)[None], 0, 10, SIZE, dtype=torch.float32)


def test_a_mask_of_another_length_is_refused():
    config = make_config()
    with pytest.raises(ValueError, match=r"attention_mask must be \[rows, 10\]"):
        block_attention_mask(config, torch.ones(1, 7), torch.arange(14)[None], 0, 10, SIZE, dtype=torch.float32)


def test_padding_hides_context_only():
    config = make_config()
    drafter = DSparkDrafter(config).eval()
    context = torch.randn(1, 10, 16)
    padded = torch.cat([torch.full((1, 3, 16), 9.0), context], dim=1)
    mask = torch.tensor([[0] * 3 + [1] * 10])
    positions = torch.cat([torch.zeros(3, dtype=torch.long), torch.arange(10 + SIZE)])[None]
    with torch.no_grad():
        plain = drafter(drafter.make_block(torch.tensor([5])), context)
        beside = drafter(drafter.make_block(torch.tensor([5])), padded, positions, mask)
    torch.testing.assert_close(plain, beside)

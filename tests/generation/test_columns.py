"""Rows that leave a batch: what stays is right, and little is copied."""

import pytest
import torch

from dspark_hf.generation.columns import kept_rows
from dspark_hf.generation.loop import _closed_up


@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [0, 3, 2], [1, 2, 3], [3], [0, 2], [2, 1, 0], [3, 0]])
def test_chosen_rows_come_in_the_order_asked_for(rows):
    buffer = torch.arange(4)[:, None] * torch.ones(1, 3)
    kept = kept_rows(buffer.clone(), rows)
    assert torch.equal(kept, buffer[rows])


def test_a_row_that_leaves_costs_one_copied_row():
    buffer = torch.arange(4.0)[:, None].repeat(1, 3)
    kept = kept_rows(buffer, [0, 3, 2])
    assert kept.data_ptr() == buffer.data_ptr()
    assert kept[:, 0].tolist() == [0.0, 3.0, 2.0]


@pytest.mark.parametrize(
    ("ended", "stay"),
    [
        ([False, False], [0, 1]),
        ([False, True, False, False], [0, 3, 2]),
        ([True, True, False], [2]),
        ([True, False, True, False, False], [3, 1, 4]),
        ([True, True], []),
    ],
)
def test_the_last_rows_fill_the_gaps(ended, stay):
    assert _closed_up(ended) == stay

"""Scores of a verification, end to end and padded: the same numbers in both forms."""

import torch

from dspark_hf.generation.scores import RowScores, pad_rows


FLAT = torch.arange(1.0, 7.0)[:, None]  # rows of 1, 3 and 2 positions
LENGTHS = [0, 2, 1]


def test_rows_end_to_end_are_padded_with_zeros():
    padded = RowScores(FLAT, LENGTHS).padded_RQV
    assert padded[..., 0].tolist() == [[1, 0, 0], [2, 3, 4], [5, 6, 0]]


def test_padded_rows_are_laid_end_to_end_by_their_lengths():
    scores = RowScores(pad_rows(FLAT, LENGTHS))
    assert torch.equal(scores.flat_MV(LENGTHS), FLAT)
    assert scores.flat_MV([0, 0, 0])[:, 0].tolist() == [1, 2, 5]


def test_the_form_that_is_at_hand_is_not_copied():
    scores = RowScores(FLAT, LENGTHS)
    assert scores.flat_MV(LENGTHS) is FLAT
    assert scores._padded_RQV is None
    even = torch.zeros(2, 3, 5)
    assert RowScores(even).flat_MV([2, 2]).data_ptr() == even.data_ptr()


def test_other_lengths_than_the_verified_ones_are_read_from_the_padded_form():
    assert RowScores(FLAT, LENGTHS).flat_MV([0, 1, 0])[:, 0].tolist() == [1, 2, 3, 5]

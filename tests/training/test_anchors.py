"""Anchors: where blocks may start, and that only (seed, epoch, row) decide."""

import numpy as np

from dspark_hf.training.anchors import sample_anchors, slots_of, spread_anchors


def draw(row="a", prompt=5, total=60, count=8, seed=0, epoch=0):
    return sample_anchors(row, prompt, total, count=count, seed=seed, epoch=epoch).tolist()


def test_the_same_seed_epoch_and_row_give_the_same_anchors_and_nothing_else_does():
    assert draw() == draw()
    assert len({tuple(draw()), tuple(draw(seed=1)), tuple(draw(epoch=1)), tuple(draw(row="b"))}) == 4


def test_anchors_are_distinct_ascending_answer_tokens_that_another_answer_token_follows():
    for epoch in range(20):
        anchors = draw(epoch=epoch)
        assert anchors == sorted(set(anchors))
        assert anchors[0] >= 5
        assert anchors[-1] <= 58


def test_a_short_row_gives_fewer_anchors_instead_of_dummies():
    assert draw(prompt=5, total=9) == [5, 6, 7]
    assert draw(prompt=5, total=6) == []
    assert draw(prompt=5, total=5) == []


def test_every_valid_slot_predicts_an_answer_token_and_the_last_one_is_reached():
    tokens = np.arange(100, 112)
    slots = slots_of(tokens, np.array([8, 9, 10]), 4)
    assert slots.valid_NK.tolist() == [
        [True, True, True, False],
        [True, True, False, False],
        [True, False, False, False],
    ]
    assert slots.labels_NK[:, 0].tolist() == [109, 110, 111]
    assert slots.previous_NK[0].tolist() == [108, 109, 110, 0]
    assert slots.labels_NK[slots.valid_NK].max() == 111


def test_validation_anchors_are_spread_and_have_whole_blocks_where_they_fit():
    anchors = spread_anchors(10, 60, count=4, num_slots=5)
    assert anchors.tolist() == [10, 25, 39, 54]
    assert spread_anchors(10, 14, count=4, num_slots=5).tolist() == [10, 11, 12]

"""Micro-batches: an endless stream that world size and restarts do not change, and packs without padding."""

import itertools

import torch

from dspark_hf.training.batches import BatchStream, Collator, RowDataset
from dspark_hf.training.rows import Row


ROWS = [Row(id=f"r{i}", prompt_ids=[1] * (i + 1), completion_ids=list(range(10, 10 + 3 * i + 2))) for i in range(6)]
LENGTHS = [len(row.token_ids) for row in ROWS]


def stream(**overrides):
    return BatchStream(LENGTHS, **({"max_tokens": 40, "rows_per_batch": 3, "seed": 0} | overrides))


def test_every_row_comes_once_an_epoch_in_a_new_order():
    epochs = [[index for batch in stream().epoch_batches(epoch) for index, _ in batch] for epoch in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(6))
    assert epochs[0] != epochs[1]


def test_ranks_share_the_stream_of_one_process():
    one = list(itertools.islice(stream(), 12))
    ranks = [list(itertools.islice(stream(rank=rank, world_size=2), 6)) for rank in range(2)]
    assert [batch for pair in zip(*ranks, strict=True) for batch in pair] == one


def test_a_batch_keeps_to_its_limits_and_a_long_row_is_alone():
    for batch in stream().epoch_batches(0):
        assert len(batch) <= 3
        assert sum(LENGTHS[index] for index, _ in batch) <= 40
    assert all(len(batch) == 1 for batch in stream(max_tokens=2).epoch_batches(0))


def test_packs_hold_every_token_but_the_last_of_each_document_and_no_padding():
    collate = Collator(anchors_per_row=100, num_slots=4, decay=4.0, one_pack=True)
    dataset = RowDataset(ROWS)
    batch = collate([dataset[(1, 0)], dataset[(3, 0)]])
    (pack,) = batch.packs
    assert pack.context_positions_S.tolist() == [*range(6), *range(14)]
    assert pack.starts_N.tolist() == [0] * 4 + [6] * 10
    assert pack.anchors_N.tolist() == [2, 3, 4, 5, *range(6 + 4, 6 + 14)]
    assert torch.equal(pack.anchors_N - pack.starts_N, pack.anchor_positions_N)
    assert batch.num_blocks == 14


def test_teacher_indices_name_the_position_that_predicts_each_slot():
    batch = Collator(anchors_per_row=2, num_slots=4, decay=4.0)([(ROWS[4], 0), (ROWS[5], 0)])
    supervised = torch.cat([torch.tensor(row.completion_ids[1:]) for row in batch.rows])
    assert torch.equal(supervised[batch.teacher_NK][batch.valid_NK], batch.labels_NK[batch.valid_NK])


def test_collating_does_not_depend_on_which_rows_share_the_batch():
    collate = Collator(anchors_per_row=3, num_slots=4, decay=4.0, seed=7)
    together = collate([(ROWS[4], 2), (ROWS[5], 2)])
    alone = collate([(ROWS[5], 2)])
    assert torch.equal(together.labels_NK[-3:], alone.labels_NK)
    assert torch.equal(together.packs[1].anchors_N, alone.packs[0].anchors_N)


def test_moving_a_batch_keeps_its_numbers():
    batch = Collator(anchors_per_row=3, num_slots=4, decay=4.0)([(ROWS[4], 2)])
    moved = batch.to("cpu")
    assert moved.epoch == 2
    assert torch.equal(moved.packs[0].anchors_N, batch.packs[0].anchors_N)

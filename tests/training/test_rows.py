"""Rows: parquet shards, cuts that keep supervision, and the reasons for what is dropped."""

import pytest

from dspark_hf.training.rows import Row, RowReport, RowStore, fingerprint, fit_rows


def row(name="a", prompt=3, answer=4, **fields):
    return Row(id=name, prompt_ids=list(range(prompt)), completion_ids=list(range(50, 50 + answer)), **fields)


def test_rows_come_back_as_written_sorted_and_once(tmp_path):
    store = RowStore(tmp_path / "rows")
    assert store.read() == []
    first = row("b", generator="m@1", sampling='{"temperature": 1.0}', template_hash="ff", thinking=False)
    store.append([first])
    store.append([row("a", finish_reason="length"), row("b", answer=9)])
    assert store.read() == [row("a", finish_reason="length"), first]
    assert store.ids() == {"a", "b"}
    assert [path.name for path in store.shards()] == ["rows-00000.parquet", "rows-00001.parquet"]


def test_a_half_written_shard_is_not_seen(tmp_path):
    store = RowStore(tmp_path)
    store.append([row()])
    (tmp_path / "rows-00001.part").write_bytes(b"PAR1 half")
    assert len(store.read()) == 1


def test_a_damaged_shard_is_named(tmp_path):
    (tmp_path / "rows-00000.parquet").write_bytes(b"not parquet")
    with pytest.raises(ValueError, match=r"rows-00000\.parquet is not a shard"):
        RowStore(tmp_path).read()


def test_a_prompt_beyond_the_limit_is_dropped_with_a_count_and_a_long_answer_keeps_its_supervision():
    report = RowReport()
    kept = fit_rows(
        [row("long", prompt=40), row("cut", prompt=20, answer=40), row("tiny", answer=1)], 32, report=report
    )
    assert [(r.id, len(r.completion_ids), r.finish_reason) for r in kept] == [("cut", 12, "length")]
    assert report.summary() == (
        "1 rows kept; skipped: 1 answer shorter than 2 tokens, 1 prompt leaves no room for an answer within 32 tokens"
    )


def test_a_data_set_without_a_usable_row_is_an_error():
    with pytest.raises(ValueError, match="No row to train on"):
        fit_rows([row(prompt=40)], 32)


def test_the_fingerprint_is_of_contents_not_of_order():
    assert fingerprint([row("a"), row("b")]) == fingerprint([row("b"), row("a")])
    assert fingerprint([row("a")]) != fingerprint([row("a", answer=5)])


def test_an_unknown_finish_reason_is_refused():
    with pytest.raises(ValueError, match="must be 'stop' or 'length'"):
        row(finish_reason="eos")

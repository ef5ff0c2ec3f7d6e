"""Rollout records: whole profiles, files that come back, and held-out prompts."""

import numpy as np
import pytest

from dspark_hf.calibration import RolloutRecords


def test_a_file_comes_back_with_all_slots(make_records, tmp_path):
    records = make_records([1.0] * 7, rounds=50)
    loaded = RolloutRecords.load(records.save(tmp_path / "deep" / "records.npz"), num_slots=7)
    assert loaded.num_slots == 7
    assert loaded.regime == records.regime
    for name in ("prompt", "confidence_logits", "tokens", "accepted_count", "margins", "overlap"):
        assert np.array_equal(vars(loaded)[name], vars(records)[name])


def test_a_file_of_fewer_slots_than_the_drafter_is_refused(make_records, tmp_path):
    path = make_records([1.0] * 3, rounds=10).save(tmp_path / "records.npz")
    with pytest.raises(ValueError, match="records of 3 slots, the drafter has 7"):
        RolloutRecords.load(path, num_slots=7)


def test_a_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "other.npz"
    np.savez(path, weights=np.zeros(3))
    with pytest.raises(ValueError, match="'regime' is missing"):
        RolloutRecords.load(path)


def test_profiles_of_different_lengths_are_refused(make_records):
    fields = dict(vars(make_records([1.0] * 7, rounds=5)))
    with pytest.raises(ValueError, match=r"margins of shape \[5, 7\], got \[5, 3\]"):
        RolloutRecords(**{**fields, "margins": fields["margins"][:, :3]})
    with pytest.raises(ValueError, match=r"must lie in 0\.\.7"):
        RolloutRecords(**{**fields, "accepted_count": fields["accepted_count"] + 8})


def test_accepted_marks_the_leading_slots(make_records):
    records = make_records([1.0, 1.0, 1.0], rounds=100)
    assert np.array_equal(records.accepted.sum(1), records.accepted_count)
    assert (np.diff(records.accepted.astype(int), axis=1) <= 0).all()


def test_no_prompt_is_on_both_sides_of_a_split(make_records):
    records = make_records([1.0, 1.0], rounds=500)
    fitting, judging = records.split(0.25)
    assert len(fitting) + len(judging) == 500
    assert not set(fitting.prompt) & set(judging.prompt)
    assert 5 <= len(set(judging.prompt)) <= 15


def test_one_prompt_cannot_be_split(make_records):
    with pytest.raises(ValueError, match="at least 2 prompts"):
        make_records([1.0], rounds=5, prompts=1).split()

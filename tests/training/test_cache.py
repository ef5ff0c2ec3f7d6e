"""The cache: equal to what is computed online, refused when damaged or foreign, resumed shard by shard, capped."""

import json
import random
import shutil
import time

import pytest
import torch
from safetensors.torch import load_file, save_file
from training_runs import kill_at

from dspark_hf.dev.tiny import tiny_target
from dspark_hf.training.cache import FeatureCache, _sha256, from_float8, row_bytes, to_float8
from dspark_hf.training.features import TargetFeatures
from dspark_hf.training.rows import Row


ROWS = [Row(id=f"r{i}", prompt_ids=[2, 3, 4], completion_ids=list(range(5, 15 + i))) for i in range(12)]


class CountingSource(TargetFeatures):
    """Counts the rows it is asked for."""

    count = 0

    def read(self, rows):
        self.count += len(rows)
        return super().read(rows)


@pytest.fixture
def source():
    return CountingSource(tiny_target(), [0, 2])


def small_cache(folder, source, monkeypatch, **options):
    """Shards of about three rows."""
    monkeypatch.setattr(
        "dspark_hf.training.cache._assign", lambda sizes, _: [[i, i + 1, i + 2] for i in range(0, 12, 3)]
    )
    return FeatureCache(folder, source, ROWS, **({"dtype": "float32"} | options))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3"])
def test_cached_features_equal_online_ones_to_their_rounding(source, tmp_path, dtype):
    cache = FeatureCache(tmp_path, source, ROWS, dtype=dtype)
    cache.build()
    tolerance = {"float32": 0.0, "bfloat16": 2**-8, "float8_e4m3": 2**-4}[dtype]
    for stored, online in zip(cache.read(ROWS), source.read(ROWS), strict=True):
        peak = online.context.abs().amax(dim=-1, keepdim=True)
        assert (
            (stored.context.float() - online.context).abs()
            <= tolerance * online.context.abs() + 1e-3 * tolerance * peak
        ).all()
        torch.testing.assert_close(stored.teacher.float(), online.teacher, atol=0, rtol=min(tolerance, 2**-8))
        assert stored.context.dtype != torch.float16


def test_a_cache_for_a_pruned_drafter_keeps_the_mass_outside_and_belongs_to_its_vocabulary(tmp_path):
    target, ids = tiny_target(), torch.arange(0, 64, 3)
    source = TargetFeatures(target, [0, 2], vocabulary_U=ids)
    cache = FeatureCache(tmp_path, source, ROWS, dtype="float32")
    for row, each in zip(ROWS, cache.read(ROWS), strict=True):
        logits = target(input_ids=torch.tensor([row.token_ids])).logits[0, len(row.prompt_ids) : -1]
        probabilities = logits.softmax(-1)
        expected = 1 - probabilities[:, ids].sum(-1)
        found = (each.outside - logits.logsumexp(-1)).exp()
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="was made with draft_vocabulary="):
        FeatureCache(tmp_path, TargetFeatures(target, [0, 2], vocabulary_U=ids + 1), ROWS, dtype="float32")


def test_float8_keeps_each_token_to_three_bits_of_mantissa():
    values = torch.tensor([[1e4, -3.0, 1e4 / 448], [1e-3, 5e-4, -1e-3]])
    restored = from_float8(*to_float8(values))
    torch.testing.assert_close(restored, values, rtol=2**-4, atol=5.0 / 448)


def test_an_interrupted_build_goes_on_and_ends_equal(source, tmp_path, monkeypatch):
    whole = small_cache(tmp_path / "whole", source, monkeypatch)
    whole.build()
    for kept in range(4):
        folder = tmp_path / f"cut{kept}"
        shutil.copytree(tmp_path / "whole", folder)
        for shard in range(kept, 4):
            (folder / f"features-{shard:05d}.safetensors").unlink()
        (folder / f"features-{kept:05d}.part").write_bytes(b"half a shard")
        source.count = 0
        small_cache(folder, source, monkeypatch).build()
        assert source.count == 3 * (4 - kept)
        for shard in range(4):
            name = f"features-{shard:05d}.safetensors"
            assert _sha256(folder / name) == _sha256(tmp_path / "whole" / name)


def test_killed_at_random_moments_a_cache_ends_equal(source, tmp_path, monkeypatch):
    started = time.monotonic()
    small_cache(tmp_path / "whole", source, monkeypatch).build()
    duration = time.monotonic() - started
    chance = random.Random(0)
    folder = tmp_path / "cut"
    for _ in range(10):
        kill_at(duration * chance.uniform(0.05, 0.9), lambda: small_cache(folder, source, monkeypatch).build())
    small_cache(folder, source, monkeypatch).build()
    for path in (tmp_path / "whole").glob("*.safetensors"):
        assert _sha256(path) == _sha256(folder / path.name)


def test_a_flipped_byte_is_refused(source, tmp_path, monkeypatch):
    small_cache(tmp_path, source, monkeypatch).build()
    path = tmp_path / "features-00001.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    cache = small_cache(tmp_path, source, monkeypatch)
    cache.read(ROWS[:3])
    with pytest.raises(ValueError, match=r"features-00001\.safetensors does not have the checksum"):
        cache.read(ROWS[3:4])


def test_a_nan_shard_is_refused_even_with_a_matching_checksum(source, tmp_path, monkeypatch):
    small_cache(tmp_path, source, monkeypatch).build()
    path = tmp_path / "features-00000.safetensors"
    tensors = load_file(path)
    tensors["1.context"][2, 3] = float("nan")
    save_file(tensors, path)
    path.with_suffix(".json").write_text(json.dumps({"sha256": _sha256(path)}))
    with pytest.raises(ValueError, match=r"Row 'r1': .*NaN or infinity.* Delete features-00000"):
        small_cache(tmp_path, source, monkeypatch).read(ROWS[:1])


@pytest.mark.parametrize("change", ["target", "target_layer_ids", "dtype", "rows"])
def test_a_foreign_cache_is_refused_by_the_field_that_differs(source, tmp_path, change):
    FeatureCache(tmp_path, source, ROWS)
    rows, dtype = (
        (ROWS[:3], "bfloat16") if change == "rows" else (ROWS, "float32" if change == "dtype" else "bfloat16")
    )
    other = {
        "target": lambda: TargetFeatures(tiny_target(seed=5), [0, 2]),
        "target_layer_ids": lambda: TargetFeatures(source.target, [0, 1]),
    }.get(change, lambda: source)()
    with pytest.raises(ValueError, match=f"was made with {change}="):
        FeatureCache(tmp_path, other, rows, dtype=dtype)


def test_the_estimate_is_the_size_on_disk(source, tmp_path):
    cache = FeatureCache(tmp_path, source, ROWS, dtype="float8_e4m3")
    estimate = cache.estimate(measure=True)
    cache.build()
    on_disk = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    assert estimate.size_bytes <= on_disk <= estimate.size_bytes + 300 * len(ROWS)
    assert estimate.seconds > 0
    assert "tokens" in str(estimate)
    assert row_bytes(ROWS[0], features=2, width=32, dtype="float8_e4m3") == 12 * (64 + 4) + 9 * 64


def test_a_disk_that_is_too_small_is_refused_before_anything_is_written(source, tmp_path, monkeypatch):
    cache = FeatureCache(tmp_path, source, ROWS)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(OSError, match="where 0.00 GB are free"):
        cache.build()
    assert not list(tmp_path.glob("*.safetensors"))


def test_a_capped_cache_removes_the_least_recently_used_shard_and_makes_it_again(source, tmp_path, monkeypatch):
    cache = small_cache(tmp_path, source, monkeypatch, limit_gb=56e-6)
    assert cache.limit_bytes > 2 * cache._shard_bytes(3)
    online = source.read(ROWS)
    for index in (0, 3, 0, 6, 0, 3, 9):
        torch.testing.assert_close(cache.read(ROWS[index : index + 1])[0].context, online[index].context)
        assert cache._used() <= cache.limit_bytes
    assert sorted(path.name for path in tmp_path.glob("*.safetensors"))[-1] == "features-00003.safetensors"


def test_rows_the_cache_was_not_made_for_are_refused(source, tmp_path):
    cache = FeatureCache(tmp_path, source, ROWS)
    with pytest.raises(ValueError, match="Row 'new' is not one of those"):
        cache.read([Row(id="new", prompt_ids=[1], completion_ids=[2, 3])])

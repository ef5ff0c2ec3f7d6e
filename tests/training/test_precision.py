"""Number formats follow the machine: half precision only where it has arithmetic for it, unless it was asked for by name."""

from __future__ import annotations

import logging

import pytest
import torch

from dspark_hf.training import precision
from dspark_hf.training.precision import computes_in, matmul_speed, usable_autocast, usable_dtype
from dspark_hf.training.recipe import Recipe
from dspark_hf.training.train import training_arguments


CPU = torch.device("cpu")


@pytest.fixture
def slow_halves(monkeypatch, caplog):
    """A machine without half-precision arithmetic; the fixture is its log."""
    monkeypatch.setattr(precision, "relative_speed", lambda dtype, device: 0.125)
    monkeypatch.setattr(precision.logger, "propagate", True)
    type(precision.logger).warning_once.cache_clear()
    caplog.set_level(logging.WARNING)
    return caplog


@pytest.fixture
def fast_halves(monkeypatch):
    monkeypatch.setattr(precision, "relative_speed", lambda dtype, device: 2.0)


def test_the_slower_format_is_the_one_that_takes_longer(monkeypatch):
    speeds = {torch.float32: 100.0, torch.bfloat16: 12.0, torch.float16: 180.0}
    monkeypatch.setattr(precision, "matmul_speed", lambda dtype, device, size: speeds[dtype])
    precision.relative_speed.cache_clear()
    try:
        assert not computes_in(torch.bfloat16, CPU)
        assert computes_in(torch.float16, CPU)
        assert computes_in(torch.float64, CPU)
    finally:
        precision.relative_speed.cache_clear()


def test_speed_counts_multiplications_and_additions(monkeypatch):
    times = iter([0.0, 0.0, 0.0, 0.5, 1.0])
    monkeypatch.setattr(precision.time, "perf_counter", lambda: next(times))
    assert matmul_speed(torch.float32, CPU, size=8) == pytest.approx(2 * 8**3 / 0.5)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_a_stored_half_becomes_float32_where_it_is_slow(slow_halves, stored):
    assert usable_dtype("auto", stored, CPU) == torch.float32
    assert "8.0 times as long as float32 ones on this CPU; the target runs in float32." in slow_halves.text


def test_a_half_asked_for_by_name_stays_and_is_called_slow(slow_halves):
    assert usable_dtype("bfloat16", torch.float32, CPU) == torch.bfloat16
    assert "target.dtype: auto would take float32" in slow_halves.text


def test_wide_formats_stay_without_a_word(slow_halves):
    assert usable_dtype("auto", torch.float32, CPU) == usable_dtype("auto", None, CPU) == torch.float32
    assert usable_dtype("float32", torch.bfloat16, CPU) == torch.float32
    assert not slow_halves.text


def test_halves_stay_where_they_are_fast(fast_halves):
    assert usable_dtype("auto", torch.bfloat16, CPU) == torch.bfloat16
    assert usable_autocast(True, CPU)


def test_autocast_is_dropped_where_it_is_slow(slow_halves):
    assert not usable_autocast(True, CPU)
    assert "on this CPU; training runs in float32." in slow_halves.text


def test_the_trainer_follows(slow_halves, tmp_path):
    recipe = Recipe()
    recipe.train.bf16 = True
    assert not training_arguments(recipe, tmp_path, evaluate=False).bf16


def test_the_trainer_takes_autocast_where_it_is_fast(fast_halves, tmp_path):
    recipe = Recipe()
    recipe.train.bf16 = True
    assert training_arguments(recipe, tmp_path, evaluate=False).bf16
    recipe.train.bf16 = False
    assert not training_arguments(recipe, tmp_path, evaluate=False).bf16


def test_measuring_draws_no_random_number():
    before = torch.random.get_rng_state()
    matmul_speed(torch.float32, CPU, size=8)
    assert torch.equal(torch.random.get_rng_state(), before)

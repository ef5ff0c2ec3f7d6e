"""Muon: the steps of torch's own where that one works, the same directions in float32 where it is slow, and its refusals."""

from __future__ import annotations

import pytest
import torch

from dspark_hf.training import precision
from dspark_hf.training.muon import Muon, orthogonalized


SHAPES = [(12, 5), (5, 12), (8, 8)]


def bfloat16_is(monkeypatch, speed: float) -> None:
    monkeypatch.setattr(precision, "relative_speed", lambda dtype, device: speed)


def stepped(kind, steps=4, **knobs):
    torch.manual_seed(0)
    matrices = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    optimizer = kind(matrices, lr=0.05, weight_decay=0.1, momentum=0.9, **knobs)
    for _ in range(steps):
        for matrix in matrices:
            matrix.grad = torch.randn(matrix.shape)
        optimizer.step()
    return matrices, optimizer


@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw"])
def test_in_bfloat16_the_steps_are_those_of_torch(monkeypatch, adjust):
    theirs = getattr(torch.optim, "Muon", None)
    if theirs is None:
        pytest.skip("this torch has no Muon to compare with")
    bfloat16_is(monkeypatch, 2.0)
    expected, _ = stepped(theirs, adjust_lr_fn=adjust, ns_steps=5)
    got, optimizer = stepped(Muon, adjust_lr_fn=adjust, ns_steps=5)
    assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))
    assert set(optimizer.state[got[0]]) == {"momentum_buffer"}


def test_float32_goes_the_same_way(monkeypatch):
    bfloat16_is(monkeypatch, 2.0)
    halves, _ = stepped(Muon)
    bfloat16_is(monkeypatch, 0.125)
    singles, _ = stepped(Muon)
    for half, single in zip(halves, singles, strict=True):
        assert not torch.equal(half, single)
        torch.testing.assert_close(half, single, rtol=0, atol=0.02)


@pytest.mark.parametrize("shape", SHAPES)
def test_singular_values_come_near_one_and_directions_stay(monkeypatch, shape):
    bfloat16_is(monkeypatch, 0.125)
    torch.manual_seed(0)
    left, _, right = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    values = torch.logspace(0, -1.5, min(shape))
    out = orthogonalized(left * values @ right, 5)
    assert out.dtype == torch.float32
    assert out.shape == shape
    mixed = left.T @ out @ right.T
    assert ((mixed.diag() > 0.6) & (mixed.diag() < 1.3)).all()
    assert (mixed - torch.diag(mixed.diag())).abs().max() < 1e-4


def test_a_matrix_without_gradient_stays():
    matrix = torch.nn.Parameter(torch.ones(3, 4))
    assert Muon([matrix], lr=1.0).step(lambda: 7) == 7
    assert torch.equal(matrix, torch.ones(3, 4))


def test_what_it_refuses():
    with pytest.raises(ValueError, match=r"steps matrices only, got a parameter of shape \[3\]"):
        Muon([torch.nn.Parameter(torch.ones(3))], lr=0.1)
    with pytest.raises(ValueError, match="adjust_lr_fn must be 'original' or 'match_rms_adamw', got 'none'"):
        Muon([torch.nn.Parameter(torch.ones(3, 3))], lr=0.1, adjust_lr_fn="none")

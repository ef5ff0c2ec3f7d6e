"""Runs the kernels' tests on a GPU where there is one, else in Triton's interpreter on CPU tensors.

A process either interprets or compiles, so the choice is made here, before anything imports Triton. Every uninitialised
buffer starts as NaN or a wild number: an output that a kernel forgets to write then fails its test.
"""

import os
import sys
from pathlib import Path

import pytest
import torch


if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

for folder in sorted(Path(__file__).parent.glob("dspark-*/torch-ext")):
    sys.path.insert(0, str(folder))


def pytest_configure(config):
    # The interpreter computes masked lanes too, and numpy warns about numbers that no result uses.
    config.addinivalue_line("filterwarnings", "ignore::RuntimeWarning:triton.runtime.interpreter")


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def poisoned_buffers(monkeypatch):
    """`torch.empty` hands out NaN, or a wild integer, instead of what memory happened to hold."""
    empty = torch.empty

    def poisoned(*args, **kwargs):
        tensor = empty(*args, **kwargs)
        return tensor.fill_(float("nan") if tensor.is_floating_point() else -(2**30))

    monkeypatch.setattr(torch, "empty", poisoned)


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)


def chi_square_p(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """Probability of a chi-square at least this large, cells of fewer than 5 expected counts put together."""
    large = expected >= 5
    observed = torch.cat([counts[large].double(), counts[~large].double().sum()[None]])
    wanted = torch.cat([expected[large].double(), expected[~large].double().sum()[None]])
    keep = wanted > 0
    statistic = ((observed - wanted)[keep] ** 2 / wanted[keep]).sum()
    return float(torch.special.gammaincc((keep.sum() - 1).double() / 2, statistic / 2))


@pytest.fixture(name="chi_square_p")
def chi_square_fixture():
    return chi_square_p

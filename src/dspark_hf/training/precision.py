"""
Which number format a machine computes in, found by timing a matrix product.

Many CPUs hold bfloat16 but have no arithmetic for it (no AVX-512 BF16, no AMX): a product over many tokens then takes four to two
hundred times as long as in float32, by its shape, and answers, features and training with it. Knows nothing of models.
"""

from __future__ import annotations

import time
from functools import cache

import torch
from transformers.utils.logging import get_logger


logger = get_logger(__name__)

HALF = (torch.bfloat16, torch.float16)
# native arithmetic doubles the speed of float32, emulation is several times slower than it; in between lies nothing
LEAST_SPEED = 0.5
# small, because emulation can take a second for a product of 1024
COMPARED_SIZE = 256


def matmul_speed(dtype: torch.dtype, device: torch.device, size: int = 1024) -> float:
    """Operations per second of a square matrix product on `device`, best of a few within 0.2 seconds."""
    # not drawn: a measurement in the middle of a run must not move its random numbers
    left = torch.ones(size, size, device=device, dtype=dtype)
    best, end = float("inf"), time.perf_counter() + 0.2
    while time.perf_counter() < end:
        started = time.perf_counter()
        # reading one number waits for the device
        float((left @ left)[0, 0])
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best


@cache
def relative_speed(dtype: torch.dtype, device: torch.device) -> float:
    """Speed of matrix products in `dtype` over that in float32 on `device`, measured once a process."""
    return matmul_speed(dtype, device, COMPARED_SIZE) / matmul_speed(torch.float32, device, COMPARED_SIZE)


def computes_in(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether `device` has arithmetic for a half-precision `dtype`; wider types always."""
    return dtype not in HALF or relative_speed(dtype, device) >= LEAST_SPEED


def usable_dtype(wanted: str, stored: torch.dtype | None, device: torch.device) -> torch.dtype:
    """
    The format in which a target's answers and features are computed.

    Args:
        wanted (`str`): `"auto"` for the checkpoint's own, or the name of a format, which is always kept.
        stored (`torch.dtype` or `None`): the checkpoint's; `None` counts as float32.
        device (`torch.device`): where it will run.

    Returns:
        `torch.dtype`: float32 instead of a stored half-precision format that the device has no arithmetic for; said in a warning,
        as is a slow one that was asked for by name.
    """
    dtype = (stored or torch.float32) if wanted == "auto" else getattr(torch, wanted)
    if computes_in(dtype, device):
        return dtype
    advice = "the target runs in float32" if wanted == "auto" else "target.dtype: auto would take float32"
    logger.warning_once(f"{_slow(dtype, device)}; {advice}.")
    return torch.float32 if wanted == "auto" else dtype


def usable_autocast(wanted: bool, device: torch.device) -> bool:
    """Whether bfloat16 autocast is worth what `train.bf16` asks for; parameters are float32 either way."""
    if not wanted or computes_in(torch.bfloat16, device):
        return wanted
    logger.warning_once(f"{_slow(torch.bfloat16, device)}; training runs in float32.")
    return False


def _slow(dtype: torch.dtype, device: torch.device) -> str:
    name = "this CPU" if device.type == "cpu" else "this GPU"
    times = 1 / relative_speed(dtype, device)
    return f"{str(dtype).removeprefix('torch.')} products take {times:.1f} times as long as float32 ones on {name}"

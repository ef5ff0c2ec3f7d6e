"""Keyed random numbers and inverse-CDF picking inside Triton kernels; the twin of `sampling.py`.

The same file serves drafting and verification (a test keeps the copies equal).
"""

import os

import triton
import triton.language as tl


# bf16 products are silently wrong in the interpreter (https://github.com/triton-lang/triton/issues/11584), so kernels
# multiply in fp32 there.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@triton.jit
def philox_words(seed, position, STREAM: tl.constexpr):
    """Four 32-bit words of Philox4x32-10 for the scalar key (seed, position, stream)."""
    low = position.to(tl.int32)
    zero = low * 0
    return tl.philox(seed, zero, low, zero + STREAM, zero)


@triton.jit
def uniform_53(high, low):
    """fp64 uniform in [0, 1) from two words; scalars only, so fp64 is cheap."""
    bits = (high.to(tl.uint32, bitcast=True).to(tl.uint64) << 32) | low.to(tl.uint32, bitcast=True).to(tl.uint64)
    return (bits >> 11).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def two_uniforms(uniforms, seeds, seed_index, position, STREAM: tl.constexpr, KEYED: tl.constexpr):
    """Two fp64 uniforms: keyed by (seeds[seed_index], position) or loaded from `uniforms[0:2]`."""
    if KEYED:
        a, b, c, d = philox_words(tl.load(seeds + seed_index), position, STREAM)
        first = uniform_53(a, b)
        second = uniform_53(c, d)
    else:
        first = tl.load(uniforms)
        second = tl.load(uniforms + 1)
    return first, second


@triton.jit
def pick(weights, index, uniform, SIZE: tl.constexpr):
    """First index whose running fp64 sum exceeds uniform * total; -1 when every weight is zero."""
    running = tl.cumsum(weights.to(tl.float64), 0)
    threshold = tl.sum(weights.to(tl.float64), 0) * uniform
    first = tl.min(tl.where((running > threshold) & (weights > 0.0), index, SIZE), 0)
    last = tl.max(tl.where(weights > 0.0, index, -1), 0)
    return tl.where(first < SIZE, first, last)


@triton.jit
def combine_blocks(peaks, sums):
    """`(peak, logsumexp)` of a row from the peak and the exp-sum of each of its blocks."""
    peak = tl.max(peaks, 0)
    total = tl.sum(tl.where(peaks > -float("inf"), sums * tl.exp(peaks - peak), 0.0), 0)
    # A block whose numbers are all NaN has no peak, but its sum is NaN and must reach the row.
    broken = tl.sum((sums != sums).to(tl.int32), 0) > 0
    return peak, tl.where(broken, float("nan"), peak + tl.log(total))

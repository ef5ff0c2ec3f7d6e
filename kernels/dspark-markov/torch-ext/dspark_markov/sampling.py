"""Keyed random numbers and two-level inverse-CDF sampling in plain torch.

The same file serves drafting and verification (a test keeps the copies equal). It knows nothing of models or of Triton.

Legend: R rows, N categories. A stream is a Philox counter word: drafting and verification never share noise.
"""

from __future__ import annotations

import torch


STREAM_DRAFT, STREAM_ACCEPT, STREAM_RESAMPLE = 1, 2, 3

_MASK = 0xFFFFFFFF


def _multiply_high_low(constant: int, word: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    product = word * constant  # wraps modulo 2**64, so both halves stay right
    return (product >> 32) & _MASK, product & _MASK


def keyed_uniforms(seeds: torch.Tensor, positions: torch.Tensor, stream: int) -> torch.Tensor:
    """Two 53-bit uniforms in [0, 1) for every (seed, position, stream), by Philox4x32-10.

    Args:
        seeds (`torch.Tensor`): int64, any shape that broadcasts with `positions`.
        positions (`torch.Tensor`): int64; the low 32 bits count.
        stream (`int`): `STREAM_DRAFT`, `STREAM_ACCEPT` or `STREAM_RESAMPLE`.

    Returns:
        `torch.Tensor`: fp64, the broadcast shape plus a last dimension of 2. Equal to what the Triton kernels draw.
    """
    seeds, positions = torch.broadcast_tensors(seeds, positions)
    key_0, key_1 = seeds & _MASK, (seeds >> 32) & _MASK
    counter_0 = torch.zeros_like(seeds)
    counter_1 = positions & _MASK
    counter_2 = torch.full_like(seeds, stream)
    counter_3 = torch.zeros_like(seeds)
    for _ in range(10):
        high_b, low_b = _multiply_high_low(0xCD9E8D57, counter_2)
        high_a, low_a = _multiply_high_low(0xD2511F53, counter_0)
        counter_0, counter_1 = high_b ^ counter_1 ^ key_0, low_b
        counter_2, counter_3 = high_a ^ counter_3 ^ key_1, low_a
        key_0, key_1 = (key_0 + 0x9E3779B9) & _MASK, (key_1 + 0xBB67AE85) & _MASK
    high = torch.stack([counter_0, counter_2], dim=-1)
    low = torch.stack([counter_1, counter_3], dim=-1)
    return ((high << 21) | (low >> 11)).double() * 2.0**-53


def first_exceeding(weights_RN: torch.Tensor, uniforms_R: torch.Tensor) -> torch.Tensor:
    """Index of the first category whose running fp64 sum exceeds `uniform * total`; N when every weight is zero."""
    running_RN = weights_RN.double().cumsum(-1)
    total_R = running_RN[:, -1]
    # (1 - 2**-53) * total may round up to total, which no running sum exceeds.
    threshold_R = torch.minimum(uniforms_R * total_R, torch.nextafter(total_R, torch.zeros_like(total_R)))
    return (running_RN <= threshold_R[:, None]).sum(-1)


def inverse_cdf(weights_RN: torch.Tensor, uniforms_R2: torch.Tensor, *, block: int) -> torch.Tensor:
    """Sample an index in proportion to unnormalised weights.

    The first uniform picks a block of categories by the block sums, the second a category inside it, so only `block`
    running sums are needed per row.

    Args:
        weights_RN (`torch.Tensor`): non-negative floats.
        uniforms_R2 (`torch.Tensor`): fp64 in [0, 1).
        block (`int`): categories per block; part of the definition of the result.

    Returns:
        `torch.Tensor`: int64 [R]. Out of range (>= N) for rows whose weights are all zero.
    """
    rows, categories = weights_RN.shape
    block = min(block, max(categories, 1))  # one short block needs no padding
    blocks = -(-categories // block)
    padded = torch.nn.functional.pad(weights_RN, (0, blocks * block - categories)).view(rows, blocks, block)
    block_R = first_exceeding(padded.sum(-1), uniforms_R2[:, 0])
    inside = padded[torch.arange(rows, device=padded.device), block_R.clamp_max(blocks - 1)]
    return block_R * block + first_exceeding(inside, uniforms_R2[:, 1])

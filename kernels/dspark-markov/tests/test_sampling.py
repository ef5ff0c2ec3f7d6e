"""Keyed random numbers: equal in torch and in Triton, uniform, and disjoint between streams."""

import torch
import triton
import triton.language as tl
from dspark_markov.random_triton import two_uniforms
from dspark_markov.sampling import STREAM_ACCEPT, STREAM_DRAFT, first_exceeding, inverse_cdf, keyed_uniforms


@triton.jit
def uniforms_kernel(seeds, positions, out, STREAM: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    first, second = two_uniforms(out, seeds, row, tl.load(positions + row), STREAM, True)
    tl.store(out + 2 * row, first)
    tl.store(out + 2 * row + 1, second)


def test_torch_and_triton_draw_the_same_uniforms(device):
    seeds = torch.randint(-(2**62), 2**62, (64,), device=device)
    positions = torch.randint(2**31 - 1, (64,), device=device)
    drawn = torch.empty(64, 2, dtype=torch.float64, device=device)
    uniforms_kernel[(64,)](seeds, positions, drawn, STREAM=STREAM_ACCEPT)
    assert torch.equal(drawn, keyed_uniforms(seeds, positions, STREAM_ACCEPT))


def test_uniforms_are_uniform_and_uncorrelated():
    drawn = keyed_uniforms(torch.arange(100_000), torch.tensor(5), STREAM_DRAFT)
    counts = torch.histc(drawn[:, 0].float(), bins=100, min=0, max=1)
    assert ((counts - 1000) ** 2 / 1000).sum() < 160  # p of a larger one is 1e-4 at 99 degrees of freedom
    assert abs(torch.corrcoef(drawn.T)[0, 1]) < 0.02
    assert drawn.min() >= 0
    assert drawn.max() < 1


def test_drafting_and_verification_share_no_numbers():
    seeds, positions = torch.arange(1000), torch.arange(1000)
    draft, accept = (keyed_uniforms(seeds, positions, stream) for stream in (STREAM_DRAFT, STREAM_ACCEPT))
    assert not torch.isin(draft, accept).any()


def test_the_largest_uniform_still_picks_a_category_with_weight():
    weights = torch.tensor([[0.1, 0.7, 0.0, 0.2, 0.0]])
    almost_one = torch.tensor([1 - 2.0**-53], dtype=torch.float64)
    assert first_exceeding(weights, almost_one).item() == 3
    assert first_exceeding(weights, torch.zeros(1, dtype=torch.float64)).item() == 0


def test_a_row_without_weight_ends_out_of_range():
    index = inverse_cdf(torch.zeros(1, 300), torch.full((1, 2), 0.5, dtype=torch.float64), block=128)
    assert index.item() >= 300


def test_two_levels_cover_every_category_in_proportion(chi_square_p):
    weights = torch.rand(1, 200)
    weights[0, 64:128] = 0
    uniforms = torch.rand(50_000, 2, dtype=torch.float64)
    counts = torch.bincount(inverse_cdf(weights.expand(50_000, -1), uniforms, block=64), minlength=200)
    assert chi_square_p(counts, weights[0] / weights.sum() * 50_000) > 1e-4
    assert counts[64:128].sum() == 0

"""The kernel's reference and the policies choose the same lengths.

Slots of no chance apart: the kernel never verifies them, Algorithm 1 does where that makes the forward cheaper.
"""

import pytest
import torch

from dspark_hf import ops
from dspark_hf.scheduling import CostCurve, History, schedule


@pytest.mark.parametrize("policy", ["early_stop", "lookahead"])
def test_the_kernel_chooses_the_same_lengths(policy):
    generator = torch.Generator().manual_seed(0)
    for rows, slots in [(1, 7), (3, 5), (16, 4), (2, 16)] * 20:
        survival = torch.rand(rows, slots, generator=generator, dtype=torch.float64).cumprod(1)
        rates = torch.rand(rows, slots, generator=generator, dtype=torch.float64)
        sizes = rows * (1 + slots)
        seconds = 1.0 + torch.rand(sizes, generator=generator, dtype=torch.float64)
        # Algorithm 1 prices the target's forward alone, lookahead the draft too
        draft_seconds = 0.3 if policy == "lookahead" else 0.0
        curve = CostCurve(list(range(1, sizes + 1)), seconds.tolist(), draft_seconds=draft_seconds)
        table = torch.cat([torch.zeros(1, dtype=torch.float64), seconds])
        kernel = ops.schedule_prefix(survival, table, draft_seconds=draft_seconds, policy=policy, acceptance=rates)
        assert torch.equal(kernel.lengths.long(), schedule(survival, curve, policy, History(acceptance=rates)))

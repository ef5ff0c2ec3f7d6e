"""Times `schedule_prefix` at the size of a Qwen3-4B drafter beside its torch reference; run by `kernels benchmark`."""

import torch
from kernels.benchmark import Benchmark


class SchedulePrefixBenchmark(Benchmark):
    seed = 0

    def setup(self):
        rows, slots = 256, 7
        self.survival = torch.rand(rows, slots, device=self.device).cumprod(1)
        self.seconds = 1 + 0.01 * torch.arange(rows * (slots + 1) + 1, device=self.device).double()
        self.out = None

    def benchmark_base(self):
        self.out = self.kernel.schedule_prefix(self.survival, self.seconds).lengths

    def verify_base(self):
        return self.kernel.reference.schedule_prefix(self.survival, self.seconds).lengths

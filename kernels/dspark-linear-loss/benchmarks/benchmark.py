"""Times `linear_loss` at the size of a Qwen3-4B drafter beside its torch reference; run by `kernels benchmark`."""

import torch
from kernels.benchmark import Benchmark


class LinearLossBenchmark(Benchmark):
    seed = 0

    def setup(self):
        rows, vocabulary, hidden, rank = 512, 151_936, 2560, 256
        make = lambda *shape: (torch.randn(*shape, device=self.device) * 0.05).bfloat16()  # noqa: E731
        head, w2 = make(vocabulary, hidden), make(vocabulary, rank)
        labels = torch.randint(vocabulary, (rows,), device=self.device)
        self.operands = (make(rows, hidden), make(rows, rank), make(rows, hidden), head, w2, head, labels)
        self.out = None

    def benchmark_base(self):
        self.out = self.kernel.linear_loss(*self.operands).l1

    def verify_base(self):
        return self.kernel.reference.linear_loss(*self.operands).l1

"""Times `markov_draft` at the size of a Qwen3-4B drafter beside its torch reference; run by `kernels benchmark`."""

import torch
from kernels.benchmark import Benchmark


class MarkovDraftBenchmark(Benchmark):
    seed = 0

    def setup(self):
        rows, slots, vocabulary, rank = 32, 7, 151_936, 256
        self.base = torch.randn(rows, slots, vocabulary, device=self.device, dtype=torch.bfloat16)
        self.anchors = torch.randint(vocabulary, (rows,), device=self.device)
        self.head = {
            "w1": torch.randn(vocabulary, rank, device=self.device, dtype=torch.bfloat16),
            "w2": torch.randn(vocabulary, rank, device=self.device, dtype=torch.bfloat16) * 0.1,
            "store": False,
        }
        self.out = None

    def benchmark_base(self):
        self.out = self.kernel.markov_draft(self.base, self.anchors, **self.head).tokens

    def verify_base(self):
        return self.kernel.reference.markov_draft(self.base, self.anchors, **self.head).tokens

"""Times `verify_ragged` at the size of a Qwen3-4B drafter beside its torch reference; run by `kernels benchmark`."""

import torch
from kernels.benchmark import Benchmark


class VerifyRaggedBenchmark(Benchmark):
    seed = 0

    def setup(self):
        rows, slots, vocabulary = 32, 7, 151_936
        self.logits = torch.randn(rows * (slots + 1), vocabulary, device=self.device, dtype=torch.bfloat16)
        self.tokens = torch.randint(vocabulary, (rows, slots), device=self.device)
        self.ends = torch.arange(rows + 1, device=self.device, dtype=torch.int32) * (slots + 1)
        self.out = None

    def benchmark_base(self):
        self.out = self.kernel.verify_ragged(self.logits, self.tokens, self.ends).tokens

    def verify_base(self):
        return self.kernel.reference.verify_ragged(self.logits, self.tokens, self.ends).tokens

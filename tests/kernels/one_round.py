"""A tiny model's generation and training loss in one process, as JSON; run by `tests/test_ops.py` under several settings.

`BLOCK_IMPORTS` names packages that must not be found, as on a machine without them.
"""

import importlib.abc
import json
import os
import sys


class Blocked(importlib.abc.MetaPathFinder):
    """Makes packages look as if they were not installed."""

    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


BLOCKED = [name for name in os.environ.get("BLOCK_IMPORTS", "").split(",") if name]
if BLOCKED:
    import importlib.util

    found = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *rest: None if name.split(".")[0] in BLOCKED else found(name, *rest)
    sys.meta_path.insert(0, Blocked(BLOCKED))

import torch  # noqa: E402


# transformers imports Triton itself where it is installed, so what counts is what of ours does.
TRITON_MODULES = {
    "kernels",
    "dspark_hf._kernels.dspark_markov.draft",
    "dspark_hf._kernels.dspark_schedule.prefix",
    "dspark_hf._kernels.dspark_verify.ragged",
    "dspark_hf._kernels.dspark_linear_loss.rows_triton",
}
launched = set()


def count_launches() -> None:
    """Note the name of every Triton kernel that runs."""
    from triton.runtime.interpreter import GridExecutor

    launch = GridExecutor.__call__

    def counted(self, *args, **kwargs):
        launched.add(self.fn.__name__.removesuffix("_kernel"))
        return launch(self, *args, **kwargs)

    GridExecutor.__call__ = counted


if os.environ.get("DSPARK_HF_KERNELS") == "triton":
    count_launches()

from dspark_hf import ops  # noqa: E402
from dspark_hf.dev.tiny import tiny_drafter, tiny_target  # noqa: E402
from dspark_hf.scheduling import CostCurve  # noqa: E402


torch.manual_seed(0)
torch.set_num_threads(1)
target = tiny_target()
drafter = tiny_drafter(target)
prompt = torch.tensor([[5, 9, 33, 12]])
settings = {"max_new_tokens": 12, "do_sample": False}
plain = target.generate(prompt, **settings)
assisted = target.generate(prompt, assistant_model=drafter, **settings)

# every policy that the scheduling kernels know, for one row and for several, inside generate
drafter.cost_curve = CostCurve(tokens=[1, 2, 4, 18], seconds=[1.0, 1.3, 1.2, 2.0], draft_seconds=0.1)
prompts = torch.tensor([[5, 9, 33, 12], [7, 7, 40, 2], [50, 3, 21, 21]])
several = target.generate(prompts, **settings)
scheduled, rounds = {}, {}
before = set(launched)
for policy in ("early_stop", "lookahead", "lagged_topk"):
    drafter.set_policy(policy)
    for name, ids in (("one row", prompt), ("rows", prompts)):
        scheduled[f"{policy}, {name}"] = target.generate(ids, assistant_model=drafter, **settings).tolist()
        rounds[f"{policy}, {name}"] = drafter.last_generation.rounds
scheduling_kernels = sorted(launched - before)

hidden = torch.randn(4, 32, requires_grad=True)
latent = torch.randn(4, drafter.config.markov_rank)
head = drafter.lm_head.weight
weights = torch.rand(2, 4)
result = ops.linear_loss(
    hidden,
    latent,
    torch.randn(4, 32),
    head,
    drafter.markov_head.markov_w2.weight,
    head,
    torch.tensor([1, 2, 3, -100]),
    ce_weight=weights[0],
    l1_weight=weights[1],
)
result.loss.backward()
report = {
    "plain": plain.tolist(),
    "assisted": assisted.tolist(),
    "several": several.tolist(),
    "scheduled": scheduled,
    "rounds": rounds,
    "scheduling_kernels": scheduling_kernels,
    "loss": round(result.loss.item() + hidden.grad.sum().item(), 6),
    "kernels": sorted(launched),
    "imported": sorted(name for name in sys.modules if name in TRITON_MODULES) if not launched else [],
}
sys.stdout.write(json.dumps(report) + "\n")

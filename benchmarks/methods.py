"""What is compared: plain decoding, compiled plain decoding, drafters with a policy, and what transformers itself offers.

A method turns a padded batch of prompts into output ids; nothing else. Timing is `paired.py`'s.
"""

# B rows, L prompt columns

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModel, CompileConfig, PreTrainedModel

import dspark_hf.baselines  # teaches `generate` the serial drafter
from dspark_hf.scheduling import CostCurve


@dataclass
class Method:
    """
    Attributes:
        name (`str`): as in the table.
        options (`dict`): what it adds to `target.generate`.
        max_batch (`int`): rows it can decode at once.
        prepare (callable, *optional*): called before each run, outside the clock.
        drafter (*optional*): holds the statistics of its latest call.
    """

    name: str
    options: dict[str, Any]
    max_batch: int = 1_000_000
    prepare: Callable[[], None] | None = None
    drafter: Any = None

    @torch.no_grad()
    def run(self, target: PreTrainedModel, inputs: dict[str, torch.Tensor], **sampling: Any) -> torch.Tensor:
        """`[B, L + new]` ids."""
        return target.generate(**inputs, **sampling, **self.options)


def plain() -> Method:
    return Method("plain", {})


def plain_compiled() -> Method:
    """A static cache and `torch.compile` around the decode step, through transformers' own switch."""
    config = CompileConfig(mode="default", fullgraph=False, dynamic=False)
    # transformers compiles on accelerators only, unless told otherwise
    config._compile_all_devices = True
    return Method("plain compiled", {"cache_implementation": "static", "compile_config": config})


def prompt_lookup(tokens: int) -> Method:
    return Method(f"prompt lookup {tokens}", {"prompt_lookup_num_tokens": tokens}, max_batch=1)


def truncated_assistant(target: PreTrainedModel, layers: int) -> Method:
    """Assisted decoding by the target's own first layers."""
    assistant = dspark_hf.baselines.truncated_target(target, layers)
    return Method(f"assisted, first {layers} layers", {"assistant_model": assistant}, max_batch=1)


def open_drafter(path: str, target: PreTrainedModel) -> Any:
    """Any drafter folder or repository, in the target's dtype, sharing what it can."""
    drafter = AutoModel.from_pretrained(path, dtype=target.dtype).to(target.device).eval()
    drafter.tie_to(target)
    return drafter


def takes(drafter: Any, policy: str) -> bool:
    """Whether a policy makes sense: a serial drafter pays per token, so its drafts are always verified whole."""
    return policy.startswith("full") or not isinstance(drafter, dspark_hf.baselines.Eagle3Drafter)


def drafted(name: str, drafter: Any, policy: str) -> Method:
    """`policy` is a name, or `threshold=0.3`, or `full:4` for a draft of four tokens."""
    policy_name, _, tokens = policy.partition(":")
    policy_name, _, threshold = policy_name.partition("=")
    knobs = {"threshold": float(threshold)} if threshold else {}
    options = {"assistant_model": drafter} | ({"num_assistant_tokens": int(tokens)} if tokens else {})
    return Method(
        f"{name} {policy}", options, prepare=lambda: drafter.set_policy(policy_name, **knobs), drafter=drafter
    )


def measure_cost(target: PreTrainedModel, drafter: Any, rows: int) -> CostCurve:
    """The cost curve of this machine, kept on the drafter."""
    drafter.cost_curve = CostCurve.measure(target, drafter, rows=rows)
    return drafter.cost_curve

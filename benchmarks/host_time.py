"""Host time of a round outside the two models' forwards, beside transformers' own DFlash loop, on toy models.

    python benchmarks/host_time.py [--json results.json]

Both loops decode the same prompts greedily and by sampling, one row, single-threaded. A forward counts as model time from call to
return; everything else of the decode loop, Python included, is host time. Our drafter's heads (Markov steps, confidence) are
measured apart, because transformers' loop has none.
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import statistics
import time
from contextlib import contextmanager
from pathlib import Path

import torch
import transformers
from transformers import DynamicCache
from transformers.modeling_outputs import BaseModelOutput

import dspark_hf
from dspark_hf.dev.tiny import tiny_drafter, tiny_target


NEW_TOKENS, REPEATS = 200, 5


@contextmanager
def timed_forwards(*modules):
    """Seconds inside the forwards of some modules, and how often each was called."""
    spent = {"seconds": 0.0, "calls": [0] * len(modules)}
    originals = [module.forward for module in modules]

    def timed(index, forward):
        @functools.wraps(forward)
        def run(*args, **kwargs):
            started = time.perf_counter()
            try:
                return forward(*args, **kwargs)
            finally:
                spent["seconds"] += time.perf_counter() - started
                spent["calls"][index] += 1

        return run

    for index, (module, forward) in enumerate(zip(modules, originals, strict=True)):
        module.forward = timed(index, forward)
    try:
        yield spent
    finally:
        for module in modules:
            del module.forward


class DFlashShaped(transformers.PreTrainedModel):
    """A drafter of our size behind the interface that transformers' DFlash loop calls."""

    config_class = transformers.Qwen3Config

    def __init__(self, config, inner):
        super().__init__(config)
        self.inner = inner
        self.context = None

    def forward(self, noise_embeds, context_hidden_states, position_ids, attention_mask=None, cache=None):
        if int(position_ids[0, 0]) == 0:
            self.context = DynamicCache()
        inner, new = self.inner, context_hidden_states.shape[1]
        hidden, context = noise_embeds, inner.project_context(context_hidden_states)
        positions = inner.rotary_emb(position_ids[:, : new + noise_embeds.shape[1]], hidden.dtype)
        for layer in inner.layers:
            hidden = layer(hidden, context, positions, None, self.context)
        return BaseModelOutput(last_hidden_state=inner.norm(hidden))


def dflash_drafter(target):
    """transformers' loop drafts `block_size - 1` tokens, so its block is one longer than ours for the same five."""
    inner = tiny_drafter(target, block_size=6, sample_from_anchor=False, target_layer_ids=[0, 2])
    text = target.config.get_text_config()
    config = transformers.Qwen3Config(
        vocab_size=text.vocab_size,
        hidden_size=text.hidden_size,
        num_hidden_layers=2,
        target_layer_ids=[0, 2],
        block_size=6,
        mask_token_id=text.vocab_size - 1,
    )
    return DFlashShaped(config, inner).eval()


def measure(target, drafter, ids, *, sampling: bool, **options) -> dict[str, float]:
    """Milliseconds per round of one loop, the prompt's round included; the median of a few calls."""
    per_round = []
    options |= (
        {"do_sample": sampling, "max_new_tokens": NEW_TOKENS, "top_k": 0}
        if sampling
        else {
            "do_sample": False,
            "max_new_tokens": NEW_TOKENS,
        }
    )
    for repeat in range(REPEATS + 1):
        torch.manual_seed(repeat)
        with timed_forwards(target, drafter) as spent:
            started = time.perf_counter()
            target.generate(ids, assistant_model=drafter, **options)
            total = time.perf_counter() - started
        if repeat:  # the first call warms up
            per_round.append((total - spent["seconds"]) / spent["calls"][0])
    return {"host_ms_per_round": 1e3 * statistics.median(per_round)}


def stats_of(drafter) -> dict[str, float]:
    """What the decode loop says of itself: host time, and the draft's heads and sampling."""
    stats = drafter.last_generation
    return {
        "rounds": stats.target_forwards,
        "host_ms_by_stats": 1e3 * stats.host_seconds / stats.target_forwards,
        "draft_ms_by_stats": 1e3 * stats.draft_seconds / stats.target_forwards,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    target = tiny_target("qwen3", max_position_embeddings=1024)
    ours = tiny_drafter(target)
    theirs = dflash_drafter(target)
    ids = torch.randint(2, 60, (1, 32), generator=torch.Generator().manual_seed(0))
    results = {}
    for mode, sampling in (("greedy", False), ("sampling", True)):
        mine = measure(target, ours, ids, sampling=sampling)
        results[mode] = {
            "dspark_hf": mine | stats_of(ours),
            "transformers_dflash": measure(target, theirs, ids, sampling=sampling, speculation_type="dflash"),
        }
    report = {
        "what": "milliseconds of host time per round, one row, toy models of 4 and 2 layers, one thread",
        "machine": platform.processor() or platform.machine(),
        "versions": {
            "dspark_hf": dspark_hf.__version__,
            "transformers": transformers.__version__,
            "torch": torch.__version__,
        },
        "new_tokens": NEW_TOKENS,
        "repeats": REPEATS,
        "results": results,
    }
    for mode, loops in results.items():
        for name, figures in loops.items():
            print(f"{mode:9} {name:20} " + "  ".join(f"{key} {value:.3f}" for key, value in figures.items()))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Measures drafters on named prompt sets, through the same `generate` that users call.

    results = evaluate(target, tokenizer, drafter, ["gsm8k", "humaneval"], prompts=40, folder="out/drafter")
    table = compare(target, tokenizer, {"dspark": first, "dflash": second}, ["math=held_out.jsonl"])

Decides what runs and in which order; one conversation is `conversations.py`, the arithmetic is `aggregate.py`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers.utils import logging

from dspark_hf.hub.provenance import environment
from dspark_hf.training.rendering import Renderer

from .aggregate import summarise
from .comparison import Comparison
from .contexts import lengthen
from .conversations import Sampling, TurnRecord, answer
from .record_store import RecordStore, run_key
from .results import EvalResults, SuiteResult
from .suites import Suite, load_suite


logger = logging.get_logger(__name__)


def evaluate(
    target: Any,
    tokenizer: Any,
    drafter: Any,
    suites: Sequence[str | Suite],
    *,
    temperatures: Sequence[float] = (0.0, 1.0),
    thinking: bool | None | Sequence[bool | None] = None,
    policies: Sequence[str | Mapping[str, Any]] | None = None,
    prompts: int | None = None,
    prompts_folder: str | Path | None = None,
    context_tokens: Sequence[int] = (),
    max_new_tokens: int = 256,
    top_p: float = 1.0,
    with_plain: bool = True,
    folder: str | Path | None = None,
    command: str | None = None,
    max_minutes: float | None = None,
    seed: int = 0,
    progress: bool = True,
) -> EvalResults:
    """
    Accepted length, acceptance by slot, tokens/s against plain `generate`, and whether the text is the target's own.

    Args:
        target (`PreTrainedModel`), tokenizer (`PreTrainedTokenizerBase`), drafter ([`DSparkDrafter`]): loaded, on one device.
        suites (`Sequence[str | Suite]`): see [`load_suite`].
        temperatures (`Sequence[float]`): 0 is greedy, where texts are compared token for token.
        thinking (*optional*): passed to the chat template; a sequence runs each mode; `None` leaves the template's default.
        policies (*optional*): each is run in turn: a name, or `{"name": "threshold", "threshold": 0.8}`. Default: the one
            that the drafter has.
        prompts (`int`, *optional*): first this many of each suite.
        prompts_folder (`str` or `Path`, *optional*): local copies of the paper's sets.
        context_tokens (`Sequence[int]`): also run every suite with prompts lengthened to these sizes, see
            [`~dspark_hf.evaluation.contexts.lengthen`]. Prompts that the target has no room for are left out.
        max_new_tokens (`int`): per turn.
        with_plain (`bool`): run every prompt without the drafter too, in turn before and after it.
        folder (`str` or `Path`, *optional*): results and per-prompt records go there; a stopped run goes on from them.
        command (`str`, *optional*): what the user typed, for the card.
        max_minutes (`float`, *optional*): stop between prompts; what was measured by then counts. Every suite, temperature and
            policy gets an equal part of the time that is left when its turn comes.
        seed (`int`): of sampling; each prompt has its own stream.

    Returns:
        [`EvalResults`]: also saved as `eval_results.json` in `folder`, beside results that were there for other suites.

    Raises:
        ValueError: an unknown suite or policy, or a temperature below 0.
    """
    if min(temperatures) < 0:
        raise ValueError(f"temperatures must be >= 0, got {min(temperatures)}")
    loaded = [_loaded(suite, prompts, prompts_folder) for suite in suites]
    results = EvalResults.load(folder) if folder is not None else EvalResults()
    results.drafter, results.target = drafter.name_or_path, target.name_or_path
    results.target_revision = drafter.config.target_revision
    results.environment = environment()
    results.settings = {
        "dtype": str(target.dtype).removeprefix("torch."),
        "device": target.device.type,
        "max_new_tokens": max_new_tokens,
        "top_p": top_p,
        "seed": seed,
        **({"command": command} if command else {}),
    }
    store, own_policy = RecordStore(folder), dict(drafter.policy)
    deadline = None if max_minutes is None else time.monotonic() + 60 * max_minutes
    modes = thinking if isinstance(thinking, Sequence) else [thinking]
    identity = {"drafter": weights_digest(drafter), "target": weights_digest(target), **results.settings}
    identity.pop("command", None)
    chosen_policies = [
        {"name": policy} if isinstance(policy, str) else dict(policy)
        for policy in (policies if policies is not None else [own_policy])
    ]
    asked = []
    for mode in modes:
        renderer = Renderer(tokenizer, thinking=mode)
        longer = [lengthen(item, size, renderer) for size in context_tokens for item in loaded]
        asked.append((mode, renderer, [*loaded, *longer]))
    cells = [
        (policy, mode, renderer, temperature, suite)
        for policy in chosen_policies
        for mode, renderer, members in asked
        for temperature in temperatures
        for suite in members
    ]
    try:
        for number, (policy, mode, renderer, temperature, suite) in enumerate(cells):
            drafter.set_policy(**policy)
            sampling = Sampling(temperature, top_p, max_new_tokens, seed)
            run = run_key(**identity, policy=policy, mode=mode, temperature=temperature, plain=with_plain)
            until = _share(deadline, len(cells) - number)
            records = _run(target, renderer, drafter, suite, sampling, store, run, with_plain, until, progress)
            if records:
                empty = SuiteResult(suite.name, suite.domain, temperature, mode, policy_name(policy))
                results.add(summarise(empty, records))
            if folder is not None:
                results.save(folder)
    finally:
        drafter.set_policy(**own_policy)
    return results


def compare(
    target: Any, tokenizer: Any, drafters: Mapping[str, Any], suites: Sequence[str | Suite], **options: Any
) -> Comparison:
    """
    Several drafters on the same prompts, side by side.

    Args:
        drafters (`Mapping[str, DSparkDrafter]`): by the name that the table shows.
        options: as for [`evaluate`]; `folder` gets one folder per drafter.

    Raises:
        ValueError: no drafter.
    """
    if not drafters:
        raise ValueError("give at least one drafter to compare")
    folder = options.pop("folder", None)
    prompts, prompts_folder = options.pop("prompts", None), options.pop("prompts_folder", None)
    loaded = [_loaded(suite, prompts, prompts_folder) for suite in suites]
    measured = {
        name: evaluate(
            target, tokenizer, drafter, loaded, folder=None if folder is None else Path(folder) / name, **options
        )
        for name, drafter in drafters.items()
    }
    return Comparison(measured)


def policy_name(policy: Mapping[str, Any]) -> str:
    """`{"name": "threshold", "threshold": 0.8}` -> `"threshold 0.8"`."""
    knobs = [
        f"{value:g}" if isinstance(value, float) else str(value) for key, value in policy.items() if key != "name"
    ]
    return " ".join([policy["name"], *knobs])


@torch.no_grad()
def weights_digest(model: Any) -> str:
    """A digest that changes when weights do: each parameter's sum and largest value, cheap beside one forward."""
    numbers = [(name, float(p.double().sum()), float(p.abs().max())) for name, p in model.named_parameters()]
    return run_key(numbers=numbers)


def _loaded(suite: str | Suite, prompts: int | None, prompts_folder: str | Path | None) -> Suite:
    if isinstance(suite, str):
        return load_suite(suite, limit=prompts, prompts_folder=prompts_folder)
    return suite if prompts is None else Suite(suite.name, suite.domain, suite.conversations[:prompts])


def _share(deadline: float | None, runs: int) -> float | None:
    """When the next of `runs` must end, so that each gets as much of the time left."""
    now = time.monotonic()
    return None if deadline is None else min(deadline, now + (deadline - now) / runs)


def _run(
    target: Any,
    renderer: Renderer,
    drafter: Any,
    suite: Suite,
    sampling: Sampling,
    store: RecordStore,
    run: str,
    with_plain: bool,
    deadline: float | None,
    progress: bool,
) -> list[list[TurnRecord]]:
    collected: list[list[TurnRecord]] = []
    warm = False
    title = f"{suite.name}, T={sampling.temperature:g}, {drafter.policy['name']}"
    for number, conversation in enumerate(tqdm(suite.conversations, desc=title, disable=not progress, leave=False)):
        turns = store.get(run, f"{suite.name}/{conversation.id}")
        if turns is None:
            if deadline is not None and time.monotonic() > deadline:
                logger.warning(f"{title}: stopped by the clock after {number} of {len(suite.conversations)} prompts")
                break
            room = target.config.get_text_config().max_position_embeddings - sampling.max_new_tokens
            options = {"with_plain": with_plain, "plain_first": number % 2 == 1, "max_prompt_tokens": room}
            if not warm:  # the first call pays for caches and allocations that later ones find ready
                short = Sampling(sampling.temperature, sampling.top_p, min(sampling.max_new_tokens, 8), sampling.seed)
                answer(target, renderer, drafter, conversation, short, **options)
                warm = True
            turns = answer(target, renderer, drafter, conversation, sampling, **options)
            store.put(run, f"{suite.name}/{conversation.id}", turns)
        collected.append(turns)
    kept = [turns for turns in collected if turns]
    if len(kept) < len(collected):
        logger.warning(
            f"{title}: {len(collected) - len(kept)} prompts are longer than the target reads and were left out"
        )
    return kept


__all__ = ["Suite", "compare", "evaluate", "load_suite", "policy_name", "weights_digest"]

"""
Collects calibration records from real rollouts: whole answers, decoded by the same loop that users run, every block verified whole.

Knows prompts as token ids. Does not fit anything, and knows no chat template.
"""

# N rounds, K slots

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers.utils import logging

from dspark_hf.calibration import RolloutRecords, quantization_name, regime_key
from dspark_hf.generation.dispatch import generate
from dspark_hf.generation.stats import RoundRecord, recording


if TYPE_CHECKING:
    from transformers import PreTrainedModel


logger = logging.get_logger(__name__)


@torch.no_grad()
def collect_rollouts(
    target: PreTrainedModel,
    drafter: Any,
    prompts: Sequence[Sequence[int]],
    *,
    temperature: float = 0.0,
    top_p: float = 1.0,
    thinking: bool | None = None,
    max_new_tokens: int = 1024,
    max_rounds: int | None = None,
    batch_size: int = 8,
    seed: int = 0,
    progress: bool = True,
) -> RolloutRecords:
    """
    Decodes every prompt to its end and records each round whose whole block was verified.

    Rounds that the end of the text or the length limit cut are left out: what would have followed is no text of the target.

    Args:
        target (`PreTrainedModel`), drafter (`DSparkDrafter`): on one device; the drafter's policy is `full` meanwhile.
        prompts (`Sequence[Sequence[int]]`): token ids, chat template applied.
        temperature, top_p, thinking: the sampling regime; temperature 0 is greedy. `thinking` only names the regime.
        max_new_tokens (`int`, *optional*, defaults to 1024): a limit that most answers should not meet.
        max_rounds (`int`, *optional*): stop after the batch that reaches it.
        batch_size (`int`, *optional*, defaults to 8): prompts decoded together.
        seed (`int`, *optional*, defaults to 0): of sampling; the global generators are left as they were.

    Returns:
        `RolloutRecords`: `prompt` is the index into `prompts`.

    Raises:
        ValueError: no prompt, or no round was recorded.
    """
    if not prompts:
        raise ValueError("calibration needs at least one prompt, got none")
    options: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "do_sample": temperature > 0,
        "top_k": None,
        "top_p": None,
    }
    options |= {"temperature": temperature, "top_p": top_p, "top_k": 0} if temperature > 0 else {"temperature": None}
    rows: list[tuple[int, RoundRecord]] = []
    truncated = 0
    num_slots = drafter.config.num_slots
    policy = dict(drafter.policy)
    drafter.set_policy("full")
    # Prompts of like length share a batch, so that little of it is padding.
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    devices = [target.device] if target.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            for batch in tqdm(batches, desc="rollouts", disable=not progress):
                heard: list[RoundRecord] = []
                inputs = padded_prompts(target, [prompts[index] for index in batch])
                with recording(heard.append):
                    output = generate(target, drafter, **inputs, **options)
                counts = new_tokens_by_row(target, output[:, inputs["input_ids"].shape[1] :])
                rows += [(batch[record.row], record) for record in heard if _is_whole(record, counts, num_slots)]
                truncated += sum(count >= max_new_tokens for count in counts)
                if max_rounds is not None and len(rows) >= max_rounds:
                    break
    finally:
        drafter.set_policy(**policy)
    if not rows:
        raise ValueError(
            f"no round verified a whole block of {num_slots} tokens; raise max_new_tokens (now {max_new_tokens})"
        )
    if truncated > len(prompts) // 10:
        logger.warning(
            f"{truncated} answers met max_new_tokens={max_new_tokens}; calibration wants whole answers, raise it"
        )
    regime = regime_key(
        temperature=temperature, top_p=top_p, thinking=thinking, quantization=quantization_name(target.config)
    )
    return _as_records(rows, regime, num_slots)


def padded_prompts(target: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
    """Prompts of one batch, padded on the left."""
    width = max(len(prompt) for prompt in prompts)
    pad = target.generation_config.pad_token_id or 0
    ids = torch.full((len(prompts), width), pad, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    return {"input_ids": ids.to(target.device), "attention_mask": mask.to(target.device)}


def new_tokens_by_row(target: PreTrainedModel, output_RN: torch.Tensor) -> list[int]:
    """Generated tokens of each row, its end token included and the padding behind it not."""
    ends = target.generation_config.eos_token_id
    if ends is None:
        return [output_RN.shape[1]] * len(output_RN)
    ended_RN = torch.isin(output_RN, torch.as_tensor(ends, device=output_RN.device))
    before_RN = ended_RN.cumsum(1) - ended_RN.long()
    return (before_RN == 0).sum(1).tolist()


def _is_whole(record: RoundRecord, new_tokens: Sequence[int], num_slots: int) -> bool:
    """Every slot was verified, and all that the round committed is part of the text."""
    return record.verified == num_slots and record.position + record.accepted + 1 <= new_tokens[record.row]


def _as_records(rows: list[tuple[int, RoundRecord]], regime: str, num_slots: int) -> RolloutRecords:
    unknown = [float("nan")] * num_slots
    records = [record for _, record in rows]
    return RolloutRecords(
        regime=regime,
        prompt=np.array([prompt for prompt, _ in rows], dtype=np.int64),
        confidence_logits=np.array([record.confidence_logits or unknown for record in records], dtype=np.float32),
        tokens=np.array([record.tokens for record in records], dtype=np.int64),
        accepted_count=np.array([record.accepted for record in records], dtype=np.int64),
        margins=np.array([record.margins for record in records], dtype=np.float32),
        overlap=np.array([record.acceptance or unknown for record in records], dtype=np.float32),
    )

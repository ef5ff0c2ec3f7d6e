"""Does this drafter fit this target? Sizes, vocabulary, layers, layout, shared tensors, and a small acceptance test.

Every finding is one plain sentence with what to do about it. Nothing is changed, nothing is sent. The acceptance test asks
of the target's own greedy text how much of it the drafter would have guessed; it needs no decode loop.
"""

# B rows, S tokens, F features, V vocabulary

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dspark_hf.models import DSparkConfig, DSparkDrafter
from dspark_hf.models.checkpoint_dspark import LENDABLE, check_target, lent_tensor

from .mask_token import check_mask_token_id


# accepted tokens a round below which a drafter cannot pay for itself; 1.0 is the target alone
TOO_FEW = 1.15
# below this the configurations that are mixed up most are tried on the same weights
WEAK = 2.0
TEXT_TOKENS = 48
ANCHOR_STEP = 4
PROMPTS = (
    "Explain in two sentences why the sky is blue.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "A train travels 180 km in 2.5 hours. What is its average speed?",
    "Translate into French: The library opens at nine in the morning.",
    "List three differences between a list and a tuple in Python.",
    "Summarise the plot of Romeo and Juliet in three sentences.",
    "What is 17 times 24? Show the steps.",
    "Write a short, polite e-mail that moves a meeting from Monday to Tuesday.",
)


@dataclass(frozen=True)
class Finding:
    """One result: `level` is `"ok"`, `"note"`, `"doubt"` or `"problem"`; `about` names the part; `text` is one sentence."""

    level: str
    about: str
    text: str


@dataclass
class CheckReport:
    """
    What [`check_pair`] found.

    Attributes:
        findings (`list[Finding]`): in the order they were looked at.
        accepted_length (`float`, *optional*): tokens per round on the self-test, bonus token included; `None` if not run.
        rounds (`int`): rounds the self-test counted.
    """

    findings: list[Finding] = field(default_factory=list)
    accepted_length: float | None = None
    rounds: int = 0

    @property
    def fits(self) -> bool:
        """Whether nothing is wrong; notes and doubts do not count."""
        return all(finding.level != "problem" for finding in self.findings)

    def add(self, level: str, about: str, text: str) -> None:
        self.findings.append(Finding(level, about, text))


def check_pair(
    target: PreTrainedModel,
    drafter: DSparkDrafter | str | Path,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    prompts: Sequence[str] = PROMPTS,
    self_test: bool = True,
) -> CheckReport:
    """
    Compares a drafter with the target it is to draft for.

    Args:
        target (`PreTrainedModel`): a causal language model.
        drafter ([`DSparkDrafter`], `str` or `Path`): a drafter, or the folder or repository it is loaded from; it may borrow
            embedding and head from `target`.
        tokenizer (`PreTrainedTokenizerBase`, *optional*): the target's; without one the self-test starts from random tokens.
        prompts (sequence of `str`): of the self-test.
        self_test (`bool`): whether to generate with the target.

    Raises:
        ValueError, OSError: the drafter cannot be opened at all; see [`~DSparkDrafter.from_pretrained`].
    """
    report = CheckReport()
    if isinstance(drafter, DSparkDrafter):
        opened, config = drafter, drafter.config
    else:
        opened, config = None, DSparkConfig.from_pretrained(drafter)
    _check_sizes(report, target, config)
    if not report.fits:
        report.add("note", "self-test", "skipped, because the sizes do not fit")
        return report
    if opened is None:
        opened = DSparkDrafter.from_pretrained(drafter, target=target, dtype=target.dtype).to(target.device)
    _check_origin(report, target, opened, tokenizer)
    _check_layout(report, opened, tokenizer)
    for name in LENDABLE:
        _check_shared(report, target, opened, name)
    if self_test:
        _check_acceptance(report, target, opened, tokenizer, prompts)
    return report


def _check_sizes(report: CheckReport, target: PreTrainedModel, config: DSparkConfig) -> None:
    try:
        check_target(config, target)
    except ValueError as error:
        report.add("problem", "sizes", str(error))
        return
    report.add(
        "ok", "sizes", f"hidden size {config.target_hidden_size}, vocabulary {config.vocab_size} and "
        f"{config.num_target_layers} layers are the target's"
    )  # fmt: skip
    report.add(
        "ok", "layers", f"reads the outputs of layers {', '.join(map(str, config.target_layer_ids))}, as trained"
    )
    if config.draft_vocab_size is not None:
        report.add("note", "vocabulary", f"proposes only {config.draft_vocab_size} of {config.vocab_size} tokens")


def _check_origin(report: CheckReport, target: Any, drafter: DSparkDrafter, tokenizer: Any) -> None:
    trained_for, here = drafter.config.target_name_or_path, target.config.name_or_path
    chats = None if tokenizer is None else tokenizer.chat_template is not None
    if trained_for and here:
        same = trained_for.rstrip("/").split("/")[-1] == here.rstrip("/").split("/")[-1]
        report.add(
            "ok" if same else "doubt", "target", f"trained for {trained_for}, checked with {here}"
            + ("" if same else ": a base and an instruct model, or a fine-tune, differ enough to lose most of the gain")
        )  # fmt: skip
    else:
        report.add("note", "target", "the drafter does not say which target it was trained for")
    if chats is False:
        report.add(
            "doubt", "target", "this target's tokenizer has no chat template, so it is a base model; drafters are "
            "usually trained on an instruct model's answers"
        )  # fmt: skip
    if chats:
        thinking = drafter.config.target_thinking
        if thinking is not None:
            report.add(
                "note", "thinking", f"trained with thinking mode {'on' if thinking else 'off'}; use it the same way"
            )
    method = _quantisation(target)
    if method:
        report.add(
            "doubt", "quantisation", f"the target is quantised ({method}): its hidden states differ from those the drafter "
            "was trained on; compare the accepted length below with the drafter's card"
        )  # fmt: skip


def _quantisation(target: PreTrainedModel) -> str | None:
    stored = target.config.to_dict().get("quantization_config")
    if stored:
        return str(stored.get("quant_method", "quantization_config"))
    kinds = {
        str(weight.dtype).removeprefix("torch.") for weight in target.parameters() if not weight.is_floating_point()
    }
    low = {str(weight.dtype).removeprefix("torch.") for weight in target.parameters() if weight.element_size() < 2}
    return ", ".join(sorted(kinds | low)) or None


def _check_layout(report: CheckReport, drafter: DSparkDrafter, tokenizer: Any) -> None:
    config = drafter.config
    rows = "its anchor row predicts" if config.sample_from_anchor else "its anchor row is input only"
    report.add("ok", "layout", f"block of {config.block_size} rows, {config.num_slots} slots: {rows}")
    if config.confidence_head_with_markov or config.enable_confidence_head:
        known = ", ".join(sorted(config.confidence_calibration or {}))
        text = f"calibrated for {known}" if known else "not calibrated; policies that use confidence run on raw values"
        report.add("ok" if known else "note", "confidence", text)
    if tokenizer is not None:
        doubt = check_mask_token_id(tokenizer, config.vocab_size, config.mask_token_id)
        report.add("doubt" if doubt else "ok", "mask token", doubt or f"id {config.mask_token_id} is used by no text")


def _check_shared(report: CheckReport, target: PreTrainedModel, drafter: Any, name: str) -> None:
    about = {"embed_tokens.weight": "embedding", "lm_head.weight": "head"}[name]
    own, lent = drafter.get_submodule(name.rsplit(".", 1)[0]).weight, lent_tensor(target, name)
    if lent is None:
        report.add("note", about, f"the target's {about} is not in floats, so it cannot be compared or shared")
        return
    if name == "lm_head.weight" and drafter.config.draft_vocab_size is not None:
        lent = lent[drafter.draft_to_target().to(lent.device)]
    if own.shape != lent.shape:
        report.add("problem", about, f"is {list(own.shape)}, the target's is {list(lent.shape)}")
        return
    own, lent = own.detach().float(), lent.detach().to(own.device).float()
    off = float((own - lent).norm() / lent.norm().clamp_min(1e-30))
    # a Gemma drafter may hold its embedding already multiplied by the target's scale
    scale = float((own * lent).sum() / lent.square().sum().clamp_min(1e-30))
    scaled_off = float((own - scale * lent).norm() / own.norm().clamp_min(1e-30))
    if off == 0:
        report.add("ok", about, "equal to the target's; drafter.tie_to(target) holds it once")
    elif off < 4e-3:
        report.add(
            "ok",
            about,
            f"the target's up to rounding (relative difference {off:.1e}); load both in one dtype to share it",
        )
    elif scaled_off < 4e-3:
        report.add("ok", about, f"the target's, multiplied by {scale:.4g}")
    else:
        report.add(
            "doubt", about, f"differs from the target's by {off:.1%}: the drafter was trained for another checkpoint (base "
            "instead of instruct, a fine-tune, or other weights)"
        )  # fmt: skip


def _check_acceptance(report: CheckReport, target: Any, drafter: Any, tokenizer: Any, prompts: Sequence[str]) -> None:
    texts = [
        _greedy_text(target, _prompt_ids(target, tokenizer, prompt, index)) for index, prompt in enumerate(prompts)
    ]
    report.accepted_length, report.rounds = _accepted_length(target, drafter, texts)
    start = "random tokens, as there is no tokenizer" if tokenizer is None else f"{len(prompts)} prompts"
    text = f"{report.accepted_length:.2f} tokens a round over {report.rounds} rounds ({start}, greedy)"
    if report.accepted_length >= TOO_FEW:
        report.add("ok", "self-test", text)
    else:
        report.add("problem", "self-test", f"{text}: hardly any drafted token is accepted")
    if report.accepted_length >= WEAK:
        return
    for change, twin in _other_readings(drafter):
        length, _ = _accepted_length(target, twin, texts)
        if length > report.accepted_length + 0.25:
            report.add(
                "problem", "layout", f"with {change} it would be {length:.2f}: the configuration is wrong there"
            )


def _other_readings(drafter: Any) -> list[tuple[str, Any]]:
    """The same weights under the configurations that are mixed up most: the layout flag, layer ids off by one."""
    config = drafter.config
    changes: list[dict[str, Any]] = []
    if config.block_size > 1:
        changes.append({"sample_from_anchor": not config.sample_from_anchor})
    for step in (-1, 1):
        moved = [layer + step for layer in config.target_layer_ids]
        if min(moved) >= -1 and max(moved) < config.num_target_layers - 1:
            changes.append({"target_layer_ids": moved})
    twins = []
    for change in changes:
        twin = copy.copy(drafter)
        twin.config = copy.deepcopy(config)
        for name, value in change.items():
            setattr(twin.config, name, value)
        twins.append((", ".join(f"{name}={value}" for name, value in change.items()), twin))
    return twins


def _prompt_ids(target: Any, tokenizer: Any, prompt: str, index: int) -> torch.Tensor:
    if tokenizer is None:
        vocabulary = target.config.get_text_config().vocab_size
        ids_BS = torch.randint(0, vocabulary, (1, 12), generator=torch.Generator().manual_seed(index))
    elif tokenizer.chat_template is None:
        ids_BS = tokenizer(prompt, return_tensors="pt")["input_ids"]
    else:
        turns = [{"role": "user", "content": prompt}]
        encoded = tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        ids_BS = encoded["input_ids"]
    return ids_BS.to(target.device)


@torch.no_grad()
def _greedy_text(target: Any, prompt_BS: torch.Tensor) -> tuple[torch.Tensor, int]:
    """`([1, S] ids of prompt and answer, length of the prompt)`."""
    ids_BS = target.generate(
        prompt_BS,
        attention_mask=torch.ones_like(prompt_BS),
        max_new_tokens=TEXT_TOKENS,
        do_sample=False,
        pad_token_id=target.generation_config.pad_token_id or 0,
    )
    return ids_BS, prompt_BS.shape[1]


@torch.no_grad()
def _accepted_length(target: Any, drafter: Any, texts: list[tuple[torch.Tensor, int]]) -> tuple[float, int]:
    """Mean tokens per round, bonus included, over anchors in the answers that leave room for a whole block."""
    total, rounds = 0, 0
    slots = drafter.config.num_slots
    for ids_BS, prompt in texts:
        states = target(ids_BS, output_hidden_states=True).hidden_states
        context_BSF = torch.cat([states[layer + 1] for layer in drafter.config.target_layer_ids], dim=-1)
        for anchor in range(prompt, ids_BS.shape[1] - slots, ANCHOR_STEP):
            block = drafter.draft_block(ids_BS[:, anchor].to(drafter.device), context_BSF[:, :anchor])
            right = block.tokens[0].cpu() == ids_BS[0, anchor + 1 : anchor + 1 + slots].cpu()
            total += int(right.long().cumprod(0).sum()) + 1
            rounds += 1
    return (total / rounds if rounds else 0.0), rounds

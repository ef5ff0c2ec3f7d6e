"""The target answers prompts in this process, many at a time, so that a killed run goes on and ends with the same rows.

A batch of conversations is the unit of work: it is seeded by its own number and redone as a whole if any of its rows is missing,
because what a sampled row looks like depends on its neighbours. Rows are flushed every half minute.

It knows nothing of files other than the row store, of features or of training.
"""

# B rows, L tokens

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.utils.logging import get_logger

from dspark_hf.generation.dispatch import CACHE_KEYWORD
from dspark_hf.generation.growing import growing_cache

from .data import Conversation
from .rendering import Renderer, RenderingError
from .rows import Row, RowReport, RowStore


logger = get_logger(__name__)

Progress = Callable[[int, int], None]
FLUSH_SECONDS = 30.0
SORT_BATCHES = (
    8  # prompts of so many batches are sorted by length together: little padding, no bias under a time limit
)


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn. Temperature 0 is greedy; `top_k` 0 and `top_p` 1 are off.

    Attributes:
        max_prompt_tokens: longer prompts are skipped and counted.
        max_new_tokens: an answer that reaches it is marked `"length"` and has no end of turn.
        seed: of all draws.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_prompt_tokens: int = 1024
    max_new_tokens: int = 2048
    seed: int = 0

    def to_json(self) -> str:
        return json.dumps({"max_new_tokens": self.max_new_tokens, **self.knobs()}, sort_keys=True)

    def knobs(self) -> dict[str, float | int]:
        return {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}

    def generation_config(self, end_ids: Sequence[int], pad_id: int) -> GenerationConfig:
        """Explicit in everything, so that defaults a target ships do not leak in."""
        drawn = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        return GenerationConfig(
            max_new_tokens=self.max_new_tokens,
            do_sample=self.temperature > 0,
            eos_token_id=list(end_ids) or None,
            pad_token_id=pad_id,
            **(drawn if self.temperature > 0 else {}),
        )


@dataclass
class Dialogue:
    """A conversation while it is being answered: its history so far and the rows it gave."""

    conversation: Conversation
    history: list[dict[str, str]]
    rows: list[Row]
    alive: bool = True


def open_dialogue(conversation: Conversation) -> Dialogue:
    return Dialogue(conversation=conversation, history=conversation.system, rows=[])


def ask_turn(
    dialogue: Dialogue, turn: int, renderer: Renderer, sampling: Sampling, report: RowReport
) -> list[int] | None:
    """Append the next user turn and return the prompt's ids, or `None` (and stop the dialogue) if it cannot be asked."""
    turns = dialogue.conversation.user_turns
    if not dialogue.alive or turn >= len(turns):
        return None
    dialogue.history.append({"role": "user", "content": turns[turn]})
    try:
        prompt = renderer.prompt_ids(dialogue.history)
    except RenderingError as error:
        dialogue.alive = False
        report.skip(str(error))
        return None
    if len(prompt) > sampling.max_prompt_tokens or not prompt:
        dialogue.alive = False
        report.skip(f"prompt longer than {sampling.max_prompt_tokens} tokens" if prompt else "empty prompt")
        return None
    return prompt


def record_answer(
    dialogue: Dialogue,
    turn: int,
    prompt: list[int],
    completion: list[int],
    *,
    finish_reason: str,
    renderer: Renderer,
    sampling: Sampling,
    generator: str,
    token_exact: bool = True,
) -> None:
    """Store the answer as a row and put it into the history, as a user would send it back."""
    dialogue.rows.append(
        Row(
            id=f"{dialogue.conversation.id}#{turn}",
            prompt_ids=prompt,
            completion_ids=completion,
            finish_reason=finish_reason,
            generator=generator,
            sampling=sampling.to_json(),
            template_hash=renderer.template_hash,
            thinking=renderer.thinking,
            token_exact=token_exact,
        )
    )
    text = renderer.tokenizer.decode(completion, skip_special_tokens=True)
    dialogue.history.append(renderer.answer_message(renderer.prompt_text(dialogue.history), text))


def cut_at_end(ids: Sequence[int], end_ids: Sequence[int]) -> tuple[list[int], str]:
    """Generated ids up to and with the first token that ends the turn, and the finish reason."""
    ends = set(end_ids)
    for index, token in enumerate(ids):
        if token in ends:
            return list(ids[: index + 1]), "stop"
    return list(ids), "length"


def answer_in_process(
    target: PreTrainedModel,
    renderer: Renderer,
    conversations: Sequence[Conversation],
    store: RowStore,
    *,
    sampling: Sampling,
    generator: str,
    batch_size: int = 32,
    drafter: PreTrainedModel | None = None,
    max_minutes: float | None = None,
    progress: Progress | None = None,
    report: RowReport | None = None,
) -> RowReport:
    """Let the target answer every conversation, turn by turn.

    Args:
        target (`PreTrainedModel`): answers with its own `generate`.
        renderer ([`Renderer`]), conversations, store ([`RowStore`]): what is asked and where answers go.
        sampling ([`Sampling`]): how answers are drawn.
        generator (`str`): name of the target, written to every row.
        batch_size (`int`): conversations at once.
        drafter ([`DSparkDrafter`], *optional*): makes it faster; the answers have the same distribution.
        max_minutes (`float`, *optional*): stop after the batch in which this is passed.
        progress (callable, *optional*): called with (conversations done, conversations).
        report ([`RowReport`], *optional*): counts rows and reasons.

    Returns:
        [`RowReport`]
    """
    report = RowReport() if report is None else report
    stored = store.ids()
    started = flushed = time.monotonic()
    waiting: list[Row] = []
    done = 0
    for number, batch in enumerate(plan_batches(conversations, renderer, batch_size)):
        dialogues = [open_dialogue(conversation) for conversation in batch]
        if not _is_stored(dialogues, renderer, sampling, stored, report):
            _answer_batch(target, renderer, dialogues, sampling, generator, drafter, number, report)
            waiting += [row for dialogue in dialogues for row in dialogue.rows]
        done += len(batch)
        now = time.monotonic()
        if now - flushed > FLUSH_SECONDS:
            store.append(waiting)
            waiting, flushed = [], now
        if progress is not None:
            progress(done, len(conversations))
        if max_minutes is not None and now - started > 60 * max_minutes:
            logger.warning(
                f"Stopped answering after {max_minutes} minutes: {done} of {len(conversations)} conversations."
            )
            break
    store.append(waiting)
    report.kept = len(store.ids())
    return report


def plan_batches(
    conversations: Sequence[Conversation], renderer: Renderer, batch_size: int
) -> Iterator[list[Conversation]]:
    """Batches in an order that depends on the ids alone; as many turns and similar lengths share a batch."""
    shuffled = sorted(conversations, key=lambda item: hashlib.sha256(item.id.encode()).digest())
    span = batch_size * SORT_BATCHES
    for start in range(0, len(shuffled), span):
        # a second turn costs as many steps for one row as for all, so those who ask one sit together
        group = sorted(
            shuffled[start : start + span],
            key=lambda item: (len(item.user_turns), sum(map(len, item.user_turns)), item.id),
        )
        for first in range(0, len(group), batch_size):
            yield group[first : first + batch_size]


def _is_stored(
    dialogues: list[Dialogue], renderer: Renderer, sampling: Sampling, stored: set[str], report: RowReport
) -> bool:
    """Whether every conversation that can be asked has its first row; a batch's rows are written together.

    Those that cannot be asked are counted in `report` if nothing else of the batch is left to do.
    """
    refused = RowReport()
    missing = [dialogue for dialogue in dialogues if f"{dialogue.conversation.id}#0" not in stored]
    if any(ask_turn(open_dialogue(each.conversation), 0, renderer, sampling, refused) for each in missing):
        return False
    for reason, count in refused.skipped.items():
        report.skipped[reason] = report.skipped.get(reason, 0) + count
    return True


def _answer_batch(target, renderer, dialogues, sampling, generator, drafter, number, report) -> None:
    end_ids = sorted(renderer.end_ids)
    for turn in range(max(len(dialogue.conversation.user_turns) for dialogue in dialogues)):
        prompts = [ask_turn(dialogue, turn, renderer, sampling, report) for dialogue in dialogues]
        pairs = zip(dialogues, prompts, strict=True)
        asked = [(dialogue, prompt) for dialogue, prompt in pairs if prompt is not None]
        if not asked:
            return
        answers = _generate(
            target, [prompt for _, prompt in asked], renderer, sampling, drafter, seed=(sampling.seed, number, turn)
        )
        for (dialogue, prompt), ids in zip(asked, answers, strict=True):
            completion, finish_reason = cut_at_end(ids, end_ids)
            record_answer(
                dialogue,
                turn,
                prompt,
                completion,
                finish_reason=finish_reason,
                renderer=renderer,
                sampling=sampling,
                generator=generator,
            )


@torch.no_grad()
def _generate(target, prompts, renderer, sampling, drafter, *, seed) -> list[list[int]]:
    """New token ids of each prompt, padding after the end included."""
    tokenizer = renderer.tokenizer
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else next(iter(renderer.end_ids), 0)
    longest = max(map(len, prompts))
    ids_BL = torch.tensor([[pad_id] * (longest - len(prompt)) + prompt for prompt in prompts], device=target.device)
    mask_BL = torch.tensor(
        [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=target.device
    )
    config = sampling.generation_config(sorted(renderer.end_ids), pad_id)
    extra = {} if drafter is None else {"assistant_model": drafter}
    cache = growing_cache(target.config.get_text_config()) if drafter is None else None
    if cache is not None:
        # a large batch's cache is slow to append to by copy
        extra[CACHE_KEYWORD] = cache
    with torch.random.fork_rng():
        torch.manual_seed(int.from_bytes(hashlib.sha256(repr(seed).encode()).digest()[:7], "little"))
        output_BL = target.generate(ids_BL, attention_mask=mask_BL, generation_config=config, **extra)
    return output_BL[:, longest:].tolist()

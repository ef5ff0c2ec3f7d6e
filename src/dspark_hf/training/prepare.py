"""From prompts to a folder of training rows: in process, by a server, or from answers that came with the data.

The folder remembers what it was made from (`plan.json`) and refuses to be continued with other settings; `prepared.json` says
that it is finished. It knows nothing of features, anchors or training.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import get_logger

from .answers import Progress, Sampling, answer_in_process
from .data import Conversation
from .recipe import DataSection
from .rendering import Renderer, RenderingError
from .rows import Row, RowReport, RowStore, fingerprint
from .server import CompletionServer, answer_by_server


logger = get_logger(__name__)

# The sampling knobs that also hold for answers that came with the data.
LIMITS = ("max_prompt_tokens", "max_new_tokens")


def sampling_of(data: DataSection) -> Sampling:
    """The recipe's sampling knobs."""
    return Sampling(
        temperature=data.temperature,
        top_p=data.top_p,
        top_k=data.top_k,
        max_prompt_tokens=data.max_prompt_tokens,
        max_new_tokens=data.max_new_tokens,
        seed=data.seed,
    )


def end_token_ids(target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens at which the target's own `generate` ends a turn, and the tokenizer's end token."""
    configured = target.generation_config.eos_token_id
    ids = list(configured) if isinstance(configured, (list, tuple)) else [configured]
    ids.append(tokenizer.eos_token_id)
    return sorted({token for token in ids if token is not None})


def prepare_rows(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    conversations: Sequence[Conversation],
    folder: str | Path,
    *,
    data: DataSection,
    target_name: str,
    generator: str | None = None,
    drafter: PreTrainedModel | None = None,
    progress: Progress | None = None,
    report: RowReport | None = None,
) -> list[Row]:
    """Make the training rows of a recipe, or go on where a killed run stopped.

    Args:
        target (`PreTrainedModel`), tokenizer: whose answers they are. With `data.server` only the configuration is read.
        conversations: the prompts, or with `data.ready_answers` the chats.
        folder (`str` or `Path`): of the parquet shards.
        data ([`DataSection`]): sampling, batch size, server, thinking.
        target_name (`str`): `name@revision`, a folder or repo; rows of another target are refused.
        generator (`str`, *optional*): the name written to every row, which others will read. Default: `target_name`.
        drafter ([`DSparkDrafter`], *optional*): makes the answering faster.
        progress (callable, *optional*): called with (conversations done, conversations).
        report ([`RowReport`], *optional*): counts rows kept and skipped, by reason.

    Returns:
        `list[Row]`: all rows, sorted by id.

    Raises:
        ValueError: the folder was made with other settings, or no row came out (the reasons are counted in the message).
    """
    report = RowReport() if report is None else report
    store = RowStore(folder)
    renderer = Renderer(tokenizer, thinking=data.thinking, end_ids=end_token_ids(target, tokenizer))
    sampling = sampling_of(data)
    plan = {
        "target": target_name,
        "sampling": asdict(sampling) if not data.ready_answers else {name: asdict(sampling)[name] for name in LIMITS},
        "template_hash": renderer.template_hash,
        "thinking": data.thinking,
        "ready_answers": data.ready_answers,
        "conversations": _digest(conversations),
    }
    check_plan(store.folder / "plan.json", plan)
    finished = store.folder / "prepared.json"
    if finished.is_file():
        report.kept = len(store.ids())
        return store.read()
    answering: dict[str, Any] = {
        "sampling": sampling,
        "generator": generator or target_name,
        "max_minutes": data.max_minutes,
    }
    answering |= {"progress": progress, "report": report}
    if data.ready_answers:
        logger.warning(
            "Training on answers that came with the data (off-policy): accepted lengths are usually lower than with the "
            "target's own answers."
        )
        _store_ready(conversations, renderer, store, report, sampling)
    elif data.server is not None:
        server = CompletionServer(data.server, data.server_model or target_name.split("@")[0], retries=data.retries)
        answer_by_server(server, renderer, conversations, store, concurrency=data.concurrency, **answering)
    else:
        answer_in_process(
            target, renderer, conversations, store, batch_size=data.batch_size, drafter=drafter, **answering
        )
    rows = store.read()
    if not rows:
        template = f"template {renderer.template_hash}" if renderer.has_template else "no chat template"
        raise ValueError(
            f"Not one training row came out of {len(conversations)} conversations ({template}): {report.summary()}."
        )
    write_json(finished, {"rows": len(rows), "fingerprint": fingerprint(rows), "skipped": report.skipped})
    return rows


def check_plan(path: Path, plan: dict[str, Any]) -> None:
    """Write what a folder is made from, or compare with what is there.

    Raises:
        ValueError: names the first setting that differs.
    """
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, plan)
        return
    stored = json.loads(path.read_text(encoding="utf-8"))
    for key, value in plan.items():
        if stored.get(key) != value:
            raise ValueError(
                f"{path.parent} was made with {key}={stored.get(key)!r}, now {key}={value!r}. Use another folder, or delete "
                "this one to make it anew."
            )


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file whole or not at all."""
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(part, path)


def _store_ready(
    conversations: Sequence[Conversation], renderer: Renderer, store: RowStore, report: RowReport, limits: Sampling
) -> None:
    """One row an assistant turn, each with the history as inference will render it, within the limits of generated ones."""
    stored, rows = store.ids(), []
    for conversation in conversations:
        history: list[dict[str, str]] = []
        turn = 0
        for message in conversation.messages:
            if message["role"] == "assistant":
                try:
                    prompt, completion = renderer.ready_answer(history, dict(message))
                except RenderingError as error:
                    report.skip(str(error))
                    break
                if len(prompt) > limits.max_prompt_tokens:
                    report.skip(f"prompt longer than {limits.max_prompt_tokens} tokens")
                    break
                row = Row(
                    id=f"{conversation.id}#{turn}",
                    prompt_ids=prompt,
                    completion_ids=completion,
                    template_hash=renderer.template_hash,
                    thinking=renderer.thinking,
                )
                rows.append(row.cut(len(prompt) + limits.max_new_tokens))
                turn += 1
            history.append(dict(message))
        if not conversation.has_answers:
            report.skip("without an answer")
    store.append([row for row in rows if row.id not in stored])
    report.kept = len(store.ids())


def _digest(conversations: Sequence[Conversation]) -> str:
    contents = sorted(([item.id, [dict(message) for message in item.messages]] for item in conversations), key=str)
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()[:16]

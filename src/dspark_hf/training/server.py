"""The target answers prompts behind an OpenAI-compatible server (vLLM, SGLang, ...): several at once, with retries.

Prompts travel as token ids, so the server's own template plays no part. Answers come back as token ids where the server can
give them (`token_ids`, or logprob tokens named `token_id:N`); otherwise the text is encoded again and the row says so.

It knows nothing of models in this process, of features or of training.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from transformers.utils.logging import get_logger

from .answers import FLUSH_SECONDS, Progress, Sampling, ask_turn, cut_at_end, open_dialogue, record_answer
from .data import Conversation
from .rendering import Renderer
from .rows import Row, RowReport, RowStore


logger = get_logger(__name__)

RETRY_STATUS = (408, 409, 425, 429, 500, 502, 503, 504)


class ServerError(ConnectionError):
    """The server gave no answer, after all retries."""


@dataclass(frozen=True)
class Answer:
    """What the server returned for one prompt.

    Attributes:
        token_ids: of the answer, end of turn included where there is one.
        finish_reason: `"stop"` or `"length"`.
        token_exact: whether the ids are the server's own.
    """

    token_ids: list[int]
    finish_reason: str
    token_exact: bool


@dataclass(frozen=True)
class CompletionServer:
    """A `/completions` endpoint.

    Attributes:
        base_url: up to and with `/v1`.
        model: name the server knows the target by.
        api_key: sent as a bearer token if set.
        retries: tries after the first one; the waits double from `backoff` seconds, up to 30 s.
        timeout: seconds a request may take.
    """

    base_url: str
    model: str
    api_key: str | None = None
    retries: int = 5
    backoff: float = 0.5
    timeout: float = 600.0

    def complete(self, prompt_ids: Sequence[int], sampling: Sampling, renderer: Renderer, *, seed: int) -> Answer:
        """One answer.

        Raises:
            ServerError: no answer after all retries.
            ValueError: the server refused the request (its words are in the message).
        """
        payload = {
            "model": self.model,
            "prompt": list(prompt_ids),
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": seed,
            "return_token_ids": True,
            "skip_special_tokens": False,
        }
        if sampling.top_k:
            payload["top_k"] = sampling.top_k
        return self._answer(self._post(payload), renderer)

    def _post(self, payload: dict[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        url = self.base_url.rstrip("/") + "/completions"
        problem = ""
        for attempt in range(self.retries + 1):
            if attempt:
                time.sleep(min(self.backoff * 2 ** (attempt - 1), 30.0))
            request = urllib.request.Request(url, data=json.dumps(payload).encode(), headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=self.timeout) as response:
                    return json.loads(response.read())
            except urllib.error.HTTPError as error:
                problem = f"status {error.code}"
                if error.code not in RETRY_STATUS:
                    words = error.read().decode(errors="replace")[:300]
                    raise ValueError(f"{url} refused the request (status {error.code}): {words}") from error
            except (OSError, json.JSONDecodeError) as error:
                problem = str(error)
        raise ServerError(f"No answer from {url} after {self.retries + 1} tries; last problem: {problem}.")

    def _answer(self, body: dict[str, Any], renderer: Renderer) -> Answer:
        choices = body.get("choices")
        if not choices:
            raise ValueError(f"{self.base_url} returned no choices: {json.dumps(body)[:300]}")
        choice = choices[0]
        reported = "length" if choice.get("finish_reason") == "length" else "stop"
        end_ids = sorted(renderer.end_ids)
        ids = _exact_ids(choice)
        token_exact = ids is not None
        if ids is None:
            ids = list(renderer.tokenizer(choice.get("text") or "", add_special_tokens=False)["input_ids"])
        ids, found = cut_at_end(ids, end_ids)
        if reported == "stop" and found == "length" and end_ids:
            # engines that leave the end of turn out still say that the answer ended there
            ids.append(renderer.tokenizer.eos_token_id if renderer.tokenizer.eos_token_id in end_ids else end_ids[0])
        return Answer(token_ids=ids, finish_reason=reported, token_exact=token_exact)


def _exact_ids(choice: dict[str, Any]) -> list[int] | None:
    if choice.get("token_ids"):
        return [int(token) for token in choice["token_ids"]]
    tokens = (choice.get("logprobs") or {}).get("tokens") or []
    if tokens and all(isinstance(token, str) and token.startswith("token_id:") for token in tokens):
        return [int(token.removeprefix("token_id:")) for token in tokens]
    return None


def answer_by_server(
    server: CompletionServer,
    renderer: Renderer,
    conversations: Sequence[Conversation],
    store: RowStore,
    *,
    sampling: Sampling,
    generator: str,
    concurrency: int = 16,
    max_minutes: float | None = None,
    progress: Progress | None = None,
    report: RowReport | None = None,
) -> RowReport:
    """Let a server answer every conversation, turn by turn, `concurrency` conversations at once.

    The rows of a conversation are written together; a conversation with rows is not asked again. Arguments are those of
    `answers.answer_in_process`.

    Raises:
        ServerError: the server answered nothing at all.
        ValueError: it refused a request.
    """
    report = RowReport() if report is None else report
    stored = store.ids()
    open_ones = [item for item in conversations if f"{item.id}#0" not in stored]
    started = flushed = time.monotonic()
    waiting: list[Row] = []
    failures = 0
    with ThreadPoolExecutor(max_workers=concurrency) as pool:
        futures = {pool.submit(_converse, server, renderer, item, sampling, generator): item for item in open_ones}
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                try:
                    rows, skipped = future.result()
                    waiting += rows
                    for reason in skipped.skipped:
                        report.skip(reason)
                except ServerError as error:
                    failures += 1
                    report.skip("no answer from the server")
                    logger.warning(f"Conversation {futures[future].id}: {error}")
                    if failures == done and failures >= min(concurrency, len(open_ones)):
                        raise
                now = time.monotonic()
                if now - flushed > FLUSH_SECONDS:
                    store.append(waiting)
                    waiting, flushed = [], now
                if progress is not None:
                    progress(len(conversations) - len(open_ones) + done, len(conversations))
                if max_minutes is not None and now - started > 60 * max_minutes:
                    logger.warning(f"Stopped asking after {max_minutes} minutes.")
                    break
        finally:
            # whatever ended the loop, answers already paid for are kept
            pool.shutdown(wait=True, cancel_futures=True)
            store.append(waiting)
    rows = store.read()
    report.kept = len(rows)
    inexact = sum(not row.token_exact for row in rows)
    if inexact:
        logger.warning(
            f"{inexact} of {len(rows)} answers came back as text only and were encoded again; their tokens may differ from "
            "those generated. Use a server that returns token ids (vLLM: return_token_ids)."
        )
    return report


def _converse(server, renderer, conversation, sampling, generator) -> tuple[list[Row], RowReport]:
    dialogue, report = open_dialogue(conversation), RowReport()
    for turn in range(len(conversation.user_turns)):
        prompt = ask_turn(dialogue, turn, renderer, sampling, report)
        if prompt is None:
            break
        answer = server.complete(prompt, sampling, renderer, seed=sampling.seed + turn)
        record_answer(
            dialogue,
            turn,
            prompt,
            answer.token_ids,
            finish_reason=answer.finish_reason,
            renderer=renderer,
            sampling=sampling,
            generator=generator,
            token_exact=answer.token_exact,
        )
    return dialogue.rows, report

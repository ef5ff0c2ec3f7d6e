"""Collects what `generate` returns: tokens, and one entry per token of scores, logits, hidden states and attentions.

Rows may be at different lengths; a step is complete when every row has it or has ended. Ended rows hold the pad token and
zeros. Streamers see complete steps in order. Knows nothing of models or of drafting.
"""

# B rows of the call, Q positions, V vocabulary

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.generation import GenerateDecoderOnlyOutput

from .request import GenerationRequest
from .scores import RowScores


KINDS = ("scores", "logits", "hidden_states", "attentions")


@dataclass
class RowOutputs:
    """What one row has so far; `steps[kind][t]` belongs to its token t."""

    tokens: list[int] = field(default_factory=list)
    done: bool = False
    steps: dict[str, list[Any]] = field(default_factory=lambda: {kind: [] for kind in KINDS})


@dataclass
class RoundOutputs:
    """Per-position outputs of one forward, all rows: scores after and before the processors, and the model's own."""

    scores: RowScores
    logits_RQV: torch.Tensor | None
    model_output: Any
    spans: list[int] | None
    windows: list[int | None]
    prompt: bool


class Collector:
    """
    Args:
        request (`GenerationRequest`): one call; says what is wanted.
    """

    def __init__(self, request: GenerationRequest):
        self.request = request
        self.rows = [RowOutputs() for _ in range(len(request.input_ids_BL))]
        self.wanted = [kind for kind in KINDS if request.wants(kind)]
        self.streamed = 0

    def scores_of(self, origin: int, extra: list[torch.Tensor]) -> tuple[torch.Tensor, ...] | None:
        """All scores of a row so far and some newer ones, as stopping criteria get them."""
        if "scores" not in self.wanted:
            return None
        return (*self.rows[origin].steps["scores"], *extra)

    def add(self, origin: int, row: int, tokens: list[int], outputs: RoundOutputs, *, done: bool) -> None:
        """Adds a row's committed tokens; `row` is its index in the forward."""
        entry = self.rows[origin]
        entry.tokens.extend(tokens)
        entry.done = done
        for kind in self.wanted:
            for position in range(len(tokens)):
                entry.steps[kind].append(_one(kind, outputs, row, position))

    def truncate(self, tokens: int) -> None:
        """Drops what lies behind a number of tokens, in every row."""
        for entry in self.rows:
            del entry.tokens[tokens:]
            for kind in self.wanted:
                del entry.steps[kind][tokens:]

    def stream(self) -> None:
        """Hands complete steps to the streamer, one step at a time."""
        streamer = self.request.streamer
        if streamer is None:
            return
        while True:
            step = self.streamed
            if not all(entry.done or len(entry.tokens) > step for entry in self.rows):
                return
            if not any(len(entry.tokens) > step for entry in self.rows):
                return
            pad = self.request.pad_id
            streamer.put(
                torch.tensor([entry.tokens[step] if step < len(entry.tokens) else pad for entry in self.rows])
            )
            self.streamed += 1

    def result(self, cache: Any) -> GenerateDecoderOnlyOutput | torch.Tensor:
        """The whole output, padded to the longest row."""
        request = self.request
        if request.streamer is not None:
            request.streamer.end()
        steps = max(len(entry.tokens) for entry in self.rows)
        filled = [entry.tokens + [request.pad_id] * (steps - len(entry.tokens)) for entry in self.rows]
        new_ids_BT = torch.tensor(filled, dtype=torch.long, device=request.input_ids_BL.device)
        sequences = torch.cat([request.input_ids_BL, new_ids_BT], dim=1)
        if not request.config.return_dict_in_generate:
            return sequences
        collected = {kind: tuple(self._step(kind, step) for step in range(steps)) for kind in self.wanted}
        return GenerateDecoderOnlyOutput(sequences=sequences, **collected, **{request.cache_keyword: cache})

    def _step(self, kind: str, step: int) -> Any:
        entries = [entry.steps[kind][step] if step < len(entry.tokens) else None for entry in self.rows]
        like = next(entry for entry in entries if entry is not None)
        if isinstance(like, torch.Tensor):
            return _joined(entries, like)
        if not like:
            return like
        return tuple(
            _joined([None if entry is None else entry[layer] for entry in entries], like[layer])
            for layer in range(len(like))
        )


def _joined(parts: list[torch.Tensor | None], like: torch.Tensor | None) -> torch.Tensor | None:
    if like is None:
        return None
    if len(parts) == 1:
        return like
    return torch.cat([torch.zeros_like(like) if part is None else part for part in parts])


def _one(kind: str, outputs: RoundOutputs, row: int, position: int) -> Any:
    rows = slice(row, row + 1)
    if kind == "scores":
        return outputs.scores.padded_RQV[rows, position]
    if kind == "logits":
        assert outputs.logits_RQV is not None
        return outputs.logits_RQV[rows, position]
    layers = outputs.model_output[kind]
    if outputs.prompt:
        return tuple(layer if layer is None else layer[rows] for layer in layers)
    if kind == "hidden_states":
        return tuple(layer[rows, position : position + 1] for layer in layers)
    return tuple(
        None
        if layer is None
        else layer[rows, :, position : position + 1, _visible(outputs, index, row, position, layer)]
        for index, layer in enumerate(layers)
    )


def _visible(outputs: RoundOutputs, index: int, row: int, position: int, layer: torch.Tensor) -> slice:
    """Columns of a query that a plain decoding step would have returned."""
    if outputs.spans is None:
        return slice(None)
    window = outputs.windows[index] if index < len(outputs.windows) else None
    if layer.shape[0] == 1 and window is not None:
        # the cache holds a window, not all columns: count from its end
        end = layer.shape[-1] - layer.shape[-2] + position + 1
    else:
        end = outputs.spans[row] + position
    return slice(0 if window is None else max(0, end - window), end)

"""The target inside the decode loop: the prompt's forward, verification forwards, and what must be committed after them.

`Target` holds what one row and many rows share; `SingleRow` keeps the user's own cache class. Rows with write positions of
their own live in `batched.py`. Knows nothing of drafting, sampling or stopping.
"""

# R rows, L prompt columns, S tokens of one forward, Q tokens of one verification, V vocabulary, F features

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import DynamicSlidingWindowLayer, StaticLayer

from .context import DraftContext
from .memory import recall, remember
from .request import GenerationRequest
from .rollback import Rollback
from .rows import TokenRows
from .scores import RowScores


TOKEN_TYPES = ("token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids")
# of the prompt only; a verification makes its own
PROMPT_ONLY = ("attention_mask", "position_ids", "inputs_embeds", "output_hidden_states", *TOKEN_TYPES)


@dataclass
class TargetOutput:
    """
    Attributes:
        logits (`RowScores`): of the positions that were verified, fp32; the last one of a prompt.
        features_RSF: selected layers side by side, all S positions.
        model_output: of the target's forward, for outputs the user asked for.
    """

    logits: RowScores
    features_RSF: torch.Tensor
    model_output: Any


class Target(ABC):
    """
    Args:
        request (`GenerationRequest`): one call.
        origins (`list[int]`): rows of the request's batch that this object decodes.
        cache: the cache to fill.
    """

    # what a verification computes: "ragged" a row's own tokens only, "padded" as many as the longest row has
    layout = "ragged"

    def __init__(self, request: GenerationRequest, origins: list[int], cache: Any):
        self.request = request
        self.model: Any = request.target
        self.cache = cache
        self.layer_indices = [layer + 1 for layer in request.drafter.config.target_layer_ids]
        # the user's own wish for hidden states needs all of them
        self.selection: Any = True if request.config.output_hidden_states else self.layer_indices
        kwargs = _rows_of(request.model_kwargs, origins, len(request.input_ids_BL))
        kwargs.pop(request.cache_keyword, None)
        self.prompt_kwargs = kwargs
        self.step_kwargs = {key: value for key, value in kwargs.items() if key not in PROMPT_ONLY}
        self.mask_RL: torch.Tensor | None = kwargs.get("attention_mask")
        position_ids = kwargs.get("position_ids")
        # first position after the prompt, [..., R, 1]
        self.next_position = None if position_ids is None else position_ids[..., -1:] + 1
        self.last_types = {key: kwargs[key][..., -1:] for key in TOKEN_TYPES if kwargs.get(key) is not None}
        self.prompt_columns = 0
        static = [layer.max_cache_len for layer in cache.layers if type(layer) is StaticLayer]
        self.capacity = min(
            [*static, getattr(self.model.config.get_text_config(), "max_position_embeddings", 1 << 30)]
        )

    def prefill(self, input_ids_RL: torch.Tensor) -> TargetOutput:
        """Runs the prompt (what the cache does not hold of it)."""
        embeds = self.prompt_kwargs.get("inputs_embeds")
        total = (input_ids_RL if embeds is None else embeds).shape[1]
        past = self.cached_tokens()
        new = self._new_tokens(total, past, embeds is not None)
        chunk = self.request.config.prefill_chunk_size
        self.prompt_columns = past + new
        if chunk is not None and chunk < new:
            return self._prefill_in_chunks(input_ids_RL[:, -new:], past, chunk)
        sliced = {"next_sequence_length": new} if new != total else {}
        return self._read(self._forward(input_ids_RL, is_first_iteration=True, **self.prompt_kwargs, **sliced), 1)

    @abstractmethod
    def verify(self, rows: TokenRows, lengths: list[int]) -> TargetOutput:
        """Runs the last committed token of every row and `lengths[row]` drafted ones behind it."""

    def _run(self, rows: TokenRows, width: int) -> TargetOutput:
        tokens_RQ = rows.window(width)
        kwargs = dict(self.step_kwargs)
        if "logits_to_keep" in kwargs:
            kwargs["logits_to_keep"] = width
        for key, last in self.last_types.items():
            # text follows the prompt, whatever the prompt ended with
            last = torch.zeros_like(last) if key == "mm_token_type_ids" else last
            kwargs[key] = last.expand(*last.shape[:-1], width)
        positions = self._positions(rows, width)
        if positions is not None:
            kwargs["position_ids"] = positions
        output = self._forward(tokens_RQ, attention_mask=self._mask(rows, width), is_first_iteration=False, **kwargs)
        return self._read(output, width)

    @abstractmethod
    def cached_tokens(self) -> int:
        """Columns the cache holds before the prompt."""

    @abstractmethod
    def commit(self, rows: TokenRows, width: int, kept: list[int]) -> None:
        """Leaves the first `kept` tokens of each row's last verification in the cache; `rows` does not hold them yet."""

    @abstractmethod
    def select(self, rows: list[int]) -> None:
        """Keeps some rows only; the others cost nothing from here on."""

    def room(self, rows: TokenRows, needed: list[int]) -> list[int]:
        """
        Drafted tokens that fit behind each row: a round may look past the length limit, but not past the cache's end.

        Args:
            needed: tokens that plain decoding could still add; always allowed.
        """
        free = [self.capacity - self.prompt_columns - generated for generated in rows.generated]
        return [max(pair) for pair in zip(free, needed, strict=True)]

    def remembered_context(self, rows: TokenRows, first: list[int]) -> DraftContext | None:
        """The drafter's context of the `first` tokens that the cache held before this call, if it is known."""
        return None

    @abstractmethod
    def finish(self, rows: TokenRows, context: DraftContext) -> None:
        """All rows have ended."""

    @abstractmethod
    def attention_spans(self, rows: TokenRows) -> list[int] | None:
        """End of the columns that each row's first query sees, or `None` where plain decoding shows all columns."""

    def attention_windows(self) -> list[int | None]:
        """Columns a plain decoding step shows per layer, where only the latest are kept."""
        text = self.model.config.get_text_config()
        window = getattr(text, "sliding_window", None)
        kinds = getattr(text, "layer_types", None) or []
        return [window if kind == "sliding_attention" else None for kind in kinds]

    @abstractmethod
    def close(self) -> None:
        """Leaves the user's cache as plain decoding would."""

    @abstractmethod
    def _mask(self, rows: TokenRows, width: int) -> Any: ...

    @abstractmethod
    def _positions(self, rows: TokenRows, width: int) -> torch.Tensor | None: ...

    def _forward(self, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        inputs = self.model.prepare_inputs_for_generation(
            input_ids, **{self.request.cache_keyword: self.cache}, **{**kwargs, "output_hidden_states": self.selection}
        )
        return self.model(**inputs, return_dict=True)

    def _read(self, output: Any, width: int) -> TargetOutput:
        device = output.logits.device
        layers = [output.hidden_states[index] for index in self.layer_indices]
        features_RSF = torch.cat([layer.to(device) for layer in layers], dim=-1)
        logits_RQV = output.logits[:, -width:].to(dtype=torch.float32, device=self.request.input_ids_BL.device)
        return TargetOutput(RowScores(logits_RQV), features_RSF, output)

    def _new_tokens(self, total: int, past: int, embeds: bool) -> int:
        """Tokens of the prompt that are not cached: the input is the whole text, or only what is new."""
        if past == 0:
            return total
        whole = total
        if not embeds and self.mask_RL is not None:
            whole = self.mask_RL.shape[1]
        elif not embeds and self.next_position is not None:
            whole = self.prompt_kwargs["position_ids"].shape[-1]
        new = total - past if whole == total else total
        if new <= 0:
            raise ValueError(
                f"the cache already holds {past} tokens, the input {total}: pass the whole text including at least one token "
                "that is not cached (or crop the cache with cache.crop(-1))"
            )
        return new

    def _prefill_in_chunks(self, input_ids_RS: torch.Tensor, past: int, chunk: int) -> TargetOutput:
        kwargs = {key: value for key, value in self.prompt_kwargs.items() if key not in PROMPT_ONLY}
        surplus = sorted(key for key in kwargs if key.startswith(("pixel_values", "input_features", "mm_encoder")))
        if surplus or self.prompt_kwargs.get("inputs_embeds") is not None:
            raise ValueError(
                f"prefill_chunk_size works with token ids only, got {surplus or ['inputs_embeds']}; leave it out"
            )
        parts = []
        for ids in input_ids_RS.split(chunk, dim=1):
            end = past + ids.shape[1]
            inputs = {key: self.prompt_kwargs[key][..., :end] for key in self.last_types}
            if self.mask_RL is not None:
                inputs["attention_mask"] = self.mask_RL[:, :end]
            if self.next_position is not None:
                inputs["position_ids"] = self.prompt_kwargs["position_ids"][..., past:end]
            parts.append(self._read(self._forward(ids, is_first_iteration=past == 0, **kwargs, **inputs), 1))
            past = end
        parts[-1].features_RSF = torch.cat([part.features_RSF for part in parts], dim=1)
        return parts[-1]


class SingleRow(Target):
    """One row in the cache that `generate` made or the user passed; rejected tokens are cropped from it."""

    def __init__(self, request: GenerationRequest, origins: list[int], cache: Any):
        super().__init__(request, origins, cache)
        self.rollback: Rollback | None = None
        # of all tokens behind the prompt, [..., 1, tokens]
        self.positions: torch.Tensor | None = None

    def prefill(self, input_ids_RL: torch.Tensor) -> TargetOutput:
        output = super().prefill(input_ids_RL)
        self.rollback = Rollback(self.cache)
        room = self.request.config.max_length + self.request.drafter.config.block_size + 2
        if self.next_position is not None:
            self.positions = self.next_position + torch.arange(room, device=input_ids_RL.device)
        if self.mask_RL is not None:
            self.mask_RL = torch.cat([self.mask_RL, self.mask_RL.new_ones(1, room)], dim=1)
        return output

    def verify(self, rows: TokenRows, lengths: list[int]) -> TargetOutput:
        assert self.rollback is not None
        width = 1 + lengths[0]
        self.rollback.before(width)
        return self._run(rows, width)

    def commit(self, rows: TokenRows, width: int, kept: list[int]) -> None:
        assert self.rollback is not None
        self.rollback.after(width, kept[0], functools.partial(self._run, rows))

    def cached_tokens(self) -> int:
        if not self.cache.layers or all(self.cache.is_linear):
            return 0
        return int(self.cache.get_seq_length())

    def select(self, rows: list[int]) -> None:
        assert rows == [0], "a single row only leaves when it ends"

    def remembered_context(self, rows: TokenRows, first: list[int]) -> DraftContext | None:
        whole_text = self.mask_RL is None and rows.prompt_width == self.prompt_columns
        text = rows.ids_RC[0, : rows.prompt_width] if whole_text else None
        return recall(self.cache, self.request.drafter, first[0], text)

    def finish(self, rows: TokenRows, context: DraftContext) -> None:
        remember(self.cache, self.request.drafter, context, rows.ids_RC[0, : rows.lengths[0]])

    def attention_spans(self, rows: TokenRows) -> list[int] | None:
        if any(isinstance(layer, StaticLayer) for layer in self.cache.layers):
            return None
        return [self.prompt_columns + rows.generated[0]]

    def attention_windows(self) -> list[int | None]:
        slides = any(isinstance(layer, DynamicSlidingWindowLayer) for layer in self.cache.layers)
        return super().attention_windows() if slides else []

    def close(self) -> None:
        if self.rollback is not None:
            self.rollback.close()

    def _mask(self, rows: TokenRows, width: int) -> torch.Tensor | None:
        if self.mask_RL is None:
            return None
        return self.mask_RL[:, : self.prompt_columns + rows.generated[0] - 1 + width]

    def _positions(self, rows: TokenRows, width: int) -> torch.Tensor | None:
        first = rows.generated[0] - 1
        return None if self.positions is None else self.positions[..., first : first + width]


def _rows_of(kwargs: dict[str, Any], origins: list[int], batch: int) -> dict[str, Any]:
    """The model inputs of some rows; everything that is not one entry per row passes through."""
    if origins == list(range(batch)):
        return dict(kwargs)
    chosen = {}
    for key, value in kwargs.items():
        if isinstance(value, torch.Tensor) and value.dim() >= 1 and key in ROW_INPUTS:
            index = torch.tensor(origins, device=value.device)
            axis = value.dim() - 2 if key in ("position_ids", *TOKEN_TYPES) else 0
            value = value if value.shape[axis] == 1 else value.index_select(axis, index)
        elif isinstance(value, torch.Tensor) and value.dim() >= 1:
            raise ValueError(
                f"this target decodes its rows one by one, which does not work with {key}; pass one row at a time"
            )
        chosen[key] = value
    return chosen


ROW_INPUTS = ("attention_mask", "position_ids", "inputs_embeds", *TOKEN_TYPES)

"""Many rows at once, each at a length of its own: one key/value buffer, written at per-row columns.

Column = place in the padded row, so a sliding layer is a full-length layer with a window in its mask, and rows need not
agree on how many tokens they accept. Knows nothing of drafting, sampling or stopping.
"""

# R rows, C columns, S or Q tokens of one forward, H heads, E head dimension

from __future__ import annotations

from typing import Any

import torch
from transformers import Cache, PreTrainedConfig
from transformers.cache_utils import CacheLayerMixin, DummyLayer, get_layer_types_and_kwargs

from .columns import Columns, ColumnStore
from .context import DraftContext
from .request import GenerationRequest
from .rows import TokenRows
from .target import Target, TargetOutput


LAYER_TYPES = ("full_attention", "sliding_attention", "dummy")


class RaggedLayer(CacheLayerMixin):
    """Keys and values of one layer; all columns written so far are visible, masks do the rest."""

    def __init__(self, owner: RaggedCache, *, sliding: bool):
        super().__init__()
        self.owner = owner
        self.is_sliding = sliding
        self.store = ColumnStore()

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any):
        self.is_initialized = True
        return self.store.write(key_states, value_states, self.owner.columns)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.owner.columns.width, 0

    def get_seq_length(self) -> int:
        return self.owner.held

    def get_max_length(self) -> int:
        return -1


class RaggedCache(Cache):
    """
    Args:
        layer_types (`list[str]`): of the target; see `ragged_layer_types`.
    """

    layer_class: type[RaggedLayer] = RaggedLayer

    def __init__(self, layer_types: list[str]):
        self.columns = Columns(width=0, start=0)
        self.held = 0
        layers = [
            DummyLayer() if kind == "dummy" else self.layer_class(self, sliding=kind == "sliding_attention")
            for kind in layer_types
        ]
        super().__init__(layers=layers)

    def select(self, rows: list[int]) -> None:
        """Keeps some rows only."""
        for layer in self.layers:
            if isinstance(layer, RaggedLayer):
                layer.store.select(rows)


def ragged_layer_types(config: PreTrainedConfig) -> list[str] | None:
    """Layer types of a target whose rows can be decoded together, or `None` (recurrent, chunked or indexed layers)."""
    layer_types, _ = get_layer_types_and_kwargs(config)
    return layer_types if all(kind in LAYER_TYPES for kind in layer_types) else None


class RaggedRows(Target):
    """Several rows in one [`RaggedCache`]."""

    layout = "padded"
    cache: RaggedCache
    cache_class: type[RaggedCache] = RaggedCache

    def __init__(self, request: GenerationRequest, origins: list[int], layer_types: list[str]):
        super().__init__(request, origins, self.cache_class(layer_types))
        text = request.target.config.get_text_config()
        self.window = getattr(text, "sliding_window", None) if "sliding_attention" in layer_types else None
        # models with layer types of their own take one mask per type, the others a single one
        self.mask_kinds = sorted(set(text.layer_types)) if hasattr(text, "layer_types") else None
        self.prompting = True

    def prefill(self, input_ids_RL: torch.Tensor) -> TargetOutput:
        output = super().prefill(input_ids_RL)
        self.prompting = False
        return output

    def verify(self, rows: TokenRows, lengths: list[int]) -> TargetOutput:
        width = 1 + max(lengths)
        first_R1 = torch.tensor(rows.generated, device=rows.ids_RC.device)[:, None] + (self.prompt_columns - 1)
        self.columns_RQ = first_R1 + torch.arange(width, device=first_R1.device)
        widest = self.prompt_columns - 1 + max(rows.generated) + width
        self.cache.columns = Columns(width=widest, index_RS=self.columns_RQ)
        return self._run(rows, width)

    def commit(self, rows: TokenRows, width: int, kept: list[int]) -> None:
        """Nothing to do: rejected tokens are written over."""

    def select(self, rows: list[int]) -> None:
        """Keeps some rows only; the others cost nothing from here on."""
        index = torch.tensor(rows, device=self.request.input_ids_BL.device)
        self.cache.select(rows)
        if self.mask_RL is not None:
            self.mask_RL = self.mask_RL[index]
        if self.next_position is not None and self.next_position.shape[-2] > 1:
            self.next_position = self.next_position[..., index, :]
        for key, last in self.last_types.items():
            if last.shape[0] > 1:
                self.last_types[key] = last[index]

    def cached_tokens(self) -> int:
        return 0

    def attention_spans(self, rows: TokenRows) -> list[int] | None:
        return [self.prompt_columns + generated for generated in rows.generated]

    def finish(self, rows: TokenRows, context: DraftContext) -> None:
        """The cache ends with the call, so nothing is remembered."""

    def close(self) -> None:
        """The cache is this object's own."""

    def _forward(self, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        if self.prompting:
            embeds = kwargs.get("inputs_embeds")
            new = (input_ids if embeds is None else embeds).shape[1]
            self.cache.columns = Columns(width=self.cache.held + new, start=self.cache.held)
        output = super()._forward(input_ids, **kwargs)
        self.cache.held = self.cache.columns.width
        return output

    def _positions(self, rows: TokenRows, width: int) -> torch.Tensor | None:
        if self.next_position is None:
            return None
        return self.next_position + (self.columns_RQ - self.prompt_columns)

    def _mask(self, rows: TokenRows, width: int) -> Any:
        """What each query sees, for every kind of layer: boolean for SDPA, additive for eager attention."""
        columns_C = torch.arange(self.cache.columns.width, device=self.columns_RQ.device)
        own_RQ1 = self.columns_RQ[..., None]
        full_RQC = columns_C <= own_RQ1
        if self.mask_RL is not None:
            shown_RC = self.mask_RL.bool()
            later = self.cache.columns.width - shown_RC.shape[1]
            shown_RC = torch.cat([shown_RC, shown_RC.new_ones(len(shown_RC), later)], dim=1)
            full_RQC = full_RQC & shown_RC[:, None]
        masks = {"full_attention": full_RQC}
        if self.window is not None:
            masks["sliding_attention"] = full_RQC & (columns_C > own_RQ1 - self.window)
        prepared = {kind: self._prepared(mask_RQC[:, None]) for kind, mask_RQC in masks.items()}
        if self.mask_kinds is not None:
            return {kind: prepared[kind] for kind in self.mask_kinds}
        return prepared["full_attention" if self.window is None else "sliding_attention"]

    def _prepared(self, mask_R1QC: torch.Tensor) -> torch.Tensor:
        if self.request.attention_implementation != "eager":
            return mask_R1QC
        dtype = self.model.dtype
        additive = torch.zeros(mask_R1QC.shape, dtype=dtype, device=mask_R1QC.device)
        return additive.masked_fill_(~mask_R1QC, torch.finfo(dtype).min)

"""One call of `generate`, as the decode loop sees it: models, prompt, processors, stopping criteria and output flags.

Plain data. Knows nothing of how it was prepared (`dispatch.py`) nor of how it is decoded (`loop.py`).
"""

# B rows, L prompt columns

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation import BaseStreamer


@dataclass
class GenerationRequest:
    """
    Args:
        target (`PreTrainedModel`): the model whose text is wanted.
        drafter (`DSparkDrafter`): proposes tokens; never changes the text.
        input_ids_BL (`torch.LongTensor` `[B, L]`): prompts, padded on the left; `L` is 0 with `inputs_embeds` alone.
        model_kwargs (`dict`): what `generate` would hand to the target's forward, the cache included.
        processors, criteria: as `generate` prepared them.
        config (`GenerationConfig`): the effective configuration of this call.
        attention_implementation (`str`): of the target, e.g. `"sdpa"`.
        cache_keyword (`str`): name of the target's cache argument in this version of transformers.
        num_assistant_tokens (`int`, *optional*): most tokens drafted per round; `None` means the whole block.
        confidence_threshold (`float`, *optional*): drafting stops below it; replaces the drafter's policy for this call.
    """

    target: PreTrainedModel
    drafter: Any
    input_ids_BL: torch.Tensor
    model_kwargs: dict[str, Any]
    processors: LogitsProcessorList
    criteria: StoppingCriteriaList
    config: GenerationConfig
    streamer: BaseStreamer | None = None
    attention_implementation: str = "sdpa"
    cache_keyword: str = "cache"
    num_assistant_tokens: int | None = None
    confidence_threshold: float | None = None
    eos_ids: frozenset[int] = field(default_factory=frozenset)

    @property
    def do_sample(self) -> bool:
        return bool(self.config.do_sample)

    @property
    def pad_id(self) -> int:
        """What fills rows that end early: the pad token, else the first end token, as `generate` does."""
        if self.config.pad_token_id is not None:
            return int(self.config.pad_token_id)
        return min(self.eos_ids, default=0)

    @property
    def cache(self) -> Any:
        return self.model_kwargs.get(self.cache_keyword)

    def wants(self, name: str) -> bool:
        """Whether `output_<name>` was asked for in a dict output."""
        flags = {
            "scores": self.config.output_scores,
            "logits": self.config.output_logits,
            "hidden_states": self.config.output_hidden_states,
            "attentions": self.config.output_attentions,
        }
        return bool(self.config.return_dict_in_generate and flags[name])

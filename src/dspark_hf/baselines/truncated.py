"""The classic assistant where no smaller sibling of the target is at hand: its own first layers.

Shares the target's weights; final norm and head are the target's. Untrained, so it drafts badly unless the target's layers
converge early. For transformers' assisted decoding; knows nothing of this package's drafters.
"""

from __future__ import annotations

import copy

from transformers import PreTrainedModel


def truncated_target(target: PreTrainedModel, num_layers: int) -> PreTrainedModel:
    """
    A causal language model made of the target's first layers, whose weights it shares.

    Args:
        target (`PreTrainedModel`): any causal language model whose layers are numbered in its tensors' names.
        num_layers (`int`): in [1, the target's - 1].

    Raises:
        ValueError: `num_layers` out of range.
    """
    total = target.config.get_text_config().num_hidden_layers
    if not 1 <= num_layers < total:
        raise ValueError(f"num_layers must be in [1, {total - 1}] for this {total}-layer target, got {num_layers}")
    config = copy.deepcopy(target.config)
    text = config.get_text_config()
    text.num_hidden_layers = num_layers
    if "layer_types" in text.to_dict():
        text.layer_types = text.layer_types[:num_layers] if text.layer_types else text.layer_types
    assistant = type(target)(config).to(target.dtype)
    shared = target.state_dict()
    assistant.load_state_dict({name: shared[name] for name in assistant.state_dict()}, assign=True)
    assistant.generation_config = copy.deepcopy(target.generation_config)
    return assistant.eval()

"""The operation as a stateless layer, so that `kernels` can map a model's layer to it."""

from torch import nn

from .dispatch import markov_draft


class DSparkMarkovDraft(nn.Module):
    """`forward` is [`markov_draft`]."""

    has_backward = False
    can_torch_compile = False

    def forward(self, base_logits, anchor_ids, **options):
        return markov_draft(base_logits, anchor_ids, **options)


__all__ = ["DSparkMarkovDraft"]

"""The operation as a stateless layer, so that `kernels` can map a model's layer to it."""

from torch import nn

from .dispatch import verify_ragged


class DSparkVerifyRagged(nn.Module):
    """`forward` is [`verify_ragged`]."""

    has_backward = False
    can_torch_compile = False

    def forward(self, target_logits, draft_tokens, cu_seqlens, **options):
        return verify_ragged(target_logits, draft_tokens, cu_seqlens, **options)


__all__ = ["DSparkVerifyRagged"]

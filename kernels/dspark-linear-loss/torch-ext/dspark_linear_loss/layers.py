"""The operation as a stateless layer, so that `kernels` can map a model's layer to it."""

from torch import nn

from .dispatch import linear_loss


class DSparkLinearLoss(nn.Module):
    """`forward` is [`linear_loss`]."""

    has_backward = True
    can_torch_compile = False

    def forward(self, hidden, latent, teacher, lm_head, w2, teacher_head, labels, **options):
        return linear_loss(hidden, latent, teacher, lm_head, w2, teacher_head, labels, **options)


__all__ = ["DSparkLinearLoss"]

"""The operation as a stateless layer, so that `kernels` can map a model's layer to it."""

from torch import nn

from .dispatch import schedule_prefix


class DSparkSchedulePrefix(nn.Module):
    """`forward` is [`schedule_prefix`]."""

    has_backward = False
    can_torch_compile = False

    def forward(self, survival, seconds, **options):
        return schedule_prefix(survival, seconds, **options)


__all__ = ["DSparkSchedulePrefix"]

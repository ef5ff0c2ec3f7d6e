"""The drafter model: a closed set of files that can ship inside a Hub repository."""

from .configuration_dspark import DSparkConfig
from .modeling_dspark import DraftBlock, DSparkDrafter


__all__ = ["DSparkConfig", "DSparkDrafter", "DraftBlock"]

"""From a recipe to a folder that can be published: the stages, their order, and how a killed run goes on."""

from .reporting import Reporter
from .run import STAGE_NAMES, run_pipeline


__all__ = ["STAGE_NAMES", "Reporter", "run_pipeline"]

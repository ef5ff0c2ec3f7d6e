"""
How many drafted tokens to verify: the measured cost of a machine, the policies, and their state in a decode loop.

Arithmetic only: nothing in this package imports a model.
"""

from .cost import CostCurve
from .history import History
from .policy import DecodingPolicy
from .scheduler import DEFAULT_THRESHOLD, POLICIES, schedule


__all__ = ["DEFAULT_THRESHOLD", "POLICIES", "CostCurve", "DecodingPolicy", "History", "schedule"]

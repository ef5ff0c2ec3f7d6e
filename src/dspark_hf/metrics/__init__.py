"""
The `evaluate` modules of this package: where they lie, ready for `evaluate.load` without a network.

Knows only paths. The modules are self-contained (`evaluate` copies and imports them alone), so nothing here imports them.
"""

from __future__ import annotations

from pathlib import Path


METRICS = ("acceptance_length", "prefix_calibration")


def metric_path(name: str) -> str:
    """
    The folder of a metric, for `evaluate.load`.

    Args:
        name (`str`): `"acceptance_length"` or `"prefix_calibration"`.

    Example:

    ```python
    >>> import evaluate
    >>> metric = evaluate.load(metric_path("acceptance_length"))
    ```
    """
    if name not in METRICS:
        raise ValueError(f"unknown metric {name!r}; choose one of {', '.join(METRICS)}")
    return str(Path(__file__).parent / name)


__all__ = ["METRICS", "metric_path"]

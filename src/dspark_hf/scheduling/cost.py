"""
The cost curve T(B): seconds of one target forward over B tokens, and what a draft costs on top.

Keeps what was measured, staircase and all. Does not know how it is timed (`measure.py`) nor where it is kept (`store.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


DEPTH_STEP = 256


@dataclass
class CostCurve:
    """
    Seconds of one target forward over B tokens, all requests of the step together (paper section 3.2.2: SPS(B) = 1/T(B)).

    Args:
        tokens (`list[int]`): measured sizes B, strictly ascending, >= 1. `R` rows that verify `l_r` drafted tokens each make
            `B = sum(1 + l_r)`.
        seconds (`list[float]`): T(B) at those sizes, > 0. Need not rise: on a 2-core CPU in fp32 T(3) > T(4).
        draft_seconds (`float`, *optional*, defaults to 0.0): one draft for one row.
        draft_row_seconds (`float`, *optional*, defaults to 0.0): what each further row adds to a draft.
        context (`int`, *optional*, defaults to 0): cached tokens per row behind `seconds`.
        deep_context, deep_seconds (`int`, `list[float]`, *optional*): a second depth, for the term of context length.
        row_seconds (`dict[int, list[float]]`, *optional*): seconds of R rows that are 1, 2, .. tokens wide, by R. On a CPU 4 rows of
            8 tokens can cost two thirds of 16 rows of 2; `tokens` and `seconds` know B alone.
        meta (`dict`, *optional*): the fingerprint of the machine and target that were measured.

    Raises:
        ValueError: lengths differ, sizes do not ascend, or a time is not positive.

    Example:

    ```python
    >>> curve = CostCurve(tokens=[1, 2, 3], seconds=[1.0, 2.0, 2.222])
    >>> curve.seconds_at(2)
    2.0
    ```
    """

    tokens: list[int]
    seconds: list[float]
    draft_seconds: float = 0.0
    draft_row_seconds: float = 0.0
    context: int = 0
    deep_context: int | None = None
    deep_seconds: list[float] | None = None
    row_seconds: dict[int, list[float]] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    _tables: dict[Any, torch.Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.tokens = [int(size) for size in self.tokens]
        self.seconds = [float(value) for value in self.seconds]
        if not self.tokens or len(self.tokens) != len(self.seconds):
            raise ValueError(
                f"a cost curve needs as many seconds as tokens and at least one, got {len(self.tokens)} tokens and "
                f"{len(self.seconds)} seconds"
            )
        if self.tokens[0] < 1 or any(
            later <= earlier for earlier, later in zip(self.tokens, self.tokens[1:], strict=False)
        ):
            raise ValueError(f"tokens must be >= 1 and strictly ascending, got {self.tokens}")
        if (self.deep_seconds is None) != (self.deep_context is None):
            raise ValueError("deep_context and deep_seconds come together; give both or neither")
        if self.deep_seconds is not None and self.deep_context is not None:
            self.deep_seconds = [float(value) for value in self.deep_seconds]
            if len(self.deep_seconds) != len(self.tokens) or self.deep_context <= self.context:
                raise ValueError(
                    f"deep_seconds needs {len(self.tokens)} values at a depth above {self.context}, got "
                    f"{len(self.deep_seconds)} at {self.deep_context}"
                )
        self.row_seconds = {int(rows): [float(value) for value in self.row_seconds[rows]] for rows in self.row_seconds}
        if any(rows < 1 or not widths for rows, widths in self.row_seconds.items()):
            raise ValueError(f"row_seconds needs rows >= 1 and at least one width each, got {self.row_seconds}")
        by_rows = [value for widths in self.row_seconds.values() for value in widths]
        for value in self.seconds + (self.deep_seconds or []) + by_rows:
            if not 0 < value < float("inf"):
                raise ValueError(f"seconds must be positive and finite, got {value}")
        extra = {
            "draft_seconds": self.draft_seconds,
            "draft_row_seconds": self.draft_row_seconds,
        }
        for name, value in extra.items():
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} must be >= 0 and finite, got {value}")

    def seconds_at(self, tokens: int, context: int | None = None, rows: int | None = None) -> float:
        """
        T(B): exact at a measured size, linear between two, linear along the last slope beyond (never falling), flat below the first.

        Args:
            tokens (`int`): B >= 0; 0 tokens cost nothing.
            context (`int`, *optional*): cached tokens per row. Used where two depths were measured: linear in depth.
            rows (`int`, *optional*): requests of the forward, at most B. Used where `row_seconds` were measured: linear in the mean
                width and between two row counts; beyond the largest, as many times dearer as there are more rows.
        """
        if tokens < 0:
            raise ValueError(f"tokens must be >= 0, got {tokens}")
        if tokens == 0:
            return 0.0
        shallow = self._along(self.seconds, tokens)
        if rows and self.row_seconds:
            shallow = self._of_rows(rows, max(tokens / rows, 1.0))
        if context is None or self.deep_seconds is None or self.deep_context is None:
            return shallow
        deeper = self._along(self.deep_seconds, tokens) - self._along(self.seconds, tokens)
        per_token = deeper / (self.deep_context - self.context)
        # A noisy pair of depths must not make long contexts free.
        return shallow + max(per_token, 0.0) * (max(context, 0) - self.context)

    def draft_seconds_at(self, rows: int) -> float:
        """D: what a drafted round of `rows` rows costs besides the target's forward, in seconds."""
        if rows <= 0:
            return 0.0
        return self.draft_seconds + self.draft_row_seconds * (rows - 1)

    def table(
        self,
        max_tokens: int,
        context: int | None = None,
        device: torch.device | str = "cpu",
        *,
        rows: int | None = None,
    ) -> torch.Tensor:
        """
        T(0..max_tokens) as fp64 `[max_tokens + 1]`, made once per (depth, rows, device) and grown on demand.

        The depth is that of `depth_of`, so that a growing context does not make a table every round.
        """
        depth = self.depth_of(context)
        rows = rows if self.row_seconds else None
        key = (depth, rows, str(device))
        table = self._tables.get(key)
        if table is None or table.numel() <= max_tokens:
            values = [self.seconds_at(size, depth, rows) for size in range(max(max_tokens, 64) + 1)]
            table = torch.tensor(values, dtype=torch.float64, device=device)
            self._tables[key] = table
        return table[: max_tokens + 1]

    def depth_of(self, context: int | None) -> int | None:
        """`context` in steps of 256 tokens, as tables know it; `None` where depth makes no difference or is not known."""
        return None if context is None or self.deep_seconds is None else round(context / DEPTH_STEP) * DEPTH_STEP

    def _of_rows(self, rows: int, width: float) -> float:
        """Seconds of `rows` rows of a mean width, from the two nearest row counts that were timed."""
        counts = sorted(self.row_seconds)
        position = min(bisect_left(counts, rows), len(counts) - 1)
        upper = counts[position]
        above = _at_width(self.row_seconds[upper], width)
        if rows > upper:
            return above * rows / upper
        if rows == upper or position == 0:
            return above
        lower = counts[position - 1]
        below = _at_width(self.row_seconds[lower], width)
        return below + (above - below) * (rows - lower) / (upper - lower)

    def _along(self, seconds: Sequence[float], tokens: int) -> float:
        position = bisect_left(self.tokens, tokens)
        if position < len(self.tokens) and self.tokens[position] == tokens:
            return seconds[position]
        if position == 0:
            return seconds[0]
        if position < len(self.tokens):
            left, right = position - 1, position
            weight = (tokens - self.tokens[left]) / (self.tokens[right] - self.tokens[left])
            return seconds[left] + weight * (seconds[right] - seconds[left])
        if len(self.tokens) == 1:
            return seconds[-1]
        slope = (seconds[-1] - seconds[-2]) / (self.tokens[-1] - self.tokens[-2])
        return seconds[-1] + max(slope, 0.0) * (tokens - self.tokens[-1])

    @classmethod
    def measure(
        cls,
        target: Any,
        drafter: Any = None,
        *,
        context: int = 128,
        deep_context: int | None = None,
        rows: int = 1,
        num_slots: int | None = None,
        budget_seconds: float = 5.0,
    ) -> CostCurve:
        """
        Times this machine; see [`~dspark_hf.scheduling.measure.measure_cost`] for the arguments.

        Example:

        ```python
        >>> curve = CostCurve.measure(target, drafter, context=128, rows=4)
        >>> drafter.cost_curve = curve
        >>> path = curve.save()
        ```
        """
        from .measure import measure_cost

        return measure_cost(
            target,
            drafter,
            context=context,
            deep_context=deep_context,
            rows=rows,
            num_slots=num_slots,
            budget_seconds=budget_seconds,
        )

    def save(self, path: str | Path | None = None) -> Path:
        """Writes the curve as JSON to `path`, or under `HF_HOME` by its fingerprint, and returns where it lies."""
        from .store import save_curve

        return save_curve(self, path)

    @classmethod
    def load(
        cls, path: str | Path | None = None, *, target: Any = None, fingerprint: Mapping[str, Any] | None = None
    ) -> CostCurve:
        """
        Reads a saved curve.

        Args:
            path (`str` or `Path`, *optional*): a file; default: the one that `HF_HOME` holds for the fingerprint.
            target (`PreTrainedModel`, *optional*): the model to be served; a curve of another machine, setting or version is
                refused.
            fingerprint (`Mapping`, *optional*): the same check against a fingerprint made earlier.

        Raises:
            FileNotFoundError: nothing was measured for this fingerprint.
            ValueError: the file is no cost curve, or it is foreign or stale; names what differs.
        """
        from .store import load_curve

        return load_curve(path, target=target, fingerprint=fingerprint)


def _at_width(seconds: Sequence[float], width: float) -> float:
    """Linear between whole widths, along the last slope beyond them, never falling there."""
    left = min(int(width), len(seconds))
    if left == len(seconds):
        slope = max(seconds[-1] - seconds[-2], 0.0) if left > 1 else seconds[-1]
        return seconds[-1] + slope * (width - left)
    return seconds[left - 1] + (seconds[left] - seconds[left - 1]) * (width - left)

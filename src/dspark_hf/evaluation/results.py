"""What `eval_results.json` holds: the measurements of one drafter, ready for a table or a card.

Only data and files; it neither generates nor draws. Every number lies beside what it was measured with.

| key           | content                                                                             |
|---------------|-------------------------------------------------------------------------------------|
| `drafter`     | name or path                                                                        |
| `target`      | name or path, and `target_revision`                                                 |
| `environment` | hardware and versions (`dspark_hf.hub.provenance.environment`)                      |
| `settings`    | policy, token limit, dtype, seed, the command                                       |
| `suites`      | one `SuiteResult` per suite, temperature and thinking mode                          |
| `calibration` | sampling regime -> report of the fit: one number per slot, before and after         |
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any


FILE_NAME = "eval_results.json"
FORMAT_VERSION = 1


@dataclass
class SuiteResult:
    """
    One suite at one temperature.

    Args:
        suite, domain (`str`): name, and `"math"`, `"code"`, `"chat"` or `"other"`.
        temperature (`float`): 0 is greedy.
        thinking (`bool`, *optional*): `None` where the template's own default was taken.
        policy (`str`): how many drafted tokens are verified, e.g. `"full"` or `"threshold 0.8"`.
        prompts, requests (`int`): conversations; assistant turns generated.
        rounds, cut_rounds (`int`): full verification rounds; rounds that the end of the text cut, which no average counts.
        new_tokens (`int`): tokens generated with the drafter.
        accepted_length (`float`, *optional*): tokens committed per full round, bonus token included.
        accepted_length_interval (`list[float]`, *optional*): 95% bootstrap interval over prompts.
        accepted_length_by_request (`float`, *optional*): mean over requests of each request's own average.
        verified_length (`float`, *optional*): drafted tokens verified per full round.
        acceptance_by_slot (`list[float | None]`): P(slot accepted given that it was verified and all before were accepted).
        cumulative_acceptance_by_slot (`list[float | None]`): their running product.
        trials_by_slot (`list[int]`): rounds behind each conditional.
        tokens_per_second, plain_tokens_per_second (`float`, *optional*): paired runs on the same prompts.
        speedup (`float`, *optional*), speedup_interval (`list[float]`, *optional*): ratio, 95% bootstrap over prompts.
        compared, identical, near_ties, mismatches (`int`): greedy texts compared with plain generation; equal; first
            differing at a near-tie of the target's own logits; differing otherwise (must be 0).
        by_context (`list[dict]`): `{"from", "to", "requests", "accepted_length"}` per bucket of prompt tokens.
        by_turn (`list[dict]`): `{"turn", "requests", "accepted_length"}`.
    """

    suite: str
    domain: str
    temperature: float
    thinking: bool | None = None
    policy: str = "full"
    prompts: int = 0
    requests: int = 0
    rounds: int = 0
    cut_rounds: int = 0
    new_tokens: int = 0
    accepted_length: float | None = None
    accepted_length_interval: list[float] | None = None
    accepted_length_by_request: float | None = None
    verified_length: float | None = None
    acceptance_by_slot: list[float | None] = field(default_factory=list)
    cumulative_acceptance_by_slot: list[float | None] = field(default_factory=list)
    trials_by_slot: list[int] = field(default_factory=list)
    tokens_per_second: float | None = None
    plain_tokens_per_second: float | None = None
    speedup: float | None = None
    speedup_interval: list[float] | None = None
    compared: int = 0
    identical: int = 0
    near_ties: int = 0
    mismatches: int = 0
    by_context: list[dict[str, Any]] = field(default_factory=list)
    by_turn: list[dict[str, Any]] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, float, bool | None, str]:
        return self.suite, self.temperature, self.thinking, self.policy


@dataclass
class EvalResults:
    """The content of `eval_results.json`; see the table at the top of this file."""

    drafter: str = ""
    target: str = ""
    target_revision: str | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    suites: list[SuiteResult] = field(default_factory=list)
    calibration: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, result: SuiteResult) -> None:
        """Put a result in, in place of an older one of the same suite, temperature, thinking mode and policy."""
        self.suites = [kept for kept in self.suites if kept.key != result.key] + [result]

    def save(self, folder: str | Path) -> Path:
        """Write `eval_results.json` into `folder`, whole or not at all. NaN and infinity become null: JSON has neither."""
        path = Path(folder) / FILE_NAME
        text = json.dumps({"format_version": FORMAT_VERSION, **_finite(asdict(self))}, indent=2, allow_nan=False)
        partial = path.with_suffix(".json.partial")
        partial.write_text(text + "\n", encoding="utf-8")
        os.replace(partial, path)
        return path

    @classmethod
    def load(cls, folder: str | Path) -> EvalResults:
        """
        Read a folder's `eval_results.json`; an empty record where there is none.

        Raises:
            ValueError: the file is not ours, or a later version wrote it.
        """
        path = Path(folder) / FILE_NAME
        if not path.is_file():
            return cls()
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is not valid JSON: {error}; run `dspark-hf evaluate` again") from error
        version = content.pop("format_version", None) if isinstance(content, dict) else None
        if version != FORMAT_VERSION:
            raise ValueError(f"{path} has format_version {version!r}, this package reads {FORMAT_VERSION}")
        suites = [SuiteResult(**_known(SuiteResult, row, path)) for row in content.pop("suites", [])]
        return cls(suites=suites, **_known(cls, content, path))


def update_calibration(folder: str | Path, regime: str, report: dict[str, Any]) -> None:
    """Store the calibration report of one sampling regime in the folder's `eval_results.json`, keeping the rest."""
    results = EvalResults.load(folder)
    results.calibration[regime] = report
    results.save(folder)


def _known(kind: type, row: dict[str, Any], path: Path) -> dict[str, Any]:
    unknown = sorted(set(row) - {item.name for item in fields(kind)})
    if unknown:
        raise ValueError(f"{path} holds the unknown key {unknown[0]!r}; it was not written by this version")
    return row


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

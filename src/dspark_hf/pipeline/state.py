"""What a run has finished: `run.json`, one entry a stage, valid for one set of settings.

A stage's fingerprint covers its own settings and those of the stages before it, so a changed recipe redoes exactly what depends on
the change. It knows nothing of what a stage does.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dspark_hf.training.prepare import write_json


class RunFolder:
    """The folder of one run.

    Args:
        path (`str` or `Path`): made when the run starts.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """
        Keeps a second process out of the folder; the system lets go of the lock when a process is killed.

        Raises:
            ValueError: another process works in the folder, or the path is a file.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file; give another --run-dir.")
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ValueError(
                    f"Another process works in {self.path}; wait for it, or give another --run-dir."
                ) from error
            yield

    def finished(self, stage: str, fingerprint: str) -> dict[str, Any] | None:
        """What the stage left when it finished with these settings; `None` if it has not."""
        entry = self._read().get(stage)
        return entry["result"] if entry is not None and entry["fingerprint"] == fingerprint else None

    def finish(self, stage: str, fingerprint: str, result: dict[str, Any], *, seconds: float) -> None:
        """Records a finished stage. `result` is JSON data."""
        stages = self._read()
        stages[stage] = {"fingerprint": fingerprint, "seconds": round(seconds, 1), "result": result}
        write_json(self.path / "run.json", {"format_version": 1, "stages": stages})

    def result(self, stage: str) -> dict[str, Any]:
        """What the stage left when it last finished."""
        return self._entry(stage)["result"]

    def fingerprint(self, stage: str) -> str:
        """Of the settings with which the stage last finished."""
        return self._entry(stage)["fingerprint"]

    def seconds(self, stage: str) -> float:
        """Wall time the stage took when it last finished; 0 if it never has."""
        return self._read().get(stage, {"seconds": 0.0})["seconds"]

    def _entry(self, stage: str) -> dict[str, Any]:
        stages = self._read()
        if stage not in stages:
            raise ValueError(f"The stage {stage!r} has not finished in {self.path}; run it first.")
        return stages[stage]

    def _read(self) -> dict[str, Any]:
        path = self.path / "run.json"
        if not path.is_file():
            return {}
        try:
            return dict(json.loads(path.read_text(encoding="utf-8"))["stages"])
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is damaged ({error}); delete it, finished files are found again.") from error

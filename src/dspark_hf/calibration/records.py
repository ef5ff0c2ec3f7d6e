"""
What calibration learns from: one record per verified round of a real rollout.

Plain arrays and a file. Does not know how rollouts are made.
"""

# N rounds, K slots

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np


if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass
class RolloutRecords:
    """
    Rounds in which the whole block was verified; a trimmed round would hide what became of its other slots.

    Args:
        regime (`str`): sampling regime, see [`regime_key`].
        prompt (`[N]` int64): the prompt each round belongs to, so that held-out rounds come from held-out prompts.
        confidence_logits (`[N, K]` float32): raw, before calibration; NaN for a drafter without the head.
        tokens (`[N, K]` int64): drafted tokens.
        accepted_count (`[N]` int64): leading drafted tokens that stood, 0..K.
        margins (`[N, K]` float32): difference of the two best draft scores of each slot.
        overlap (`[N, K]` float32): analytic acceptance `1 - |p - q| / 2`; NaN under greedy decoding.

    Raises:
        ValueError: arrays of different lengths or numbers of slots.
    """

    regime: str
    prompt: NDArray[np.int64]
    confidence_logits: NDArray[np.float32]
    tokens: NDArray[np.int64]
    accepted_count: NDArray[np.int64]
    margins: NDArray[np.float32]
    overlap: NDArray[np.float32]

    def __post_init__(self) -> None:
        rounds, slots = self.confidence_logits.shape
        wanted = {
            "prompt": (rounds,),
            "tokens": (rounds, slots),
            "accepted_count": (rounds,),
            "margins": (rounds, slots),
            "overlap": (rounds, slots),
        }
        arrays: dict[str, NDArray] = {
            "prompt": self.prompt,
            "tokens": self.tokens,
            "accepted_count": self.accepted_count,
            "margins": self.margins,
            "overlap": self.overlap,
        }
        for name, shape in wanted.items():
            if arrays[name].shape != shape:
                raise ValueError(f"records need {name} of shape {list(shape)}, got {list(arrays[name].shape)}")
        if rounds and not 0 <= self.accepted_count.min() <= self.accepted_count.max() <= slots:
            raise ValueError(f"accepted_count must lie in 0..{slots}")

    def __len__(self) -> int:
        return len(self.prompt)

    @property
    def num_slots(self) -> int:
        return self.confidence_logits.shape[1]

    @property
    def has_confidence(self) -> bool:
        """Whether a confidence head spoke in every round."""
        return bool(np.isfinite(self.confidence_logits).all())

    @property
    def accepted(self) -> NDArray[np.bool_]:
        """`[N, K]`: whether slots 1..k all stood."""
        return np.arange(self.num_slots) < self.accepted_count[:, None]

    def select(self, rounds: NDArray) -> RolloutRecords:
        """Some of the rounds, by mask or index."""
        return RolloutRecords(
            self.regime,
            self.prompt[rounds],
            self.confidence_logits[rounds],
            self.tokens[rounds],
            self.accepted_count[rounds],
            self.margins[rounds],
            self.overlap[rounds],
        )

    def split(self, held_out: float = 0.5, seed: int = 0) -> tuple[RolloutRecords, RolloutRecords]:
        """
        Rounds to fit on and rounds to judge by; no prompt is in both.

        Args:
            held_out (`float`, *optional*, defaults to 0.5): share of the prompts that is held out, in (0, 1).
        """
        prompts = np.unique(self.prompt)
        if len(prompts) < 2:
            raise ValueError(f"holding out prompts needs records of at least 2 prompts, got {len(prompts)}")
        shuffled = np.random.default_rng(seed).permutation(prompts)
        count = min(max(round(len(prompts) * held_out), 1), len(prompts) - 1)
        judged = np.isin(self.prompt, shuffled[:count])
        return self.select(~judged), self.select(judged)

    def save(self, path: str | Path) -> Path:
        """Writes a compressed `.npz`."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            np.savez_compressed(file, **vars(self))
        return path

    @classmethod
    def load(cls, path: str | Path, *, num_slots: int | None = None) -> RolloutRecords:
        """
        Reads records.

        Args:
            num_slots (`int`, *optional*): slots of the drafter they shall calibrate; records of another number are refused.
        """
        with np.load(path, allow_pickle=False) as file:
            missing = [item.name for item in fields(cls) if item.name not in file]
            if missing:
                raise ValueError(f"{path} holds no rollout records: {missing[0]!r} is missing; collect them again")
            values = {item.name: file[item.name] for item in fields(cls)}
        records = cls(**{**values, "regime": str(values["regime"])})
        if num_slots is not None and records.num_slots != num_slots:
            raise ValueError(
                f"{path} holds records of {records.num_slots} slots, the drafter has {num_slots}; collect them again"
            )
        return records

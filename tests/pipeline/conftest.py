"""A recipe that takes seconds: a toy target of three layers and thirty questions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from dspark_hf.pipeline import Reporter, run_pipeline
from dspark_hf.training.recipe import load_recipe


TINY = {
    "target": {
        "toy": {
            "samples": 40,
            "vocab_size": 320,
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "intermediate_size": 48,
            "head_dim": 16,
            "steps": 4,
            "row_tokens": 32,
        }
    },
    "data": {
        "max_rows": 30,
        "held_out_fraction": 0.3,
        "max_prompt_tokens": 96,
        "max_new_tokens": 12,
        "batch_size": 16,
    },
    "drafter": {"block_size": 3, "num_hidden_layers": 1, "target_layer_ids": [0, 1], "markov_rank": 8},
    "train": {
        "max_row_tokens": 96,
        "rows_per_batch": 2,
        "anchors_per_row": 4,
        "max_steps": 6,
        "eval_rows": 4,
        "eval_steps": 3,
        "save_steps": 2,
        "logging_steps": 2,
    },
    "calibrate": {"prompts": 4, "max_new_tokens": 12, "min_samples": 5, "cost_context_tokens": 8, "cost_seconds": 0.0},
    "evaluate": {"prompts": 2, "max_new_tokens": 8, "policies": ["full"]},
}


def _write_recipe(folder: Path, **sections) -> Path:
    document = {name: {**values, **sections.get(name, {})} for name, values in TINY.items()}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture(scope="session")
def write_recipe() -> Callable[..., Path]:
    """Writes the tiny recipe into a folder with some sections changed."""
    return _write_recipe


@pytest.fixture(scope="session")
def tiny_recipe(tmp_path_factory) -> Path:
    return _write_recipe(tmp_path_factory.mktemp("recipes"))


class Told(Reporter):
    """Remembers what it was told."""

    def __init__(self):
        self.ran: list[str] = []
        self.reused: list[str] = []
        self.notes: list[str] = []

    def stage(self, name: str, title: str) -> None:
        self.ran.append(name)

    def reuse(self, name: str, title: str) -> None:
        self.reused.append(name)

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture(scope="session")
def finished_run(tiny_recipe, tmp_path_factory):
    """`(folder, what was told, results)` of the tiny recipe run to its end."""
    folder, told = tmp_path_factory.mktemp("runs") / "tiny", Told()
    command = "dspark-hf train-and-push tiny.yaml"
    return folder, told, run_pipeline(load_recipe(tiny_recipe), folder, reporter=told, command=command)

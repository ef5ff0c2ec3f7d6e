"""A recipe that takes seconds: a toy target of three layers and thirty questions."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml


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


def write_recipe(folder: Path, **sections) -> Path:
    """The tiny recipe with some sections changed, as a file."""
    document = {name: {**values, **sections.get(name, {})} for name, values in TINY.items()}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture(scope="session")
def tiny_recipe(tmp_path_factory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("recipes"))

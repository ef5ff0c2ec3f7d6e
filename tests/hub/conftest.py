"""Folders to push: a tiny drafter as training leaves it, an adapter, rows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dspark_hf.dev.tiny import tiny_drafter, tiny_target
from dspark_hf.hub import retry


@pytest.fixture(scope="session")
def drafter_folder_once(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "drafter"
    tiny_drafter(tiny_target()).save_pretrained(folder)
    return folder


@pytest.fixture
def drafter_folder(drafter_folder_once, tmp_path) -> Path:
    """A fresh copy of a tiny drafter's folder."""
    return Path(shutil.copytree(drafter_folder_once, tmp_path / "drafter"))


@pytest.fixture
def adapter_folder(tmp_path) -> Path:
    """What LoRA training leaves, with three numbers for weights."""
    import torch
    from safetensors.torch import save_file

    folder = tmp_path / "adapter"
    folder.mkdir()
    settings = {"peft_type": "LORA", "base_model_name_or_path": "tester/dspark-tiny", "r": 4, "lora_alpha": 8}
    settings |= {"target_modules": ["q_proj", "fc"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    save_file({"base_model.model.fc.lora_A.weight": torch.zeros(3)}, folder / "adapter_model.safetensors")
    return folder


@pytest.fixture
def rows_folder(tmp_path) -> Path:
    """Two training rows as `prepare` writes them."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    folder = tmp_path / "rows"
    folder.mkdir()
    rows = {"prompt_ids": [[1, 2], [3]], "completion_ids": [[4, 5, 6], [7]], "finish_reason": ["stop", "length"]}
    parquet.write_table(arrow.table(rows), folder / "rows-00000.parquet")
    return folder


@pytest.fixture
def no_waiting(monkeypatch) -> list[float]:
    """Pauses between attempts, ours and the client's, are noted instead of slept."""
    from huggingface_hub.utils import _http

    pauses: list[float] = []

    class Clock:
        sleep = staticmethod(pauses.append)
        time = staticmethod(retry.time.time)

    monkeypatch.setattr(retry, "time", Clock)
    monkeypatch.setattr(_http, "time", Clock)
    return pauses

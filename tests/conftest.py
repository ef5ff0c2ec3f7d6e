"""Settings every test needs before the first import of torch or of a Hub library.

`HF_ENDPOINT` is read when `huggingface_hub` is imported, so the loopback Hub starts here, from its file: importing it
through the package would import transformers first.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


ROOT = Path(__file__).resolve().parent.parent


def _load_loopback_hub():
    for name in ("loopback_store", "loopback_routes", "loopback_hub"):
        spec = importlib.util.spec_from_file_location(f"dspark_hf.dev.{name}", ROOT / f"src/dspark_hf/dev/{name}.py")
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


_HUB = _load_loopback_hub().LoopbackHub(orgs=("acme", "me")).start()
_HOME = tempfile.mkdtemp(prefix="dspark-hf-tests-")
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
os.environ.update(_HUB.environment())
os.environ.update(
    HF_HOME=_HOME,
    HF_HUB_DISABLE_PROGRESS_BARS="1",
    HF_HUB_DISABLE_SYMLINKS_WARNING="1",
    HF_EVALUATE_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
    MPLBACKEND="Agg",
)
for name in ("HF_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH"):
    os.environ.pop(name, None)
# Tiny models lose more to thread hand-over than they gain, and results stay equal between machines.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture
def hub() -> Iterator:
    """The loopback Hub that `HF_ENDPOINT` names, empty before and after the test."""
    _HUB.clear()
    yield _HUB
    _HUB.clear()


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of the golden models and tensors."""
    return ROOT / "tests" / "golden"


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="write the card examples anew")


@pytest.fixture
def update_golden(request) -> bool:
    return request.config.getoption("--update-golden")

"""Where a result came from: versions, hardware, command and git commit. Holds no secret and no path of the user's home."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from .errors import without_tokens


PACKAGES = (
    "dspark-hf",
    "torch",
    "transformers",
    "huggingface_hub",
    "safetensors",
    "tokenizers",
    "triton",
    "peft",
    "accelerate",
    "datasets",
    "kernels",
)


def versions() -> dict[str, str]:
    """Installed versions of the packages that decide a result; absent ones are left out."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"python": platform.python_version(), **found}


def processor_name() -> str:
    """The CPU's name as the system tells it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def hardware() -> dict[str, Any]:
    """Devices a run could use here, memory in GiB."""
    found: dict[str, Any] = {"cpu": processor_name(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found["memory_gib"] = round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30)
    if torch.cuda.is_available():
        found["gpu"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return found


def git_commit(folder: str | Path = ".") -> str | None:
    """Commit of the git repo around `folder`, with `+changes` where files differ from it; `None` outside of one."""
    try:
        head = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head}+changes" if changed else head


def _git(folder: str | Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def environment() -> dict[str, Any]:
    """What belongs beside every measured number: hardware, system and versions."""
    return {"hardware": hardware(), "platform": platform.platform(), "versions": versions()}


def public_name(name: str) -> str:
    """The last part of an absolute path or one under a home folder, which says where somebody is; other names as they are."""
    return Path(name).name if Path(name).is_absolute() or name.startswith("~") else name


def write_provenance(folder: str | Path, *, command: str, training: dict[str, Any] | None = None) -> Path:
    """
    Write `provenance.json`, which the card quotes.

    Args:
        command (`str`): what the user typed; access tokens in it are blanked out.
        training (`dict`, *optional*): measured facts such as `{"rows": 2000, "tokens": 1200000, "steps": 900, "seconds": 5400.0}`.
    """
    content = {
        "command": without_tokens(command),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "git_commit": git_commit(),
        "environment": environment(),
        "training": training or {},
    }
    path = Path(folder) / "provenance.json"
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path

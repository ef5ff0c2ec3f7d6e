"""Which files a repo gets: what lies in the folder, plus what makes it usable without this package's name.

Knows paths and bytes; nothing is sent from here.
"""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

from .errors import without_tokens
from .provenance import public_name


# Leftovers of training and editors. Pickled weights are never published: opening them can run code.
LEFT_OUT_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".partial", ".tmp", ".lock", ".log", ".pyc")
# What a stopped stage goes on from; it names folders of this machine.
LEFT_OUT_FILES = ("plan.json", "run.json")
LEFT_OUT_FOLDERS = ("checkpoint-", "runs", "__pycache__")
CODE_SUFFIX = "_dspark.py"
AUTO_MAP = {"AutoConfig": "configuration_dspark.DSparkConfig", "AutoModel": "modeling_dspark.DSparkDrafter"}
REQUIREMENTS = "dspark-hf>=0.1\n"
TEXT_SUFFIXES = (".json", ".md", ".py", ".txt", ".yaml", ".yml")


def folder_files(folder: Path) -> dict[str, Path]:
    """
    Publishable files of a folder by their path in the repo: no hidden files, pickles, checkpoints or logs.

    Raises:
        ValueError: a text file holds what looks like an access token.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        hidden = name.name in LEFT_OUT_FILES or any(part.startswith(".") for part in name.parts)
        leftover = any(part.startswith(LEFT_OUT_FOLDERS) for part in name.parts[:-1])
        if path.is_file() and not hidden and not leftover and not path.name.endswith(LEFT_OUT_SUFFIXES):
            _refuse_tokens(path)
            found[name.as_posix()] = path
    return found


def modelling_code() -> dict[str, bytes]:
    """The files of `dspark_hf.models` that `trust_remote_code` loads, by name."""
    sources = [path for path in resources.files("dspark_hf.models").iterdir() if path.name.endswith(CODE_SUFFIX)]
    return {path.name: path.read_bytes() for path in sorted(sources, key=lambda path: path.name)}


def config_with_code(config_json: bytes) -> bytes:
    """`config.json` that names the modelling code beside it; a target in a folder of this machine goes by the folder's name."""
    config = {**json.loads(config_json), "auto_map": AUTO_MAP}
    target = config.get("target_name_or_path")
    if target is not None:
        config["target_name_or_path"] = public_name(target)
    return (json.dumps(config, indent=2) + "\n").encode()


def custom_generate() -> dict[str, bytes]:
    """What lets `generate(custom_generate=repo)` find us."""
    source = resources.files("dspark_hf.hub") / "custom_generate.py"
    return {
        "custom_generate/generate.py": source.read_bytes(),
        "custom_generate/requirements.txt": REQUIREMENTS.encode(),
    }


def is_weights(path: str) -> bool:
    """Whether a file of the repo's root holds model weights or says which file does."""
    return "/" not in path and path.endswith((".safetensors", ".safetensors.index.json"))


def _refuse_tokens(path: Path) -> None:
    if path.suffix in TEXT_SUFFIXES and path.stat().st_size < 1_000_000:
        text = path.read_text(encoding="utf-8", errors="replace")
        if without_tokens(text) != text:
            raise ValueError(f"{path} seems to hold an access token; remove it and revoke that token before pushing")

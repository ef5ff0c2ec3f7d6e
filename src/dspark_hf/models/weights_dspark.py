"""Weight files: found, read for their headers, verified and sealed. Only safetensors, one file or shards with an index.

A sealed file carries the CRC-32 of every tensor in its metadata, so that a flipped bit is an error and not a worse
drafter. Knows nothing of models: tensors are names, shapes, dtypes and bytes.
"""

from __future__ import annotations

import json
import mmap
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError
from safetensors import SafetensorError, safe_open
from transformers.utils import cached_file


WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
HUB_ARGUMENTS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
CHECKSUMS = "crc32"
LONGEST_HEADER = 100_000_000


@dataclass(frozen=True)
class StoredTensor:
    """What a file's header says of one tensor; `start` and `end` are byte offsets in the file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def check_exists(source: Any) -> None:
    """
    Raises:
        OSError: `source` is written like a path, but no such folder is there.
    """
    text = str(source)
    is_path = text.startswith((".", "~", os.sep)) or text.count("/") > 1 or os.sep != "/" and os.sep in text
    if is_path and not Path(text).is_dir():
        raise OSError(f"{text}: no such folder; expected a drafter's folder or a Hub repository such as user/drafter")


def find_weights(source: Any, arguments: dict[str, Any]) -> list[Path]:
    """
    The safetensors files of a folder or Hub repository (downloaded where needed).

    Args:
        source (`str` or `os.PathLike`): folder or repository.
        arguments (`dict`): keyword arguments of `from_pretrained`; those about the Hub are used.

    Raises:
        ValueError: pickled weights are asked for.
        OSError: no safetensors file, or an index that names files or tensors that are not there.
    """
    if arguments.get("use_safetensors") is False:
        raise ValueError(
            "only safetensors are read: pickled weights can run code when opened; drop use_safetensors=False"
        )
    variant = f".{arguments['variant']}" if arguments.get("variant") else ""
    single = _fetch(source, f"model{variant}.safetensors", arguments)
    if single is not None:
        return [single]
    index = _fetch(source, f"model.safetensors.index{variant}.json", arguments)
    if index is None:
        raise OSError(_why_no_weights(source, arguments))
    try:
        shard_of = json.loads(index.read_bytes())["weight_map"]
        names = sorted(set(shard_of.values()))
        # a bare file name, so that an index cannot point outside its folder
        safe = all(isinstance(name, str) and name == os.path.basename(name) for name in names)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OSError(f"{index}: the index is damaged: it holds no weight_map of file names ({error})") from error
    if not names or not safe or not all(name.endswith(".safetensors") for name in names):
        raise OSError(f"{index}: weight_map must name .safetensors files of the same folder, got {names[:4]}")
    files = []
    for name in names:
        path = _fetch(source, name, arguments)
        if path is None:
            raise OSError(f"{source}: the index names the shard {name}, which is missing")
        files.append(path)
    held = {name: path.name for path in files for name in read_header(path)[0]}
    for name in sorted(set(shard_of) | set(held)):
        if shard_of.get(name) != held.get(name):
            raise OSError(
                f"{index}: tensor {name} should be in {shard_of.get(name, 'no shard')}, but is in {held.get(name, 'none')}"
            )
    return files


def read_headers(files: list[Path]) -> dict[str, StoredTensor]:
    """
    Header entries of all files.

    Raises:
        OSError: a file is truncated or its header is damaged.
    """
    tensors: dict[str, StoredTensor] = {}
    for path in files:
        tensors.update(read_header(path)[0])
    return tensors


def read_header(path: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """`(tensors, metadata)` of one file, checked against its length; raises `OSError` where it is damaged."""
    try:
        # the library's own checks: header length, offsets without gaps, sizes that fit dtypes
        with safe_open(path, framework="pt") as opened:
            metadata = opened.metadata() or {}
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= LONGEST_HEADER:
                raise ValueError(f"a header of {length} bytes")
            header = json.loads(file.read(length))
        tensors = {}
        for name, entry in header.items():
            if name != "__metadata__":
                start, end = (8 + length + offset for offset in entry["data_offsets"])
                tensors[name] = StoredTensor(path, entry["dtype"], tuple(entry["shape"]), start, end)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OSError(f"{path}: the safetensors file is damaged or incomplete: {error}") from error
    if max((tensor.end for tensor in tensors.values()), default=0) > path.stat().st_size:
        raise OSError(f"{path}: the file ends before its tensors do: it is incomplete")
    return tensors, metadata


def verify_checksums(files: list[Path]) -> None:
    """
    Compares every tensor of a sealed file with its checksum; files of other projects carry none and pass.

    Raises:
        OSError: names the tensor that changed since the file was written.
    """
    for path in files:
        tensors, metadata = read_header(path)
        if CHECKSUMS not in metadata:
            continue
        try:
            expected = dict(json.loads(metadata[CHECKSUMS]))
        except (ValueError, TypeError) as error:
            raise OSError(f"{path}: the list of checksums is damaged: {error}") from error
        found = checksums(path, tensors)
        for name in sorted(set(found) | set(expected)):
            if found.get(name) != expected.get(name):
                raise OSError(
                    f"{path}: tensor {name} is not what was saved (checksum {found.get(name)}, expected "
                    f"{expected.get(name)}): the file is damaged; download or save it again"
                )


def checksums(path: Path, tensors: dict[str, StoredTensor]) -> dict[str, str]:
    """CRC-32 of each tensor's dtype, shape and bytes, in hexadecimal."""
    found = {}
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = memoryview(mapped)
        for name, tensor in tensors.items():
            kind = zlib.crc32(f"{tensor.dtype}{list(tensor.shape)}".encode())
            with view[tensor.start : tensor.end] as payload:
                found[name] = f"{zlib.crc32(payload, kind):08x}"
        view.release()
    return found


def seal(path: Path, chunk: int = 1 << 24) -> None:
    """Rewrites a safetensors file with the checksums of its tensors in the metadata; the tensors' bytes stay as they are."""
    tensors, metadata = read_header(path)
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted({**metadata, CHECKSUMS: json.dumps(checksums(path, tensors))}.items()))
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        unfinished = path.with_name(f".{path.name}.sealing")
        with open(unfinished, "wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            while block := file.read(chunk):
                out.write(block)
    os.replace(unfinished, path)


def _fetch(source: Any, name: str, arguments: dict[str, Any]) -> Path | None:
    """The local file, or `None` where the folder or repository does not hold it."""
    folder = Path(str(source)) / (arguments.get("subfolder") or "")
    if Path(str(source)).is_dir():
        return folder / name if (folder / name).is_file() else None
    hub = {key: arguments[key] for key in HUB_ARGUMENTS if arguments.get(key) is not None and key != "proxies"}
    try:
        return Path(hf_hub_download(str(source), name, **hub))
    except LocalEntryNotFoundError as error:
        raise OSError(f"{source}: {name} is neither in the cache nor to be had from the Hub: {error}") from error
    except EntryNotFoundError:
        return None
    except (HfHubHTTPError, ValueError):
        # transformers words these best (gated, private, no such repository, no such revision)
        return Path(str(cached_file(str(source), name, **hub)))


def _why_no_weights(source: Any, arguments: dict[str, Any]) -> str:
    folder = Path(str(source)) / (arguments.get("subfolder") or "")
    pickled = []
    if folder.is_dir():
        pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLE_SUFFIXES)
    elif _fetch(source, "pytorch_model.bin", arguments) is not None:
        pickled = ["pytorch_model.bin"]
    if pickled:
        return (
            f"{source} holds {pickled[0]} but no .safetensors file; pickled weights are refused because opening them can "
            "run code: convert them to safetensors first"
        )
    return f"{source} is no drafter checkpoint: it holds no {WEIGHTS} and no {INDEX}"

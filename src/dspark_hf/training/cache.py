"""A cache of target features: safetensors shards with checksums, that resumes, and can be capped to a size.

Rows are assigned to shards once, in their order; `manifest.json` records what the features depend on (target weights, layers,
dtype, rows) and refuses anything else. A shard is written whole or not at all, with its sha256 beside it, and is checked when it
is first opened: a flipped byte, a NaN or a missing row is an error that names the file. With a size cap the least recently used
shards go first and come back when they are needed.

It knows nothing of anchors, losses or the trainer.
"""

# L tokens of a row, C answer tokens, F feature layers, D width of the target

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers.utils.logging import get_logger

from .features import RowFeatures, TargetFeatures, check_finite, describe_target
from .prepare import write_json
from .rows import Row, fingerprint


logger = get_logger(__name__)

FORMAT = 1
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float8_e4m3": torch.float8_e4m3fn}
FLOAT8_MAX = 448.0
SPARE_DISK = 1.05


@dataclass(frozen=True)
class CacheEstimate:
    """Size and time of a cache before it is built.

    Attributes:
        tokens: context tokens of all rows.
        size_bytes: of all shards.
        seconds: to build it, or `None` if not measured.
        free_bytes: on the disk.
    """

    tokens: int
    size_bytes: int
    seconds: float | None
    free_bytes: int

    def __str__(self) -> str:
        duration = "" if self.seconds is None else f", about {self.seconds / 60:.1f} min to build"
        return f"{self.tokens} tokens, {self.size_bytes / 1e9:.2f} GB of {self.free_bytes / 1e9:.1f} GB free{duration}"


def row_bytes(row: Row, *, features: int, width: int, dtype: str, pruned: bool = False) -> int:
    """Bytes a cached row takes: `features * width` numbers a context token, `width` (16 bit or more) a supervised one.

    `pruned` adds the float32 number a supervised position that a pruned draft vocabulary needs.
    """
    context = max(len(row.token_ids) - 1, 0)
    wide = 4 if dtype == "float32" else 2
    scale = 4 if dtype == "float8_e4m3" else 0
    return context * (features * width * DTYPES[dtype].itemsize + scale) + max(len(row.completion_ids) - 1, 0) * (
        width * wide + 4 * pruned
    )


def to_float8(context: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`[L, F * D]` -> e4m3 values and one float32 scale a token, `[L]`."""
    peak_L = context.float().abs().amax(dim=-1).clamp_min(1e-12)
    scale_L = peak_L / FLOAT8_MAX
    return (context.float() / scale_L[:, None]).to(torch.float8_e4m3fn), scale_L


def from_float8(values: torch.Tensor, scale_L: torch.Tensor) -> torch.Tensor:
    """Inverse of `to_float8`, up to e4m3's 3 bits of mantissa, in float32."""
    return values.float() * scale_L[:, None]


class FeatureCache:
    """Features on disk, made by an online source when they are missing.

    Args:
        folder (`str` or `Path`): of the shards.
        source ([`TargetFeatures`]): computes what is missing.
        rows (`list[Row]`): all rows that will be asked for.
        dtype (`str`): `"bfloat16"`, `"float32"`, or `"float8_e4m3"` for the context (last hidden states stay bfloat16).
        shard_mb (`int`): size of a shard.
        limit_gb (`float`, *optional*): of all shards together; least recently used ones are removed.

    Raises:
        ValueError: the folder holds features of another target, other layers, dtype or rows; names the field.
    """

    def __init__(
        self,
        folder: str | Path,
        source: TargetFeatures,
        rows: Sequence[Row],
        *,
        dtype: str = "bfloat16",
        shard_mb: int = 256,
        limit_gb: float | None = None,
    ):
        if dtype not in DTYPES:
            raise ValueError(f"Cache dtype must be one of {', '.join(DTYPES)}, not {dtype!r}.")
        self.folder = Path(folder)
        self.source = source
        self.dtype = dtype
        self.limit_bytes = None if limit_gb is None else int(limit_gb * 1e9)
        self.rows = list(rows)
        self.pruned = source.vocabulary_U is not None
        self._sizes = [
            row_bytes(row, features=len(source.layer_ids), width=source.width, dtype=dtype, pruned=self.pruned)
            for row in self.rows
        ]
        self.shard_rows = _assign(self._sizes, shard_mb * 10**6)
        self._place = {self.rows[i].id: (shard, i) for shard, members in enumerate(self.shard_rows) for i in members}
        self._open: OrderedDict[int, Any] = OrderedDict()
        self._check_manifest(shard_mb)

    def _check_manifest(self, shard_mb: int) -> None:
        manifest = {
            "format": FORMAT,
            "target": describe_target(self.source.target),
            "target_layer_ids": self.source.layer_ids,
            "dtype": self.dtype,
            "shard_mb": shard_mb,
            "rows": fingerprint(self.rows),
            "draft_vocabulary": _digest(self.source.vocabulary_U),
        }
        path = self.folder / "manifest.json"
        if not path.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(path, manifest)
            return
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}); delete the folder to build the cache anew.") from error
        for key, value in manifest.items():
            if stored.get(key) != value:
                raise ValueError(
                    f"The cache in {self.folder} was made with {key}={stored.get(key)!r}, now {key}={value!r}. Use another "
                    "folder, or delete this one."
                )

    def estimate(self, *, measure: bool = False) -> CacheEstimate:
        """Size of the whole cache, and with `measure` the time, from one forward pass over a few rows."""
        seconds = None
        tokens = sum(len(row.token_ids) - 1 for row in self.rows)
        if measure and self.rows:
            sample = self.rows[:: max(len(self.rows) // 4, 1)][:4]
            started = time.monotonic()
            self.source.read(sample)
            rate = sum(len(row.token_ids) - 1 for row in sample) / max(time.monotonic() - started, 1e-9)
            seconds = tokens / rate
        free = shutil.disk_usage(self.folder).free
        return CacheEstimate(tokens=tokens, size_bytes=sum(self._sizes), seconds=seconds, free_bytes=free)

    def build(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Write every missing shard, as far as the size cap allows.

        Args:
            progress (callable, *optional*): called with (shards done, shards).

        Raises:
            OSError: the disk is too small; nothing is written.
        """
        missing = [shard for shard in range(len(self.shard_rows)) if not self._path(shard).is_file()]
        needed = sum(self._sizes[i] for shard in missing for i in self.shard_rows[shard])
        if self.limit_bytes is not None:
            needed = min(needed, self.limit_bytes)
        free = shutil.disk_usage(self.folder).free
        if needed * SPARE_DISK > free:
            raise OSError(
                f"The feature cache needs {needed / 1e9:.2f} GB more in {self.folder}, where {free / 1e9:.2f} GB are free. Use "
                "data.features=online, data.cache_dtype=float8_e4m3 or data.cache_limit_gb."
            )
        total = len(self.shard_rows)
        for count, shard in enumerate(missing, start=1):
            if self.limit_bytes is not None and self._used() + self._shard_bytes(shard) > self.limit_bytes:
                logger.warning(f"The cache holds {count - 1} of {len(missing)} missing shards within its limit.")
                return
            self._write(shard)
            if progress is not None:
                progress(total - len(missing) + count, total)

    def read(self, rows: Sequence[Row]) -> list[RowFeatures]:
        """Features of rows, from disk; missing shards are made first.

        Raises:
            ValueError: a row that the cache was not made for, or a damaged shard; names it.
        """
        return [self._read_row(row) for row in rows]

    def _read_row(self, row: Row) -> RowFeatures:
        if row.id not in self._place:
            raise ValueError(f"Row {row.id!r} is not one of those the cache in {self.folder} was made for.")
        shard, index = self._place[row.id]
        file = self._shard(shard)
        teacher = file.get_tensor(f"{index}.teacher")
        context = file.get_tensor(f"{index}.context")
        if self.dtype == "float8_e4m3":
            context = from_float8(context, file.get_tensor(f"{index}.scale"))
        outside = file.get_tensor(f"{index}.outside") if self.pruned else None
        return RowFeatures(context=context, teacher=teacher, outside=outside)

    def _shard(self, shard: int) -> Any:
        """The opened shard, most recently used last."""
        if shard not in self._open:
            if not self._path(shard).is_file():
                self._write(shard)
            self._verify(shard)
            self._open[shard] = safe_open(self._path(shard), framework="pt")
        self._open.move_to_end(shard)
        if self.limit_bytes is not None:
            os.utime(self._path(shard))
        return self._open[shard]

    def _write(self, shard: int) -> None:
        self._make_room(shard)
        members = self.shard_rows[shard]
        features = self.source.read([self.rows[index] for index in members])
        tensors = {}
        wide = DTYPES["float32" if self.dtype == "float32" else "bfloat16"]
        for index, each in zip(members, features, strict=True):
            context = each.context.cpu()
            if self.dtype == "float8_e4m3":
                context, tensors[f"{index}.scale"] = to_float8(context)
            tensors[f"{index}.context"] = context.to(DTYPES[self.dtype]).contiguous()
            tensors[f"{index}.teacher"] = each.teacher.cpu().to(wide).contiguous()
            if each.outside is not None:
                tensors[f"{index}.outside"] = each.outside.cpu().contiguous()
        path = self._path(shard)
        part = path.with_suffix(".part")
        save_file(tensors, part)
        # the checksum first: a shard without one would be refused, a checksum without a shard is replaced
        write_json(path.with_suffix(".json"), {"sha256": _sha256(part), "bytes": part.stat().st_size})
        os.replace(part, path)

    def _verify(self, shard: int) -> None:
        path = self._path(shard)
        advice = f"Delete {path.name} to make it anew."
        beside = path.with_suffix(".json")
        if not beside.is_file() or json.loads(beside.read_text())["sha256"] != _sha256(path):
            raise ValueError(f"{path} does not have the checksum it was written with. {advice}")
        try:
            with safe_open(path, framework="pt") as file:
                for index in self.shard_rows[shard]:
                    scale = file.get_tensor(f"{index}.scale") if self.dtype == "float8_e4m3" else torch.zeros(1)
                    context = file.get_tensor(f"{index}.context").float()
                    teacher = file.get_tensor(f"{index}.teacher")
                    check_finite(RowFeatures(context=context + 0 * scale.sum(), teacher=teacher), self.rows[index].id)
        except (SafetensorError, ValueError) as error:
            raise ValueError(f"{path}: {error} {advice}") from error

    def _make_room(self, shard: int) -> None:
        """Remove the least recently used shards until this one fits below the cap."""
        if self.limit_bytes is None:
            return
        present = sorted(
            (each for each in range(len(self.shard_rows)) if self._path(each).is_file()),
            key=lambda each: self._path(each).stat().st_mtime_ns,
        )
        while present and self._used() + self._shard_bytes(shard) > self.limit_bytes:
            oldest = present.pop(0)
            self._open.pop(oldest, None)
            self._path(oldest).unlink()
            self._path(oldest).with_suffix(".json").unlink(missing_ok=True)

    def _used(self) -> int:
        return sum(path.stat().st_size for path in self.folder.glob("features-*.safetensors"))

    def _shard_bytes(self, shard: int) -> int:
        return sum(self._sizes[index] for index in self.shard_rows[shard])

    def _path(self, shard: int) -> Path:
        return self.folder / f"features-{shard:05d}.safetensors"


def _assign(sizes: Sequence[int], shard_bytes: int) -> list[list[int]]:
    """Row indices of each shard: in order, a new shard when the next row does not fit."""
    shards: list[list[int]] = []
    filled = 0
    for index, size in enumerate(sizes):
        if not shards or filled + size > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(index)
        filled += size
    return shards


def _digest(ids: torch.Tensor | None) -> str | None:
    """Digest (16 hex digits) of a draft vocabulary."""
    return None if ids is None else hashlib.sha256(ids.cpu().numpy().tobytes()).hexdigest()[:16]


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()

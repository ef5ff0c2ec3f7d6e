"""
Where cost curves lie on disk, and which machine, setting and target a curve belongs to.

Knows the fingerprint and the file format. Does not know how a curve is measured or used.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers

from dspark_hf.calibration import quantization_name

from .cost import CostCurve


if TYPE_CHECKING:
    from collections.abc import Mapping


FORMAT = 3
FIELDS = (
    "tokens",
    "seconds",
    "draft_seconds",
    "draft_row_seconds",
    "context",
    "deep_context",
    "deep_seconds",
    "row_seconds",
)


def fingerprint_of(target: Any) -> dict[str, Any]:
    """
    What a measured time depends on: device and threads, dtype, attention, quantisation, versions, and the target's shape.

    Args:
        target (`PreTrainedModel`): the model to be served.
    """
    config = target.config
    text = config.get_text_config()
    device = target.device
    on_cpu = device.type == "cpu"
    quantization = getattr(
        config, "quantization_config", None
    )  # a transformers config has the key only when quantised
    if quantization is not None and not isinstance(quantization, dict):
        quantization = quantization.to_dict()
    return {
        "device": _processor_name() if on_cpu else torch.cuda.get_device_name(device),
        "threads": torch.get_num_threads() if on_cpu else 0,
        "dtype": str(target.dtype).removeprefix("torch."),
        "attention": config._attn_implementation,
        "quantization": quantization_name(config) or "none",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "target": config.name_or_path or type(target).__name__,
        "shape": f"{text.model_type}-{text.num_hidden_layers}x{text.hidden_size}-v{text.vocab_size}",
    }


def _processor_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def curve_path(fingerprint: Mapping[str, Any]) -> Path:
    """The file under `HF_HOME` (default `~/.cache/huggingface`) for one fingerprint."""
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = Path(os.environ.get("HF_HOME", f"{cache}/huggingface")).expanduser()
    digest = hashlib.sha256(json.dumps(dict(fingerprint), sort_keys=True).encode()).hexdigest()
    return home / "dspark_hf" / "cost_curves" / f"{digest[:16]}.json"


def save_curve(curve: CostCurve, path: str | Path | None = None) -> Path:
    """Writes `curve` as JSON and returns the path. Without a path it needs the fingerprint that `CostCurve.measure` sets."""
    if path is None and not curve.meta:
        raise ValueError(
            "a cost curve without a fingerprint has no place under HF_HOME; give a path, or use CostCurve.measure"
        )
    path = curve_path(curve.meta) if path is None else Path(path)
    values = asdict(curve)
    document = {"format": FORMAT, **{name: values[name] for name in FIELDS}, "fingerprint": curve.meta}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.part")
    partial.write_text(json.dumps(document, indent=1) + "\n")
    partial.replace(path)
    return path


def load_curve(
    path: str | Path | None = None, *, target: Any = None, fingerprint: Mapping[str, Any] | None = None
) -> CostCurve:
    """Reads a curve; see [`CostCurve.load`]."""
    if target is not None:
        fingerprint = fingerprint_of(target)
    if path is None:
        if fingerprint is None:
            raise ValueError("say which cost curve to load: a path, target=... or fingerprint=...")
        path = curve_path(fingerprint)
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no cost curve at {path}; measure one with CostCurve.measure or `dspark-hf profile`")
    try:
        document = json.loads(path.read_text())
        known = document["format"] == FORMAT
        curve = CostCurve(**{name: document[name] for name in FIELDS}, meta=document["fingerprint"]) if known else None
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no cost curve ({type(error).__name__}: {error}); measure it again") from error
    if curve is None:
        raise ValueError(f"{path} has format {document['format']}, this version reads {FORMAT}; measure it again")
    if fingerprint is not None:
        _refuse_foreign(path, curve.meta, fingerprint)
    return curve


def _refuse_foreign(path: Path, measured: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    differing = [
        f"{key} {measured.get(key)!r} instead of {wanted.get(key)!r}"
        for key in sorted({*measured, *wanted})
        if measured.get(key) != wanted.get(key)
    ]
    if differing:
        raise ValueError(
            f"cost curve {path} was measured elsewhere: {', '.join(differing)}; measure it here with `dspark-hf profile`"
        )

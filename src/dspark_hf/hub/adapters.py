"""LoRA adapters of a drafter: saved, loaded and merged together with the temperatures that belong to them.

An adapter changes what the confidence head sees, so the temperatures of its base do not hold for it: attaching one drops
them ([`DSparkDrafter`] does that whoever attaches), and an adapter's own travel in `dspark_calibration.json` beside its
weights. Knows nothing of training.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dspark_hf.models import DSparkDrafter
from dspark_hf.models.persistence_dspark import adapter_calibration, write_adapter_calibration


if TYPE_CHECKING:
    from peft import PeftModel


def save_adapter(adapted: PeftModel, folder: str | Path) -> Path:
    """
    Writes `adapter_config.json`, `adapter_model.safetensors` and, where the adapted drafter was calibrated, its temperatures.

    Args:
        adapted (`PeftModel`): what `peft.get_peft_model(drafter, ...)` returned.
        folder (`str` or `Path`): made where needed.
    """
    folder = Path(folder)
    adapted.save_pretrained(str(folder), safe_serialization=True)
    write_adapter_calibration(folder, drafter_of(adapted).config.confidence_calibration)
    return folder


def load_adapter(drafter: DSparkDrafter, source: str | Path, *, is_trainable: bool = False) -> PeftModel:
    """
    Attaches a saved adapter to its base, with the adapter's own temperatures or none.

    Args:
        drafter ([`DSparkDrafter`]): the base.
        source (`str` or `Path`): folder or Hub repository of the adapter.
        is_trainable (`bool`): whether the adapter is to be trained further.
    """
    from peft import PeftModel

    adapted = PeftModel.from_pretrained(drafter, str(source), is_trainable=is_trainable)
    drafter.config.confidence_calibration = adapter_calibration(source)
    return adapted


def merge_adapter(adapted: PeftModel) -> DSparkDrafter:
    """The adapter's weights added to its base: a plain drafter, calibrated only if the adapted one was recalibrated."""
    calibration = drafter_of(adapted).config.confidence_calibration
    merged = adapted.merge_and_unload()
    merged.config.confidence_calibration = calibration
    return merged


def drafter_of(adapted: PeftModel) -> DSparkDrafter:
    """The drafter inside; raises `ValueError` where something else was adapted."""
    drafter = adapted.get_base_model()
    if not isinstance(drafter, DSparkDrafter):
        raise ValueError(f"expected an adapted DSparkDrafter, got an adapted {type(drafter).__name__}")
    return drafter

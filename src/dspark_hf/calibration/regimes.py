"""
Sampling regimes: names for the conditions under which confidences were calibrated, and the search for the nearest.

The head is trained on the overlap of p and q at temperature 1. Under greedy decoding acceptance is equality of two argmaxes, which is
far likelier, so one set of temperatures cannot serve both.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from transformers.utils import logging

from .margin import MarginModel


if TYPE_CHECKING:
    from collections.abc import Mapping


logger = logging.get_logger(__name__)

PER_SLOT = ("temperatures", "biases", "margin_slopes", "margin_intercepts")


@dataclass(frozen=True)
class Calibration:
    """
    One regime's calibration: `c_k = sigmoid(logit_k / temperature_k + bias_k)`, or what the margin says instead.

    Args:
        temperatures (`list[float]`): one per slot, > 0.
        biases (`list[float]`, *optional*): one per slot; `None` means 0.
        regime (`str`, *optional*): the regime they were fitted on; `None` for the identity.
        margin ([`MarginModel`], *optional*): feeds the scheduler in place of the confidence head.
        expected_survival (`list[list[float]]`, *optional*): how the rollouts went: rounds in groups of equal size, from the least
            to the most promising draft, and in each group the share in which slots 1..k stood, in [0, 1]. It is what a row of
            which nothing is known yet is expected to do.
    """

    temperatures: list[float]
    biases: list[float] | None = None
    regime: str | None = None
    margin: MarginModel | None = None
    expected_survival: list[list[float]] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The entry of `config.confidence_calibration`."""
        entry: dict[str, Any] = {"temperatures": self.temperatures, "biases": self.biases}
        if self.margin is not None:
            entry |= {"margin_slopes": self.margin.slopes, "margin_intercepts": self.margin.intercepts}
        entry["expected_survival"] = self.expected_survival
        return {key: values for key, values in entry.items() if values is not None}


def quantization_name(config: Any) -> str | None:
    """
    The quantisation method of a target for [`regime_key`], or `None`.

    Args:
        config (`PreTrainedConfig`): of the target.
    """
    settings = vars(config).get("quantization_config")  # transformers sets it on quantised models only
    if settings is None:
        return None
    method = settings["quant_method"] if isinstance(settings, dict) else settings.quant_method
    return str(method.value if isinstance(method, Enum) else method)


def regime_key(
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
    thinking: bool | None = None,
    quantization: str | None = None,
) -> str:
    """
    The name of a regime in `config.confidence_calibration`, e.g. `"temperature=0"` or `"temperature=1,top_p=0.9,thinking=on"`.

    Args:
        temperature (`float`, *optional*, defaults to 1): 0 is greedy, where `top_p` means nothing.
        top_p (`float`, *optional*, defaults to 1): nucleus, in (0, 1].
        thinking (`bool`, *optional*): thinking mode of the chat template; `None` where there is none.
        quantization (`str`, *optional*): quantisation method of the target.
    """
    parts = [f"temperature={temperature:g}"]
    if top_p < 1 and temperature > 0:
        parts.append(f"top_p={top_p:g}")
    if thinking is not None:
        parts.append(f"thinking={'on' if thinking else 'off'}")
    if quantization is not None:
        parts.append(f"quantization={quantization}")
    return ",".join(parts)


def find_calibration(
    calibrations: Mapping[str, Mapping[str, Any]] | None,
    *,
    num_slots: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    thinking: bool | None = None,
    quantization: str | None = None,
) -> Calibration:
    """
    The calibration for a call: its own regime, else the nearest one that decodes alike, else the identity; the latter two warn once.

    Nearest is the same kind of decoding (greedy or sampling), then the same quantisation, thinking mode, and the closest
    temperature and top-p.

    Args:
        calibrations (`Mapping` or `None`): `config.confidence_calibration`.
        num_slots (`int`): K of the drafter.

    Raises:
        ValueError: an entry has another number of slots.
    """
    identity = Calibration([1.0] * num_slots)
    if not calibrations:
        return identity
    wanted: dict[str, Any] = {"temperature": temperature, "top_p": top_p if temperature > 0 else 1.0}
    wanted |= {"thinking": None if thinking is None else ("on" if thinking else "off"), "quantization": quantization}
    key = regime_key(temperature=temperature, top_p=top_p, thinking=thinking, quantization=quantization)
    nearest = key
    if key not in calibrations:
        alike = [name for name in calibrations if (_parts(name)["temperature"] > 0) == (temperature > 0)]
        if not alike:
            logger.warning_once(
                f"no confidence calibration for {key} (there is {', '.join(sorted(calibrations))}): raw confidences are used; "
                "`dspark-hf calibrate` fits this regime"
            )
            return identity
        nearest = min(sorted(alike), key=lambda name: _distance(_parts(name), wanted))
        logger.warning_once(f"no confidence calibration for {key}: the nearest, {nearest}, is used")
    entry = calibrations[nearest]
    held = {name: [entry[name]] for name in PER_SLOT if entry.get(name) is not None}
    held["expected_survival"] = entry.get("expected_survival") or []
    for name, values in ((name, values) for name, group in held.items() for values in group):
        if len(values) != num_slots:
            raise ValueError(
                f"calibration {nearest!r} holds {len(values)} {name}, the drafter has {num_slots} slots; calibrate again"
            )
    margin = None
    if entry.get("margin_slopes") is not None:
        margin = MarginModel(entry["margin_slopes"], entry["margin_intercepts"])
    return Calibration(
        list(entry["temperatures"]), entry.get("biases"), nearest, margin, entry.get("expected_survival")
    )


def _parts(name: str) -> dict[str, Any]:
    pairs = dict(part.partition("=")[::2] for part in name.split(","))
    return {
        "temperature": float(pairs.get("temperature", 1.0)),
        "top_p": float(pairs.get("top_p", 1.0)),
        "thinking": pairs.get("thinking"),
        "quantization": pairs.get("quantization"),
    }


def _distance(have: Mapping[str, Any], want: Mapping[str, Any]) -> tuple[bool, bool, float]:
    return (
        have["quantization"] != want["quantization"],
        have["thinking"] != want["thinking"],
        abs(have["temperature"] - want["temperature"]) + abs(have["top_p"] - want["top_p"]),
    )

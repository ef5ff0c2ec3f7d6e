"""The card of a LoRA adapter on a drafter. Adds to `card.py` only what an adapter has and a drafter has not."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dspark_hf.evaluation.results import EvalResults, SuiteResult

from .card_metadata import for_code, is_hub_id, link, model_index
from .card_render import cell, number, render, with_interval
from .card_sources import read_json, read_yaml


@dataclass
class AdapterCard:
    """
    What the template `adapter.md.j2` needs. Make one with [`~AdapterCard.from_folder`].

    Args:
        settings (`dict`): content of `adapter_config.json`.
        results, before ([`EvalResults`]): measured with the adapter, and with the drafter alone.
        target (`str`, *optional*): the model the adapter was trained for.
        calibrated (`bool`): whether the folder holds temperatures of its own (`dspark_calibration.json`).
    """

    settings: dict[str, Any]
    results: EvalResults = field(default_factory=EvalResults)
    before: EvalResults = field(default_factory=EvalResults)
    target: str | None = None
    repo_id: str | None = None
    folder_name: str = "adapter"
    license: str | None = None
    language: list[str] = field(default_factory=list)
    extra_tags: list[str] = field(default_factory=list)
    calibrated: bool = False

    @classmethod
    def from_folder(cls, folder: str | Path, **given: Any) -> AdapterCard:
        """
        Read an adapter's folder; keyword arguments win over what the recipe says.

        Raises:
            ValueError: the folder holds no adapter.
        """
        folder = Path(folder)
        settings = read_json(folder / "adapter_config.json")
        if not settings:
            raise ValueError(f"{folder} holds no adapter_config.json; give the folder that LoRA training wrote")
        recipe = read_yaml(folder / "training_recipe.yaml")
        hub, target = recipe.get("hub") or {}, recipe.get("target") or {}
        results = EvalResults.load(folder)
        from_recipe = {
            "license": hub.get("license"),
            "language": hub.get("language") or [],
            "extra_tags": hub.get("tags") or [],
            "target": results.target or target.get("name_or_path"),
            "before": EvalResults.load(folder / "before"),
            "calibrated": (folder / "dspark_calibration.json").is_file(),
        }
        chosen = {**from_recipe, **{key: value for key, value in given.items() if value is not None}}
        return cls(settings=settings, results=results, folder_name=folder.resolve().name, **chosen)

    def render(self) -> str:
        """The whole README."""
        return render("adapter.md.j2", self, self.metadata)

    @property
    def metadata(self) -> dict[str, Any]:
        base = self.base if is_hub_id(self.base) else None
        return {
            "library_name": "peft",
            "license": self.license,
            "language": self.language,
            "base_model": base,
            "base_model_relation": "adapter" if base else None,
            "tags": list(dict.fromkeys(["lora", "speculative-decoding", "dspark", "draft-model", *self.extra_tags])),
            "model-index": model_index(self.name, self.results.suites),
        }

    @property
    def name(self) -> str:
        return (self.repo_id or self.folder_name).rsplit("/", 1)[-1]

    @property
    def repo_for_code(self) -> str:
        return self.repo_id or self.folder_name

    @property
    def base(self) -> str | None:
        return self.settings.get("base_model_name_or_path")

    @property
    def base_label(self) -> str:
        return link(self.base, "its drafter")

    @property
    def target_label(self) -> str:
        return link(self.target, "its target")

    @property
    def base_for_code(self) -> str:
        return for_code(self.base, "drafter")

    @property
    def target_for_code(self) -> str:
        return for_code(self.target, "target")

    @property
    def facts(self) -> list[tuple[str, str]]:
        modules = self.settings.get("target_modules") or []
        rows = {
            "Drafter": self.base_label,
            "Target": self.target_label if self.target else None,
            "Rank": self.settings.get("r"),
            "Alpha": self.settings.get("lora_alpha"),
            "Adapted": ", ".join(sorted(modules)) if isinstance(modules, list) else modules,
            "Trained in full": ", ".join(self.settings.get("modules_to_save") or []),
        }
        return [(name, cell(value)) for name, value in rows.items() if value]

    @property
    def acceptance_rows(self) -> list[list[str]]:
        """A row a set and temperature: lengths where whole blocks were verified, ratios of every policy."""
        earlier = {suite.key: suite for suite in self.before.suites}
        whole = any(suite.policy == "full" for suite in self.results.suites)
        rows = []
        for suite in self.results.suites:
            if suite.accepted_length is None or (whole and suite.policy != "full"):
                continue
            old = earlier.get(suite.key)
            before = with_interval(old.accepted_length, old.accepted_length_interval) if old else "-"
            after = with_interval(suite.accepted_length, suite.accepted_length_interval)
            rows.append([cell(suite.suite), f"{suite.temperature:g}", before, after, self._ratios(suite)])
        return rows

    def _ratios(self, suite: SuiteResult) -> str:
        """Tokens/s against plain under every policy that was run there."""
        alike = [each for each in self.results.suites if each.key[:-1] == suite.key[:-1] and each.speedup is not None]
        if len(alike) < 2:
            return number(suite.speedup)
        return ", ".join(f"{number(each.speedup)} ({each.policy})" for each in alike)

"""The card of a drafter: what its README says, taken from the files of its folder.

Every figure comes from a file that a command wrote. Knows neither the Hub nor how a template is filled; the cards of
adapters and datasets are in `card_adapter.py` and `card_dataset.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dspark_hf.models import DSparkConfig

from .card_metadata import for_code, is_hub_id, link, model_index
from .card_render import cell, count, duration, number, percent, render, with_interval
from .card_sources import RECIPE, Picture, Sources, read_sources


LIBRARY = "dspark-hf"


@dataclass
class DrafterCard:
    """
    What the template `drafter.md.j2` needs. Make one with [`~DrafterCard.from_folder`].

    Args:
        config ([`DSparkConfig`]): the drafter's.
        sources ([`Sources`]): weights, recipe, provenance, measurements, pictures.
        repo_id (`str`, *optional*): where it is published; the folder's name stands in for it.
        folder_name (`str`): name of the folder.
        license (`str`, *optional*): an identifier such as `"apache-2.0"`; the target's.
        language, extra_tags, datasets (`list[str]`): front matter.
        has_custom_generate (`bool`): whether the repo ships `custom_generate/`.
        engine_branch (`str`, *optional*): branch with the layout of DeepSeek's checkpoints.
    """

    config: DSparkConfig
    sources: Sources
    repo_id: str | None = None
    folder_name: str = "drafter"
    license: str | None = None
    language: list[str] = field(default_factory=list)
    extra_tags: list[str] = field(default_factory=list)
    datasets: list[str] = field(default_factory=list)
    has_custom_generate: bool = False
    engine_branch: str | None = None

    @classmethod
    def from_folder(cls, folder: str | Path, **given: Any) -> DrafterCard:
        """
        Read a drafter's folder; keyword arguments win over what the recipe says.

        Raises:
            ValueError: no weights in the folder, or a damaged file.
            OSError: no `config.json`.
        """
        folder = Path(folder)
        config = DSparkConfig.from_pretrained(folder)
        sources = read_sources(folder)
        hub, data = sources.recipe.get("hub") or {}, sources.recipe.get("data") or {}
        from_recipe = {
            "license": hub.get("license"),
            "language": hub.get("language") or [],
            "extra_tags": hub.get("tags") or [],
            "datasets": [data["prompts"]] if is_hub_id(data.get("prompts")) else [],
        }
        chosen = {**from_recipe, **{key: value for key, value in given.items() if value is not None}}
        return cls(config=config, sources=sources, folder_name=folder.resolve().name, **chosen)

    def render(self) -> str:
        """The whole README."""
        return render("drafter.md.j2", self, self.metadata)

    @property
    def metadata(self) -> dict[str, Any]:
        """Front matter before empty values are dropped."""
        family = self.config.target_model_type
        tags = ["speculative-decoding", "dspark", "draft-model", "transformers"]
        tags += [family] if family else []
        tags += ["custom_generate"] if self.has_custom_generate else []
        return {
            "library_name": LIBRARY,
            "license": self.license,
            "language": self.language,
            "base_model": self.target if is_hub_id(self.target) else None,
            "datasets": self.datasets,
            "tags": list(dict.fromkeys([*tags, *self.extra_tags])),
            "model-index": model_index(self.name, self.sources.results.suites),
        }

    # --- names

    @property
    def name(self) -> str:
        return (self.repo_id or self.folder_name).rsplit("/", 1)[-1]

    @property
    def target(self) -> str | None:
        """A Hub id, a folder, or words for a target that has no name elsewhere."""
        return self.config.target_name_or_path or self.sources.results.target or None

    @property
    def target_on_hub(self) -> bool:
        return is_hub_id(self.target)

    @property
    def target_link(self) -> str:
        return link(self.target, "its target")

    @property
    def target_for_code(self) -> str:
        return for_code(self.target, "target")

    @property
    def repo_for_code(self) -> str:
        return self.repo_id or self.folder_name

    # --- what it is

    @property
    def num_slots(self) -> int:
        return self.config.num_slots

    @property
    def needs_target_tensors(self) -> str:
        return " and no ".join(self.sources.weights.absent)

    @property
    def facts(self) -> list[tuple[str, str]]:
        config, weights = self.config, self.sources.weights
        layout = "the anchor's row predicts too" if config.sample_from_anchor else "the anchor's row predicts nothing"
        heads = (
            f"Markov head, {config.markov_head_type}, rank {config.markov_rank}"
            if config.markov_rank
            else "no Markov head"
        )
        heads += "; confidence head" if config.enable_confidence_head else "; no confidence head"
        rows = {
            "Target": self.target_link if self.target else None,
            "Target revision": f"`{config.target_revision}`" if config.target_revision else None,
            "Tokens proposed a round": f"{config.num_slots} (block of {config.block_size}, {layout})",
            "Reads": f"outputs of layers {', '.join(map(str, config.target_layer_ids or []))} of {config.num_target_layers}",
            "Body": f"{config.body}, {config.num_hidden_layers} x {config.hidden_size} (layers x width)",
            "Heads": heads,
            "Vocabulary": f"{count(config.vocab_size)} tokens",
            "Draft vocabulary": None
            if config.draft_vocab_size is None
            else f"{count(config.draft_vocab_size)} tokens",
            "Parameters": f"{count(weights.parameters)}, of which {count(weights.own)} besides embedding and head",
            "Stored as": ", ".join(weights.dtypes),
        }
        return [(name, cell(value)) for name, value in rows.items() if value]

    @property
    def pictures(self) -> dict[str, list[Picture]]:
        return self.sources.pictures

    # --- measured

    @property
    def _measured(self) -> list:
        return [suite for suite in self.sources.results.suites if suite.accepted_length is not None]

    @property
    def _whole_blocks(self) -> list:
        """Runs that verify whole blocks, where there are any: a policy that cuts a draft short hides the later slots."""
        return [suite for suite in self._measured if suite.policy == "full"] or self._measured

    @property
    def show_thinking(self) -> bool:
        return any(suite.thinking is not None for suite in self._measured)

    @property
    def show_policy(self) -> bool:
        return len({suite.policy for suite in self._measured}) > 1

    @property
    def slot_names(self) -> list[int]:
        return list(range(1, max((len(suite.acceptance_by_slot) for suite in self._whole_blocks), default=0) + 1))

    @property
    def acceptance_rows(self) -> list[list[str]]:
        rows = []
        for suite in self._whole_blocks:
            thinking = [{None: "-", True: "on", False: "off"}[suite.thinking]] if self.show_thinking else []
            slots = [percent(value) for value in suite.acceptance_by_slot]
            slots += ["-"] * (len(self.slot_names) - len(slots))
            length = with_interval(suite.accepted_length, suite.accepted_length_interval)
            head = [
                cell(suite.suite),
                suite.domain,
                f"{suite.temperature:g}",
                *thinking,
                count(suite.requests),
            ]
            rows.append([*head, length, number(suite.accepted_length_by_request), *slots])
        return rows

    @property
    def lossless_line(self) -> str:
        compared = sum(suite.compared for suite in self._measured)
        if not compared:
            return ""
        same, ties, wrong = (
            sum(getattr(s, key) for s in self._measured) for key in ("identical", "near_ties", "mismatches")
        )
        line = f"Greedy text against plain `generate`: {count(same)} of {count(compared)} identical"
        line += f", {count(ties)} apart at a near-tie of the target's own logits" if ties else ""
        return line + (f", {count(wrong)} apart for another reason." if wrong else ".")

    @property
    def speed_rows(self) -> list[list[str]]:
        return [
            [
                cell(suite.suite),
                f"{suite.temperature:g}",
                *([cell(suite.policy)] if self.show_policy else []),
                number(suite.tokens_per_second, 1),
                number(suite.plain_tokens_per_second, 1),
                with_interval(suite.speedup, suite.speedup_interval),
            ]
            for suite in self._measured
            if suite.speedup is not None
        ]

    @property
    def hardware(self) -> str:
        environment, settings = self.sources.results.environment, self.sources.results.settings
        hardware, versions = environment.get("hardware", {}), environment.get("versions", {})
        gpus = hardware.get("gpu") or []
        machine = (
            ", ".join(gpus)
            if gpus
            else f"{hardware.get('cpu', 'a CPU')} (threads: {hardware.get('threads', 'unknown')})"
        )
        parts = [
            machine,
            settings.get("dtype"),
            *(f"{name} {versions[name]}" for name in ("torch", "transformers") if name in versions),
        ]
        return ", ".join(part for part in parts if part)

    @property
    def cost_rows(self) -> list[list[str]]:
        cost = self.sources.cost
        if not cost.get("tokens") or not cost.get("seconds"):
            return []
        pairs = list(zip(cost["tokens"], cost["seconds"], strict=False))[:16]
        return [[str(tokens) for tokens, _ in pairs], [f"{1000 * seconds:.1f}" for _, seconds in pairs]]

    @property
    def draft_milliseconds(self) -> str:
        seconds = self.sources.cost.get("draft_seconds")
        return f"{1000 * seconds:.1f}" if seconds else ""

    @property
    def calibration_rows(self) -> list[list[str]]:
        rows = []
        for regime, report in sorted(self.sources.results.calibration.items()):
            entry = (self.config.confidence_calibration or {}).get(regime) or {}
            # a logistic on the margin of the draft scores has no temperature
            temperatures = [] if entry.get("margin_slopes") else entry.get("temperatures") or []
            for index, slot in enumerate(report.get("slots") or []):
                temperature = temperatures[index] if index < len(temperatures) else slot.get("temperature")
                errors = [number(slot.get(key), 3) for key in ("ece_before", "ece_after", "auroc")]
                rows.append(
                    [cell(regime), str(index + 1), count(slot.get("records") or 0), number(temperature), *errors]
                )
        return rows

    # --- how it was made, and what it is not for

    @property
    def training_facts(self) -> list[tuple[str, str]]:
        recipe, measured = self.sources.recipe, self.sources.provenance.get("training") or {}
        if not recipe:
            return []
        data, train = recipe.get("data") or {}, recipe.get("train") or {}
        prompts = data.get("prompts")
        weights = " / ".join(
            f"{train[key]:g}" for key in ("ce_weight", "l1_weight", "confidence_weight") if key in train
        )
        rows = {
            "Prompts": prompts if is_hub_id(prompts) else Path(prompts).name if prompts else None,
            "Answers": "from the data" if data.get("ready_answers") else "the target's own",
            "Sampling of the answers": f"temperature {data['temperature']:g}, top-p {data.get('top_p', 1.0):g}"
            if "temperature" in data
            else None,
            "Rows": count(measured["rows"]) if measured.get("rows") else None,
            "Tokens": count(measured["tokens"]) if measured.get("tokens") else None,
            "Steps": count(measured["steps"]) if measured.get("steps") else None,
            "Time": duration(measured["seconds"]) if measured.get("seconds") else None,
            "Loss weights (cross-entropy / overlap / confidence)": weights,
            "Learning rate": f"{train['learning_rate']:g}" if "learning_rate" in train else None,
            "Started from": (recipe.get("drafter") or {}).get("start_from"),
        }
        return [(name, cell(value)) for name, value in rows.items() if value]

    @property
    def limits(self) -> list[str]:
        config, data = self.config, self.sources.recipe.get("data") or {}
        train = self.sources.recipe.get("train") or {}
        lines = [
            f"Made for {self.target_link} only; with another or a fine-tuned target the text stays right and the speed goes."
        ]
        if config.target_thinking is not None:
            mode = "in" if config.target_thinking else "without"
            lines.append(f"Trained on answers {mode} thinking mode; expect fewer accepted tokens in the other mode.")
        if "max_row_tokens" in train:
            lines.append(
                f"Trained on rows of at most {count(train['max_row_tokens'])} tokens; acceptance falls beyond."
            )
        if self.language and data:
            lines.append(f"Trained on prompts in: {', '.join(self.language)}.")
        if config.draft_vocab_size is not None:
            lines.append(
                f"Proposes only the {count(config.draft_vocab_size)} tokens of its draft vocabulary; the target writes the others."
            )
        if not config.confidence_calibration and config.enable_confidence_head:
            lines.append(
                "The confidence head is not calibrated; run `dspark-hf calibrate` before policies that read it."
            )
        return lines

    @property
    def serves_on(self) -> list[str]:
        """Engines that read this head and layout from the branch, as far as their loaders tell."""
        config = self.config
        if self.engine_branch is None or not config.sample_from_anchor:
            return []
        engines = ["vllm"] if config.markov_head_type == "vanilla" or not config.markov_rank else []
        heads_fit = config.confidence_head_with_markov or not config.enable_confidence_head
        if engines and heads_fit and config.draft_vocab_size is None:
            engines.append("sglang")
        return engines

    @property
    def provenance_facts(self) -> list[tuple[str, str]]:
        made, results = self.sources.provenance, self.sources.results
        versions = (made.get("environment") or results.environment).get("versions") or {}
        rows = {
            "Command": f"`{made['command']}`" if made.get("command") else None,
            "Measured by": f"`{results.settings['command']}`" if results.settings.get("command") else None,
            "Recipe": f"[`{RECIPE}`]({RECIPE})" if self.sources.recipe else None,
            "Date": made.get("created"),
            "Git commit": f"`{made['git_commit']}`" if made.get("git_commit") else None,
            "Versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        }
        return [(name, cell(value)) for name, value in rows.items() if value]

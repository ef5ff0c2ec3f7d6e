"""What the stages of one run share: the recipe, its folder, and the models, opened when a stage first needs them.

It knows nothing of what a stage does.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from dspark_hf.evaluation.plots import can_plot
from dspark_hf.models import DSparkDrafter
from dspark_hf.training.data import Conversation
from dspark_hf.training.recipe import Recipe
from dspark_hf.training.rendering import Renderer

from .gguf import PACKAGE
from .prompts import PromptSplit, load_prompts
from .reporting import Reporter
from .state import RunFolder
from .target import OpenedTarget, open_target


@dataclass
class Workspace:
    """One run.

    Args:
        recipe ([`Recipe`]): all settings.
        folder ([`RunFolder`]): of everything the run writes.
        reporter ([`Reporter`], *optional*): told what happens.
        command (`str`, *optional*): what the user typed, for the card.
        given_drafter (`Path`, *optional*): a drafter's folder that no run made, to calibrate or measure.
        given_prompts (`list[Conversation]`, *optional*): held-out prompts for it, instead of the recipe's.
    """

    recipe: Recipe
    folder: RunFolder
    reporter: Reporter = field(default_factory=Reporter)
    command: str = ""
    given_drafter: Path | None = None
    given_prompts: list[Conversation] | None = None

    @cached_property
    def target(self) -> OpenedTarget:
        with self.reporter.bar("toy target") as progress:
            return open_target(self.recipe.target, progress=progress)

    @cached_property
    def prompts(self) -> PromptSplit:
        return load_prompts(self.recipe)

    @cached_property
    def renderer(self) -> Renderer:
        return Renderer(self.target.tokenizer, thinking=self.recipe.data.thinking)

    @property
    def public_target(self) -> str:
        """A name of the target that means something elsewhere: no folder of this machine."""
        section = self.recipe.target
        if section.gguf is not None:
            return Path(section.gguf.removeprefix(PACKAGE)).stem
        if section.name_or_path is None:
            return "the toy target of dspark-hf"
        folder = Path(section.name_or_path).expanduser()
        return folder.resolve().name if folder.is_dir() else section.name_or_path

    @property
    def drafter_folder(self) -> Path:
        """What is published."""
        return self.given_drafter or self.folder.path / "drafter"

    @property
    def is_adapter(self) -> bool:
        """Whether what is published is a LoRA adapter."""
        return (self.drafter_folder / "adapter_config.json").is_file()

    @property
    def plots_folder(self) -> Path:
        """Beside the drafter, whose card shows them; an adapter's card has none, and its repo stays small."""
        return (self.folder.path if self.is_adapter else self.drafter_folder) / "plots"

    @cached_property
    def draws_plots(self) -> bool:
        """Whether pictures can be made; said once where they cannot."""
        able = can_plot()
        if not able:
            self.reporter.note('no pictures: they need matplotlib, pip install "dspark-hf[evaluate]"')
        return able

    @cached_property
    def drafter(self) -> DSparkDrafter:
        """The exported drafter in the target's dtype, sharing its embedding and head."""
        return self.open_drafter(str(self.drafter_folder))

    def open_drafter(self, location: str) -> DSparkDrafter:
        """A drafter folder or repo, ready to draft for the target."""
        model = self.target.model
        drafter = DSparkDrafter.from_pretrained(location, target=model, dtype=model.dtype).to(model.device).eval()
        drafter.tie_to(model)
        return drafter

    def rows_folder(self, side: str, fingerprint: str) -> Path:
        """Of the rows of one side of the split; other settings get another folder."""
        return self.folder.path / "rows" / f"{side}-{fingerprint}"

    @cached_property
    def held_out(self) -> list[Conversation]:
        """Held-out prompts, in an order of which any beginning is a fair sample."""
        return mixed(self.given_prompts if self.given_prompts is not None else self.prompts.held_out)

    def evaluation_prompts(self) -> list[Conversation]:
        """Held-out prompts that nothing but evaluation sees, as far as there are enough of them."""
        return self.held_out[: self.recipe.evaluate.prompts]

    def calibration_prompts(self) -> list[Conversation]:
        """Held-out prompts from the other end."""
        return self.held_out[::-1][: self.recipe.calibrate.prompts]

    def validation_prompts(self) -> list[Conversation]:
        """Held-out prompts whose answers choose the best weights, from the same end as calibration's."""
        return self.held_out[::-1][: self.recipe.train.eval_rows]

    def write_folder(self, folder: Path, write: Callable[[Path], None]) -> None:
        """Puts a folder in place whole, or leaves what was there."""
        part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
        shutil.rmtree(part, ignore_errors=True)
        try:
            write(part)
            shutil.rmtree(folder, ignore_errors=True)
            part.replace(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def mixed(conversations: Sequence[Conversation]) -> list[Conversation]:
    """One of each source in turn, within a source by a hash of the id: any beginning is a fair sample."""
    sources: dict[str, list[Conversation]] = {}
    for conversation in sorted(conversations, key=lambda item: hashlib.sha256(item.id.encode()).digest()):
        sources.setdefault(conversation.source, []).append(conversation)
    turns = itertools.zip_longest(*(sources[name] for name in sorted(sources)))
    return [conversation for turn in turns for conversation in turn if conversation is not None]

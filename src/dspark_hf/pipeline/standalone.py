"""Stages for a drafter that no run here made: a folder or repo and its target, opened and calibrated or measured.

It knows nothing of training.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dspark_hf.evaluation.comparison import Comparison
from dspark_hf.evaluation.load import measure_load
from dspark_hf.evaluation.plots import can_plot, plot_load
from dspark_hf.evaluation.suite import compare
from dspark_hf.evaluation.suites import Suite
from dspark_hf.hub.provenance import environment
from dspark_hf.models import DSparkConfig, DSparkDrafter
from dspark_hf.scheduling import CostCurve
from dspark_hf.training.data import load_conversations
from dspark_hf.training.prepare import write_json
from dspark_hf.training.recipe import CalibrateSection, Recipe, TargetSection
from dspark_hf.training.rendering import Renderer

from . import stages
from .builtin_prompts import builtin_conversations
from .gguf import PACKAGE
from .prompts import BUILTIN
from .reporting import Reporter
from .state import RunFolder
from .target import OpenedTarget, open_target
from .workspace import Workspace, mixed


BENCH_PROMPTS = 64


def target_section(name: str) -> TargetSection:
    """A target as a user names it: a folder, a repo, a `.gguf` file or `package:NAME`."""
    if name.startswith(PACKAGE) or name.endswith(".gguf"):
        return TargetSection(gguf=name)
    return TargetSection(name_or_path=name)


def target_of(drafter: str, target: str | None) -> TargetSection:
    """
    The target that was given, else the one the drafter's configuration names.

    Raises:
        ValueError: neither names one.
    """
    if target is not None:
        return target_section(target)
    config = DSparkConfig.from_pretrained(drafter)
    if config.target_name_or_path is None:
        raise ValueError(f"{drafter} does not name its target; give --target.")
    return TargetSection(name_or_path=config.target_name_or_path, revision=config.target_revision)


def open_pair(drafter: str, target: str | None = None) -> tuple[OpenedTarget, DSparkDrafter]:
    """
    A target and its drafter, tied, with the cost curve of this machine where one was measured.

    Args:
        drafter (`str`): folder or repo, any known format.
        target (`str`, *optional*): see `target_of`.
    """
    opened = open_target(target_of(drafter, target))
    model = opened.model
    found = DSparkDrafter.from_pretrained(drafter, target=model, dtype=model.dtype).to(model.device).eval()
    found.tie_to(model)
    try:
        found.cost_curve = CostCurve.load(target=model)
    except FileNotFoundError:
        # the policy "auto" then verifies whole blocks
        found.cost_curve = None
    return opened, found


def drafter_workspace(
    drafter: str | Path,
    *,
    target: str | None = None,
    prompts: str | None = None,
    calibrate: CalibrateSection | None = None,
    thinking: bool | None = None,
    reporter: Reporter | None = None,
    command: str = "",
) -> Workspace:
    """
    A workspace around a drafter's folder.

    Args:
        drafter (`str` or `Path`): a folder; what is measured is written into it.
        target (`str`, *optional*): see `target_of`.
        prompts (`str`, *optional*): JSONL or Hub dataset that the drafter was not trained on; `"builtin"` by default.
        calibrate ([`CalibrateSection`], *optional*): its settings.
        thinking (`bool`, *optional*): passed to the chat template.

    Raises:
        ValueError: not a local folder with a drafter.
    """
    folder = Path(drafter)
    if not any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
        raise ValueError(
            f"{drafter} is no drafter's folder: it holds no config.json. A repo must be downloaded first, as by `hf download "
            f"{drafter} --local-dir drafter`."
        )
    recipe = Recipe(target=target_of(str(folder), target), calibrate=calibrate or CalibrateSection())
    recipe.data.thinking = thinking
    source = prompts or BUILTIN
    return Workspace(
        recipe=recipe,
        folder=RunFolder(folder),
        reporter=reporter or Reporter(),
        command=command,
        given_drafter=folder,
        given_prompts=builtin_conversations() if source == BUILTIN else load_conversations(source),
    )


def calibrate_drafter(workspace: Workspace) -> dict[str, Any]:
    """Fits temperatures and writes them into the drafter's folder; figures by sampling regime."""
    return stages.calibrate(workspace, "")


def profile_drafter(workspace: Workspace) -> dict[str, Any]:
    """Measures the cost curve into the drafter's folder and under `HF_HOME`; figures by width."""
    return stages.profile(workspace, "")


def evaluate_drafters(
    drafters: Sequence[str],
    *,
    target: str | None = None,
    suites: Sequence[str] = (),
    thinking: str | None = None,
    output: Path | None = None,
    **options: Any,
) -> Comparison:
    """
    Drafters of one target on the same prompts.

    Args:
        drafters (`Sequence[str]`): folders or repos; the target is that of the first.
        target (`str`, *optional*): see `target_of`.
        suites (`Sequence[str]`): see `dspark_hf.evaluation.load_suite`; prompts of our own making by default.
        thinking (`str`, *optional*): `"on"`, `"off"` or `"both"`.
        output (`Path`, *optional*): folder of results and tables.
        options: as for `dspark_hf.evaluation.evaluate`.
    """
    opened, first = open_pair(drafters[0], target)
    found = {drafters[0]: first}
    for name in drafters[1:]:
        other = DSparkDrafter.from_pretrained(name, target=opened.model, dtype=opened.model.dtype)
        found[name] = other.to(opened.model.device).eval()
        found[name].cost_curve = first.cost_curve
    chosen: list[str | Suite] = list(suites) or [
        Suite(source, stages.domain_of(source), items)
        for source, items in stages.by_source(mixed(builtin_conversations())[:48]).items()
    ]
    modes = {None: None, "on": True, "off": False, "both": [True, False]}[thinking]
    named = dict(zip(short_names(list(found)), found.values(), strict=True))
    comparison = compare(opened.model, opened.tokenizer, named, chosen, thinking=modes, folder=output, **options)
    if output is not None:
        comparison.save(output)
    return comparison


def short_names(names: Sequence[str]) -> list[str]:
    """What tells folders or repos apart: `runs/a/drafter` and `runs/b/drafter` are `a` and `b`."""
    parts = [[part for part in Path(name).parts if part not in ("/", ".", "..")] for name in names]
    while len(parts) > 1 and min(map(len, parts)) > 1 and len({each[-1] for each in parts}) == 1:
        parts = [each[:-1] for each in parts]
    for length in range(1, max(map(len, parts)) + 1):
        short = ["-".join(each[-length:]) for each in parts]
        if len(set(short)) == len(short):
            return short
    raise ValueError(f"the same drafter is named twice: {', '.join(names)}")


def bench_load(
    target: str, drafter: str, *, prompts: str | None = None, output: Path | None = None, **options: Any
) -> list[dict[str, Any]]:
    """
    Throughput of plain decoding and of several policies with many requests at a time.

    Args:
        target, drafter (`str`): folders or repos.
        prompts (`str`, *optional*): JSONL or Hub dataset; prompts of our own making by default.
        output (`Path`, *optional*): JSON file, with a picture of the same name beside it.
        options: as for `dspark_hf.evaluation.load.measure_load`.
    """
    opened, model = open_pair(drafter, target)
    if model.cost_curve is None:
        model.cost_curve = CostCurve.measure(opened.model, model, rows=max(options.get("rows", (1,))))
        model.cost_curve.save()
    conversations = builtin_conversations() if prompts in (None, BUILTIN) else load_conversations(prompts)
    renderer = Renderer(opened.tokenizer)
    ids = [
        renderer.prompt_ids([*item.system, {"role": "user", "content": item.user_turns[0]}])
        for item in mixed(conversations)[:BENCH_PROMPTS]
    ]
    points = [point.to_dict() for point in measure_load(opened.model, model, ids, **options)]
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_json(output, {"target": target, "drafter": drafter, "environment": environment(), "points": points})
        if can_plot():
            plot_load(points, output.with_suffix(".png"))
    return points

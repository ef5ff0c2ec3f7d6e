"""The stages of a run: each takes the workspace, leaves files in it, and returns a few figures as JSON data.

A stage may be killed at any moment and called again. Their order and what they may skip is in `run.py`.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dspark_hf.calibration import calibrate as fit_calibration
from dspark_hf.evaluation.plots import (
    plot_acceptance_by_slot,
    plot_accepted_length,
    plot_cost_curve,
    plot_reliability,
    plot_threshold_sweep,
)
from dspark_hf.evaluation.results import EvalResults, SuiteResult, update_calibration
from dspark_hf.evaluation.rollouts import collect_rollouts
from dspark_hf.evaluation.suite import evaluate as evaluate_suites
from dspark_hf.evaluation.suites import DOMAINS, PAPER_SUITES, Suite
from dspark_hf.hub.adapters import save_adapter
from dspark_hf.hub.card import DrafterCard
from dspark_hf.hub.card_adapter import AdapterCard
from dspark_hf.hub.provenance import write_provenance
from dspark_hf.models import DSparkDrafter
from dspark_hf.models.persistence_dspark import write_adapter_calibration
from dspark_hf.scheduling import CostCurve
from dspark_hf.training.data import Conversation
from dspark_hf.training.new_drafter import new_drafter
from dspark_hf.training.prepare import prepare_rows
from dspark_hf.training.rows import Row, RowReport, RowStore
from dspark_hf.training.train import TrainingResult, train_drafter
from dspark_hf.training.trainer import TrainingProgress

from .public_names import public_command, public_recipe
from .workspace import Workspace


RECIPE_FILE = "training_recipe.yaml"


def open_target(workspace: Workspace, fingerprint: str) -> dict[str, Any]:
    """Opens the target, building the toy or converting GGUF where they are not cached yet."""
    target = workspace.target
    parameters = sum(weight.numel() for weight in target.model.parameters())
    workspace.reporter.note(f"target: {target.name}, {parameters / 1e6:.1f} M parameters, {target.model.dtype}")
    return {"name": target.name, "revision": target.revision, "parameters": parameters}


def prepare(workspace: Workspace, fingerprint: str) -> dict[str, Any]:
    """Lets the target answer the training prompts, and the held-out ones that validation needs."""
    split, report = workspace.prompts, RowReport()
    rows = _answer(workspace, "training", fingerprint, report)
    held_out = _answer(workspace, "held-out", fingerprint, RowReport()) if workspace.recipe.train.eval_rows else []
    tokens = sum(len(row.completion_ids) for row in rows)
    workspace.reporter.note(
        f"{len(rows)} rows with {tokens} answer tokens of {len(split.training)} prompts, {len(split.held_out)} held out"
    )
    return {
        "rows": len(rows),
        "answer_tokens": tokens,
        "held_out_rows": len(held_out),
        "held_out_prompts": len(split.held_out),
        "skipped": report.skipped,
        "folder": str(workspace.rows_folder("training", fingerprint)),
    }


def _answer(workspace: Workspace, side: str, fingerprint: str, report: RowReport) -> list[Row]:
    target, data = workspace.target, workspace.recipe.data
    revision = f"@{target.revision}" if target.revision else ""
    conversations = workspace.prompts.training if side == "training" else workspace.validation_prompts()
    start = workspace.recipe.drafter.start_from
    drafter = workspace.open_drafter(start) if start is not None and data.server is None else None
    with workspace.reporter.bar(f"answers ({side})") as progress:
        return prepare_rows(
            target.model,
            target.tokenizer,
            conversations,
            workspace.rows_folder(side, fingerprint),
            data=data,
            target_name=target.label,
            generator=workspace.public_target + revision,
            drafter=drafter,
            progress=progress,
            report=report,
        )


def train(workspace: Workspace, fingerprint: str) -> dict[str, Any]:
    """Trains the drafter and exports it to the drafter folder."""
    recipe, target = workspace.recipe, workspace.target
    prepared = workspace.folder.fingerprint("prepare")
    rows = RowStore(workspace.rows_folder("training", prepared)).read()
    held_out = RowStore(workspace.rows_folder("held-out", prepared)).read()
    output = workspace.folder.path / "training" / fingerprint
    drafter = None
    if recipe.drafter.start_from is None:
        drafter = new_drafter(
            target.model,
            target.tokenizer,
            rows,
            recipe.drafter,
            seed=recipe.train.seed,
            # the folder of a toy or of a converted file means nothing to anybody else
            target_name=recipe.target.name_or_path,
            target_revision=target.revision,
            thinking=recipe.data.thinking,
        )
    resumed = any(output.glob("checkpoint-*"))
    started = time.monotonic()
    with workspace.reporter.bar("features") as on_cache, workspace.reporter.bar("training") as on_step:
        result = train_drafter(
            target.model,
            target.tokenizer,
            rows,
            output,
            recipe=recipe,
            eval_rows=held_out,
            drafter=drafter,
            on_progress=lambda progress: _show_training(progress, on_step),
            on_cache_progress=on_cache,
        )
    # how long a killed attempt took, nobody knows
    seconds = None if resumed else round(time.monotonic() - started, 1)
    if int(os.environ.get("RANK", "0")) == 0:
        workspace.write_folder(workspace.drafter_folder, lambda folder: _export(result, folder, target.model.dtype))
    workspace.__dict__.pop("drafter", None)
    best = result.metrics.get("best_accepted_length")
    if best is not None:
        workspace.reporter.note(f"accepted length on held-out rows, greedy drafts: {best:.2f}")
    tokens = sum(len(row.completion_ids) for row in rows)
    return {"rows": len(rows), "tokens": tokens, "steps": result.steps, "seconds": seconds, "metrics": result.metrics}


def _show_training(progress: TrainingProgress, on_step: Any) -> None:
    if progress.total_steps is not None:
        on_step(progress.step, progress.total_steps)
    else:
        on_step(round(1000 * progress.fraction), 1000)


def _export(result: TrainingResult, folder: Path, dtype: torch.dtype) -> None:
    """The trained weights in the target's dtype, or the adapter alone."""
    if not isinstance(result.drafter, DSparkDrafter):
        save_adapter(result.drafter, folder)
        return
    export = DSparkDrafter(result.drafter.config)
    export.load_state_dict(result.drafter.state_dict())
    export.to(dtype).save_pretrained(folder)


def calibrate(workspace: Workspace, fingerprint: str) -> dict[str, Any]:
    """Fits temperatures on real rollouts, one set a sampling regime, and writes the report."""
    section, drafter, folder = workspace.recipe.calibrate, workspace.drafter, workspace.drafter_folder
    if drafter.confidence_head is None and section.survival == "confidence":
        workspace.reporter.note(
            "no confidence head, nothing to calibrate; calibrate.survival: margin reads the margin of the draft scores instead"
        )
        return {}
    prompts = [workspace.renderer.prompt_ids(_first_turn(item)) for item in workspace.calibration_prompts()]
    found, figures = {}, {}
    for temperature in section.temperatures:
        records = collect_rollouts(
            workspace.target.model,
            drafter,
            prompts,
            temperature=temperature,
            top_p=section.top_p,
            thinking=workspace.recipe.data.thinking,
            max_new_tokens=section.max_new_tokens,
            batch_size=section.batch_size,
            progress=workspace.reporter.draws,
        )
        if workspace.given_drafter is None:
            records.save(workspace.folder.path / "rollouts" / f"{records.regime}.npz")
        result = fit_calibration(
            records,
            survival=section.survival,
            held_out=1 - section.fit_fraction,
            min_samples=section.min_samples,
        )
        found[records.regime] = result.calibration.to_dict()
        update_calibration(folder, records.regime, result.report)
        name = records.regime.replace("=", "_").replace(",", "_")
        if workspace.draws_plots:
            plots = workspace.plots_folder
            plot_reliability(result.report, plots / f"reliability_{name}.png", title=records.regime)
            sweep = result.report["threshold_sweep"]
            plot_threshold_sweep(sweep, plots / f"threshold_sweep_{name}.png", title=records.regime)
        figures[records.regime] = _calibration_error(result.report)
        before, after = (_three_digits(value) for value in figures[records.regime].values())
        workspace.reporter.note(
            f"calibration at {records.regime}: error of survival {before} before, {after} after, {len(records)} rounds, read "
            f"from the {result.report['survival']}"
        )
    drafter.config.confidence_calibration = found
    if workspace.is_adapter:
        write_adapter_calibration(folder, found)
    else:
        drafter.config.save_pretrained(folder)
    return figures


def _first_turn(conversation: Any) -> list[dict[str, str]]:
    return [*conversation.system, {"role": "user", "content": conversation.user_turns[0]}]


def _calibration_error(report: dict[str, Any]) -> dict[str, float | None]:
    """Mean over slots of the expected calibration error on held-out rounds; `None` before, without a confidence head."""
    found: dict[str, float | None] = {}
    for key in ("ece_before", "ece_after"):
        errors = [slot[key] for slot in report["slots"] if slot[key] is not None]
        found[key] = sum(errors) / len(errors) if errors else None
    return found


def _three_digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def profile(workspace: Workspace, fingerprint: str) -> dict[str, Any]:
    """Measures the cost curve of this machine; it goes beside the drafter and under `HF_HOME`."""
    section, folder = workspace.recipe.calibrate, workspace.drafter_folder
    curve = CostCurve.measure(
        workspace.target.model,
        workspace.drafter,
        context=section.cost_context_tokens,
        deep_context=section.cost_deep_context_tokens,
        rows=section.cost_rows,
        budget_seconds=section.cost_seconds,
    )
    curve.save()
    public = replace(curve, meta={**curve.meta, "target": workspace.public_target})
    public.save(folder / "cost_curves" / "cost_curve.json")
    depths = {f"{curve.context} tokens deep": curve.seconds}
    if curve.deep_seconds is not None:
        depths[f"{curve.deep_context} tokens deep"] = curve.deep_seconds
    if workspace.draws_plots:
        plot_cost_curve(curve.tokens, depths, workspace.plots_folder / "cost_curve.png")
    milliseconds = [round(1000 * value, 2) for value in curve.seconds]
    workspace.reporter.note(
        f"a forward of the target takes {milliseconds[0]} ms for {curve.tokens[0]} token, {milliseconds[-1]} ms for "
        f"{curve.tokens[-1]}; a draft {1000 * curve.draft_seconds:.2f} ms"
    )
    return {"tokens": curve.tokens, "milliseconds": milliseconds, "draft_milliseconds": 1000 * curve.draft_seconds}


def evaluate(workspace: Workspace, fingerprint: str) -> dict[str, Any]:
    """Measures on held-out prompts, with and without the drafter; before and after, where it started from another one."""
    folder, start = workspace.drafter_folder, workspace.recipe.drafter.start_from
    suites = [
        Suite(source, domain_of(source), items) for source, items in by_source(workspace.evaluation_prompts()).items()
    ]
    if start is not None:
        _evaluate(workspace, workspace.open_drafter(start), suites, folder / "before")
    drafter = workspace.drafter
    drafter.cost_curve = CostCurve.load(target=workspace.target.model)
    results = _evaluate(workspace, drafter, suites, folder)
    if workspace.draws_plots:
        _plot_results(results, workspace.plots_folder)
    for suite in results.suites:
        workspace.reporter.note(_result_line(suite))
    return {"suites": [_figures(suite) for suite in results.suites]}


def _evaluate(workspace: Workspace, drafter: DSparkDrafter, suites: list[Suite], folder: Path) -> EvalResults:
    section, target = workspace.recipe.evaluate, workspace.target
    folder.mkdir(parents=True, exist_ok=True)
    results = evaluate_suites(
        target.model,
        target.tokenizer,
        drafter,
        suites,
        temperatures=section.temperatures,
        thinking=workspace.recipe.data.thinking,
        policies=section.policies,
        max_new_tokens=section.max_new_tokens,
        folder=folder,
        command=workspace.command or None,
        max_minutes=section.max_minutes,
        seed=section.seed,
        progress=workspace.reporter.draws,
    )
    # names that others can use, not folders of this machine
    results.target, results.drafter = workspace.public_target, folder.name
    results.save(folder)
    return results


def by_source(conversations: list[Conversation]) -> dict[str, list[Conversation]]:
    """Conversations under the name of the file or set they came from."""
    found: dict[str, list[Conversation]] = {}
    for conversation in conversations:
        found.setdefault(conversation.source or "held-out", []).append(conversation)
    return dict(sorted(found.items()))


def domain_of(source: str) -> str:
    """`"math"`, `"code"`, `"chat"` or `"other"`, from the name of a known set or the name itself."""
    if source in PAPER_SUITES:
        return PAPER_SUITES[source].domain
    return next((domain for domain in DOMAINS if domain in source), "other")


def _plot_results(results: EvalResults, folder: Path) -> None:
    """Accepted length by set and acceptance by slot, of the runs that verify whole blocks where there are any."""
    chosen = [suite for suite in results.suites if suite.policy == "full"] or results.suites
    lengths: dict[str, dict[str, float | None]] = {}
    intervals: dict[str, dict[str, Any]] = {}
    slots: dict[str, list[float | None]] = {}
    for suite in chosen:
        series = f"T = {suite.temperature:g}"
        lengths.setdefault(series, {})[suite.suite] = suite.accepted_length
        intervals.setdefault(series, {})[suite.suite] = suite.accepted_length_interval
        slots[f"{suite.suite}, {series}"] = suite.acceptance_by_slot
    plot_accepted_length(lengths, folder / "accepted_length.png", intervals=intervals)
    plot_acceptance_by_slot(slots, folder / "acceptance_by_slot.png")


def _figures(suite: SuiteResult) -> dict[str, Any]:
    keys = (
        "suite temperature policy accepted_length speedup tokens_per_second plain_tokens_per_second compared identical"
    )
    return {key: suite.__dict__[key] for key in [*keys.split(), "near_ties", "mismatches"]}


def _result_line(suite: SuiteResult) -> str:
    if suite.accepted_length is None:
        return f"{suite.suite}, T={suite.temperature:g}, {suite.policy}: no full round"
    speed = "" if suite.speedup is None else f", {suite.speedup:.2f}x plain tokens/s"
    same = "" if not suite.compared else f", text equal {suite.identical}/{suite.compared}"
    return f"{suite.suite}, T={suite.temperature:g}, {suite.policy}: accepted length {suite.accepted_length:.2f}{speed}{same}"


def assemble(workspace: Workspace, fingerprint: str) -> dict[str, Any]:
    """Adds recipe, provenance, card and the target's tokenizer, so that the folder is complete without a Hub."""
    folder = workspace.drafter_folder
    if not workspace.is_adapter:
        # pipeline("text-generation", assistant_model="user/drafter") opens a tokenizer beside the drafter
        workspace.target.tokenizer.save_pretrained(folder)
    # the run keeps the paths, for whoever goes on from it
    (workspace.folder.path / RECIPE_FILE).write_text(workspace.recipe.to_yaml(), encoding="utf-8")
    (folder / RECIPE_FILE).write_text(public_recipe(workspace.recipe).to_yaml(), encoding="utf-8")
    trained = workspace.folder.result("train")
    training = {key: trained[key] for key in ("rows", "tokens", "steps", "seconds")}
    write_provenance(folder, command=public_command(workspace.command, workspace.recipe), training=training)
    card = (AdapterCard if workspace.is_adapter else DrafterCard).from_folder(
        folder, repo_id=workspace.recipe.hub.repo_id, license=workspace.recipe.hub.license
    )
    (folder / "README.md").write_text(card.render(), encoding="utf-8")
    return {"folder": str(folder), "card": str(folder / "README.md")}

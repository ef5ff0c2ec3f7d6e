"""
Pictures of measurements: reliability, accepted length, acceptance by slot, threshold sweep, load and cost.

Draws numbers that others measured; every function writes one PNG and returns its path. Colours are the Okabe-Ito set, and every series
also has a marker of its own. Needs matplotlib (`pip install "dspark-hf[evaluate]"`), imported on first use.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# https://jfly.uni-koeln.de/color/ ; yellow is left out, it vanishes on white
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":", "-", "--", "-.")
# Cards show pictures at about half their size, where 13 points are still read.
FONT_SIZE = 13
BASELINE = "plain decoding"


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def plot_reliability(report: Mapping[str, Any], path: str | Path, *, title: str | None = None) -> Path:
    """
    Survival predicted against observed, one panel per slot, before and after calibration (the paper's figure 5).

    Args:
        report (`Mapping`): of [`~dspark_hf.calibration.calibration_report`].
        path (`str` or `Path`): the PNG.
        title (`str`, *optional*): e.g. the sampling regime.
    """
    slots = report["slots"]
    columns = min(4, len(slots))
    figure, panels = _panels(math.ceil(len(slots) / columns), columns, size=(3.1, 3.3), share=True)
    for panel, slot in zip(panels, slots, strict=False):
        panel.plot([0, 1], [0, 1], color="0.6", linewidth=1.2, zorder=0)
        for index, (label, key) in enumerate((("before", "curve_before"), ("after", "curve_after"))):
            # a bin of few rounds shows their luck
            enough = max(5, slot["records"] / 200)
            points = [(predicted, observed) for predicted, observed, rounds in slot[key] if rounds >= enough]
            panel.plot(*zip(*points, strict=True) if points else ([], []), label=label, **_style(index))
        panel.set_title(
            f"slot {slot['slot']}: ECE {_percent(slot['ece_before'])} → {_percent(slot['ece_after'])}", fontsize=12
        )
        panel.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
    for panel in panels[len(slots) :]:
        panel.set_visible(False)
    for panel in panels[max(len(slots) - columns, 0) : len(slots)]:
        panel.tick_params(labelbottom=True)  # the lowest of its column, where the last row is not full
    _legend_above(figure, panels[0])
    figure.supxlabel("predicted survival", fontsize=FONT_SIZE)
    figure.supylabel("observed", fontsize=FONT_SIZE)
    return _written(figure, path, title)


def plot_accepted_length(
    lengths: Mapping[str, Mapping[str, float | None]],
    path: str | Path,
    *,
    intervals: Mapping[str, Mapping[str, Sequence[float] | None]] | None = None,
    title: str | None = None,
) -> Path:
    """
    Accepted length by set, one bar per series.

    Args:
        lengths (`Mapping`): series (`"T = 0"`, or a drafter's name) -> set -> tokens per round, bonus token included.
        intervals (`Mapping`, *optional*): the same keys -> `[low, high]`.
    """
    sets = list(dict.fromkeys(name for by_set in lengths.values() for name in by_set))
    figure, [panel] = _panels(1, 1, size=(max(6.4, 1.3 * len(sets) + 1.5), 4.2))
    width = min(0.8 / len(lengths), 0.3)
    for index, (series, by_set) in enumerate(lengths.items()):
        heights = [_gap(by_set.get(name)) for name in sets]
        spans = [((intervals or {}).get(series) or {}).get(name) for name in sets]
        errors = [
            [0.0 if span is None else height - span[0] for height, span in zip(heights, spans, strict=True)],
            [0.0 if span is None else span[1] - height for height, span in zip(heights, spans, strict=True)],
        ]
        places = [place + (index - (len(lengths) - 1) / 2) * width for place in range(len(sets))]
        panel.bar(
            places,
            heights,
            width * 0.92,
            yerr=errors if intervals else None,
            capsize=4,
            label=series,
            color=COLOURS[index % len(COLOURS)],
            hatch=("", "//", "..", "xx", "\\\\", "++", "oo")[index % 7],
            edgecolor="white",
            error_kw={"ecolor": "0.25", "elinewidth": 1.5},
        )
    panel.axhline(1.0, color="black", linewidth=1.5, linestyle=":", label=BASELINE)
    panel.grid(visible=False, axis="x")
    panel.set_xlim(-0.6, len(sets) - 0.4)
    turned = len(sets) > 6
    panel.set_xticks(range(len(sets)), sets, rotation=30 if turned else 0, ha="right" if turned else "center")
    panel.set_ylabel("tokens per round")
    panel.set_ylim(bottom=0)
    _legend_above(figure, panel)
    return _written(figure, path, title)


def plot_acceptance_by_slot(
    rates: Mapping[str, Sequence[float | None]], path: str | Path, *, title: str | None = None
) -> Path:
    """
    P(slot accepted | slots before it accepted), one line per series (the paper's figure 2).

    Args:
        rates (`Mapping`): series -> one rate per slot; `None` leaves a gap.
    """
    crowded = len(rates) > 6
    figure, [panel] = _panels(1, 1, size=(9.6, 5.0) if crowded else (6.4, 4.2))
    for index, (series, by_slot) in enumerate(rates.items()):
        values = [_gap(rate) for rate in by_slot]
        panel.plot(range(1, len(values) + 1), values, label=series, **_style(index))
    longest = max((len(by_slot) for by_slot in rates.values()), default=1)
    panel.set(xlabel="slot", ylabel="accepted, given all before", ylim=(0, 1.03), xticks=range(1, longest + 1))
    if crowded:
        panel.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
    else:
        _legend_above(figure, panel)
    return _written(figure, path, title)


def plot_threshold_sweep(sweep: Sequence[Mapping[str, float]], path: str | Path, *, title: str | None = None) -> Path:
    """
    What a static confidence threshold does: tokens per round, and accepted against rejected tokens (the paper's figure 6).

    Args:
        sweep (`Sequence[Mapping]`): of [`~dspark_hf.calibration.threshold_sweep`].
    """
    thresholds = [point["threshold"] for point in sweep]
    figure, (tokens, rate) = _panels(1, 2, size=(5.2, 4.2))
    for index, key in enumerate(("accepted", "rejected")):
        tokens.plot(thresholds, [point[key] for point in sweep], label=key, markevery=2, **_style(index))
    tokens.set(xlabel="threshold", ylabel="drafted tokens per round", ylim=(0, None))
    tokens.legend(frameon=False)
    for index, (label, key) in enumerate(
        (("acceptance rate", "acceptance_rate"), ("tokens per round / best", "tokens_per_round"))
    ):
        values = [point[key] for point in sweep]
        scale = max(values) if key == "tokens_per_round" else 1.0
        rate.plot(thresholds, [value / scale for value in values], label=label, markevery=2, **_style(index + 2))
    rate.set(xlabel="threshold", ylabel="share", ylim=(0, 1.05))
    rate.legend(frameon=False, loc="lower left")
    return _written(figure, path, title)


def plot_load(points: Sequence[Mapping[str, Any]], path: str | Path, *, title: str | None = None) -> Path:
    """
    Throughput against speed per user, and verified length against load (the paper's figures 7 and 8).

    Args:
        points (`Sequence[Mapping]`): `{"policy", "rows", "tokens_per_second", "tokens_per_second_per_user",
            "verified_length"}`; `verified_length` is `None` for plain decoding.
    """
    figure, (speed, length) = _panels(1, 2, size=(5.6, 4.4))
    for index, policy in enumerate(dict.fromkeys(point["policy"] for point in points)):
        own = sorted((point for point in points if point["policy"] == policy), key=lambda point: point["rows"])
        per_user = [point["tokens_per_second_per_user"] for point in own]
        speed.plot(per_user, [point["tokens_per_second"] for point in own], label=policy, **_style(index))
        if index == 0:
            for point, offset, side in ((own[0], (-8, 0), "right"), (own[-1], (0, 14), "center")):
                place = (point["tokens_per_second_per_user"], point["tokens_per_second"])
                speed.annotate(
                    f"{point['rows']} {'row' if point['rows'] == 1 else 'rows'}",
                    place,
                    xytext=offset,
                    textcoords="offset points",
                    fontsize=FONT_SIZE - 1,
                    ha=side,
                    va="center",
                    bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85},
                    zorder=5,
                )
        verified = [(point["rows"], point["verified_length"]) for point in own if point["verified_length"] is not None]
        if verified:
            length.plot(*zip(*verified, strict=True), label=policy, **_style(index))
    speed.set(xlabel="tokens/s per user", ylabel="tokens/s, all users", ylim=(0, None), xlim=(0, None))
    _legend_above(figure, speed)
    rows = sorted({point["rows"] for point in points})
    length.set_xscale("log", base=2)
    length.set_xticks(rows, [str(count) for count in rows])
    length.minorticks_off()
    length.set(xlabel="rows", ylabel="verified tokens per round", ylim=(0, None))
    return _written(figure, path, title)


def plot_cost_curve(
    tokens: Sequence[int], seconds: Mapping[str, Sequence[float]], path: str | Path, *, title: str | None = None
) -> Path:
    """
    T(B) as measured, unsmoothed.

    Args:
        tokens (`Sequence[int]`): measured sizes.
        seconds (`Mapping`): series (`"128 tokens deep"`) -> seconds per forward.
    """
    figure, [panel] = _panels(1, 1, size=(6.4, 4.2))
    for index, (series, values) in enumerate(seconds.items()):
        panel.plot(tokens, [1000 * value for value in values], label=series, **_style(index))
    panel.set(xlabel="tokens in one target forward", ylabel="milliseconds", ylim=(0, None))
    if max(tokens) > 32:
        ticks = [2**power for power in range(max(tokens).bit_length()) if 2**power >= min(tokens)]
        panel.set_xscale("log", base=2)
        panel.set_xticks(ticks, [str(size) for size in ticks])
        panel.minorticks_off()
    _legend_above(figure, panel)
    return _written(figure, path, title)


def _panels(rows: int, columns: int, *, size: tuple[float, float], share: bool = False) -> tuple[Figure, list[Axes]]:
    """A figure of its own (no pyplot, so no state and no display), with panels of `size` inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('plots need matplotlib: pip install "dspark-hf[evaluate]"') from error
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=share).flatten().tolist()
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(color="0.9", linewidth=0.8)
        panel.set_axisbelow(True)
        panel.tick_params(labelsize=FONT_SIZE - 1)
        panel.xaxis.label.set_size(FONT_SIZE)
        panel.yaxis.label.set_size(FONT_SIZE)
    return figure, panels


def _style(index: int) -> dict[str, Any]:
    """Of a line; the second seven have hollow markers, so that no two of fourteen look alike."""
    again, place = divmod(index, len(COLOURS))
    hollow = {"markerfacecolor": "white", "markeredgecolor": COLOURS[place], "markeredgewidth": 1.6}
    filled = {"markeredgecolor": "white", "markeredgewidth": 0.8}
    return {
        "color": COLOURS[place],
        "marker": MARKERS[place],
        "linestyle": LINES[place],
        "linewidth": 2.2,
        "markersize": 7,
        **(hollow if again % 2 else filled),
    }


def _legend_above(figure: Figure, panel: Axes) -> None:
    """One legend for all panels, where it can cover no data; its title is the figure's."""
    handles, labels = panel.get_legend_handles_labels()
    by_label = sorted(zip(labels, handles, strict=True), key=lambda item: item[0] == BASELINE)
    longest = max((len(label) for label in labels), default=1)
    # a letter is about 0.55 em wide, the sample of a line and its gaps five letters
    columns = int(figure.get_figwidth() * 60 / (0.55 * (FONT_SIZE - 1) * (longest + 5)))
    figure.legend(
        [handle for _, handle in by_label],
        [label for label, _ in by_label],
        frameon=False,
        loc="outside upper center",
        ncols=min(max(columns, 1), max(len(labels), 1)),
        fontsize=FONT_SIZE - 1,
        columnspacing=1.2,
    )


def _written(figure: Figure, path: str | Path, title: str | None) -> Path:
    for panel in figure.axes:
        legend = panel.get_legend()
        if legend is not None:
            for text in legend.get_texts():
                text.set_fontsize(FONT_SIZE - 1)
    if title is not None and figure.legends:
        figure.legends[0].set_title(title)
        figure.legends[0].get_title().set_fontsize(FONT_SIZE + 1)
    elif title is not None:
        figure.suptitle(title, fontsize=FONT_SIZE + 1)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # No date and no version in the file: the same numbers give the same bytes, and an unchanged folder makes no commit.
    figure.savefig(path, dpi=130, metadata={"Software": None})
    return path


def _gap(value: float | None) -> float:
    """matplotlib leaves out what is not a number."""
    return math.nan if value is None else value


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"

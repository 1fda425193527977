"""The pictures of a run's report, each from its part of the analysis."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from elias_ray import index_pictures
from elias_ray.drawing import (
    COLOUR_OF_METRIC,
    DECILES,
    FONTS,
    SHADES,
    SIZE,
    deciles_below,
    legend_above,
    name_of_end,
    panel,
    png,
)
from elias_ray.evaluation import TITLES
from elias_ray.paper_results import SHOWN
from elias_ray.search_picture import ACCENT, GRID, INK

COLOUR_OF_ROW = {
    TITLES["stage1"]: SHADES(0.75),
    TITLES["stage2"]: SHADES(0.5),
    TITLES["ranker"]: SHADES(0.2),
    TITLES["calibrated"]: ACCENT,
    TITLES["ensemble"]: INK,
}
COLOUR_OF_STAGE = {"warmup": "#999999", "stage1": SHADES(0.75), "stage2": SHADES(0.3)}
TITLE_OF_STAGE = {"warmup": "before re-clustering", "stage1": "stage 1", "stage2": "stage 2"}
GREYS = ("#555555", "#888888", "#333333", "#777777", "#999999", "#444444")  # of other systems
DASHES = ("--", ":", "-.", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1, 1, 1)))


def pictures(analysis: Mapping[str, Any]) -> dict[str, bytes]:
    """PNGs by name, of what the run has."""
    index, training, recalls = analysis["index"], analysis["training"], analysis["recall"]
    projection, pruning = index["projection"] or {}, index["pruning"] or {}
    # What to draw, and from what; nothing from nothing.
    drawn: dict[str, tuple[Callable[[Any], Figure], Any]] = {
        "steps": (steps, analysis["steps"]),
        "build-up": (build_up, analysis["build_up"]),
        "loss": (loss, training),
        "validation": (validation, training),
        "throughput": (throughput, training),
        "parts-of-a-step": (parts_of_a_step, training),
        "recall": (recall, recalls),
        "recall-by-decile": (recall_by_decile, recalls),
        "true-label-scores": (true_label_scores, analysis["true_label_scores"]),
        "edge-scores": (index_pictures.edge_scores, index["edge_scores"]),
        "edge-histogram": (index_pictures.edge_histogram, index["edge_scores"]),
        "surviving-edges": (index_pictures.surviving_edges, index["surviving_edges"]),
        "clusters-per-label": (index_pictures.clusters_per_label, index["clusters_per_label"]),
        "points-of-several": (index_pictures.points, projection.get("several")),
        "points-of-one": (index_pictures.points, projection.get("one")),
        "pruning": (index_pictures.pruned, pruning.get("rows")),
        "pruning-time": (index_pictures.pruned_time, pruning.get("rows")),
        "cluster-sizes": (index_pictures.cluster_sizes, index["cluster_sizes"]),
    }
    with rc_context(FONTS):
        return {name: png(draw(numbers)) for name, (draw, numbers) in drawn.items() if numbers}


def steps(steps: Sequence[Mapping[str, Any]]) -> Figure:
    figure, axes = panel((SIZE[0], 1.0 + 0.34 * len(steps)))
    longest = max(step["seconds"] for step in steps)
    unit, name = (3600, "hours") if longest >= 7200 else (60, "minutes") if longest >= 120 else (1, "seconds")
    places, values = np.arange(len(steps)), [step["seconds"] / unit for step in steps]
    axes.barh(places, values, color=[SHADES(0.65) if step["part"] else SHADES(0.3) for step in steps], height=0.65)
    for place, value, step in zip(places, values, steps, strict=True):
        text = duration(step["seconds"])
        axes.annotate(text, (value, place), (4, 0), textcoords="offset points", va="center", fontsize=9.5)
    axes.set_yticks(places, [step["step"] for step in steps])
    axes.invert_yaxis()
    axes.margins(x=0.16)
    axes.set_xlabel(f"wall time, {name}")
    axes.grid(axis="x", color=GRID, linewidth=0.7)
    return figure


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 or seconds == 0 else f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{seconds / 60:.1f} min" if minutes < 10 else f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def build_up(figures: Mapping[str, Any]) -> Figure:
    """A group of bars a metric: rows of the build-up and, in grey, other systems."""
    rows = [(row["title"], row["metrics"], COLOUR_OF_ROW[row["title"]]) for row in figures["rows"]]
    peers = [(name, metrics, grey) for (name, metrics), grey in zip(figures["peers"].items(), GREYS * 9, strict=False)]
    figure, axes = panel()
    bars = [*peers, *rows]
    width = 0.84 / len(bars)
    for number, (title, metrics, colour) in enumerate(bars):
        places = np.arange(len(SHOWN)) + (number - (len(bars) - 1) / 2) * width
        values = [metrics.get(name) or 0 for name in SHOWN]
        axes.bar(places, values, width * 0.92, color=colour, label=title)
        if number == len(bars) - 1 or (number == 0 and not peers):  # the last row and, where there is room, the first
            for place, value in zip(places, values, strict=True):
                axes.annotate(
                    f"{value:.1f}", (place, value), (0, 2), textcoords="offset points", ha="center", fontsize=8.5
                )
    if figures["paper"]:
        for number, row in enumerate(figures["rows"], start=len(peers)):
            places = np.arange(len(SHOWN)) + (number - (len(bars) - 1) / 2) * width
            axes.scatter(
                places,
                [row["paper"][name] for name in SHOWN],
                marker="_",
                s=60,
                color=INK,
                label="paper" if number == len(peers) else None,
            )
    axes.set_xticks(range(len(SHOWN)), SHOWN)
    axes.set_ylabel("test points, per cent")
    legend_above(axes, columns=3 if figures["peers"] else 4)
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    return figure


def loss(stages: Sequence[Mapping[str, Any]]) -> Figure:
    """The mean of an epoch stands in its middle."""
    figure, axes = panel()
    for stage, offset in zip(stages, _offsets(stages), strict=True):
        colour = COLOUR_OF_STAGE[stage["stage"]]
        if stage["steps"]:
            axes.plot(offset + np.array(stage["steps"]), stage["losses"], color=colour, linewidth=1, alpha=0.5)
        ends = np.array([0] + [epoch["step"] for epoch in stage["epochs"]])
        middles, means = offset + (ends[:-1] + ends[1:]) / 2, [epoch["loss"] for epoch in stage["epochs"]]
        axes.plot(middles, means, "o-", color=colour, markersize=4, linewidth=1.6, label=TITLE_OF_STAGE[stage["stage"]])
    _between_stages(axes, stages)
    axes.set(xlabel="training step", ylabel="loss")
    axes.set_ylim(bottom=0)
    legend_above(axes)
    return figure


def validation(stages: Sequence[Mapping[str, Any]]) -> Figure:
    figure, axes = panel()
    for metric, colour in COLOUR_OF_METRIC.items():
        for number, (stage, offset) in enumerate(zip(stages, _offsets(stages), strict=True)):
            steps = offset + np.array([epoch["step"] for epoch in stage["epochs"]])
            values = [epoch[metric] for epoch in stage["epochs"]]
            axes.plot(steps, values, "o-", color=colour, markersize=4, linewidth=1.6, label=None if number else metric)
        name_of_end(axes, steps[-1], values[-1], f"{values[-1]:.1f}", colour)
    _between_stages(axes, stages)
    axes.set(xlabel="training step", ylabel="validation points, per cent")
    axes.margins(x=0.1)
    axes.set_ylim(bottom=0)
    legend_above(axes)
    return figure


def throughput(stages: Sequence[Mapping[str, Any]]) -> Figure:
    figure, axes = panel()
    for stage, offset in zip(stages, _offsets(stages), strict=True):
        steps = offset + np.array([epoch["step"] for epoch in stage["epochs"]])
        speeds = [epoch["samples_per_second"] for epoch in stage["epochs"]]
        colour = COLOUR_OF_STAGE[stage["stage"]]
        axes.plot(steps, speeds, "o-", color=colour, markersize=4, label=TITLE_OF_STAGE[stage["stage"]])
    _between_stages(axes, stages)
    axes.set(xlabel="training step", ylabel="training points a second")
    axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    legend_above(axes)
    return figure


def parts_of_a_step(stages: Sequence[Mapping[str, Any]]) -> Figure:
    """Of the last epoch of each stage."""
    figure, axes = panel()
    parts = list(dict.fromkeys(part for stage in stages for part in stage["epochs"][-1]["seconds_per_step"]))
    titles = [TITLE_OF_STAGE[stage["stage"]] for stage in stages]
    left = np.zeros(len(stages))
    for number, part in enumerate(parts):
        spent = np.array([1000 * stage["epochs"][-1]["seconds_per_step"].get(part, 0) for stage in stages])
        axes.barh(titles, spent, left=left, height=0.55, color=SHADES(number / max(1, len(parts) - 1)), label=part)
        left += spent
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds of a step")
    legend_above(axes, columns=2)
    axes.grid(axis="x", color=GRID, linewidth=0.7)
    return figure


def recall(recalls: Mapping[str, Any]) -> Figure:
    figure, axes = panel()
    for title, found in recalls["rows"].items():
        axes.plot(np.arange(1, 101), found["at"], color=COLOUR_OF_ROW[title], linewidth=1.8, label=title)
    for number, (name, found) in enumerate(recalls["peers"].items()):
        colour, dashes = GREYS[number % len(GREYS)], DASHES[number % len(DASHES)]
        axes.plot(np.arange(1, 101), found["at"], color=colour, linewidth=1.4, linestyle=dashes, label=name)
    axes.set_xscale("log")
    axes.set_xticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
    axes.minorticks_off()
    axes.set(xlabel="labels predicted, k", ylabel="R@k, per cent")
    axes.set_ylim(bottom=0)
    axes.grid(color=GRID, linewidth=0.7)
    legend_above(axes, columns=3 if recalls["peers"] else 4)
    return figure


def recall_by_decile(recalls: Mapping[str, Any]) -> Figure:
    """Rows that rank the same labels differently have the same R@100, and only the first of them is drawn."""
    figure, axes = panel()
    series: dict[str, tuple[list[float], Any]] = {}
    for title, found in recalls["rows"].items():
        if not any(np.allclose(found["by_decile"], values) for values, _ in series.values()):
            series[title] = (found["by_decile"], COLOUR_OF_ROW[title])
    for number, (name, found) in enumerate(recalls["peers"].items()):
        series[name] = (found["by_decile"], GREYS[number % len(GREYS)])
    width = 0.84 / len(series)
    for number, (title, (values, colour)) in enumerate(series.items()):
        axes.bar(DECILES + (number - (len(series) - 1) / 2) * width, values, width * 0.92, color=colour, label=title)
    axes.set_ylabel("added to R@100, per cent")
    deciles_below(axes)
    legend_above(axes, columns=3 if recalls["peers"] else 4)
    return figure


def true_label_scores(scores: Mapping[str, Any]) -> Figure:
    """Median, and between the quartiles shaded."""
    figure, axes = panel()
    kinds = {"p": ("ELIAS, p", SHADES(0.5)), "q": ("ranker, q", SHADES(0.2)), "final": ("calibrated", ACCENT)}
    for name, (title, colour) in kinds.items():
        if name in scores["quartiles"]:
            quartiles = scores["quartiles"][name]
            there = [place for place, values in enumerate(quartiles) if values is not None]
            low, middle, high = np.array([quartiles[place] for place in there]).T
            axes.fill_between(DECILES[there], low, high, color=colour, alpha=0.15, linewidth=0)
            axes.plot(DECILES[there], middle, "o-", color=colour, markersize=4, linewidth=1.8, label=title)
    axes.set_ylabel("score of a true label")
    axes.set_ylim(bottom=0)
    deciles_below(axes)
    legend_above(axes)
    return figure


def _offsets(stages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Where the steps of each stage begin."""
    lasts = [stage["epochs"][-1]["step"] for stage in stages]
    return [sum(lasts[:number]) for number in range(len(stages))]


def _between_stages(axes: Axes, stages: Sequence[Mapping[str, Any]]) -> None:
    for offset in _offsets(stages)[1:]:
        axes.axvline(offset, color=GRID, linewidth=1.2)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.grid(axis="y", color=GRID, linewidth=0.7)

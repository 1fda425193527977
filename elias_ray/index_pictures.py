"""Pictures of the learned index, each from its part of the analysis."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from elias_ray.drawing import COLOUR_OF_METRIC, DECILES, SHADES, SIZE, cut, deciles_below, legend_above, panel
from elias_ray.index_analysis import ASSIGNED
from elias_ray.search_picture import ACCENT, GRID


def edge_scores(scores: Mapping[str, Any]) -> Figure:
    figure, axes = panel()
    axes.fill_between(
        scores["rank"], scores["tenth"], scores["nine_tenths"], color=SHADES(0.3), alpha=0.2, linewidth=0,
        label="eight tenths of the clusters",
    )  # fmt: skip
    axes.plot(scores["rank"], scores["mean"], color=SHADES(0.3), linewidth=2, label="mean over clusters")
    axes.axhline(ASSIGNED, color=ACCENT, linewidth=1, linestyle="--")
    end = (scores["rank"][-1], ASSIGNED)
    axes.annotate("in the cluster", end, (0, 4), textcoords="offset points", ha="right", color=ACCENT, fontsize=9.5)
    axes.set(xlabel="edges of a cluster, best first", ylabel="edge score", ylim=(0, 1.04))
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    legend_above(axes)
    return figure


def edge_histogram(scores: Mapping[str, Any]) -> Figure:
    figure, axes = panel()
    bins, percent = np.array(scores["bins"]), np.array(scores["percent_in_bin"])
    middle = (bins[:-1] + bins[1:]) / 2
    colours = [ACCENT if place > ASSIGNED else SHADES(0.3) for place in middle]
    axes.bar(middle, percent, np.diff(bins) * 0.92, color=colours)
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set(xlabel=f"edge score (orange: above {ASSIGNED}, in the cluster)", ylabel="per cent of edges")
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    return figure


def surviving_edges(survival: Mapping[str, Any]) -> Figure:
    figure, axes = panel()
    axes.plot(survival["threshold"], survival["percent"], "o-", color=SHADES(0.3), markersize=4, linewidth=1.8)
    axes.axvline(ASSIGNED, color=ACCENT, linewidth=1, linestyle="--")
    axes.annotate(
        f"{survival['percent_assigned']:.0f} %",
        (ASSIGNED, survival["percent_assigned"]),
        (5, 5),
        textcoords="offset points",
        color=ACCENT,
    )
    axes.set(xlabel="edge score above", ylabel="first edges still there, per cent", ylim=(0, 104))
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    return figure


def clusters_per_label(counts: Mapping[str, Any]) -> Figure:
    figure, axes = panel()
    means = [mean or 0 for mean in counts["mean"]]
    axes.bar(DECILES, means, 0.75, color=SHADES(0.3))
    for place, mean in zip(DECILES, counts["mean"], strict=True):
        if mean is not None:
            axes.annotate(f"{mean:.1f}", (place, mean), (0, 2), textcoords="offset points", ha="center", fontsize=9)
    axes.set_ylabel("clusters that a label is in, mean")
    deciles_below(axes)
    return figure


def cluster_sizes(sizes: Mapping[str, Any]) -> Figure:
    figure, axes = panel()
    bins = np.array(sizes["bins"])
    axes.bar((bins[:-1] + bins[1:]) / 2, sizes["clusters_in_bin"], np.diff(bins) * 0.92, color=SHADES(0.3))
    axes.axvline(sizes["first"]["median"], color=ACCENT, linewidth=1.2, linestyle="--", label="before A was learned")
    axes.set(xlabel=f"labels in a cluster (edge score above {ASSIGNED})", ylabel="clusters")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    legend_above(axes)
    return figure


def points(panels: Sequence[Mapping[str, Any]]) -> Figure:
    """A panel a label: its training points over those of its clusters."""
    rows = -(-len(panels) // 2)
    figure = Figure(figsize=(SIZE[0], 2.65 * rows + 0.1), layout="constrained")
    grid = figure.subplots(rows, 2, squeeze=False).ravel()
    for axes in grid:
        axes.set_axis_off()
    for axes, drawn in zip(grid, panels, strict=False):
        x, y, group = (np.array(drawn[key]) for key in ("x", "y", "group"))
        shades = SHADES(np.linspace(0.15, 0.85, max(2, len(drawn["clusters"]))))
        for number in reversed(range(len(drawn["clusters"]) + 1)):
            mine = group == number
            colour = ACCENT if number == 0 else shades[number - 1]
            axes.scatter(x[mine], y[mine], s=13 if number == 0 else 9, color=colour, linewidths=0, alpha=0.85)
        count = len(drawn["clusters"])
        axes.set_title(
            f"{cut(drawn['label'], 24)}\n{drawn['training_points']:,} points, {count} cluster{'s' * (count > 1)}",
            fontsize=9,
            parse_math=False,
        )
    return figure


def pruned(rows: Sequence[Mapping[str, Any]]) -> Figure:
    return _against_edges_left(rows, ("P@1", "P@5", "R@100"), "validation points, per cent")


def pruned_time(rows: Sequence[Mapping[str, Any]]) -> Figure:
    return _against_edges_left(rows, ("milliseconds_per_point",), "ms a point, without the encoder")


def _against_edges_left(rows: Sequence[Mapping[str, Any]], keys: Sequence[str], what: str) -> Figure:
    """Round: by edge score; square: by the best edges of a cluster."""
    figure, axes = panel()
    cuts = {
        "o-": [row for row in rows if row["edges_per_cluster"] is None],
        "s:": [row for row in rows if row["edges_per_cluster"] is not None or row is rows[0]],
    }
    for key in keys:
        colour = COLOUR_OF_METRIC.get(key, SHADES(0.3))
        for style, cut_rows in cuts.items():
            left = [100 - row["percent_pruned"] for row in cut_rows]
            label = (key if len(keys) > 1 else "by edge score") if style == "o-" else None
            if len(keys) == 1 and style == "s:":
                label = "by best edges of a cluster"
            axes.plot(
                left, [row[key] for row in cut_rows], style, color=colour, markersize=4, linewidth=1.5, label=label
            )
    axes.set(xlabel="edges left, per cent", ylabel=what)
    axes.set_ylim(bottom=0)
    axes.invert_xaxis()
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    legend_above(axes, columns=3)
    return figure

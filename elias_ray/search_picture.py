"""The picture of a search: lines for one dimension, a heat map for two, parallel coordinates for more."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from elias_ray.search import Record
from elias_ray.space import Space, Trial, show

LINES = ("P@1", "P@5", "nDCG@5", "R@100")
INK, ACCENT, GRID = "#222222", "#c2410c", "#dddddd"
COLOURS = "viridis"


def draw(space: Space, trials: Sequence[Trial], records: Mapping[str, Record], metric: str) -> bytes:
    """As PNG; of the trials that have any figure."""
    shown = [trial for trial in trials if records[trial.name].figure(metric) is not None]
    kinds = {1: _lines, 2: _heat_map}
    figure = kinds.get(len(space.dimensions), _parallel)(space, shown, records, metric)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=160)
    return file.getvalue()


def _lines(space: Space, trials: Sequence[Trial], records: Mapping[str, Record], metric: str) -> Figure:
    """A panel a metric, since their scales differ; the values stand at equal distances, as in a table."""
    (key, name), metrics = next(iter(space.names.items())), [metric, *(m for m in LINES if m != metric)]
    trials = sorted(trials, key=lambda trial: _order(trial.values[key]))
    whole = np.array([records[trial.name].state == "done" for trial in trials])
    places, best = np.arange(len(trials)), _best(trials, records, metric)
    figure = Figure(figsize=(3 * len(metrics), 3.2), layout="constrained")
    for axes, drawn in zip(figure.subplots(1, len(metrics), squeeze=False)[0], metrics, strict=True):
        figures = np.array([records[trial.name].figure(drawn) for trial in trials], dtype=float)
        axes.plot(places, figures, color=INK, linewidth=1.5, zorder=2)
        axes.scatter(places, figures, s=30, facecolors=np.where(whole, INK, "white"), edgecolors=INK, zorder=3)
        axes.scatter(places[best], figures[best], s=70, color=ACCENT, zorder=4)
        axes.annotate(
            f"{figures[best]:.2f}",
            (places[best], figures[best]),
            (0, 8),
            textcoords="offset points",
            ha="center",
            color=ACCENT,
        )
        axes.set_xticks(places, [show(trial.values[key]) for trial in trials], rotation=45 if len(trials) > 5 else 0)
        axes.margins(x=0.08, y=0.2)
        axes.grid(axis="y", color=GRID, linewidth=0.7)
        axes.set(xlabel=name, title=f"validation {drawn}")
        _plain(axes)
    if not whole.all():
        figure.supxlabel("open: stopped early", fontsize=8)
    return figure


def _heat_map(space: Space, trials: Sequence[Trial], records: Mapping[str, Record], metric: str) -> Figure:
    """Every cell with its figure; the best framed, those that were stopped early in brackets."""
    (row_key, row_name), (column_key, column_name) = space.names.items()
    rows, columns = (sorted({trial.values[key] for trial in trials}, key=_order) for key in (row_key, column_key))
    values = np.full((len(rows), len(columns)), np.nan)
    ended = np.zeros(values.shape, bool)
    for trial in trials:
        cell = rows.index(trial.values[row_key]), columns.index(trial.values[column_key])
        values[cell] = records[trial.name].figure(metric)
        ended[cell] = records[trial.name].state == "done"
    figure = Figure(figsize=(2.4 + 1.1 * len(columns), 1.6 + 0.8 * len(rows)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(values, cmap=COLOURS, aspect="auto")
    middle = (np.nanmin(values) + np.nanmax(values)) / 2
    for (row, column), value in np.ndenumerate(values):
        if not np.isnan(value):
            text = f"{value:.2f}" if ended[row, column] else f"({value:.2f})"
            axes.text(column, row, text, ha="center", va="center", color="white" if value < middle else "black")
    best = trials[_best(trials, records, metric)]
    row, column = rows.index(best.values[row_key]), columns.index(best.values[column_key])
    axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=ACCENT, linewidth=3, clip_on=False))
    axes.set_xticks(range(len(columns)), [show(value) for value in columns])
    axes.set_yticks(range(len(rows)), [show(value) for value in rows])
    axes.set(xlabel=column_name, ylabel=row_name, title=f"validation {metric}")
    if len(trials) > ended.sum():
        figure.supxlabel("in brackets: stopped early", fontsize=8)
    figure.colorbar(image, ax=axes, shrink=0.9).outline.set_visible(False)
    _plain(axes)
    return figure


def _parallel(space: Space, trials: Sequence[Trial], records: Mapping[str, Record], metric: str) -> Figure:
    """A line a trial, from axis to axis, in the colour of its figure; the best thick."""
    names = [*space.names.values(), metric]
    columns = [[trial.values[key] for trial in trials] for key in space.dimensions]
    figures = [float(records[trial.name].figure(metric) or 0) for trial in trials]
    whole = [records[trial.name].state == "done" for trial in trials]
    places = np.array([_places(values) for values in columns] + [_stretched(figures)])
    figure = Figure(figsize=(1.6 * len(names) + 1.5, 4), layout="constrained")
    axes = figure.subplots()
    colours = colormaps[COLOURS](places[-1])
    best = _best(trials, records, metric)
    for number in range(len(trials)):
        axes.plot(places[:, number], color=colours[number], alpha=0.8, linewidth=1.5, ls="-" if whole[number] else ":")
    axes.plot(places[:, best], color=ACCENT, linewidth=3, zorder=3)
    for place, values in enumerate([*columns, figures]):
        axes.axvline(place, color=INK, linewidth=0.8)
        ends = sorted(dict(zip(places[place].tolist(), values, strict=True)).items(), key=lambda end: end[0])
        labelled = ends if len(ends) <= 8 else [ends[0], ends[-1]]
        for at, value in labelled if values is not figures else [ends[0], ends[-1]]:
            text = f"{value:.2f}" if values is figures else show(value)
            axes.text(place + 0.03, at, text, va="center", fontsize=8, bbox=dict(fc="white", ec="none", pad=0.8))
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks([])
    axes.set_xlim(-0.1, len(names) - 0.6)
    axes.set_title(f"validation {metric}; best in orange, dotted: stopped early", fontsize=10)
    _plain(axes)
    return figure


def _best(trials: Sequence[Trial], records: Mapping[str, Record], metric: str) -> int:
    """Of those that came to their end."""
    ended = [records[trial.name].figure(metric) if records[trial.name].state == "done" else None for trial in trials]
    return int(np.argmax([-np.inf if figure is None else figure for figure in ended]))


def _order(value: Any) -> tuple[bool, Any]:
    """null before numbers."""
    return value is not None, value


def _places(values: Sequence[Any]) -> list[float]:
    """Of the values of a dimension on its axis: in order, at equal distances."""
    order = sorted(set(values), key=_order)
    return [order.index(value) / max(1, len(order) - 1) for value in values]


def _stretched(figures: Sequence[float]) -> list[float]:
    low, high = min(figures), max(figures)
    return [(figure - low) / (high - low) if high > low else 0.5 for figure in figures]


def _plain(axes: Axes) -> None:
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)

"""What the pictures of a report have in common: size, colours, and how axes look. One panel fits a phone."""

import io
import warnings
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from elias_ray.metrics import NUM_DECILES
from elias_ray.search_picture import ACCENT, COLOURS, GRID

SIZE, DOTS_PER_INCH = (5.4, 3.6), 160
FONTS: dict[Any, Any] = {"font.size": 10.5, "axes.labelsize": 10.5, "legend.fontsize": 9.5, "legend.frameon": False}
SHADES = colormaps[COLOURS]
COLOUR_OF_METRIC = {"P@1": ACCENT, "P@5": SHADES(0.5), "R@100": SHADES(0.2)}
DECILES = np.arange(1, NUM_DECILES + 1)


def png(figure: Figure) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # of a label's name; the page has them all
        figure.savefig(file, format="png", dpi=DOTS_PER_INCH)
    return file.getvalue()


def panel(size: tuple[float, float] = SIZE) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)
    axes.set_axisbelow(True)
    return figure, axes


def legend_above(axes: Axes, columns: int = 3) -> None:
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(-0.02, 1.0),
        ncols=columns,
        borderaxespad=0.2,
        handlelength=1.4,
        columnspacing=1.3,
    )


def deciles_below(axes: Axes) -> None:
    axes.set_xticks(DECILES)
    axes.set_xlabel("label decile: 1 most frequent, 10 rarest")
    axes.grid(axis="y", color=GRID, linewidth=0.7)


def name_of_end(axes: Axes, x: float, y: float, text: str, colour: Any) -> None:
    axes.annotate(text, (x, y), (5, 0), textcoords="offset points", va="center", color=colour, fontsize=9.5)


def cut(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"

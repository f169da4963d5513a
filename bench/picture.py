# SPDX-License-Identifier: Apache-2.0
"""The results as a picture: a batch's time for each piece of work, through headrace and through its rivals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

# Colours that colour-blind people can tell apart, and a shape each.
MARKS: dict[str, dict[str, Any]] = {
    "memcpy": {"marker": "|", "color": "#555555", "s": 90},
    "in-process": {"marker": "o", "facecolor": "none", "edgecolor": "#555555", "s": 28},
    "torch": {"marker": "s", "color": "#d55e00", "s": 34},
    "Grain": {"marker": "^", "color": "#009e73", "s": 40},
    "SPDL pool": {"marker": "D", "color": "#cc79a7", "s": 30},
    "headrace": {"marker": "o", "color": "#0072b2", "s": 45},
}
TICKS = {10.0**n: text for n, text in enumerate(["1 us", "10 us", "0.1 ms", "1 ms", "10 ms", "0.1 s"])}
# Text stays text, and the same results give the same file.
STYLE = {"svg.hashsalt": "headrace", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9}


def _draw_axes(axes: Axes, rows: list[dict[str, Any]], works: list[str], workers: int) -> None:
    for rival, mark in MARKS.items():
        shown = [row for row in rows if row["rival"] == rival and row["workers"] in (0, workers)]
        if shown:
            at = [works.index(row["work"]) for row in shown]
            axes.scatter([row["value"] for row in shown], at, label=rival, zorder=3, **mark)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(list(TICKS)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda us, _: TICKS[us]))
    axes.set_yticks(range(len(works)), works)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(f"{workers} worker{'s' * (workers > 1)}", fontsize=10)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Writes an SVG of `rows` (measure.Row as JSON, values in us), one line per piece of work, on logarithmic axes."""
    works = list(dict.fromkeys(row["work"] for row in rows))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 1.3 + 0.3 * len(works)), layout="constrained")
        left, right = figure.subplots(1, 2, sharex=True, sharey=True)
        _draw_axes(left, rows, works, 1)
        _draw_axes(right, rows, works, 2)
        left.invert_yaxis()
        figure.suptitle("Time per batch, less is better", fontsize=11)
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=len(MARKS), frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None}, facecolor="white")

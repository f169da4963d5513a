# SPDX-License-Identifier: Apache-2.0
"""Draws docs/benchmarks.svg, docs/images.svg and docs/memory.svg from the tables of bench/results.md.

`bench/run.py --docs` calls it after it has replaced the tables; `python bench/picture.py` draws the pictures again.
The pictures show nothing that is not in the tables.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from report import Result, read_results

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#555555"

# Each loader has a colour that colour-blind people can tell from the others, and a shape of its own.
MARKS: dict[str, dict[str, Any]] = {
    "in-process": {"marker": "o", "facecolor": "none", "edgecolor": GREY, "s": 45},
    "torch": {"marker": "s", "color": ORANGE, "s": 60},
    "Grain": {"marker": "^", "color": "#009e73", "s": 60},
    "SPDL pool": {"marker": "D", "color": "#cc79a7", "s": 45},
    "headrace": {"marker": "o", "color": BLUE, "s": 80},
}
# The rows of the table "dataloader" that the picture shows, with one worker: a line of text for each.
SHOWN = {
    "2 samples of 4 floats and an int": "2 samples of 5 numbers",
    "64 x (3x32x32 float32, int), own collate_fn": "64 images 3x32x32, collate_fn",
    "64 x 3x224x224 uint8": "64 images 3x224x224, uint8",
    "64 x 3x224x224 float32, made of uint8": "the same, converted to float32",
    "114 float32 tensors, 16 MiB": "114 tensors, 16 MiB in all",
    "38 MB tensor": "one tensor of 38 MB",
}
TICKS = {10.0**n: text for n, text in enumerate(["1 us", "10 us", "0.1 ms", "1 ms", "10 ms", "0.1 s"])}
GROWN = "private memory of a worker, growth "
# Text stays text, and the same results give the same file.
STYLE = {"svg.hashsalt": "headrace", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 11}


def _plain(axes: Axes) -> None:
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, format="svg", metadata={"Date": None}, facecolor="white")


def _draw_speed(axes: Axes, results: list[Result]) -> None:
    lines = list(SHOWN)
    times = {(one.work, one.rival): one.value for one in results if one.work in SHOWN and one.workers == 1}
    for rival, mark in MARKS.items():
        shown = [work for work in lines if (work, rival) in times]
        axes.scatter(
            [times[work, rival] for work in shown], list(map(lines.index, shown)), label=rival, zorder=3, **mark
        )
    for at, work in enumerate(lines):
        slowest = max(times[work, rival] for rival in MARKS if (work, rival) in times)
        axes.text(
            slowest * 1.35, at, f"1/{times[work, 'torch'] / times[work, 'headrace']:.0f}", va="center", color=BLUE
        )
    axes.set_xscale("log")
    axes.set_xlim(1, 1e5)
    axes.xaxis.set_major_locator(FixedLocator(list(TICKS)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda us, _: TICKS[us]))
    axes.set_yticks(range(len(lines)), list(SHOWN.values()))
    axes.invert_yaxis()
    _plain(axes)


def draw_speed(results: list[Result], path: Path) -> None:
    """Writes an SVG of the time per batch (in us) with one worker, a line for each work of SHOWN."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.4, 3.9), layout="constrained")
        axes = figure.subplots()
        _draw_speed(axes, results)
        figure.suptitle(
            "Time per batch, 1 worker (log scale). In blue: headrace's time as a part of torch's", fontsize=11
        )
        figure.legend(loc="outside lower center", ncols=len(MARKS), frameon=False, handletextpad=0.2)
        _save(figure, path)


def read_images(page: str) -> list[tuple[str, float, int]]:
    """Reads the first table of the section "images": the name, the CPU time per image in us (float32), and the largest
    difference from Pillow's pixels."""
    rows = []
    for line in page.partition("\n### images\n")[2].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[3].endswith(" us"):
            rows.append((cells[0].replace("`", ""), float(cells[3].split()[0]), int(cells[5] or 0)))
        elif rows and not line.startswith("|"):
            break
    return rows


def draw_images(rows: list[tuple[str, float, int]], path: Path) -> None:
    """Writes an SVG of the CPU time per image, a bar for each way to read it."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.4, 3.0), layout="constrained")
        axes = figure.subplots()
        pillow_us = rows[0][1]
        for at, (name, us, difference) in enumerate(rows):
            colour = BLUE if name.startswith("images.") else ORANGE if at == 0 else "#bbbbbb"
            axes.barh(at, us / 1e3, color=colour, height=0.6, zorder=3)
            pixels = "Pillow's pixels" if difference == 0 else f"pixels differ by up to {difference}"
            axes.text(us / 1e3 + 0.05, at, f"{pillow_us / us:.1f} x, {pixels}", va="center")
        axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
        axes.set_xlim(0, 1.45 * pillow_us / 1e3)
        axes.set_xlabel("ms of CPU time per image: decode, RandomResizedCrop(224), flip, to a float32 tensor")
        axes.invert_yaxis()
        _plain(axes)
        _save(figure, path)


def _epochs(work: str) -> float:
    """Reads how many epochs a row of growth is about: `growth after 0.5 epochs`, `growth over 3 shuffled epochs`."""
    return float(work.removeprefix(GROWN).split()[1])


def draw_memory(results: list[Result], path: Path) -> None:
    """Writes an SVG of how the private memory of a worker grows (in bytes) while it reads records."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.4, 3.2), layout="constrained")
        axes = figure.subplots()
        for rival, label, colour in (("built-in", "a Python list", ORANGE), ("headrace", "headrace.freeze", BLUE)):
            grown = {_epochs(one.work): one.value / 1e9 for one in results
                     if one.work.startswith(GROWN) and one.rival == rival}  # fmt: skip
            points = [(0.0, 0.0), *sorted(grown.items())]
            axes.plot(*zip(*points, strict=True), marker="o", color=colour, label=label, zorder=3)
            last = points[-1][1]
            axes.text(3.05, last, f"{label}: " + (f"{last:.1f} GB" if last >= 0.1 else f"{1e3 * last:.1f} MB"),
                      va="center", color=colour)  # fmt: skip
        axes.set_xlim(0, 4.2)
        axes.set_xticks(range(4))
        axes.set_xlabel("epochs over 1 million records, shuffled, 4 forked workers")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda gigabytes, _: f"{gigabytes:g} GB"))
        _plain(axes)
        figure.suptitle("Growth of a worker's private memory", fontsize=11)
        _save(figure, path)


def draw(page: str) -> None:
    """Draws the pictures from the tables of the page."""
    draw_speed(read_results(page, "dataloader"), DOCS / "benchmarks.svg")
    draw_images(read_images(page), DOCS / "images.svg")
    draw_memory(read_results(page, "frozen"), DOCS / "memory.svg")


if __name__ == "__main__":
    draw((HERE / "results.md").read_text())

# SPDX-License-Identifier: Apache-2.0
"""Draws figures as SVG. Colours are classes, which the style of the page fills by CSS variables; texts are not in the
SVG but next to it, because it is stretched to the width of the page.

A curve of many points has a smallest and a largest value for each pixel, so that no peak is lost and the page stays
small.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 1000, 160
STRIP_WIDTH = 500  # of a strip, whose pixels are coloured one by one
_LEVELS = 4  # of a pixel's colour
_ROUNDING = 0.02
_GAP = 3  # times the usual distance of two points: nothing was recorded there
_GRID = 4


@dataclass(frozen=True)
class Pixel:
    """All points of a curve that are in the same column of pixels."""

    x: int
    low: float
    high: float
    mean: float


def by_pixel(xs: Sequence[float], ys: Sequence[float], first: float, last: float, width: int = WIDTH) -> list[Pixel]:
    """Puts points, of which no x is smaller than the one before, into columns of pixels."""
    columns: dict[int, list[float]] = {}
    span = (last - first) or 1.0
    for x, y in zip(xs, ys, strict=True):
        columns.setdefault(min(width, max(0, round(width * (x - first) / span))), []).append(y)
    return [Pixel(x, min(values), max(values), sum(values) / len(values)) for x, values in columns.items()]


def _runs(pixels: Sequence[Pixel]) -> Iterable[Sequence[Pixel]]:
    """Divides a curve where nothing was recorded."""
    distances = sorted(later.x - one.x for one, later in itertools.pairwise(pixels))
    most = max(2, _GAP * distances[len(distances) // 2]) if distances else 0
    start = 0
    for at in range(1, len(pixels)):
        if pixels[at].x - pixels[at - 1].x > most:
            yield pixels[start:at]
            start = at
    yield pixels[start:]


def _path(points: Iterable[tuple[float, float]], name: str, is_closed: bool = False) -> str:
    text = "L".join(f"{x:g} {y:.3g}" if y < 100 else f"{x:g} {y:.0f}" for x, y in points)
    return f'<path class="{name}" d="M{text}{"Z" if is_closed else ""}"/>'


def curve(pixels: Sequence[Pixel], top: float, name: str, height: int = HEIGHT) -> str:
    """Draws a band from the smallest to the largest values, and a line of the means. `top` is the value at the top."""

    def y_of(value: float) -> float:
        return height - height * min(value, top) / (top or 1.0)

    parts = []
    for run in _runs(pixels) if pixels else ():
        if any(pixel.low != pixel.high for pixel in run):
            there = [(pixel.x, y_of(pixel.high)) for pixel in run]
            back = [(pixel.x, y_of(pixel.low)) for pixel in reversed(run)]
            parts.append(_path([*there, *back], f"band {name}", is_closed=True))
        line = [(pixel.x, y_of(pixel.mean)) for pixel in run]
        parts.append(_path(line if len(line) > 1 else [*line, (line[0][0] + 1, line[0][1])], f"line {name}"))
    return "".join(parts)


def grid(height: int = HEIGHT) -> str:
    lines = (f"M0 {height * at / _GRID:g}H{WIDTH}" for at in range(_GRID + 1))
    return f'<path class="grid" d="{"".join(lines)}"/>'


def base(height: int) -> str:
    return f'<path class="grid" d="M0 {height}H{WIDTH}"/>'


def bars(values: Sequence[float], name: str, height: int = HEIGHT) -> str:
    """Draws a bar for each value, the largest one as high as the figure."""
    most, wide = max(values, default=0) or 1.0, WIDTH / max(len(values), 1)
    each = (
        f"M{wide * at + wide / 20:.1f} {height}v{-height * value / most:.1f}h{wide * 0.9:.1f}V{height}Z"
        for at, value in enumerate(values)
        if value
    )
    return f'<path class="bar {name}" d="{"".join(each)}"/>'


def spans(found: Iterable[tuple[float, float]], first: float, last: float, name: str, height: int) -> str:
    """Draws a strip on which times are coloured, a pixel the stronger the more of it they cover."""
    covered = _cover(found, first, last)
    runs: dict[int, list[str]] = {}
    at = 0
    for level, pixels in itertools.groupby(math.ceil(_LEVELS * one - _ROUNDING) for one in covered):
        wide = len(list(pixels))
        if level > 0:
            runs.setdefault(level, []).append(f"M{at} 0h{wide}v{height}h-{wide}Z")
        at += wide
    return "".join(
        f'<path class="bar {name}" opacity="{level / _LEVELS:g}" d="{"".join(each)}"/>'
        for level, each in sorted(runs.items())
    )


def _cover(found: Iterable[tuple[float, float]], first: float, last: float) -> list[float]:
    """Returns which share of each pixel of a strip is covered by times."""
    covered = [0.0] * (STRIP_WIDTH + 1)  # the last one takes what ends at the right edge
    scale = STRIP_WIDTH / ((last - first) or 1.0)
    for begin, end in found:
        left, right = max(0.0, scale * (begin - first)), min(float(STRIP_WIDTH), scale * (end - first))
        if right <= left:
            continue
        for x in range(int(left), int(right) + 1):
            covered[x] += min(right, x + 1) - max(left, x)
    return [min(1.0, one) for one in covered[:STRIP_WIDTH]]


def drawing(content: str, label: str, height: int = HEIGHT, width: int = WIDTH) -> str:
    """Puts figures into an SVG element. `label` is read out by screen readers, and has to be escaped."""
    return (
        f'<svg viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img" '
        f'aria-label="{label}">{content}</svg>'
    )


def round_up(value: float) -> float:
    """Returns the next of 1, 2, 5, 10, ... that is not smaller, for the top of an axis."""
    if value <= 0:
        return 1.0
    step = 10.0 ** math.floor(math.log10(value))
    return next((factor * step for factor in (1, 2, 5) if factor * step >= value), 10 * step)

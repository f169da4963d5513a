# SPDX-License-Identifier: Apache-2.0
"""The results of a run as Markdown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import in_words

BEGIN, END = "<!-- results: make bench -->", "<!-- end of results -->"
Json = dict[str, Any]


@dataclass(frozen=True)
class Section:
    """What one measurement printed, and the file that it wrote, if it writes one."""

    name: str
    returncode: int
    lines: list[str]
    results: Path


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def in_time(row: Json | None) -> str:
    """`8.2 us`, `1.05 ms`, `2.1 s`."""
    if row is None:
        return ""
    us = row["value"] * {"us": 1, "ms": 1e3, "s": 1e6}[row["unit"]]
    if us < 1e3:
        return f"{us:.3g} us"
    return f"{us / 1e3:.3g} ms" if us < 1e6 else f"{us / 1e6:.3g} s"


def _pick(rows: list[Json], work: str, rival: str, workers: int) -> Json | None:
    same = (row for row in rows if (row["work"], row["rival"], row["workers"]) == (work, rival, workers))
    return next(same, None)


def _compared(rows: list[Json]) -> list[tuple[Json, Json]]:
    """Pairs of headrace's row and torch's."""
    ours = [row for row in rows if row["rival"] == "headrace"]
    pairs = [(row, _pick(rows, row["work"], "torch", row["workers"])) for row in ours]
    return [(our, torchs) for our, torchs in pairs if torchs]


def _others(rows: list[Json]) -> list[str]:
    """The rivals beside headrace and torch; those without workers last."""
    names = dict.fromkeys(row["rival"] for row in sorted(rows, key=lambda row: row["workers"] == 0))
    return [name for name in names if name not in ("headrace", "torch")]


def time_table(rows: list[Json]) -> list[str]:
    cells = []
    for our, torchs in _compared(rows):
        ratio = in_words(our["value"] / torchs["value"])
        others = [
            in_time(_pick(rows, our["work"], rival, our["workers"]) or _pick(rows, our["work"], rival, 0))
            for rival in _others(rows)
        ]
        cells.append([our["work"], str(our["workers"]), in_time(our), in_time(torchs), ratio, *others])
    return table(["work", "workers", "headrace", "torch", "ratio", *_others(rows)], cells)


def _counts(our: Json, torchs: Json, name: str, form: str) -> str:
    return " / ".join(format(row["cost"][name], form) for row in (our, torchs))


def cost_table(rows: list[Json]) -> list[str]:
    columns = [("cpu_us", ".0f"), ("faults", ".2f"), ("switches", ".2f")]
    columns += [(f"worker_{name}", form) for name, form in columns]
    cells = [
        [our["work"], str(our["workers"]), *(_counts(our, torchs, name, form) for name, form in columns)]
        for our, torchs in _compared(rows)
        if our["cost"] and torchs["cost"]
    ]
    heads = ["work", "workers", "trainer's CPU, us", "faults", "switches", "workers' CPU, us", "faults", "switches"]
    return table(heads, cells) if cells else []


def goal_table(verdicts: list[Json]) -> list[str]:
    return table(["goal", "measured", "to reach", "reached"], [list(verdict.values()) for verdict in verdicts])


def _of_section(section: Section) -> list[str]:
    lines = [f"### {section.name}", ""]
    if section.returncode:
        return [*lines, f"It failed with exit code {section.returncode}.", ""]
    if not section.results.exists():
        return [*lines, "```", *(line.rstrip() for line in section.lines), "```", ""]
    results = json.loads(section.results.read_text())
    lines += [*time_table(results["rows"]), ""]
    if costs := cost_table(results["rows"]):
        lines += ["Per batch, headrace / torch:", "", *costs, ""]
    return [*lines, *goal_table(results["verdicts"]), ""]


def markdown(machine: dict[str, str], sections: Sequence[Section]) -> str:
    lines = table(["", ""], list(machine.items()))
    for section in sections:
        lines += ["", *_of_section(section)]
    return "\n".join(lines).rstrip() + "\n"


def fill(page: str, results: str) -> str:
    """The page with its results replaced."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page lacks the lines {BEGIN} and {END}, between which results stand")
    return f"{head}{BEGIN}\n\n{results}\n{END}{tail}"

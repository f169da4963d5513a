# SPDX-License-Identifier: Apache-2.0
"""Writes the results of a run as Markdown, reads them again, and takes from them what docs/benchmarks.md shows.
run.py and picture.py call it."""

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
    """Holds what one measurement printed, and the path of its results, which not every measurement writes."""

    name: str
    returncode: int
    lines: list[str]
    results: Path


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def in_units(row: Json | None) -> str:
    """Returns a value with its unit: `341 ns`, `8.2 us`, `1.05 ms`, `2.1 s`; `57.1 B`, `24 MB`; `0 of 20`; `3.6 %`;
    `> 10 s`."""
    if row is None:
        return ""
    if row.get("at_least"):
        return f"> {in_units({**row, 'at_least': False})}"
    if row["unit"].startswith("of "):
        return f"{row['value']:.0f} {row['unit']}"
    if row["unit"] == "bytes":
        sizes = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (0, "B"))
        scale, unit = next(pair for pair in sizes if row["value"] >= pair[0])
        return f"{row['value'] / (scale or 1):.3g} {unit}"
    if row["unit"] in ("%", ""):
        return f"{row['value']:.4g} {row['unit']}".rstrip()
    if row["unit"] not in ("ns", "us", "ms", "s"):
        return f"{row['value']:.3g} {row['unit']}"
    us = row["value"] * {"ns": 1e-3, "us": 1, "ms": 1e3, "s": 1e6}[row["unit"]]
    scale, unit = next(
        pair for pair in ((1e6, "s"), (1e3, "ms"), (1, "us"), (1e-3, "ns")) if abs(us) >= pair[0] or pair[0] < 1
    )
    return f"{us / scale:.3g} {unit}"


def _pick(rows: list[Json], work: str, rival: str, workers: int) -> Json | None:
    same = (row for row in rows if (row["work"], row["rival"], row["workers"]) == (work, rival, workers))
    return next(same, None)


BASES = ("torch", "torchrun", "built-in", "pickle")


def _base(rows: list[Json]) -> str:
    """Returns what the results are compared with: the first of BASES that has results."""
    return next((name for name in BASES if any(row["rival"] == name for row in rows)), "")


def _compared(rows: list[Json]) -> list[tuple[Json, Json]]:
    """Returns pairs of a row of headrace and the row of the base for the same work."""
    base = _base(rows)
    ours = [row for row in rows if row["rival"] == "headrace"]
    pairs = [(row, _pick(rows, row["work"], base, row["workers"])) for row in ours]
    return [(our, torchs) for our, torchs in pairs if torchs]


def _others(rows: list[Json]) -> list[str]:
    """Returns the rivals except headrace and the base. Those without workers come last."""
    shown = ("headrace", _base(rows))
    names = dict.fromkeys(row["rival"] for row in sorted(rows, key=lambda row: row["workers"] == 0))
    return [name for name in names if name not in shown]


def _ratio(our: Json, torchs: Json) -> str:
    if our["unit"].startswith("of "):
        return ""
    bounds = ("> " if our.get("at_least") else "") + ("< " if torchs.get("at_least") else "")
    return f"{bounds}{in_words(our['value'] / torchs['value'])}" if bounds != "> < " else "?"


def plain_table(rows: list[Json]) -> list[str]:
    """Returns the table of results that are compared with nothing, or each with other rivals."""
    rivals = ["headrace", *_others(rows)]
    works = list(dict.fromkeys(row["work"] for row in rows))
    return table(
        ["work", *rivals], [[work, *(in_units(_pick(rows, work, name, 0)) for name in rivals)] for work in works]
    )


def time_table(rows: list[Json]) -> list[str]:
    if not _base(rows):
        return plain_table(rows)
    cells = []
    for our, torchs in _compared(rows):
        ratio = _ratio(our, torchs)
        others = [
            in_units(_pick(rows, our["work"], rival, our["workers"]) or _pick(rows, our["work"], rival, 0))
            for rival in _others(rows)
        ]
        cells.append([our["work"], str(our["workers"]), in_units(our), in_units(torchs), ratio, *others])
    return table(["work", "workers", "headrace", _base(rows), "ratio", *_others(rows)], cells)


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
    """Returns the page with its results replaced."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page lacks the lines {BEGIN} and {END}, between which the results are")
    return f"{head}{BEGIN}\n\n{results}\n{END}{tail}"


@dataclass(frozen=True)
class Result:
    """One number of a table: a time in microseconds, or a size in bytes."""

    work: str
    workers: int
    rival: str
    value: float


# The sections of bench/results.md whose first table is in docs/benchmarks.md, with their headings there.
SHOWN = {
    "dataloader": "Time per batch",
    "start": "Start, later epochs and closing",
    "death": "Processes that are killed",
    "frozen": "Frozen data",
}
ONE_WORKER = ("dataloader",)  # of these only the rows with one worker, so that the page stays short


def _sections(results: str) -> dict[str, list[list[str]]]:
    """Returns the tables of each section between the marks, each table as its lines."""
    text = results.partition(BEGIN)[2].partition(END)[0]
    parts = (part.partition("\n") for part in text.split("\n### ")[1:])
    paragraphs = {name.strip(): (part.strip().splitlines() for part in body.split("\n\n")) for name, _, body in parts}
    return {name: [lines for lines in part if lines and lines[0].startswith("|")] for name, part in paragraphs.items()}


def _goals(tables: list[list[str]]) -> list[list[str]]:
    """Returns the rows of a section's tables of goals."""
    found = [lines[2:] for lines in tables if _cells(lines[0])[0] == "goal"]
    return [_cells(line) for lines in found for line in lines]


def missed_goals(results: str) -> list[list[str]]:
    """Returns the rows of the goals that the run has missed."""
    return [goal for tables in _sections(results).values() for goal in _goals(tables) if "no:" in goal[-1]]


def summarize(results: str) -> str:
    """Returns what docs/benchmarks.md shows of bench/results.md: the machine, some tables, and how many goals are
    reached."""
    sections = _sections(results)
    lines = results.partition(BEGIN)[2].strip().partition("\n\n")[0].splitlines()
    for name, title in SHOWN.items():
        rows = next(iter(sections.get(name, [])), [])  # none if the measurement failed
        kept = [row for row in rows[2:] if name not in ONE_WORKER or _cells(row)[1] == "1"]
        lines += ["", f"### {title}", "", *rows[:2], *kept]
    goals = {name: found for name, tables in sections.items() if (found := _goals(tables))}
    count = sum(map(len, goals.values()))
    missed = len(missed_goals(results))
    lines += ["", "### Goals", "", f"{count - missed} of {count} goals of these measurements are reached:"]
    counts = ", ".join(f"{name} {len(found)}" for name, found in goals.items())
    lines += [
        f"{counts}. The others are in the table at the",
        "[end of this page](#what-is-missed-and-what-bounds-it).",
    ]
    return "\n".join(lines) + "\n"


SCALES = {"ns": 1e-3, "us": 1, "ms": 1e3, "s": 1e6, "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def read_results(page: str, name: str) -> list[Result]:
    """Returns the numbers of the first table in the section `name` of the page. Cells such as `> 10 s` are left out."""
    _, found, section = page.partition(f"\n### {name}\n")
    if not found:
        raise ValueError(f"the page has no section {name!r}")
    lines = section.partition("\n### ")[0].strip().partition("\n\n")[0].splitlines()
    heads, results = _cells(lines[0]), []
    for line in lines[2:]:
        row = dict(zip(heads, _cells(line), strict=True))
        for rival, cell in row.items():
            number, _, unit = cell.partition(" ")
            if rival not in ("work", "workers", "ratio") and unit in SCALES:
                results.append(Result(row["work"], int(row["workers"]), rival, float(number) * SCALES[unit]))
    return results

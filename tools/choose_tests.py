# SPDX-License-Identifier: Apache-2.0
"""Chooses the tests that `make test` runs: the cheapest set that reaches what all tests reach. The others are wide.

`choose_tests.py measure` (the first half of `make choose-tests`) builds headrace with instruments, installs it into
.venv, and runs all tests: tools/coverage/edges.c notes the edges of C, from one block of code to the next, and
coverage.py those of Python, from one line to the next. Both are lines and branches in one.
`choose_tests.py choose` (the second half) reads that and the CPU seconds that each test took with the instruments,
writes tests/chosen.txt, and prints what the chosen tests reach of each room.
"""

import heapq
import json
import math
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import sysconfig
from collections import defaultdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "coverage"))

import costs
import run_tests
from chosen import CHOSEN, function_of, write
from common import ROOT

FOLDER = ROOT / "build/coverage"
EDGES = FOLDER / "edges"
BUILD = FOLDER / "meson"
COSTS = FOLDER / "costs.json"  # of each test, with the instruments
RECORDER = FOLDER / "libheadrace_edges.so"
PACKAGES = Path(sysconfig.get_path("purelib"))
PTH = PACKAGES / "headrace_coverage.pth"
OURS = re.compile(r"^(?:src|cli|include|python)/")
KEPT = 0.995  # of what all tests reach; the last edges take tests that are dear for each
LEAST_S = 0.01  # a test counts as at least so many CPU seconds, which are measured in steps of this size
CHEAP_S = 0.05  # a case for each function is chosen, if the cheapest takes no longer


# ---- measuring ----


def build_instrumented() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    (FOLDER / "python").mkdir(parents=True)
    EDGES.mkdir()
    source = ROOT / "tools/coverage/edges.c"
    subprocess.run(["clang", "-shared", "-fPIC", "-O2", "-o", RECORDER, source], check=True)
    options = {
        "buildtype": "debugoptimized",
        "b_ndebug": "false",
        "b_lundef": "false",
        "failpoints": "true",
        "tests": "enabled",
        "c_args": "-fsanitize-coverage=trace-pc-guard,pc-table",
        "c_link_args": f"-L{FOLDER} -lheadrace_edges -Wl,-rpath,{FOLDER}",
    }
    settings = [f"-Csetup-args=-D{name}={value}" for name, value in options.items()]
    command = ["uv", "pip", "install", "-q", "--python", sys.executable, "--no-build-isolation", "--no-deps"]
    command += ["--reinstall-package", "headrace", f"-Cbuild-dir={BUILD}", *settings, str(ROOT)]
    subprocess.run(command, check=True, env={**os.environ, "CC": "clang"}, cwd=ROOT)
    subprocess.run(["meson", "compile", "-C", BUILD], check=True)


def measure(words: list[str]) -> None:
    """Runs all tests with the instruments; with words, the C programs and files that these select, to try it out."""
    programs, files = run_tests.list_c_programs(), run_tests.list_python_files()
    if words:
        programs, files = run_tests.select(words, programs, files)
    build_instrumented()
    os.environ |= {
        "HEADRACE_COVERAGE": str(FOLDER),
        "HEADRACE_COVERAGE_PACKAGE": str(PACKAGES / "headrace"),
        "HEADRACE_EDGES": str(EDGES),
    }
    for program in programs:
        environment = {**os.environ, "HEADRACE_TEST": f"c-{program}"}
        subprocess.run(["meson", "test", "-C", BUILD, "--no-rebuild", "-q", "-t", "4", program], env=environment)
    folder = ROOT / "tools/coverage"
    PTH.write_text(
        f"import os, sys; 'HEADRACE_COVERAGE' in os.environ and (sys.path.append({str(folder)!r}), "
        "__import__('follow_coverage').start())\n"
    )
    try:
        _, parts = run_tests.run_python_tests(files, "-p", "follow_coverage")
    finally:
        PTH.unlink()
    costs.read_parts(parts, costs.Cost(), costs.Cost(), 0).write(COSTS)


# ---- what each test reached ----


def read_edges() -> tuple[dict[str, np.ndarray], list[str]]:
    """Returns the edges of C that each test reached, as numbers, and the file of each edge. A function that is in
    several modules, as the library is in each C test, counts once: an edge is a place in a function of a file."""
    numbers: dict[tuple[str, str, int], int] = {}
    reached = defaultdict[str, list[np.ndarray]](list)
    for table in sorted(EDGES.glob("*.pcs")):
        module = next(path for path in [PACKAGES / "headrace" / table.stem, *BUILD.rglob(table.stem)] if path.is_file())
        places = locate(module, np.fromfile(table, np.uint64).tolist())
        ids = np.array([numbers.setdefault(place, len(numbers)) if OURS.match(place[0]) else -1 for place in places])
        for path in (EDGES / table.stem).iterdir():
            hits = ids[np.fromfile(path, np.uint8)[: len(ids)] != 0]
            reached[path.name].append(np.unique(hits[hits >= 0]))
    return {test: np.unique(np.concatenate(parts)) for test, parts in reached.items()}, [place[0] for place in numbers]


def locate(module: Path, addresses: list[int]) -> list[tuple[str, str, int]]:
    """Returns file, function, and the distance from the beginning of the function, of each address."""
    symbols = subprocess.run(["nm", "-n", "--defined-only", module], check=True, capture_output=True, text=True).stdout
    starts = [(int(at, 16), name) for at, kind, name in map(str.split, symbols.splitlines()) if kind in "tTwW"]
    at = np.searchsorted(np.array([start for start, _ in starts]), np.array(addresses), side="right") - 1
    command = ["addr2line", "-e", str(module)]
    text = "\n".join(map(hex, addresses))
    lines = subprocess.run(command, input=text, check=True, capture_output=True, text=True).stdout.splitlines()
    files = [os.path.normpath(BUILD / line.rpartition(":")[0]).removeprefix(f"{ROOT}/") for line in lines]
    return [(file, starts[i][1], address - starts[i][0]) for file, i, address in zip(files, at, addresses, strict=True)]


def read_python() -> tuple[dict[str, np.ndarray], list[str]]:
    """Returns the arcs between lines of Python that each test reached, as numbers, and the file of each arc."""
    numbers: dict[tuple[str, int, int], int] = {}
    reached = defaultdict[str, set[int]](set)
    joined = "arc JOIN context ON context.id = context_id JOIN file ON file.id = file_id"
    query = f"SELECT context, path, fromno, tono FROM {joined}"
    for path in (FOLDER / "python").glob("data.*"):
        with sqlite3.connect(path) as data:
            try:
                rows = data.execute(query).fetchall()
            except sqlite3.DatabaseError:  # a process was killed while it wrote
                continue
        for test, file, *line in rows:
            place = (os.path.relpath(file, PACKAGES), *line)
            reached[test].add(numbers.setdefault(place, len(numbers)))
    arrays = {test: np.array(sorted(found), dtype=np.int64) for test, found in reached.items()}
    return arrays, [f"python/{place[0]}" for place in numbers]


def read_reached() -> tuple[dict[str, np.ndarray], list[str]]:
    """Returns what each test reached, by its name in pytest ("" for all C tests), and the file of each element."""
    edges, edge_files = read_edges()
    arcs, arc_files = read_python()
    names = dict(line.split(" ", 1) for line in (FOLDER / "tests.txt").read_text().splitlines())
    found = defaultdict[str, list[np.ndarray]](lambda: [np.array([], dtype=np.int64)])
    for test, elements in edges.items():
        if test in names or test.startswith("c-"):
            found[names.get(test, "")].append(elements)
    for test, elements in arcs.items():
        if test in names:
            found[names[test]].append(elements + len(edge_files))
    return {test: np.unique(np.concatenate(parts)) for test, parts in found.items()}, edge_files + arc_files


# ---- choosing ----


def choose(reached: dict[str, np.ndarray], seconds: dict[str, float], count: int) -> set[str]:
    """Returns the tests that are chosen: always the one that reaches most elements that none before it reaches, for its
    CPU seconds, until KEPT of all is reached; and a case of each function that is cheap."""
    is_reached = np.zeros(count, dtype=bool)
    is_reached[reached.get("", [])] = True
    wanted = math.ceil(KEPT * len(np.unique(np.concatenate(list(reached.values())))))
    chosen = cheapest_cases(seconds)
    for test in chosen:
        is_reached[reached.get(test, [])] = True

    def gain(test: str) -> float:
        return float((~is_reached[reached[test]]).sum()) / max(seconds.get(test, 0.0), LEAST_S)

    others = [(-gain(test), test) for test in reached if test and test not in chosen]
    heapq.heapify(others)
    while is_reached.sum() < wanted:
        best = heapq.heappop(others)[1]
        now = gain(best)  # gains only shrink, so the best one is found when it is the best again
        if others and now < -others[0][0]:
            heapq.heappush(others, (-now, best))
            continue
        chosen.add(best)
        is_reached[reached[best]] = True
    return chosen


def cheapest_cases(seconds: dict[str, float]) -> set[str]:
    """Returns the cheapest case of each function, of those that take at most CHEAP_S."""
    cases = defaultdict[str, list[str]](list)
    for test in seconds:
        cases[function_of(test)].append(test)
    cheapest = (min(tests, key=lambda test: seconds[test]) for tests in cases.values())
    return {test for test in cheapest if seconds[test] <= CHEAP_S}


def room_of(file: str) -> str:
    parts = Path(file).parts
    return "/".join(parts[: 3 if parts[0] == "python" else 2 if parts[0] in ("src", "include") else 1])


def describe(reached: dict[str, np.ndarray], files: list[str], chosen: set[str]) -> list[str]:
    """Returns a table: of each room, how much all tests reach, and how much of it the chosen ones do."""
    rooms = np.array([room_of(file) for file in files])
    all_tests, those = np.zeros(len(files), dtype=bool), np.zeros(len(files), dtype=bool)
    for test, elements in reached.items():
        all_tests[elements] = True
        if not test or test in chosen:
            those[elements] = True
    lines = [
        f"{room:40} {all_tests[rooms == room].sum():7} {those[rooms == room].sum():7} "
        f"{100 * those[rooms == room].sum() / max(all_tests[rooms == room].sum(), 1):6.1f} %"
        for room in np.unique(rooms)
    ]
    return [*lines, f"{'all':40} {all_tests.sum():7} {those.sum():7} {100 * those.sum() / all_tests.sum():6.1f} %"]


def main(words: list[str]) -> int:
    if words[:1] == ["measure"]:
        measure(words[1:])
        return 0
    if words != ["choose"]:
        print("usage: choose_tests.py measure, or choose_tests.py choose", file=sys.stderr)
        return 2
    seconds = {test: cost["cpu_s"] for test, cost in json.loads(COSTS.read_text())["tests"].items()}
    reached, files = read_reached()
    chosen = choose(reached, seconds, len(files))
    CHOSEN.write_text(write(seconds, chosen))
    print(*describe(reached, files, chosen), sep="\n")
    total = sum(seconds.values())
    print(
        f"{len(chosen)} of {len(seconds)} tests, {sum(seconds[test] for test in chosen):.0f} of {total:.0f} CPU seconds"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

# SPDX-License-Identifier: Apache-2.0
"""Runs the measurements: the C programs of build/release/bench, then the scripts bench/bench_*.py.

`run.py NAME...` runs only these: `arena` is bench_arena. With QUICK=1 in the environment it runs fewer cases.
The results are written to build/bench.md. `run.py --docs` also puts them into bench/results.md and a part of them into
docs/benchmarks.md, and draws docs/benchmarks.svg, docs/images.svg and docs/memory.svg from them.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from pathlib import Path

from measure import QUICK
from report import Section, fill, markdown, summarize

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
C_PROGRAMS = ROOT / "build/release/bench"
RESULTS = ROOT / "build"
TABLES = HERE / "results.md"
PAGE = ROOT / "docs/benchmarks.md"  # for users: a part of the tables


def list_commands() -> dict[str, list[str]]:
    programs = (path for path in sorted(C_PROGRAMS.glob("bench_*")) if path.is_file() and os.access(path, os.X_OK))
    commands = {path.name.removeprefix("bench_"): [str(path)] for path in programs}
    for script in sorted(HERE.glob("bench_*.py")):
        name = script.stem.removeprefix("bench_")
        commands[name] = [sys.executable, str(script), "--json", str(results_of(name))]
    return commands


def results_of(name: str) -> Path:
    return RESULTS / f"bench_{name}.json"


def first_line_of(*command: str) -> str:
    """Returns the first line that a command prints, or an empty text if there is no such command."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    except OSError:
        return ""
    return done.stdout.partition("\n")[0].strip()


def cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def describe_machine() -> dict[str, str]:
    import torch

    changed = " with changes" if first_line_of("git", "status", "--porcelain", "--untracked-files=no") else ""
    return {
        "machine": f"{len(os.sched_getaffinity(0))} cores, {cpu_model()}, Linux {platform.release()}",
        "Python": platform.python_version(),
        "torch": str(torch.__version__),
        "compiler": first_line_of(os.environ.get("CC", "cc"), "--version"),
        "headrace": f"git {first_line_of('git', 'rev-parse', '--short', 'HEAD')}{changed}",
        **({"QUICK": "yes: fewer cases and shorter, for a first look"} if QUICK else {}),
        "load before": " ".join(f"{load:.1f}" for load in os.getloadavg()),
    }


def run(name: str, command: list[str]) -> Section:
    """Runs one measurement, and prints its lines as they come."""
    print(f"---- {name}", flush=True)
    results_of(name).unlink(missing_ok=True)
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    return Section(name, process.returncode, lines, results_of(name))


def write_docs(text: str) -> None:
    """Puts the results into bench/results.md and into the page for users, and draws its pictures again."""
    results = fill(TABLES.read_text(), text)
    TABLES.write_text(results)
    PAGE.write_text(fill(PAGE.read_text(), summarize(results)))
    try:
        from picture import draw
    except ImportError as error:
        print(f"run.py: the pictures in docs/ are old, because they cannot be drawn here: {error}", file=sys.stderr)
        return
    draw(results)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument(
        "--docs", action="store_true", help="put the results into bench/results.md and docs/benchmarks.md"
    )
    args = parser.parse_args()
    if args.docs and (args.names or QUICK):
        parser.error("--docs replaces all tables of bench/results.md: without NAME and without QUICK")
    commands = list_commands()
    if unknown := [name for name in args.names if name not in commands]:
        print(f"run.py: no measurement {', '.join(unknown)}; there are {', '.join(commands)}", file=sys.stderr)
        return 2
    machine = describe_machine()
    for what, value in machine.items():
        print(f"{what}: {value}")
    sections = [run(name, commands[name]) for name in args.names or commands]
    text = markdown(machine, sections)
    (RESULTS / "bench.md").write_text(text)
    if args.docs:
        write_docs(text)
    return 1 if any(section.returncode for section in sections) else 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Runs the measurements: the C programs of build/release/bench, then the bench/bench_*.py.

run.py NAME... runs these only: `arena` is bench_arena.
"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
C_PROGRAMS = HERE.parent / "build/release/bench"


def list_commands() -> dict[str, list[str]]:
    programs = (path for path in sorted(C_PROGRAMS.glob("bench_*")) if path.is_file() and os.access(path, os.X_OK))
    commands = {path.name.removeprefix("bench_"): [str(path)] for path in programs}
    for script in sorted(HERE.glob("bench_*.py")):
        commands[script.stem.removeprefix("bench_")] = [sys.executable, str(script)]
    return commands


def main(names: list[str]) -> int:
    commands = list_commands()
    if unknown := [name for name in names if name not in commands]:
        print(f"run.py: no measurement {', '.join(unknown)}; there is {', '.join(commands)}", file=sys.stderr)
        return 2
    failed = 0
    for name in names or commands:
        print(f"---- {name}", flush=True)
        failed += subprocess.run(commands[name]).returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

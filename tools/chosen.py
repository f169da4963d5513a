# SPDX-License-Identifier: Apache-2.0
"""tests/chosen.txt: the tests that `make test` runs. tools/choose_tests.py writes it, and tests/conftest.py reads it.

A line names a file, and the CPU seconds of its chosen tests. Of the lines after it, `test_f` chooses all cases of a
function, `test_f[case]` one, and `- test_f` none. Tests of a function that is not named are new: they run too.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from pathlib import Path

CHOSEN = Path(__file__).resolve().parent.parent / "tests/chosen.txt"
HEAD = "# What `make test` runs, chosen and written by `make choose-tests`. The form: tools/chosen.py.\n"


def function_of(test: str) -> str:
    """Returns the name of a test without its case: path::function."""
    return test.partition("[")[0]


class Chosen:
    def __init__(self, text: str) -> None:
        self._chosen, self._functions = set[str](), set[str]()
        self.seconds: dict[str, float] = {}  # of each file
        file = ""
        for line in text.splitlines():
            if not line or line.startswith("#"):
                continue
            if not line.startswith(" "):
                file, seconds = line.split()
                self.seconds[file] = float(seconds)
                continue
            name = f"{file}::{line.strip().removeprefix('- ')}"
            self._functions.add(function_of(name))
            if not line.strip().startswith("- "):
                self._chosen.add(name)

    def has(self, test: str) -> bool:
        """Returns True if `make test` runs a test, by its name in pytest: path::function[case]."""
        function = function_of(test)
        return test in self._chosen or function in self._chosen or function not in self._functions


@functools.cache
def read() -> Chosen:
    return Chosen(CHOSEN.read_text() if CHOSEN.exists() else "")


def write(seconds: dict[str, float], chosen: set[str]) -> str:
    """Returns the text of the file. seconds: what each test takes."""
    cases = defaultdict[str, dict[str, list[str]]](lambda: defaultdict(list))
    for test in seconds:
        function = function_of(test)
        cases[function.partition("::")[0]][function].append(test)
    lines = []
    for file, functions in sorted(cases.items()):
        taken = {function: [name for name in names if name in chosen] for function, names in functions.items()}
        lines.append(f"{file} {sum(seconds[name] for names in taken.values() for name in names):.1f}")
        for function, names in sorted(taken.items()):
            shown = [function] if len(names) == len(functions[function]) else sorted(names) or [f"- {function}"]
            lines += [f"  {name.replace(file + '::', '')}" for name in shown]
    return HEAD + "\n".join(lines) + "\n"

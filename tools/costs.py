# SPDX-License-Identifier: Apache-2.0
"""Counts what tests cost: a plugin of pytest that notes the seconds of each test (tests/conftest.py registers it), a
watch that counts imports of torch, and the table that ends `make test`."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

TICKS = os.sysconf("SC_CLK_TCK")
SHOWN = 10  # rows of each part of the table
BUDGET_S = 40.0  # of a file, in CPU seconds
IN_OPEN = 0x20
IN_CLOSE_NOWRITE = 0x10
_EVENT = struct.Struct("iIII")


@dataclass
class Cost:
    cpu_s: float = 0.0
    wall_s: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.cpu_s + other.cpu_s, self.wall_s + other.wall_s)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.cpu_s - other.cpu_s, self.wall_s - other.wall_s)


def _of_running_children() -> float:
    """Returns the CPU seconds of the children that still run, and of those that these have waited for."""
    ticks = 0
    for task in Path("/proc/self/task").glob("*/children"):
        try:
            pids = task.read_text().split()
        except OSError:  # the thread has ended
            continue
        for pid in pids:
            try:
                text = Path(f"/proc/{pid}/stat").read_text()
            except OSError:
                continue
            ticks += sum(map(int, text[text.rindex(")") + 2 :].split()[11:15]))
    return ticks / TICKS


def spent() -> Cost:
    """Returns what this process has cost so far, with all its children."""
    times = os.times()
    return Cost(sum(times[:4]) + _of_running_children(), time.monotonic())


class CostPlugin:
    """Notes the cost of each test of a run of pytest, and writes all into a file when the run ends."""

    def __init__(self, path: Path, count_forked: Callable[[], int]) -> None:
        """count_forked: returns how many processes the warm servers have forked."""
        self.path, self.count_forked = path, count_forked
        self.tests: dict[str, Cost] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = spent()
        result = yield
        self.tests[item.nodeid] = spent() - before
        return result

    def pytest_sessionfinish(self) -> None:
        tests = {name: asdict(cost) for name, cost in self.tests.items()}
        # The whole run includes pytest's own start, and the collection of the tests.
        whole = asdict(Cost(spent().cpu_s))
        self.path.write_text(json.dumps({"tests": tests, "whole": whole, "warm": self.count_forked()}))


class ImportWatch:
    """Counts the processes that import torch while the context lasts: each opens torch's extension module once.

    The kernel merges equal events that follow each other, so closing is watched too. The count can be slightly low.
    """

    def __init__(self) -> None:
        self.count = 0
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = -1

    def __enter__(self) -> ImportWatch:
        spec = importlib.util.find_spec("torch")
        modules = sorted(Path(spec.origin).parent.glob("_C.*.so")) if spec and spec.origin else []
        if modules:
            self._fd = self._libc.inotify_init1(os.O_CLOEXEC)
        if self._fd >= 0:
            self._libc.inotify_add_watch(self._fd, os.fsencode(modules[0]), IN_OPEN | IN_CLOSE_NOWRITE)
            threading.Thread(target=self._read, daemon=True).start()
        return self

    def _read(self) -> None:
        while True:
            data, at = os.read(self._fd, 1 << 16), 0
            while at < len(data):
                _, mask, _, length = _EVENT.unpack_from(data, at)
                self.count += bool(mask & IN_OPEN)
                at += _EVENT.size + length

    def __exit__(self, *_: object) -> None:
        """The thread ends with the process."""


@dataclass
class Report:
    """The costs of a whole run of the tests."""

    tests: dict[str, Cost]
    python: Cost
    c: Cost
    imports: int
    warm: int

    def files(self) -> dict[str, Cost]:
        found: dict[str, Cost] = {}
        for name, cost in self.tests.items():
            file = name.partition("::")[0]
            found[file] = found.get(file, Cost()) + cost
        return found

    def write(self, path: Path) -> None:
        """Writes the file that the next run sorts its files by, and that two runs are compared with."""
        path.write_text(
            json.dumps({**asdict(self), "files": {k: asdict(v) for k, v in self.files().items()}}, indent=1)
        )

    def lines(self, budgets: dict[str, tuple[float, str]]) -> list[str]:
        """Returns the table. budgets: CPU seconds of files that may take more than BUDGET_S, with the reason."""
        parts = [("file", self.files()), ("test", self.tests)]
        lines = []
        for noun, costs in parts:
            lines.append(f"  CPU s  wall s  {noun}")
            dearest = sorted(costs.items(), key=lambda item: -item[1].cpu_s)[:SHOWN]
            lines += [f"{cost.cpu_s:7.1f} {cost.wall_s:7.1f}  {name}" for name, cost in dearest]
        lines.append(
            f"CPU: {self.python.cpu_s + self.c.cpu_s:.0f} s ({self.c.cpu_s:.0f} s of the C tests), wall clock: "
            f"{self.python.wall_s + self.c.wall_s:.0f} s; {self.imports} processes imported torch, a warm server "
            f"forked {self.warm}"
        )
        for file, cost in sorted(self.files().items()):
            allowed = budgets.get(Path(file).stem, (BUDGET_S, ""))[0]
            if cost.cpu_s > allowed:
                lines.append(f"note: {file} took {cost.cpu_s:.0f} CPU seconds; its budget is {allowed:.0f}")
        return lines


def read_parts(paths: list[Path], python: Cost, c: Cost, imports: int) -> Report:
    """Returns the report of several runs of pytest, each of which wrote one of these files."""
    report = Report({}, python, c, imports, 0)
    for path in paths:
        part = json.loads(path.read_text())
        report.tests.update({name: Cost(**cost) for name, cost in part["tests"].items()})
        report.warm += part["warm"]
    return report


def read_files(path: Path) -> dict[str, float]:
    """Returns the wall seconds of each file of tests in the last run. If there was none: an empty dict."""
    try:
        return {file: cost["wall_s"] for file, cost in json.loads(path.read_text())["files"].items()}
    except (OSError, ValueError, KeyError):
        return {}

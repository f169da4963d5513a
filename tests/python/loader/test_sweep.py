# SPDX-License-Identifier: Apache-2.0
"""A worker, and the trainer, killed and stopped at every failpoint of src/os/failpoints.h."""

from __future__ import annotations

import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import headrace
import headrace.torch
import pytest
import scenes
from headrace._base import growth
from loaders import needs_failpoints, only_headrace
from mishaps import Marks, collected_warnings
from processes import HERE, environment, kill_session

pytestmark = [only_headrace, needs_failpoints]

POINTS = re.findall(
    r'^ *POINT\(\w+, "([\w.]+)", (\w+)\)',
    (pathlib.Path(__file__).parents[3] / "src/os/failpoints.h").read_text(),
    re.MULTILINE,
)
# These loaders have no batches (batch_size=None), so their samples are not noted by index: the sweep in C passes it.
IN_C = {"timing.index"}
WORKERS = [name for name, side in POINTS if side in ("WORKER", "BOTH") and name not in IN_C]
# With sample_threads. The sample for which there is no memory would be another one: threads share the environment.
THREADED = [*(name for name in WORKERS if name != "port.withdrawn"), "port.looked", "port.rung", "port.making", *IN_C]
TRAINERS = [name for name, side in POINTS if side in ("TRAINER", "BOTH")]
KINDS = ("map", "iterable")
SLOW = ("spawn", "forkserver")
GONE_S = 1.0  # 0.1 is wanted
START_S = 10.0
RUNS = 5  # some points are passed only by a process that is late or has to wait: usually in every run

NEVER = {
    "crew.fork": "multiprocessing starts the processes, not hr_crew_fork",
    "crew.forked": "multiprocessing starts the processes, not hr_crew_fork",
}
NOT_SPAWNED = {"fork.child": "only a forked worker is a fork's child"}


def a_tenth(points: list[str]) -> list[tuple[str, str]]:
    """A tenth of the points for each of the slower start methods."""
    return [(name, method) for method in SLOW for name in random.Random(method).sample(points, len(points) // 10)]


# ---- a worker ----


@pytest.fixture(autouse=True)
def workers_look_at_what_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two tasks, and so at the points on the way."""
    monkeypatch.setattr(growth, "look_s", 0.0)


class FirstFork:
    """The next process that is forked gets a plan."""

    plan = ""

    def before(self) -> None:
        if self.plan:
            os.environ["HEADRACE_STOP"] = self.plan

    def in_parent(self) -> None:
        self.plan = ""
        os.environ.pop("HEADRACE_STOP", None)


first_fork = FirstFork()
os.register_at_fork(before=first_fork.before, after_in_parent=first_fork.in_parent)


class Stops:
    """Sees children that have stopped, and lets them go on."""

    count = 0

    def __enter__(self) -> Stops:
        self.handler = signal.signal(signal.SIGCHLD, self._look)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGCHLD, self.handler)

    def _look(self, *_: object) -> None:
        try:
            child = os.waitid(os.P_ALL, 0, os.WSTOPPED | os.WNOHANG)
        except ChildProcessError:
            return
        if child is not None:
            self.count += 1
            os.kill(child.si_pid, signal.SIGCONT)


class Case:
    """A run in which the first process of a worker gets a signal when it passes a point for the n-th time."""

    def __init__(self, folder: pathlib.Path, point: str, number: int, nth: int = 1) -> None:
        self.marks = Marks(pathlib.Path(tempfile.mkdtemp(dir=folder)))
        self.plan = f"{point}:{number}:{nth}"
        self.is_short = point == "port.withdrawn"
        self.is_killed = number == signal.SIGKILL

    def start(self, kind: Any, name: str, method: str, **options: Any) -> None:
        self.dataset = scenes.DATASETS[name][0](self.marks, self.plan, is_short=self.is_short)
        # Who is stopped while it ends is killed.
        options = {"num_workers": 2, "shutdown_timeout": 5.0 if self.is_killed else 0.5, **options}
        self.loader = scenes.load(kind, self.dataset, multiprocessing_context=method, **options)
        first_fork.plan = self.plan if method == "fork" else ""
        self.iterator = iter(self.loader)
        self.first_processes = list(self.iterator._engine.processes)

    def finish(self) -> None:
        """The rest of the epoch, which is exact."""
        found = scenes.epoch(self.iterator, self.dataset)
        expected: list[int | str] = list(range(scenes.COUNT))
        if self.is_short and "no memory" in found:
            expected[scenes.WITHOUT_MEMORY] = "no memory"
        assert found == expected, self.plan

    def has_died(self) -> bool:
        return any(process.exitcode != 0 for process in self.first_processes)

    def run(self, kind: Any, name: str, method: str, **options: Any) -> bool:
        """Returns True if the point was passed."""
        with collected_warnings() as texts, Stops() as stops:
            self.start(kind, name, method, max_restarts=2, **options)
            self.finish()
        restarts = self.loader.report()["restarts"]
        # While this process waits for a CPU, the workers may fill their memory: then batches are copied.
        deaths = [text for text in texts if "batches are copied" not in text]
        assert len(deaths) == restarts <= self.is_killed, (self.plan, texts)
        assert stops.count <= (not self.is_killed)
        return self.has_died() or stops.count > 0

    def run_without_restarts(self, kind: Any, name: str) -> bool:
        """Returns True if the point was passed."""
        try:
            self.start(kind, name, "fork", max_restarts=0)
            self.finish()
        except RuntimeError as error:
            assert re.match(r"DataLoader worker \(pid \d+\) is killed by signal: Killed", str(error)), self.plan
            self.iterator._engine.close()
        return self.has_died()


def nth_of(point: str, name: str) -> int:
    """The number of the passage varies: it is not always the first."""
    return random.Random(f"{point} {name}").choice([1, 2, 3, 5])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("point", WORKERS)
def test_a_worker_may_be_killed_or_stopped_at_any_point(point: str, number: int, tmp_path: pathlib.Path) -> None:
    for name in KINDS:
        nth = nth_of(point, name)
        passed = Case(tmp_path, point, number, nth).run(headrace.torch.DataLoader, name, "fork")
        for _ in range(RUNS):
            passed = passed or Case(tmp_path, point, number).run(headrace.torch.DataLoader, name, "fork")
        assert passed, f"{name}: {point}"


@pytest.mark.parametrize("point", THREADED)
def test_a_worker_with_threads_may_be_killed_at_any_point(point: str, tmp_path: pathlib.Path) -> None:
    for nth in [nth_of(point, "threads")] + [1] * RUNS:
        case = Case(tmp_path, point, signal.SIGKILL, nth)
        if case.run(headrace.torch.DataLoader, "map", "fork", sample_threads=3, prefetch_factor=4):
            return
    raise AssertionError(f"{point} was not passed")


@pytest.mark.parametrize("point", WORKERS)
def test_without_restarts_it_is_one_clear_error(point: str, tmp_path: pathlib.Path) -> None:
    cases = (Case(tmp_path, point, signal.SIGKILL) for _ in range(RUNS))
    assert any(case.run_without_restarts(headrace.torch.DataLoader, "map") for case in cases)


@pytest.mark.parametrize(("point", "method"), a_tenth([point for point in WORKERS if point not in NOT_SPAWNED]))
def test_so_it_may_with_the_other_start_methods(point: str, method: str, tmp_path: pathlib.Path) -> None:
    name = random.Random(f"{point} {method}").choice(KINDS)
    cases = (Case(tmp_path, point, signal.SIGKILL) for _ in range(RUNS))
    assert any(case.run(headrace.Loader, name, method) for case in cases)


# ---- the trainer ----


class Host:
    """sweep_host.py, which runs cases. One that has not answered, or from which something is left, is ended with all
    that it has started, so that no other case meets it, and another takes its place."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.process: Any = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "sweep_host.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment(),
            start_new_session=True,
        )

    def kill(self) -> None:
        kill_session(self.process.pid)
        with self.process:
            self.process.wait(10)

    def ask(self, **case: Any) -> dict[str, Any]:
        result: dict[str, Any] = {"gone_s": None}
        try:  # pytest-timeout is the deadline
            print(json.dumps(case), file=self.process.stdin, flush=True)
            result = json.loads(self.process.stdout.readline())
        finally:
            if result["gone_s"] is None:
                self.kill()
                self.start()
        return result

    def end(self) -> None:
        self.process.stdin.close()
        try:
            assert self.process.wait(30) == 0
        finally:
            self.kill()


@pytest.fixture(scope="module")
def ask() -> Iterator[Callable[..., dict[str, Any]]]:
    """Runs a case in sweep_host.py."""
    host = Host()
    yield host.ask
    host.end()


def assert_is_as_planned(result: dict[str, Any], number: int, point: str, gone_s: float = GONE_S) -> bool:
    """Returns True if the point was passed: the process was killed there, or stopped and its result is exact. In both
    cases nothing is left."""
    assert result["gone_s"] is not None and result["gone_s"] < gone_s, (point, result)
    assert result["left"] == [], (point, result)
    if number == signal.SIGKILL:
        assert result["code"] in (0, -signal.SIGKILL), (point, result)
        return bool(result["code"])
    assert result["code"] == 0, (point, result)
    return bool(result["was_stopped"])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("point", TRAINERS)
def test_a_trainer_may_be_killed_or_stopped_at_any_point(
    point: str, number: int, ask: Any, record_property: Callable[[str, object], None]
) -> None:
    passed = False
    for name in KINDS if point in NEVER else KINDS * RUNS:
        if passed and (number == signal.SIGSTOP or name == KINDS[0]):
            return  # one run to the end is long enough
        case = {"point": point, "signal": number, "loader": "torch", "dataset": name, "method": "fork"}
        result = ask(**case)
        if result["gone_s"] is not None and result["gone_s"] >= GONE_S:
            result = ask(**case)  # the machine may have paused
        passed = assert_is_as_planned(result, number, point) or passed
        record_property(f"gone_s after the trainer, {name}", result["gone_s"])
    assert passed == (point not in NEVER), point


@pytest.mark.parametrize(("point", "method"), a_tenth([point for point in TRAINERS if point not in NEVER]))
def test_so_may_one_with_the_other_start_methods(point: str, method: str, ask: Any) -> None:
    """A trainer that is killed before it guards a worker leaves the worker until that opens its descriptors."""
    name = random.Random(f"{point} {method}").choice(KINDS)
    result = ask(point=point, signal=signal.SIGKILL, loader="numpy", dataset=name, method=method)
    assert_is_as_planned(result, signal.SIGKILL, point, gone_s=START_S)

# SPDX-License-Identifier: Apache-2.0
"""The complete messages that a user reads if a worker dies, stalls or raises."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import io
import linecache
import logging
import multiprocessing
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import reduction, resource_sharer
from typing import Any

import headrace
import numpy as np
import pytest
import pytest_timeout
import torch
import tqdm
from headrace import _core
from headrace._loader.start import fork_hazards
from headrace._loader.trainer import crew as _crew
from headrace._loader.trainer import shutdown
from headrace._loader.trainer.snapshot import WorkerSnapshot
from headrace._options import Settings
from loaders import Headrace, needs_failpoints, only_headrace
from mishaps import DEADLINE_S, Marks
from processes import Script, alive, is_still, until
from torch.utils.data import IterableDataset

tqdm.tqdm.get_lock()  # no test leaves its file in /dev/shm, which is there where fork is not the default
pytestmark = [only_headrace]

HERE = os.path.basename(__file__)
FORK = multiprocessing.get_context("fork")
FORK_NEXT_TO_THREADS = "This process .* is multi-threaded, use of fork"  # CPython's own, since 3.12
SEEN = r"^  memory: \d+\.\d [MG]iB when last seen"  # forked workers have what earlier tests have left


def masked(text: str, keeps_memory: bool = False) -> str:
    """Without what differs from run to run: numbers of processes and lines, addresses, times, sizes, folders; and the
    memory of a worker, which is reported only if it was measured. Frames outside this file are one line of dots.
    And without what differs from CPython to CPython: the C stack (since 3.14), a hyphen."""
    text = re.sub(r"(pids?(?:\(s\))?|-p|--pid|-CONT|by process) \d+", r"\1 N", text)
    text = re.sub(r"0x[0-9a-f]{4,}(?: \[[^]]*\])?", "0xN", text)
    if not keeps_memory:
        text = re.sub(SEEN + "; ", "  memory: ", text, flags=re.MULTILINE)
        text = re.sub(SEEN + "\n", "", text, flags=re.MULTILINE)
    text = re.sub(SEEN, "  memory: N MiB when last seen", text, flags=re.MULTILINE)
    text = re.sub(r"\d+\.\d (s|[KMG]iB)\b", r"N \1", text)
    text = re.sub(r'File "[^"]*/([^"/]+)", line \d+', r'File "\1", line N', text)
    text = re.sub(rf'(^ *File "(?!{re.escape(HERE)}).*(\n|\Z))+', "      ...\n", text, flags=re.MULTILINE)
    text = re.sub(r"\n\n *Current thread's C stack trace .*(\n +(Binary file|<truncated) .*)*", "", text)
    text = text.replace("Floating-point exception", "Floating point exception")
    return re.sub(r"system call \d+", "system call N", text)


class Acts:
    """index -> index; `act` runs at index `at`."""

    def __init__(self, act: Callable[[], Any], at: int = 5, count: int = 16) -> None:
        self.act, self.at, self.count = act, at, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if index == self.at:
            self.act()
        return index


class ActsOnAll(Acts):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


class Items:
    """Ten items; `act` runs before the sixth."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self.act = act

    def __iter__(self) -> Iterator[int]:
        for item in range(10):
            if item == 5:
                self.act()
            yield item


class ActsAsIterable(Items, IterableDataset):  # type: ignore[type-arg]
    pass


def nothing() -> None:
    pass


def segfault() -> None:
    ctypes.string_at(0)


def send(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def loader_of(dataset: Any, kind: Any = Headrace, **options: Any) -> Any:
    defaults = {"batch_size": 4, "num_workers": 2, "multiprocessing_context": "fork", "shutdown_timeout": 0.5}
    return kind(dataset, **{**defaults, **options})


def exception_of(loader: Any) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(Exception) as caught:
            list(loader)
    return "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])


def death_of(dataset: Any, **options: Any) -> str:
    return masked(exception_of(loader_of(dataset, **options)))


# ---- deaths ----

FIRST_LINES = {
    "SIGKILL": "is killed by signal: Killed. Some process sent it SIGKILL: most often the kernel, because memory ran "
    "out (then `dmesg` says so): lower num_workers, prefetch_factor or batch_size.",
    "SIGTERM": "is killed by signal: Terminated. Some process asked it to end: often the job's scheduler, at a time "
    "limit or before a preemption.",
    "SIGUSR1": "is killed by signal: User defined signal 1. Rerunning with num_workers=0 may give a better error "
    "trace.",
    "SIGSEGV": "is killed by signal: Segmentation fault. Rerunning with num_workers=0 may give a better error trace.",
    "SIGBUS": "is killed by signal: Bus error. A memory-mapped file may have become shorter, or the disk or /dev/shm "
    "may be full. Rerunning with num_workers=0 may give a better error trace.",
    "SIGFPE": "is killed by signal: Floating point exception. Rerunning with num_workers=0 may give a better error "
    "trace.",
    "SIGABRT": "is killed by signal: Aborted. Rerunning with num_workers=0 may give a better error trace.",
    "SIGILL": "is killed by signal: Illegal instruction. Rerunning with num_workers=0 may give a better error trace.",
}
PLACE = """
  worker 1 had been in the dataset for N s, at sample 5 of batch 1, [4, 5, 6, 7]
  it also had batches [3] to make
"""
DIED, STALL = "\n  (headrace help worker-died)", "\n  (headrace help worker-stalled)"
NO_RESTARTS = f"  max_restarts=N lets headrace replace up to N workers and go on{DIED}"
END = f"""\
  to make it alone: headrace replay YOUR_MODULE:MAKE_DATASET 5 --pdb
{NO_RESTARTS}"""


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGUSR1"])
def test_a_signal_that_ends_a_worker_is_named_with_what_to_do(name: str) -> None:
    text = death_of(Acts(send(getattr(signal, name))))
    assert text == f"DataLoader worker (pid N) {FIRST_LINES[name]}{PLACE}{END}"


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGBUS", "SIGFPE", "SIGABRT", "SIGILL"])
def test_a_fatal_signal_shows_the_stack_of_its_moment(name: str) -> None:
    text = death_of(Acts(send(getattr(signal, name))))
    message = FIRST_LINES[name].split(": ")[1].split(". ")[0]
    assert (
        text
        == f"""\
DataLoader worker (pid N) {FIRST_LINES[name]}{PLACE}\
  its stacks:
    Fatal Python error: {message}

    Current thread 0xN (most recent call first):
      File "{HERE}", line N in <lambda>
      File "{HERE}", line N in __getitem__
      ...
{END}"""
    )


@pytest.mark.parametrize(
    "act, code",
    [(lambda: os._exit(0), 0), (lambda: os._exit(3), 3), (lambda: sys.exit(4), 4), (lambda: sys.exit("enough"), 1)],
    ids=["_exit 0", "_exit 3", "SystemExit", "SystemExit with a text"],
)
def test_a_worker_that_exits_is_reported_with_its_exit_code(act: Callable[[], Any], code: int) -> None:
    stderr_part = "  the end of its stderr:\n    enough\n" if code == 1 else ""
    assert death_of(Acts(act)) == (
        f"DataLoader worker (pid(s) N) exited unexpectedly with exit code {code}. "
        f"Rerunning with num_workers=0 may give a better error trace.{PLACE}{stderr_part}{END}"
    )


STACK = """\
  its stacks:
    Fatal Python error: Segmentation fault

    Current thread 0xN (most recent call first):
      ...
"""
NOT_CONTINUED = (
    "  headrace cannot replace it: an iterable dataset is continued only if it has state_dict and load_state_dict, or "
    f"an attribute `replayable` that is true (then it is iterated from the start again){DIED}"
)


def act_in_collate(batch: list[int]) -> list[int]:
    if 5 in batch:
        segfault()
    return batch


@pytest.mark.parametrize(
    "dataset, options, place, end",
    [
        (ActsOnAll(segfault), {}, "1 had been in the dataset for N s, at batch 1, samples [4, 5, 6, 7]\n", END),
        (Acts(nothing), {"collate_fn": act_in_collate},
         "1 had been collating for N s, at batch 1, samples [4, 5, 6, 7]\n", END),
        (Acts(segfault), {"batch_size": None}, "1 had been in the dataset for N s, at sample 5, batch 5\n", END),
        (Acts(segfault), {"batch_size": 16}, "0 had been in the dataset for N s, at sample 5 of batch 0, "
         "[0, 1, 2, 3, 4, 5, 6, 7, ...], 16 in all\n", END),
        (ActsAsIterable(segfault), {"num_workers": 1},
         "0 had been in the dataset for N s, at batch 1\n", NOT_CONTINUED),
        (ActsAsIterable(segfault), {"num_workers": 1, "max_restarts": 2},
         "0 had been in the dataset for N s, at batch 1\n", NOT_CONTINUED),
    ],
    ids=["__getitems__", "collate", "without batches", "many samples", "iterable", "iterable with restarts"],
)  # fmt: skip
def test_the_place_of_a_death_is_named(dataset: Any, options: dict[str, Any], place: str, end: str) -> None:
    text = death_of(dataset, **options)
    assert f"\n  worker {place}" in text
    assert "  its stacks:\n    Fatal Python error: Segmentation fault\n" in text
    is_known = "sample 5" in place
    assert text.endswith(f"\n{end if is_known or end != END else NO_RESTARTS}")
    assert ("headrace replay" in text) == is_known


def test_worker_that_dies_while_waiting_is_reported_as_waiting() -> None:
    iterator = iter(loader_of(Acts(nothing, count=100), num_workers=1))
    next(iterator)
    worker = iterator._workers[0]
    assert until(lambda: has_made(iterator, 0, 3), DEADLINE_S)
    worker.kill()
    assert masked(exception_of(iterator), keeps_memory=True) == (
        f"DataLoader worker (pid N) {FIRST_LINES['SIGKILL']}\n"
        "  worker 0 had been waiting for a task\n"
        "  it had batches [3, 4] to make\n"
        f"  memory: N MiB when last seen\n{NO_RESTARTS}"
    )


def test_memory_that_the_trainer_saw_while_waiting_is_reported() -> None:
    iterator = iter(
        loader_of(Acts(lambda: time.sleep(DEADLINE_S), at=0), num_workers=1, stall_after=STALL_S, on_stall="raise")
    )
    with pytest.raises(RuntimeError, match="no batch for"):
        next(iterator)
    iterator._workers[0].kill()
    assert "\n  memory: N MiB when last seen\n" in masked(exception_of(iterator), keeps_memory=True)


class GrowsOnce(Acts):
    """The first worker that makes sample 0 keeps a quarter of a GiB."""

    def __init__(self, act: Callable[[], Any], marks: Marks) -> None:
        super().__init__(act)
        self.marks = marks

    def __getitem__(self, index: int) -> int:
        if index == 0 and self.marks.first("grown"):
            self.kept = b"x" * (256 << 20)
        return super().__getitem__(index)


def sizes_in_mib(text: str) -> list[float]:
    found = re.findall(r"\n  memory: (\S+) (MiB|GiB) when last seen", text)
    return [float(number) * {"MiB": 1, "GiB": 1024}[unit] for number, unit in found]


def test_memory_of_a_dead_worker_is_not_its_successors(marks: Marks) -> None:
    """Its only task of earlier is made again, and kills the next one: at once, or after it was looked at itself."""
    loader = loader_of(GrowsOnce(send(signal.SIGKILL), marks), num_workers=1, max_restarts=1)
    with logged_texts() as texts:
        with pytest.raises(RuntimeError) as caught:
            list(loader)
    (first,) = texts
    (grown,) = sizes_in_mib(first)
    assert all(own < grown - 128 for own in sizes_in_mib(str(caught.value)))


def test_worker_that_dies_in_worker_init_fn_shows_its_stack() -> None:
    assert (
        death_of(Acts(nothing), num_workers=1, worker_init_fn=lambda worker: segfault())
        == f"""\
DataLoader worker (pid N) {FIRST_LINES["SIGSEGV"]}
  worker 0 had been in worker_init_fn, or waiting for its first task
  it had batches [0, 1] to make
  its stacks:
    Fatal Python error: Segmentation fault

    Current thread 0xN (most recent call first):
      ...
      File "{HERE}", line N in segfault
      File "{HERE}", line N in <lambda>
      ...
{NO_RESTARTS}"""
    )


OUT_OF_MEMORY = """\
DataLoader worker (pid N) is killed by signal: Killed. Out of memory: lower num_workers, prefetch_factor or \
batch_size, or raise the memory limit of the container or of the job.
  worker 1 had been in the dataset for N s, at sample 5 of batch 1, [4, 5, 6, 7]
  it also had batches [3] to make
  memory: the kernel killed 2 of this cgroup's processes because memory ran out while it ran
"""


@needs_failpoints
@pytest.mark.parametrize(
    "group, file, count",
    [
        ("0::/job", "sys/fs/cgroup/job/memory.events", 5),
        ("4:memory:/job", "sys/fs/cgroup/memory/job/memory.oom_control", 5),
        ("0::/job", "sys/fs/cgroup/job/memory.events", 3),
    ],
    ids=["cgroup v2", "cgroup v1", "the counter stays"],
)
def test_count_of_memory_kills_of_the_kernel_is_used(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, group: str, file: str, count: int
) -> None:
    for path, text in ("proc/self/cgroup", group), (file, "oom_kill 3"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{text}\n")
    monkeypatch.setenv("HEADRACE_ROOT", str(tmp_path))

    def out_of_memory() -> None:
        (tmp_path / file).write_text(f"oom_kill {count}\n")
        send(signal.SIGKILL)()

    killed = f"DataLoader worker (pid N) {FIRST_LINES['SIGKILL']}{PLACE}"
    assert death_of(Acts(out_of_memory)) == (OUT_OF_MEMORY if count > 3 else killed) + END


def write(lines: list[str]) -> Callable[[], None]:
    return lambda: [print(line, file=sys.stderr) for line in lines] and os._exit(3)


@pytest.mark.parametrize(
    "lines, shown",
    [
        (["one", "", "  two"], ["one", "", "  two"]),
        ([f"línea {number} 日本" for number in range(30)], [f"línea {number} 日本" for number in range(10, 30)]),
        (["x" * 40_000], ["x" * ((16 << 10) - 1)]),
        (["é" * 40_000], ["\ufffd" + "é" * ((16 << 10) // 2 - 1)]),
    ],
    ids=["short", "many lines", "huge", "huge, cut inside a character"],
)
def test_the_end_of_what_a_worker_wrote_to_stderr_is_shown(lines: list[str], shown: list[str]) -> None:
    text = death_of(Acts(write(lines)))
    quoted = "".join(f"    {line}\n" if line else "\n" for line in shown)
    assert text.endswith(f"{PLACE}  the end of its stderr:\n{quoted}{END}")


def test_log_handler_from_before_the_fork_is_shown() -> None:
    handler = logging.StreamHandler()
    log = logging.getLogger("of a user")
    log.addHandler(handler)

    def act() -> None:
        log.error("the index is broken")
        os._exit(3)

    try:
        assert "  the end of its stderr:\n    the index is broken\n" in death_of(Acts(act))
    finally:
        log.removeHandler(handler)


def act_in_many_threads() -> None:
    never = threading.Barrier(31)

    def descend(levels: int) -> None:
        if levels:
            descend(levels - 1)
        else:
            never.wait()

    for _ in range(30):
        threading.Thread(target=descend, args=(90,), daemon=True).start()
    assert until(lambda: never.n_waiting == 30, DEADLINE_S)
    segfault()


def test_a_dump_of_stacks_that_does_not_fit_is_marked_as_cut() -> None:
    text = death_of(Acts(act_in_many_threads))
    assert "Fatal Python error: Segmentation fault\n\n    Thread 0xN (most recent call first):\n      ...\n" in text
    assert text.count("Thread 0xN (most recent call first):") > 3
    assert text.endswith(f"\n    ... (cut at 64 KiB)\n{END}")


NO_GUARD = """
from headrace import Loader
class Numbers(list): pass
for _ in Loader(Numbers([1, 2]), num_workers=1, multiprocessing_context="spawn", max_restarts=0):
    pass
"""


def test_script_without_a_main_guard_is_reported(tmp_path: pathlib.Path) -> None:
    with Script(tmp_path, NO_GUARD) as script:
        assert script.finish() == 1
        text = script.stderr[script.stderr.rindex("RuntimeError: ") :]
        assert (
            masked(text)
            == """\
RuntimeError: DataLoader worker (pid(s) N) exited unexpectedly with exit code 1. It ended before it could start, and \
its own error is printed above. With spawn and forkserver workers import the script, so it must be a file that can be \
imported: put the code that it runs under `if __name__ == '__main__':`, and the classes and functions that workers \
need above it.
  worker 0 had been starting: importing modules, or unpickling the dataset
  it had batches [0, 1] to make
  max_restarts=N lets headrace replace up to N workers and go on
  (headrace help main-guard)
"""
        )
        assert "if __name__ == '__main__':\n" in script.stderr  # multiprocessing's own text
        assert script.left() == []


NO_GUARD_WITH_RESTARTS = """
import warnings
from {module} import {kind}
warnings.simplefilter("always")
for _ in {kind}([1, 2, 3, 4], num_workers={workers}, multiprocessing_context="{method}", max_restarts=5):
    pass
"""


@pytest.mark.parametrize(
    "module, kind, workers",
    [("headrace", "Loader", 1), ("headrace", "Loader", 2), ("headrace.torch", "DataLoader", 2)],
)
def test_workers_that_cannot_start_are_reported_once(
    tmp_path: pathlib.Path, workers: int, module: str, kind: str
) -> None:
    code = NO_GUARD_WITH_RESTARTS.format(module=module, kind=kind, workers=workers, method="spawn")
    with Script(tmp_path, code) as script:
        assert script.finish() == 1
        before_error, _, error = script.stderr.rpartition("RuntimeError: DataLoader worker")
        assert "\n  headrace does not replace it again: the worker before it ended in the same way, before" in error
        assert "put the code that it runs under `if __name__ == '__main__':`, and the classes" in error
        assert "put the code that it runs under" not in before_error
        assert before_error.count("headrace replaces it (restart ") <= workers
        assert before_error.count("ended before its first task, in the same way as one before") <= workers - 1
        assert script.left() == []


class StartsBadly:
    """A worker_init_fn that ends a worker in its own way each time."""

    def __init__(self, marks: Marks, *codes: int) -> None:
        self.marks = marks
        self.codes = codes

    def __call__(self, worker: int) -> None:
        for number, code in enumerate(self.codes):
            if self.marks.first(f"start.{number}"):
                os._exit(code)


@pytest.mark.parametrize("kind", [Headrace, headrace.Loader])
def test_starts_that_fail_for_other_reasons_are_tried_again(kind: Any, marks: Marks) -> None:
    loader = loader_of(range(16), kind, num_workers=1, max_restarts=3, worker_init_fn=StartsBadly(marks, 3, 4, 3))
    with logged_texts() as texts:
        assert len(list(loader)) == 4
    assert ["exit code 3" in text for text in texts] == [True, False, False]
    assert texts[2].startswith("DataLoader worker (pid(s) ") and "in the same way as one before" in texts[2]
    assert loader.report()["restarts"] == 3


@pytest.mark.parametrize("kind", [Headrace, headrace.Loader])
def test_a_start_that_fails_twice_is_final(kind: Any, marks: Marks) -> None:
    loader = loader_of(range(16), kind, num_workers=1, max_restarts=3, worker_init_fn=StartsBadly(marks, 3, 3, 4))
    with (
        logged_texts() as texts,
        pytest.raises(RuntimeError, match=r"exit code 3.*\n(.*\n)*  headrace does not replace it again"),
    ):
        list(loader)
    assert len(texts) == 1
    assert loader.report()["restarts"] == 1


GROUP = """
import os, signal, time
from {module} import {kind}

class Data(list):
    def __getitem__(self, index):
        if {itself} and index == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        while True:
            time.sleep(1)

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: print("handler", flush=True))
    loader = {kind}(Data(range(8)), 1, num_workers=2, multiprocessing_context="{method}", max_restarts=0)
    iterator = iter(loader)
    look = iterator._engine._core.snapshot
    while not {itself} and not all(look(worker)["phase_since_ns"] for worker in range(2)):  # until both read
        time.sleep(0.01)
    if not {itself}:
        os.killpg(0, signal.SIGTERM)
    next(iterator)
"""
PACKAGES = pytest.mark.parametrize("module, kind", [("headrace", "Loader"), ("headrace.torch", "DataLoader")])


def end_by_sigterm(folder: pathlib.Path, itself: bool, module: str, kind: str, method: str) -> str:
    with Script(folder, GROUP.format(itself=itself, module=module, kind=kind, method=method)) as script:
        assert script.finish(60) == 1
        assert script.stdout == ("" if itself else "handler\n")  # the trainer's alone
        return script.stderr[script.stderr.rindex("RuntimeError: ") :]


@PACKAGES
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_sigterm_to_the_process_group_is_named(tmp_path: pathlib.Path, module: str, kind: str, method: str) -> None:
    output = end_by_sigterm(tmp_path, False, module, kind, method)
    assert "is killed by signal: Terminated. Some process asked it to end" in output
    assert "\n  it ended all 2 workers at the same time: it was sent to their whole process group" in output


@PACKAGES
def test_sigterm_to_one_worker_names_no_group(tmp_path: pathlib.Path, module: str, kind: str) -> None:
    output = end_by_sigterm(tmp_path, True, module, kind, "fork")
    assert "is killed by signal: Terminated." in output
    assert "process group" not in output


TAKEN = """
import os, signal
from headrace import Loader
class Dies(list):
    def __getitem__(self, index):
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return index
def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, reap)
    list(Loader(Dies(range(16)), 4, num_workers=2, multiprocessing_context="fork", max_restarts=0))
"""


def test_exit_code_that_the_user_read_is_reported_as_unknown(tmp_path: pathlib.Path) -> None:
    with Script(tmp_path, TAKEN) as script:
        assert script.finish() == 1
        assert (
            masked(script.stderr[script.stderr.rindex("RuntimeError: ") :])
            == f"""\
RuntimeError: DataLoader worker (pid(s) N) exited unexpectedly with an unknown exit code: this process already read \
it (os.wait() or os.waitpid(-1) in a SIGCHLD handler or a thread), or it ignores SIGCHLD. Rerunning with num_workers=0 \
may give a better error trace.{PLACE}{END}
"""
        )
        assert script.left() == []


# ---- warnings after which the loop continues: they name the user's line, and are logged ----


class LogCollector(logging.Handler):
    """Collects the messages of the logger `headrace`, and calls `then` with each."""

    def __init__(self, then: Callable[[int], Any] = lambda count: None) -> None:
        super().__init__(logging.INFO)
        self.texts: list[str] = []
        self.then = then

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "headrace.epochs":  # the lines at the ends of epochs
            return
        self.texts.append(record.getMessage())
        self.then(len(self.texts))


@contextlib.contextmanager
def logged_texts(then: Callable[[int], Any] = lambda count: None) -> Iterator[list[str]]:
    """Collects the texts that are logged. Each must be a warning too, at a line of this file that iterates a loader."""
    handler, log = LogCollector(then), logging.getLogger("headrace")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.filterwarnings("ignore", FORK_NEXT_TO_THREADS, DeprecationWarning)
            yield handler.texts
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
    assert [str(one.message) for one in caught] == handler.texts
    for one in caught:
        assert one.filename == __file__
        assert re.search(r"\b(list|next|iter)\(", linecache.getline(one.filename, one.lineno))


@pytest.mark.parametrize("kind", [Headrace, headrace.Loader])
def test_restart_is_reported_and_then_the_reached_limit(kind: Any) -> None:
    with logged_texts() as texts:
        with pytest.raises(RuntimeError) as caught:
            list(loader_of(Acts(send(signal.SIGKILL)), kind, max_restarts=1))
    killed = f"DataLoader worker (pid N) {FIRST_LINES['SIGKILL']}{PLACE}{END.splitlines()[0]}\n"
    assert [masked(text) for text in texts] == [f"{killed}  headrace replaces it (restart 1 of 1){DIED}"]
    assert masked(str(caught.value)) == (
        f"{killed}  making sample 5 killed its worker 2 times: it is not tried again\n"
        f"  headrace cannot replace it: the limit max_restarts=1 is reached; raise it to allow more{DIED}"
    )


@pytest.mark.parametrize("kind", [Headrace, headrace.Loader])
def test_a_sample_that_killed_two_workers_raises_and_is_named(kind: Any) -> None:
    with logged_texts() as texts:
        with pytest.raises(RuntimeError) as caught:
            list(loader_of(Acts(send(signal.SIGKILL)), kind, max_restarts=5))
    assert [text.splitlines()[-2] for text in texts] == [f"  headrace replaces it (restart {k} of 5)" for k in (1, 2)]
    assert texts[1].splitlines()[-3] == "  making sample 5 killed its worker 2 times: it is not tried again"
    assert re.search(
        r"SampleKilledWorker: making sample 5 killed its worker 2 times \(headrace help sample-killed-worker\)\s*$",
        str(caught.value),
    )


@pytest.mark.parametrize("kind", [Headrace, headrace.Loader])
def test_replay_command_contains_the_seed_of_the_sample(kind: Any) -> None:
    loader = loader_of(Acts(send(signal.SIGKILL)), kind, rng="sample", seed=7, max_restarts=0)
    loader.set_epoch(3)
    assert f"{REPLAY.partition(': ')[2]} 5 --seed 7 --epoch 3 --pdb" in exception_of(loader)


@needs_failpoints
@pytest.mark.parametrize("kind", [Headrace, headrace.Loader])
def test_a_worker_that_cannot_be_replaced_now_is_replaced_later(
    kind: Any, marks: Marks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die_once_the_first_batch_is_there() -> None:
        if marks.first("death"):
            assert until(lambda: marks.has("first batch"), DEADLINE_S)
            send(signal.SIGKILL)()

    loader = loader_of(Acts(die_once_the_first_batch_is_there), kind, max_restarts=1)
    iterator = iter(loader)
    batches = [next(iterator)]
    marks.first("first batch")
    with logged_texts() as texts:
        with monkeypatch.context() as limited:
            limited.setenv("HEADRACE_FAIL", "fork:EAGAIN")
            for _ in range(3):
                with pytest.raises(OSError, match="headrace: cannot start a worker process"):
                    next(iterator)
        batches += list(iterator)
    assert [int(one) for batch in batches for one in batch] == list(range(16))
    assert loader.report()["restarts"] == 1
    killed = f"DataLoader worker (pid N) {FIRST_LINES['SIGKILL']}{PLACE}{END.splitlines()[0]}\n"
    tried = f"{killed}  headrace could not start a new worker; the next call of next() tries again{DIED}"
    assert [masked(text) for text in texts] == [tried] * 3 + [f"{killed}  headrace replaces it (restart 1 of 1){DIED}"]


def test_a_restart_is_complete_where_warnings_are_errors(marks: Marks) -> None:
    def die_once_the_first_batch_is_there() -> None:
        if marks.first("death"):
            assert until(lambda: marks.has("first batch"), DEADLINE_S)
            os._exit(3)

    iterator = iter(loader_of(Acts(die_once_the_first_batch_is_there), max_restarts=1))
    batches = [next(iterator)]
    marks.first("first batch")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match=r"headrace replaces it \(restart 1 of 1\)"):
            next(iterator)
    batches += list(iterator)
    assert torch.cat(batches).tolist() == list(range(16))


# ---- exceptions ----


def fail() -> None:
    raise ValueError("bad")


class Fails(dict):  # type: ignore[type-arg]
    def __getitem__(self, index: Any) -> Any:
        if super().__getitem__(index) is None:
            fail()
        return super().__getitem__(index)


REPLAY = "headrace: to make it alone: headrace replay YOUR_MODULE:MAKE_DATASET"


@pytest.mark.parametrize("kind", [Headrace, headrace.Loader])
@pytest.mark.parametrize(
    "dataset, options, note",
    [
        (Acts(fail), {}, ["sample 5 of batch 1, [4, 5, 6, 7] (worker 1)", f"{REPLAY} 5 --pdb"]),
        (Acts(fail), {"batch_size": None}, ["sample 5, batch 5 (worker 1)", f"{REPLAY} 5 --pdb"]),
        (Acts(fail), {"batch_size": 16},
         ["sample 5 of batch 0, [0, 1, 2, 3, 4, 5, 6, 7, ...], 16 in all (worker 0)", f"{REPLAY} 5 --pdb"]),
        (Acts(nothing), {"collate_fn": lambda batch: 5 in batch and fail()},
         ["batch 1, samples [4, 5, 6, 7] (worker 1)"]),
        (Fails({"a b": None}), {"sampler": ["a b"], "batch_size": None},
         ["sample 'a b', batch 0 (worker 0)", f"{REPLAY} \"'a b'\" --pdb"]),
        (Fails({(1, 2): None}), {"sampler": [(np.int64(1), np.int64(2))], "batch_size": 1},
         ["sample (np.int64(1), np.int64(2)) of batch 0, [(np.int64(1), np.int64(2))] (worker 0)",
          f"{REPLAY} '(1, 2)' --pdb"]),
        (Acts(fail), {"rng": "sample", "seed": 7},
         ["sample 5 of batch 1, [4, 5, 6, 7] (worker 1)", f"{REPLAY} 5 --seed 7 --epoch 0 --pdb"]),
    ],
    ids=["a sample", "without batches", "many samples", "collate", "a key", "numbers of numpy's", "rng=sample"],
)  # fmt: skip
@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes before Python 3.11")
def test_an_exception_says_where_it_came_from(
    kind: Any, dataset: Any, options: dict[str, Any], note: list[str]
) -> None:
    first, *rest = note
    assert exception_of(loader_of(dataset, kind, **options)).endswith("\n".join([f"headrace: {first}", *rest]))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes before Python 3.11")
def test_an_exception_on_all_samples_at_once_names_the_batch() -> None:
    text = exception_of(loader_of(ActsOnAll(fail)))
    assert text.endswith("\nheadrace: batch 1, samples [4, 5, 6, 7] (worker 1)")


@pytest.mark.parametrize("kind, dataset", [(Headrace, ActsAsIterable(fail)), (headrace.Loader, Items(fail))])
@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes before Python 3.11")
def test_an_exception_of_an_iterable_names_the_batch(kind: Any, dataset: Any) -> None:
    assert exception_of(loader_of(dataset, kind)).endswith("\nheadrace: batch 2 (worker 0)")


# ---- stalls ----

STALL_S = 0.25
libc = ctypes.PyDLL(None)  # calls keep the GIL


@pytest.fixture(autouse=True)
def a_worker_has_all_the_time_to_write_its_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_crew, "STACK_S", DEADLINE_S)


class Gate:
    """A worker that reaches index 5 says so, and does `act`, unless the gate is open. Made of pipes: a killed worker
    would keep a lock."""

    def __init__(self, act: Callable[[], Any] | None = None) -> None:
        self._act = act or self.wait
        (self._is_open, self._open), (self._is_reached, self._reach) = FORK.Pipe(False), FORK.Pipe(False)

    def open(self) -> None:
        self._open.send_bytes(b"open")

    def wait(self) -> None:
        self._is_open.poll(60)

    def reach(self) -> None:
        self._reach.send_bytes(b"reached")

    def wait_until_reached(self) -> None:
        assert self._is_reached.poll(DEADLINE_S)
        self._is_reached.recv_bytes()

    def __call__(self) -> None:
        if not self._is_open.poll():
            self.reach()
            self._act()


def has_made(iterator: Any, worker: int, batches: int) -> bool:
    """Returns True if a worker has published as many, and waits for its next task."""
    look = iterator._engine._core.snapshot(worker)
    return bool(look["batches"] == batches and look["phase"] == _core.PHASE_WAIT)


def at_gate(gate: Gate, loader: Any) -> Any:
    """An iterator whose last worker waits behind the gate, and whose other, if any, has made its two batches:
    what it takes to start them and to come there is no stall."""
    iterator = iter(loader)
    *others, last = iterator._engine.processes
    gate.wait_until_reached()
    assert until(lambda: is_still(last.pid), DEADLINE_S)
    assert until(lambda: all(has_made(iterator, worker, 2) for worker in range(len(others))), DEADLINE_S)
    return iterator


def open_and_wait(gate: Gate, iterator: Any) -> None:
    """Until worker 1 has made what it was kept from: how long it takes is no stall either."""
    gate.open()
    assert until(lambda: has_made(iterator, 1, 2), DEADLINE_S)


class SeesDeaths:
    """The core of a crew: when it has sent SIGKILL, the worker is dead."""

    def __init__(self, core: Any) -> None:
        self._core = core

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def signal(self, worker: int, number: int) -> None:
        pid = self._core.snapshot(worker)["pid"]
        self._core.signal(worker, number)
        assert number != signal.SIGKILL or until(lambda: not alive(pid), DEADLINE_S)


def be_patient(iterator: Any) -> None:
    """Turns the stall report off: a slow death of a killed worker, or a slow start of the next one, is no stall."""
    engine = iterator._engine
    engine._settings = Settings(**{**vars(engine._settings), "stall_after": 10 * DEADLINE_S})
    engine._crew._core = SeesDeaths(engine._core)


def stall_of(text: str) -> str:
    """A report without its last line, which names its page, and as if no thread had been there when the worker was
    forked: torch may have started some, or not."""
    assert text.endswith(STALL), text
    text = text.removesuffix(STALL)
    lines = [line for line in masked(text).splitlines() if not line.startswith("  it was forked from a process with ")]
    return "\n".join(lines)


def stall_at(gate: Gate, **options: Any) -> str:
    return exception_of(at_gate(gate, loader_of(Acts(gate), stall_after=STALL_S, **{"on_stall": "raise", **options})))


STALLED = """\
headrace: no batch for N s: worker 1 (pid N) waits; it has been in the dataset for N s, at sample 5 of batch 1, \
[4, 5, 6, 7]
"""
WAITS_ON = '  headrace waits on (on_stall="wait"; "raise" and "restart" would not)'


def stuck(where: str) -> str:
    return f"""\
{STALLED}\
  its stacks:
    Current thread 0xN (most recent call first):
{where}\
      File "{HERE}", line N in __call__
      File "{HERE}", line N in __getitem__
      ...
"""


IN_PYTHON = f'      ...\n      File "{HERE}", line N in wait\n'


def test_stall_is_reported_again_after_twice_the_time() -> None:
    """Each report comes after twice the time of the one before, as long as the caller waits."""
    gate = Gate()
    iterator = at_gate(gate, loader_of(Acts(gate), stall_after=STALL_S))
    with logged_texts(lambda count: count == 3 and open_and_wait(gate, iterator)) as texts:
        assert len(list(iterator)) == 4
    assert [stall_of(text) for text in texts] == [stuck(IN_PYTHON) + WAITS_ON] * 3
    assert [re.search(r"no batch for (\S+) s", text)[1] for text in texts] == ["0.2", "0.5", "1.0"]  # type: ignore[index]


@pytest.mark.parametrize("kind", [Headrace, headrace.Loader])
def test_a_stall_raises_if_asked_to_and_the_iterator_can_go_on(kind: Any) -> None:
    gate = Gate()
    iterator = at_gate(gate, loader_of(Acts(gate), kind, stall_after=STALL_S, on_stall="raise"))
    next(iterator)
    with logged_texts() as texts, pytest.raises(RuntimeError) as caught:
        next(iterator)
    assert stall_of(str(caught.value)) == stuck(IN_PYTHON).rstrip()
    assert texts == []
    open_and_wait(gate, iterator)
    assert len(list(iterator)) == 3


def test_a_stalled_worker_is_killed_and_replaced_if_asked_to() -> None:
    def get_stuck_once() -> None:
        gate.open()
        sleep_for_long()

    gate = Gate(get_stuck_once)
    iterator = at_gate(gate, loader_of(Acts(gate), stall_after=STALL_S, on_stall="restart", max_restarts=1))
    with logged_texts(lambda count: count == 1 and be_patient(iterator)) as texts:
        batches = list(iterator)
    assert torch.cat(batches).tolist() == list(range(16))
    where = "".join(f'      File "{HERE}", line N in {name}\n' for name in ("sleep_for_long", "get_stuck_once"))
    stall, death = texts
    assert stall_of(stall) == stuck(where) + '  headrace kills and replaces it (on_stall="restart")'
    assert masked(death) == (
        "DataLoader worker (pid N) is killed by signal: Killed. headrace sent it, because the worker had stalled.\n"
        f"  headrace replaces it (restart 1 of 1){DIED}"
    )


def test_a_stalled_worker_that_cannot_be_replaced_raises() -> None:
    text = stall_at(Gate(), on_stall="restart")
    assert stall_of(text) == stuck(IN_PYTHON) + "  max_restarts=N lets headrace replace up to N workers and go on"


def pause_with_the_gil() -> None:
    while True:
        libc.pause()


def pause_deafly() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pause_with_the_gil()


def sleep_for_long() -> None:
    time.sleep(600)


def test_a_worker_that_sleeps_shows_its_stack() -> None:
    text = stall_at(Gate(sleep_for_long))
    assert stall_of(text) == stuck(f'      File "{HERE}", line N in sleep_for_long\n').rstrip()


def test_a_worker_in_a_c_call_that_keeps_the_gil_shows_its_stack() -> None:
    text = stall_at(Gate(pause_with_the_gil))
    assert stall_of(text) == stuck(f'      File "{HERE}", line N in pause_with_the_gil\n').rstrip()


def test_of_a_worker_that_hears_no_signal_the_kernel_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_crew, "STACK_S", 1.0)
    text = stall_at(Gate(pause_deafly))
    text = re.sub(r"says: (in \w[\w.]*, )?(system call N, )?", "says: ", stall_of(text))  # if /proc may be read
    assert text == STALLED + (
        "  it does not write its stacks; the kernel says: 1 thread (`py-spy dump --pid N` or `gdb -p N` may tell more)"
    )


def write_stacks_slowly(number: int, fd: int, all_threads: bool) -> None:
    """Like faulthandler.register, of a worker that has to wait for the processor in the middle of it."""

    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def write(_: int) -> None:
        os.write(fd, b"the first half\n")
        time.sleep(0.5)
        os.write(fd, b"the second half\n")

    kept.append(write)
    libc.signal(number, write)


kept: list[Any] = []


def test_stacks_that_a_worker_writes_slowly_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faulthandler, "register", write_stacks_slowly)
    text = stall_at(Gate(sleep_for_long))
    assert stall_of(text) == f"{STALLED}  its stacks:\n    the first half\n    the second half"


def test_worker_that_dies_late_delays_no_caller_and_is_reaped() -> None:
    """A killed worker can die late: here it dies after close() has returned."""
    closed = []

    class Core:
        def snapshot(self, worker: int) -> dict[str, Any]:
            names = {*WorkerSnapshot._fields, "worker", "said"} - {"number", "stderr"}
            return {**dict.fromkeys(names), "own_pid": process.pid}

        def stop(self, timeout: float) -> int:
            time.sleep(timeout)
            return 1

        def close(self) -> None:
            closed.append(process.is_alive())

    process = FORK.Process(target=sleep_for_long)
    process.start()
    try:
        shutdown.close(Core(), [process], 0.1, shutdown.end)  # type: ignore[arg-type]
        assert closed == [True]
    finally:
        process.kill()
    assert until(lambda: process.exitcode == -signal.SIGKILL, DEADLINE_S)


def test_stall_shows_all_threads_and_the_hazards_of_fork() -> None:
    """The report shows all threads of the stalled worker, and what the fork may have done to it."""

    def wait_next_to_a_thread() -> None:
        threading.Thread(target=sleep_for_long, daemon=True).start()
        gate.reach()
        gate.wait()

    gate, ended = Gate(wait_next_to_a_thread), threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        iterator = iter(loader_of(Acts(gate), stall_after=STALL_S, on_stall="raise"))
        gate.wait_until_reached()  # a second time, in another thread
        text = masked(exception_of(at_gate(gate, iterator)))
    finally:
        ended.set()
        thread.join()
    assert (
        re.sub(r"with \d+ threads", "with N threads", text)
        == f"""\
{STALLED}\
  its stacks:
    Thread 0xN (most recent call first):
      File "{HERE}", line N in sleep_for_long
      ...

    Current thread 0xN (most recent call first):
{IN_PYTHON}\
      File "{HERE}", line N in wait_next_to_a_thread
      File "{HERE}", line N in __call__
      File "{HERE}", line N in __getitem__
      ...
  it was forked from a process with N threads: a lock that one of them held then stays held in the worker, and thread \
pools (OpenCV, OpenMP, BLAS) may wait for threads that it does not have; multiprocessing_context="forkserver" avoids \
that{STALL}"""
    )


@pytest.mark.parametrize("on_stall", ["wait", "raise"])
def test_a_stopped_worker_is_named_and_not_killed(on_stall: str) -> None:
    def let_it_go_on(count: int) -> None:
        os.kill(pid, signal.SIGCONT)
        open_and_wait(gate, iterator)

    gate = Gate()
    iterator = at_gate(gate, loader_of(Acts(gate), stall_after=STALL_S, on_stall=on_stall))
    pid = iterator._workers[1].pid
    os.kill(pid, signal.SIGSTOP)
    assert until(lambda: iterator._engine._core.snapshot(1)["state"] == "T", DEADLINE_S)
    with logged_texts(let_it_go_on) as texts:
        next(iterator)
        assert len(list(iterator)) == 3
    assert masked(texts[0]) == STALLED.replace(
        "waits", "is stopped (by Ctrl-Z or SIGSTOP; `kill -CONT N` lets it go on)"
    ) + (f'  headrace waits on (on_stall="restart" would replace it){STALL}')


def test_a_stopped_worker_is_killed_if_asked_to() -> None:
    def stop_once() -> None:
        gate.open()
        send(signal.SIGSTOP)()

    gate = Gate(stop_once)
    iterator = at_gate(gate, loader_of(Acts(gate), stall_after=STALL_S, on_stall="restart", max_restarts=1))
    with logged_texts(lambda count: count == 1 and be_patient(iterator)) as texts:
        batches = list(iterator)
    assert torch.cat(batches).tolist() == list(range(16))
    assert [text.splitlines()[-2] for text in texts] == [
        '  headrace kills and replaces it (on_stall="restart")',
        "  headrace replaces it (restart 1 of 1)",
    ]


TRACER = """
import ctypes, os, sys
pid, libc = int(sys.argv[1]), ctypes.CDLL(None, use_errno=True)
ATTACH, DETACH = 16, 17
attached = libc.ptrace(ATTACH, pid, None, None) == 0
if attached:
    os.waitpid(pid, 0)
print("traced" if attached else os.strerror(ctypes.get_errno()), flush=True)
sys.stdin.read()
libc.ptrace(DETACH, pid, None, None)
"""


def test_a_worker_in_a_debugger_is_named_and_not_killed() -> None:
    def let_it_go_on(count: int) -> None:
        tracer.communicate()
        open_and_wait(gate, iterator)

    gate = Gate()
    iterator = at_gate(gate, loader_of(Acts(gate), stall_after=STALL_S, on_stall="raise"))
    with logged_texts(let_it_go_on) as texts:
        next(iterator)
        command = [sys.executable, "-S", "-c", TRACER, str(iterator._workers[1].pid)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as tracer:
            assert tracer.stdout is not None
            if (line := tracer.stdout.readline().strip()) != "traced":
                gate.open()
                pytest.skip(f"ptrace is not permitted: {line}")
            assert len(list(iterator)) == 3
    assert masked(texts[0]) == STALLED.replace("waits", "is in a debugger (it is traced by process N)") + (
        f'  headrace waits on (on_stall="restart" would replace it){STALL}'
    )


def test_a_stall_out_of_order_names_the_worker_that_is_busy() -> None:
    text = stall_at(Gate(), in_order=False)
    assert stall_of(text) == stuck(IN_PYTHON).rstrip()


def test_stall_at_the_start_of_a_persistent_epoch_is_reported() -> None:
    gate = Gate()
    loader = loader_of(Acts(gate), stall_after=STALL_S, persistent_workers=True)
    next(at_gate(gate, loader))
    with logged_texts(lambda count: gate.open()) as texts:
        iterator = iter(loader)
    assert stall_of(texts[0]) == stuck(IN_PYTHON) + WAITS_ON
    assert len(list(iterator)) == 4


def test_a_stall_of_an_iterable_names_the_batch() -> None:
    gate = Gate()
    loader = loader_of(ActsAsIterable(gate), num_workers=1, stall_after=STALL_S, on_stall="raise")
    text = exception_of(at_gate(gate, loader))
    assert text.splitlines()[0].endswith(" s, at batch 1")


class Steps:
    """Each sample takes a part of what a stall takes, by the trainer's clock: it is made when the trainer has waited
    for `slices` quarters of that, however slow the worker is."""

    def __init__(self, count: int, batch_size: int, slices: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.batch_size = count, batch_size
        self.waited = self.made = 0
        self._is_due, self._let = FORK.Pipe(False)
        look = _crew.Crew.progress

        def progress(crew: _crew.Crew) -> Any:
            self.waited += 1
            if self.waited % slices == 0:
                self.let_one_be_made(crew._core)
            return look(crew)

        monkeypatch.setattr(_crew.Crew, "progress", progress)

    def let_one_be_made(self, core: Any) -> None:
        self.made += 1
        self._let.send_bytes(b"go on")

        def is_made() -> bool:
            look = core.snapshot(0)
            batches, samples = divmod(self.made, self.batch_size)
            return bool(look["sample"] == self.made if samples else look["batches"] == batches)

        assert until(is_made, DEADLINE_S)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        assert self._is_due.poll(DEADLINE_S)
        self._is_due.recv_bytes()
        return index


@pytest.mark.parametrize("in_order", [True, False])
def test_a_worker_that_gets_on_sample_by_sample_does_not_stall(in_order: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(16, 16, 2, monkeypatch)
    with logged_texts() as texts:
        assert len(list(loader_of(steps, batch_size=16, stall_after=STALL_S, num_workers=1, in_order=in_order))) == 1
    assert texts == []
    assert steps.made == 16


def test_a_slow_consumer_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(4, 1, 1, monkeypatch)
    with logged_texts() as texts:
        for _ in loader_of(steps, batch_size=None, stall_after=STALL_S, num_workers=1):
            time.sleep(STALL_S)
    assert texts == []
    assert steps.made == 4


STOPPED = """
import multiprocessing, os, signal, threading
from headrace import Loader
from headrace._loader.trainer import crew as _crew
from processes import until
context = multiprocessing.get_context("fork")
opened, reached = context.Event(), context.Event()
class Gate(list):
    def __getitem__(self, index):
        if index == 1:
            reached.set()
            assert opened.wait(60)
        return index

def stop():
    os.kill(os.getpid(), signal.SIGSTOP)
    has_gone_on.set()

has_gone_on = threading.Event()
stopper = threading.Timer(0.1, stop)
look = _crew.Crew.progress
slices = []

def progress(crew):
    "After each slice: the first begins the one in which this process is stopped, the second lets the worker go on."
    seen = look(crew)
    slices.append(seen)
    if len(slices) == 1:
        stopper.start()
    elif len(slices) == 2:
        assert has_gone_on.wait(60)
        opened.set()
        assert until(lambda: crew._core.snapshot(0)["batches"] == 3, 60)
    return seen

if __name__ == "__main__":
    iterator = iter(Loader(Gate(range(3)), None, num_workers=1, stall_after=2, on_stall="raise", prefetch_factor=3,
                           multiprocessing_context=context))
    assert reached.wait(60) and until(lambda: iterator.report()["per_worker"][0]["batches"] == 1, 60)
    next(iterator)
    _crew.Crew.progress = progress
    print(next(iterator), next(iterator), len(slices), flush=True)
"""


def test_time_in_which_the_trainer_was_stopped_does_not_count(tmp_path: pathlib.Path) -> None:
    with Script(tmp_path, STOPPED) as script:
        pid = script.process.pid
        assert until(lambda: pathlib.Path(f"/proc/{pid}/stat").read_text().split()[2] == "T", DEADLINE_S)
        time.sleep(3)  # the time that does not count
        os.kill(pid, signal.SIGCONT)
        assert script.finish() == 0, script.stderr
        assert script.stdout == "1 2 2\n"
        assert script.stderr == ""


def test_timeout_works_together_with_a_stall() -> None:
    gate = Gate()
    iterator = at_gate(gate, loader_of(Acts(gate), stall_after=STALL_S, timeout=3))
    next(iterator)
    with logged_texts() as texts, pytest.raises(RuntimeError) as caught:
        next(iterator)
    assert str(caught.value) == "DataLoader timed out after 3 seconds"
    if sys.version_info >= (3, 11):  # exceptions have notes
        assert re.search(r"^headrace: worker \d .* in the dataset for .* at sample \d", caught.value.__notes__[0])
    waits = [re.search(r"no batch for (\S+) s", text)[1] for text in texts]  # type: ignore[index]
    assert waits in (["0.2", "0.5"], ["0.2", "0.5", "1.0"], ["0.2", "0.5", "1.0", "2.0"])  # by its speed


# ---- time, memory, and a report that there is not ----


def test_a_timeout_of_headraces_own_loader_says_what_to_do() -> None:
    gate = Gate()
    iterator = at_gate(gate, loader_of(Acts(gate, at=0), headrace.Loader, num_workers=1, timeout=1))
    with pytest.raises(TimeoutError) as caught:
        next(iterator)
    assert str(caught.value) == (
        "headrace: no batch arrived within 1 seconds; increase timeout, or set stall_after below it to see where "
        "the worker is (headrace help worker-stalled)"
    )


@pytest.mark.parametrize("kind", [Headrace, headrace.Loader])
def test_a_report_before_there_is_one_says_when_there_is(kind: Any) -> None:
    with pytest.raises(RuntimeError) as caught:
        loader_of(Acts(nothing), kind).report()
    assert str(caught.value) == "headrace: there is no report before the first iteration with workers"


class Arrays:
    """Samples of 1 MiB."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return np.zeros(1 << 20, dtype=np.uint8)


@pytest.mark.parametrize("kind", [Headrace, headrace.Loader])
def test_private_copies_are_reported_once_with_their_reason(kind: Any) -> None:
    loader = loader_of(Arrays(), kind, batch_size=1, arena_limit=16 << 20)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kept = list(loader)
    assert len(kept) == 24
    (text,) = [str(one.message) for one in caught if "fork" not in str(one.message)]
    assert re.sub(r"\b\d+ batches", "N batches", masked(text)) == (
        "headrace: batches are copied, which is slower. The N batches that your program keeps (N MiB) and the batches "
        "in flight do not fit into N MiB of shared memory. Raise arena_limit, lower prefetch_factor, or keep fewer "
        "batches (headrace help memory-limit)"
    )
    assert " 16.0 MiB of shared memory" in text and " 0 batches" not in text


@pytest.mark.parametrize("kind", [Headrace, headrace.Loader])
@pytest.mark.parametrize(
    "batch_size, start",
    [(4, "a batch of 4.0 MiB (batch_size 4 x 1.0 MiB)"), (None, "a batch of 1.0 MiB")],
    ids=["batches", "without batches"],
)
def test_batch_over_the_limit_names_both_sizes_and_the_option(kind: Any, batch_size: int | None, start: str) -> None:
    text = exception_of(loader_of(Arrays(), kind, batch_size=batch_size, num_workers=1, arena_limit=1 << 19))
    assert re.sub(r"needs \d+ bytes", "needs N bytes", text) == (
        f"headrace: {start} does not fit the limit of 512.0 KiB of shared memory, of which your program keeps 0 bytes; "
        "lower batch_size, or raise arena_limit (it needs N bytes, the limit is 524288) (headrace help memory-limit)"
    )


# ---- what fork may break ----


def forked_in(monkeypatch: pytest.MonkeyPatch, method: str = "fork") -> list[str]:
    """Returns the messages of a process that has not warned yet, and makes two loaders."""
    monkeypatch.setattr(fork_hazards, "_warned", [])
    with logged_texts() as texts:
        for _ in range(2):
            list(loader_of(range(4), headrace.Loader, num_workers=1, multiprocessing_context=method))
    return texts


BEGIN, AVOID = (
    "headrace: workers are started by fork, and this process is not safe to fork: ",
    '. multiprocessing_context="forkserver" avoids this (headrace help fork-unsafe)',
)
THREADS = ", and a lock that one of them holds now stays locked in the workers"


@pytest.fixture
def threads() -> Iterator[Callable[[str], None]]:
    ended, all_threads = threading.Event(), []

    def start(name: str) -> None:
        all_threads.append(threading.Thread(target=ended.wait, name=name))
        all_threads[-1].start()

    yield start
    ended.set()
    for thread in all_threads:
        thread.join()


def test_fork_with_other_threads_warns_once(monkeypatch: pytest.MonkeyPatch, threads: Callable[[str], None]) -> None:
    threads("the logger")
    assert forked_in(monkeypatch) == [f"{BEGIN}other threads run (the logger){THREADS}{AVOID}"]
    for name in ("two", "three", "four"):
        threads(name)
    assert forked_in(monkeypatch) == [f"{BEGIN}other threads run (the logger, two, three, ...){THREADS}{AVOID}"]


def test_fork_of_one_thread_does_not_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    assert forked_in(monkeypatch) == []


def test_a_bar_of_tqdms_is_no_reason_to_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    with tqdm.tqdm(range(3), file=io.StringIO()) as bar:
        assert any(type(thread).__module__.startswith("tqdm.") for thread in threading.enumerate())
        assert forked_in(monkeypatch) == []
        bar.update()
    bar.monitor.exit()  # a thread that would be there in all tests to come
    tqdm.tqdm.monitor = None


def test_feeder_thread_of_a_multiprocessing_queue_does_not_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    queue: Any = multiprocessing.get_context("fork").Queue()
    queue.put(1)
    assert "QueueFeederThread" in [thread.name for thread in threading.enumerate()]
    assert forked_in(monkeypatch) == []
    assert queue.get() == 1
    queue.close()
    queue.join_thread()


def test_timer_of_pytest_timeout_does_not_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = threading.Timer(DEADLINE_S, pytest_timeout.timeout_timer, (None, None))
    timer.start()
    assert forked_in(monkeypatch) == []
    timer.cancel()
    timer.join()


def test_server_of_pytest_rerunfailures_does_not_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    """With pytest-xdist installed, it has a thread in accept() whose function is a method of its module."""
    ended = threading.Event()

    def run_server() -> None:
        ended.wait()

    run_server.__module__ = "pytest_rerunfailures"
    thread = threading.Thread(target=run_server)
    thread.start()
    assert forked_in(monkeypatch) == []
    ended.set()
    thread.join()


def test_server_of_sent_descriptors_does_not_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull) as file:
        sent = reduction.DupFd(file.fileno())
        assert "multiprocessing.resource_sharer" in {
            getattr(getattr(thread, "_target", None), "__module__", None) for thread in threading.enumerate()
        }
        assert forked_in(monkeypatch) == []
        os.close(sent.detach())
    resource_sharer.stop(timeout=5)


def test_fork_with_the_pool_of_polars_warns(monkeypatch: pytest.MonkeyPatch, threads: Callable[[str], None]) -> None:
    threads("one")
    thread = next(thread for thread in threading.enumerate() if thread.name == "one")
    name = pathlib.Path(f"/proc/self/task/{thread.native_id}/comm")
    name.write_text("polars-0")
    assert all("polars" not in text for text in forked_in(monkeypatch))
    monkeypatch.setitem(sys.modules, "polars", types.ModuleType("polars"))
    (text,) = forked_in(monkeypatch)
    assert text.endswith(
        f"polars has a thread pool, and the workers would wait for its threads, which they do not have{AVOID}"
    )
    name.write_text("others")
    assert all("polars" not in text for text in forked_in(monkeypatch))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_only_fork_warns(monkeypatch: pytest.MonkeyPatch, threads: Callable[[str], None], method: str) -> None:
    threads("the logger")
    assert forked_in(monkeypatch, method) == []


def test_of_several_ranks_the_first_one_warns(monkeypatch: pytest.MonkeyPatch, threads: Callable[[str], None]) -> None:
    threads("the logger")
    for rank, count in ("1", 0), ("0", 1):
        monkeypatch.setenv("LOCAL_RANK", rank)
        assert len(forked_in(monkeypatch)) == count


def test_fork_after_cuda_is_initialised_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert forked_in(monkeypatch) == [f"{BEGIN}CUDA is initialised, and forked processes cannot use it{AVOID}"]


class OpenCV(types.ModuleType):
    """The functions of cv2 that headrace calls."""

    threads = 8

    def getNumberOfCPUs(self) -> int:
        return 8

    def getNumThreads(self) -> int:
        return self.threads

    def setNumThreads(self, count: int) -> None:
        assert count != 1, "a forked process would wait here for the threads that its parent's pool has"
        self.threads = count


class ThreadsOfOpenCV:
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        return sys.modules["cv2"].getNumThreads()  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [Headrace, headrace.Loader])
@pytest.mark.parametrize(("of_trainer", "of_worker"), [(8, 0), (3, 3), (1, 1), (0, 0)])
def test_workers_use_one_opencv_thread_unless_the_trainer_set_it(
    monkeypatch: pytest.MonkeyPatch, of_trainer: int, of_worker: int, kind: Any
) -> None:
    cv2 = OpenCV("cv2")
    cv2.threads = of_trainer
    monkeypatch.setitem(sys.modules, "cv2", cv2)
    assert list(loader_of(ThreadsOfOpenCV(), kind, batch_size=None)) == [of_worker]
    assert cv2.threads == of_trainer


@pytest.mark.parametrize("what", [None, types.ModuleType("cv2")], ids=["kept from import", "a stub"])
def test_something_else_of_the_name_of_opencv_is_left_alone(monkeypatch: pytest.MonkeyPatch, what: Any) -> None:
    monkeypatch.setitem(sys.modules, "cv2", what)
    assert [batch.tolist() for batch in loader_of(range(2), Headrace, batch_size=2)] == [[0, 1]]


@pytest.mark.parametrize(("of_trainer", "warns"), [(8, False), (3, True), (1, False), (0, False)])
def test_fork_warns_of_a_pool_of_opencvs_that_workers_keep(
    monkeypatch: pytest.MonkeyPatch, of_trainer: int, warns: bool
) -> None:
    cv2 = OpenCV("cv2")
    cv2.threads = of_trainer
    monkeypatch.setitem(sys.modules, "cv2", cv2)
    opencv = (
        "OpenCV has a thread pool, which may hang in the workers (cv2.setNumThreads(0) in this process avoids that)"
    )
    text = f"{BEGIN}{opencv}{AVOID}"
    assert forked_in(monkeypatch) == [text] * warns


class ThreadsOfTorch:
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        return torch.get_num_threads()


@pytest.mark.parametrize("kind", [Headrace, headrace.Loader])
def test_workers_use_one_torch_thread_by_default(kind: Any) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert list(loader_of(ThreadsOfTorch(), kind, batch_size=None)) == [1]
        own = loader_of(ThreadsOfTorch(), kind, batch_size=None, worker_init_fn=lambda worker: torch.set_num_threads(3))
        assert list(own) == [3]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("not to be printed")


class Unindexable:
    def __index__(self) -> int:
        raise ValueError("no index")


class array:  # reprlib treats classes of this name specially
    pass


class Refuses:
    """Fails, or dies, whatever it is asked for."""

    def __init__(self, dies: bool) -> None:
        self.dies = dies

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> Any:
        if self.dies:
            os._exit(3)
        raise ValueError("the text of the dataset")


@pytest.mark.parametrize("kind", [Headrace, headrace.Loader])
@pytest.mark.parametrize("batch_size", [1, None])
@pytest.mark.parametrize(
    "index",
    [Unprintable(), (0, Unprintable()), Unindexable(), array(), 10**5000],
    ids=["alone", "in a tuple", "no index", "array", "a long number"],
)
def test_an_index_that_cannot_be_printed_hides_nothing(kind: Any, batch_size: int | None, index: Any) -> None:
    options = {"batch_size": batch_size, "sampler": [index], "num_workers": 1, "multiprocessing_context": "fork"}
    with pytest.raises(ValueError, match="the text of the dataset"):
        list(kind(Refuses(False), **options))
    with pytest.raises(RuntimeError, match="exited unexpectedly with exit code 3"):
        list(kind(Refuses(True), max_restarts=0, **options))
    with pytest.raises(RuntimeError, match=r"killed|exited unexpectedly"):
        list(kind(Refuses(True), max_restarts=1, **options))

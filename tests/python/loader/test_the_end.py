# SPDX-License-Identifier: Apache-2.0
"""The end of a loader, whatever its workers and the interpreter are doing: quick, bounded, silent, and complete."""

from __future__ import annotations

import ctypes
import functools
import gc
import multiprocessing
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from multiprocessing import util
from typing import Any

import datasets as d
import headrace
import pytest
from headrace import _core
from headrace._loader.trainer import shutdown
from loaders import METHODS, Headrace, only_headrace
from mishaps import Marks
from processes import Script, Tracer, alive, run, seconds_to_die_with, until

pytestmark = [only_headrace, pytest.mark.destructors("the destructors of libraries are a part of the end")]

FORK = multiprocessing.get_context("fork")
libc = ctypes.PyDLL(None)  # calls keep the GIL


def looks(iterator: Any) -> list[dict[str, Any]]:
    core, count = iterator._engine._core, len(iterator._engine.processes)
    return [core.snapshot(worker) for worker in range(count)]


def idle(loader: Any) -> Any:
    """An iterator whose workers have made all that they were asked for."""
    iterator = iter(loader)
    next(iterator)
    assert until(lambda: all(look["batches"] and look["phase"] == _core.PHASE_WAIT for look in looks(iterator)), 60)
    return iterator


@pytest.mark.parametrize("kind", [headrace.Loader, Headrace])
def test_iterator_is_freed_with_workers_and_data_after_its_error(kind: Any) -> None:
    def ended() -> tuple[Any, Any]:
        data = d.Failing(8, at=(3,))
        iterator = iter(kind(data, batch_size=2, num_workers=1, multiprocessing_context="fork"))
        try:
            list(iterator)
        except ValueError as error:
            assert "Caught ValueError in " in str(error)
        return weakref.ref(data), iterator._engine.processes[0].pid

    gc.collect()
    gc.disable()  # they would be there until the next collection
    try:
        reference, worker = ended()
        assert reference() is None
        assert until(lambda: not alive(worker))
    finally:
        gc.enable()


def close(iterator: Any) -> float:
    """Seconds that it takes. Everything is gone then, or dies as soon as the machine lets it."""
    workers = list(iterator._engine.processes)
    before = time.monotonic()
    iterator._engine.close()
    took = time.monotonic() - before
    assert until(lambda: not any(alive(worker.pid) for worker in workers))
    return took


# ---- idle workers ----


@pytest.mark.parametrize("kind, method", [(Headrace, "fork"), *((headrace.Loader, method) for method in METHODS)])
def test_closing_with_idle_workers_is_quick(
    kind: Any, method: str, record_property: Callable[[str, Any], None]
) -> None:
    loader = kind(range(100), num_workers=2, multiprocessing_context=method)
    took = min(close(idle(loader)) for _ in range(3))
    record_property("seconds", took)  # to reach: 0.1
    assert took < 1


AT_THE_END = """
import atexit, multiprocessing, pathlib, signal, threading
from multiprocessing import util
from headrace import Loader

class Writes:
    "What a worker has registered for its end writes its name into a file."
    def __init__(self, path):
        self.path = pathlib.Path(path)
    def __call__(self, worker):
        signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGINT}})  # the worker still ends in order
        util.Finalize(None, self.write, ("finalizer",), exitpriority=1)
        atexit.register(self.write, "atexit")
        threading.Thread(target=self.write_last).start()
    def write(self, name):
        with self.path.open("a") as file:
            print(name, file=file)
    def write_last(self):
        threading.main_thread().join()
        self.write("thread")

if __name__ == "__main__":
    process = multiprocessing.get_context({method!r}).Process(target=Writes("expected"), args=(0,))
    process.start()
    process.join()
    options = dict(num_workers=1, multiprocessing_context={method!r}, shutdown_timeout=60)
    iterator = iter(Loader(range(9), worker_init_fn=Writes("found"), **options))
    next(iterator)
    iterator.close()
    expected, found = (sorted(pathlib.Path(name).read_text().split()) for name in ("expected", "found"))
    print("finalizer" in expected, found == expected, expected, found)
"""


@pytest.mark.parametrize("method", METHODS)
def test_idle_worker_ends_like_other_multiprocessing_processes(tmp_path: pathlib.Path, method: str) -> None:
    assert run(tmp_path, AT_THE_END.format(method=method)).startswith("True True ")


# ---- workers that do not end by themselves ----


def compute_in_c() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while True:
        libc.usleep(1000)


def ignore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def sleep_for_long() -> None:
    time.sleep(600)


class Acts:
    """index -> index, but `act` from index 4 on."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self.act = act

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        if index >= 4:
            self.act()
        return index


TIMEOUT_S = 1.0


def busy(act: Callable[[], Any], workers: int, **options: Any) -> Any:
    loader = Headrace(
        Acts(act), None, num_workers=workers, multiprocessing_context="fork", shutdown_timeout=TIMEOUT_S, **options
    )
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    assert until(lambda: all(look["task"] >= 4 for look in looks(iterator)), 60)
    return iterator


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("act", [sleep_for_long, compute_in_c, ignore_sigterm, stop])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_closing_is_bounded_in_all_whatever_the_workers_do(act: Callable[[], Any], workers: int) -> None:
    assert any(close(busy(act, workers)) < 2.5 * TIMEOUT_S for _ in range(3))


def get_stuck_in_a_finalizer(worker: int) -> None:
    util.Finalize(None, ignore_sigterm, exitpriority=1)


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_finalizer_that_hangs_does_not_keep_the_trainer(workers: int) -> None:
    options = {"num_workers": workers, "worker_init_fn": get_stuck_in_a_finalizer, "shutdown_timeout": TIMEOUT_S}

    def closed() -> float:
        return close(idle(Headrace(range(100), multiprocessing_context="fork", **options)))

    assert any(closed() < 2.5 * TIMEOUT_S for _ in range(3))


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_closing_does_not_wait_for_a_worker_that_cannot_die(method: str) -> None:
    timeout_s = 0.2

    def closed() -> float:
        iterator = idle(
            headrace.Loader(range(100), 1, num_workers=2, multiprocessing_context=method, shutdown_timeout=timeout_s)
        )
        first = iterator._engine.processes[0]
        with Tracer(first.pid) as is_allowed:
            if not is_allowed:
                pytest.skip("the system refuses ptrace")
            before = time.monotonic()
            iterator._engine.close()
            took = time.monotonic() - before
            assert first not in multiprocessing.active_children()
        assert until(lambda: first.exitcode is not None)
        return took

    assert any(closed() < 4 * timeout_s for _ in range(3))


def test_a_worker_that_dies_and_cannot_be_reaped_is_replaced() -> None:
    iterator = idle(headrace.Loader(range(100), 1, num_workers=2, multiprocessing_context="fork", max_restarts=1))
    first = iterator._engine.processes[0]
    with Tracer(first.pid) as is_allowed:
        if not is_allowed:
            pytest.skip("the system refuses ptrace")
        os.kill(first.pid, signal.SIGKILL)
        with pytest.warns(UserWarning, match="headrace replaces it"):
            assert len(list(iterator)) == 99
    assert until(lambda: first.exitcode is not None)


HELD = """
    from processes import Tracer
    iterator = iter(make(shutdown_timeout=0.2))
    next(iterator)
    print("now" if Tracer(iterator._engine.processes[0].pid).__enter__() else "refused", flush=True)
"""


def test_exit_does_not_wait_for_a_worker_that_cannot_die(tmp_path: pathlib.Path) -> None:
    with Script(tmp_path, EXIT.format(method="fork", ending=HELD)) as script:
        if script.line() == "refused":
            pytest.skip("the system refuses ptrace")
        assert script.finish(30) == 0
        assert script.stdout.endswith("the end\n")
        assert script.stderr == ""
        assert script.left() == []


# ---- Ctrl-C ----

CTRL_C = """
import logging, os, pathlib, signal, time, warnings, weakref
from headrace import Loader
from headrace._base import signals
from headrace._loader.trainer import crew
from processes import until
from multiprocessing.process import BaseProcess
warnings.simplefilter("ignore")

def after(owner, name, text, then=int):
    "Lets owner.name say something, and do `then`, before it does what it does."
    original = getattr(owner, name)
    def wrapped(*args):
        print(text, flush=True)
        then()
        return original(*args)
    setattr(owner, name, wrapped)

def tell_of_sigterm(*_):
    os.write(1, b"now\\n")

class Data(list):
    def __init__(self, act):
        super().__init__(range(100))
        self.act = act
    def __getitem__(self, index):
        if index >= 8:
            self.act()
        return index

def sleep():
    signal.signal(signal.SIGTERM, tell_of_sigterm)
    pathlib.Path("sleeper " + str(os.getpid())).touch()
    for _ in range(600):
        time.sleep(1)

def die():
    os._exit(3)

def hear_nothing():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    sleep()

def wait_for_sleepers():
    assert until(lambda: len(list(pathlib.Path().glob("sleeper *"))) == 2, 60)

def wait_for_ctrl_c():
    "While a process is started it is blocked in this thread, and pending."
    assert until(lambda: signal.SIGINT in signal.sigpending(), 60)

def make(act, **options):
    iterator = iter(Loader(Data(act), 4, num_workers=2, multiprocessing_context={method!r}, **options))
    next(iterator)
    return iterator

def make_sleepers():
    iterator = make(sleep, shutdown_timeout=2)
    next(iterator)
    wait_for_sleepers()
    return iterator

if __name__ == "__main__":
{state}
    for _ in range(600):
        time.sleep(1)  # a signal that comes on the way into a sleep is served when that ends
"""

STATES = {
    "in the consumer's code": """
    iterator = make(int)
    print("now", flush=True)
""",
    "in close": """
    iterator = make_sleepers()
    iterator.close()
""",
    "in __del__": """
    iterator = make_sleepers()
    del iterator
""",
    "in __del__, which ends late": """
    start = signals._thread.start_new_thread
    def start_and_wait(*args):
        start(*args)
        time.sleep(0.2)  # the thread runs now
    signals._thread.start_new_thread = start_and_wait
    iterator = make_sleepers()
    weakref.finalize(iterator._engine, time.sleep, 0.2)
    del iterator
""",
    "in the __del__ of another object": """
    class Owner:
        def __del__(self):
            del self.iterator
            time.sleep(2.5)
    owner = Owner()
    owner.iterator = make_sleepers()
    del owner
""",
    "in a generator that ends": """
    def batches():
        try:
            for batch in make(sleep, shutdown_timeout=2):
                yield batch
        finally:
            time.sleep(0.2)
    generator = batches()
    next(generator)
    wait_for_sleepers()
    del generator
""",
    "in the middle of a restart": """
    iterator = make(die)
    after(BaseProcess, "start", "now", wait_for_ctrl_c)
    list(iterator)
""",
    "during a stall's report": """
    iterator = make(hear_nothing, stall_after=0.1, shutdown_timeout=0.5)
    after(crew.Crew, "_with_stacks", "now")
    list(iterator)
""",
}


@pytest.mark.parametrize(
    "state, method",
    [*((state, "fork") for state in STATES), ("in close", "spawn"), ("in the consumer's code", "forkserver")],
)
def test_one_ctrl_c_is_the_trainers_alone_and_ends_all(tmp_path: pathlib.Path, state: str, method: str) -> None:
    # One thread in the script, so that no other one takes the signal while it is blocked.
    with Script(tmp_path, CTRL_C.format(state=STATES[state], method=method), OPENBLAS_NUM_THREADS="1") as script:
        assert script.line() == "now"
        os.killpg(script.process.pid, signal.SIGINT)
        assert script.finish(60) == -signal.SIGINT, script.stderr
        assert re.findall("^KeyboardInterrupt", script.stderr, re.MULTILINE) == ["KeyboardInterrupt"]
        assert script.stderr.count("Traceback (most recent call last)") == 1
        assert "Exception ignored" not in script.stderr
        assert script.left() == []


def test_a_ctrl_c_on_the_way_into_close_leaves_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    close = shutdown._close

    def interrupted(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        close(*arguments)

    iterator = idle(Headrace(range(100), num_workers=2, multiprocessing_context="fork"))
    pids = [worker.pid for worker in iterator._engine.processes]
    monkeypatch.setattr(shutdown, "_close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        iterator._engine.close()
    assert until(lambda: not any(map(alive, pids)))


def test_a_ctrl_c_while_close_makes_its_report_leaves_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    iterator = idle(Headrace(range(100), num_workers=2, multiprocessing_context="fork"))
    pids = [worker.pid for worker in iterator._engine.processes]
    monkeypatch.setattr(iterator._engine, "_report", interrupted)
    with pytest.raises(KeyboardInterrupt):
        iterator._engine.close()
    assert not any(map(alive, pids))


class Arrives:
    """Takes long to arrive in a worker."""

    def __init__(self, marks: Marks) -> None:
        self.marks = marks

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        return index

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["marks"].first("arrives"):
            time.sleep(600)


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_closing_does_not_wait_for_workers_that_still_start(marks: Marks, method: str) -> None:
    loader = headrace.Loader(Arrives(marks), num_workers=1, multiprocessing_context=method, shutdown_timeout=100)
    iterator = iter(loader)
    assert until(lambda: marks.has("arrives"), 60)
    assert close(iterator) < 10


CTRL_C_EARLY = """
import os, signal, sys
if any("headrace._loader.forkserver" in word for word in sys.orig_argv):
    open("interrupted", "w").close()
    os.kill(os.getpid(), signal.SIGINT)
"""

SERVED = """
import signal
from headrace import Loader

class Masks(list):
    "What workers have blocked."
    def __getitem__(self, index):
        return int(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))

if __name__ == "__main__":
    print(sum(Loader(Masks([0]), None, num_workers=1, multiprocessing_context="forkserver")))
"""


@pytest.mark.cold("the fork server's own sitecustomize sends the signal")
def test_fork_server_ignores_ctrl_c_before_its_imports(tmp_path: pathlib.Path) -> None:
    """A Ctrl-C that the fork server gets before it has imported anything is for the trainer."""
    (tmp_path / "sitecustomize.py").write_text(CTRL_C_EARLY)
    assert run(tmp_path, SERVED, PYTHONPATH=str(tmp_path)) == "0\n"
    assert (tmp_path / "interrupted").exists()


IMPORTS_FOREVER = """
import os, pathlib, signal, time
if __name__ == "__mp_main__":
    pathlib.Path("imports").touch()
    time.sleep(600)
from headrace import Loader
if __name__ == "__main__":
    loader = Loader([0], num_workers=1, multiprocessing_context="forkserver")
    print("now", flush=True)
    time.sleep(600)
"""


ARRIVES = """
import os, pathlib, time
from headrace import Loader

class Arrives(list):
    "Takes long to arrive in a worker."
    def __setstate__(self, state):
        pathlib.Path("arrives.part").write_text(str(os.getpid()))
        os.rename("arrives.part", "arrives")
        time.sleep(600)

if __name__ == "__main__":
    data = Arrives([0])
    data.some = "state"
    iterator = iter(Loader(data, num_workers=1, multiprocessing_context={method!r}))
    print("now", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_worker_without_an_open_port_dies_with_its_trainer(tmp_path: pathlib.Path, method: str) -> None:
    def died() -> float:
        arrives = tmp_path / "arrives"
        arrives.unlink(missing_ok=True)
        with Script(tmp_path, ARRIVES.format(method=method)) as script:
            assert script.line() == "now"
            assert until(arrives.exists, 60)
            took = seconds_to_die_with(script.process, int(arrives.read_text()))
            assert script.finish(30) == -signal.SIGKILL
            assert script.left() == []
        return took

    assert any(died() < 1.0 for _ in range(3))  # 0.1 is wanted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_fork_server_that_still_imports_ends_with_its_trainer(tmp_path: pathlib.Path, number: signal.Signals) -> None:
    with Script(tmp_path, IMPORTS_FOREVER) as script:
        assert script.line() == "now"
        assert until((tmp_path / "imports").exists, 60)
        os.kill(script.process.pid, number)
        assert script.finish(30) == -number
        assert script.left() == []


LATE_SIGTERM = """
import os, pathlib, signal
from headrace import Loader
from loaders import Headrace

def save(*_):
    pathlib.Path("saved").touch()

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, save)  # like a job that gets SIGTERM before it is preempted
    for _ in range(15):
        for kind in Loader, Headrace:
            iter(kind(range(100), num_workers=2, multiprocessing_context="fork"))  # ended while workers start
    print(os.path.exists("saved"))
"""


def test_sigterm_handler_of_trainer_does_not_run_in_new_workers(tmp_path: pathlib.Path) -> None:
    """Workers that are ended while they start do not run the trainer's handler of SIGTERM."""
    assert run(tmp_path, LATE_SIGTERM) == "False\n"


# ---- the interpreter's exit ----

EXIT = """
import atexit, os, sys, threading, time
from headrace import Loader

def make(**options):
    settings = dict(num_workers=2, multiprocessing_context={method!r}, max_restarts=0)
    return Loader(range(100), 4, **{{**settings, **options}})

def count(batches):
    return sum(1 for _ in batches)

if __name__ == "__main__":
    atexit.register(lambda: print("the end", flush=True))
{ending}
"""

# What is done, and what is printed before "the end".
ENDINGS = {
    "live iterators": ("""
    iterators = [iter(make()) for _ in range(2)]
    print(*[next(iterator)[0] for iterator in iterators])
""", "0 0\n"),
    "persistent workers": ("""
    loader = make(persistent_workers=True)
    print(count(loader), count(loader))
""", "25 25\n"),
    "a thread that iterates": ("""
    thread = threading.Thread(target=lambda: print(count(make()), flush=True))
    thread.start()
""", "25\n"),
    "a thread that goes on when the main thread has ended": ("""
    iterator = iter(make())
    next(iterator)
    threading.Thread(target=lambda: (threading.main_thread().join(), print(count(iterator), flush=True))).start()
""", "24\n"),
    "a thread that begins when the main thread has ended": ("""
    threading.Thread(target=lambda: (threading.main_thread().join(), print(count(make()), flush=True))).start()
""", "25\n"),
    "atexit handlers that iterate": ("""
    iterator = iter(make())
    atexit.register(lambda: print(count(iterator), count(make()), flush=True))
    next(iterator)
""", "24 25\n"),
    "a reference cycle": ("""
    iterator = iter(make())
    iterator.itself = iterator
    next(iterator)
    del iterator
""", ""),
    "an object whose __del__ closes": ("""
    class Owner:
        def __del__(self):
            self.iterator.close()
    owner = Owner()
    owner.iterator, owner.itself = iter(make()), owner
    next(owner.iterator)
""", ""),
}  # fmt: skip


LATE = ("a thread that iterates", "a thread that begins when the main thread has ended", "atexit handlers that iterate")
FORKS_LATE = """
import atexit, os
atexit.register(lambda: os.waitpid(os.fork(), 0))
"""


@functools.cache
def forks_late() -> bool:
    """CPython 3.12 cannot do this: "can't fork at interpreter shutdown"."""
    return b"can't fork" not in subprocess.run([sys.executable, "-c", FORKS_LATE], stderr=subprocess.PIPE).stderr


@pytest.mark.parametrize(
    "ending, method",
    [*((ending, "fork") for ending in ENDINGS), ("live iterators", "spawn"), ("live iterators", "forkserver")],
)
def test_the_interpreter_exits_in_silence(tmp_path: pathlib.Path, ending: str, method: str) -> None:
    code, printed = ENDINGS[ending]
    if ending in LATE and method == "fork" and not forks_late():
        pytest.skip("this CPython forks no more once the main thread has ended")
    assert run(tmp_path, EXIT.format(method=method, ending=code), PYTHONWARNINGS="ignore") == f"{printed}the end\n"


@pytest.mark.parametrize(
    "ending, code", [("sys.exit(7)", 7), ("raise ValueError('of the user')", 1), ("os._exit(5)", 5)]
)
def test_the_exit_code_is_the_users(tmp_path: pathlib.Path, ending: str, code: int) -> None:
    with Script(tmp_path, EXIT.format(method="fork", ending=f"    iterator = iter(make())\n    {ending}")) as script:
        assert script.finish() == code
        assert script.stderr.count("Traceback") == (code == 1)
        assert script.stderr.endswith("\nValueError: of the user\n" if code == 1 else "")
        assert script.left() == []


STUCK = """
    import multiprocessing, signal
    is_stuck = multiprocessing.get_context("fork").Event()
    class Stuck(list):
        def __getitem__(self, index):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print("now", flush=True)
            is_stuck.set()
            time.sleep(600)
    iterators = [iter(Loader(Stuck([1]), num_workers=1, multiprocessing_context="fork", shutdown_timeout=1))]
    assert is_stuck.wait(60)
"""


def test_exit_with_a_stuck_worker_is_bounded(tmp_path: pathlib.Path) -> None:
    with Script(tmp_path, EXIT.format(method="fork", ending=STUCK)) as script:
        assert script.line() == "now"
        assert script.finish(30) == 0
        assert script.stdout.endswith("the end\n")
        assert script.stderr == ""
        assert script.left() == []


FORKED = """
    iterator = iter(make())
    batches = [next(iterator)]
    for how in ({hows}):
        child = os.fork()
        if child == 0:
            eval(how)
            os._exit(99)
        print(how, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    batches += iterator
    print([index for batch in batches for index in batch] == list(range(100)), flush=True)
"""


def test_forked_children_of_the_trainer_may_end_as_they_like(tmp_path: pathlib.Path) -> None:
    hows = '"sys.exit(3)", "os._exit(4)", "iterator.close() or sys.exit(5)", "1 / 0"'
    with Script(tmp_path, EXIT.format(method="fork", ending=FORKED.format(hows=hows))) as script:
        assert script.finish() == 0
        lines = [line for line in script.stdout.splitlines() if line != "the end"]
        assert lines == ["sys.exit(3) 3", "os._exit(4) 4", "iterator.close() or sys.exit(5) 5", "1 / 0 1", "True"]
        assert script.stderr.count("Traceback") == 1
        assert script.stderr.endswith("\nZeroDivisionError: division by zero\n")
        assert script.left() == []


CHILD_ITERATES = """
    iterator = iter(make())
    next(iterator)
    child = os.fork()
    if child == 0:
        try:
            next(iterator)
        except RuntimeError as error:
            print(error, flush=True)
        print(count(make()), flush=True)
        sys.exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), count(iterator), flush=True)
"""


def test_forked_child_that_iterates_is_asked_to_start_a_new_loop(tmp_path: pathlib.Path) -> None:
    output = run(tmp_path, EXIT.format(method="fork", ending=CHILD_ITERATES)).replace("the end\n", "")
    assert output == (
        "headrace: this iterator belongs to the process that forked this one; start a new loop over the loader in this "
        "process\n"
        "25\n0 24\n"
    )


def end_workers(iterator: Any) -> None:
    """Many programs close an iterator this way, by the name of torch's method."""
    iterator.close() if isinstance(iterator, headrace._numpy.iterator.WorkerIterator) else iterator._shutdown_workers()


@pytest.mark.parametrize("kind", [headrace.Loader, Headrace])
@pytest.mark.parametrize("reads", [0, 1, 4])
def test_persistent_workers_that_were_ended_start_again(kind: Any, reads: int) -> None:
    loader = kind(range(8), 2, num_workers=2, persistent_workers=True, multiprocessing_context="fork")
    for _ in range(2):
        iterator = iter(loader)
        for _ in range(reads):
            next(iterator)
        before = {one["pid"] for one in loader.report()["per_worker"]}
        end_workers(loader._iterator)
        if reads < 4:
            with pytest.raises(RuntimeError, match=r"this iterator was closed, .*iter\(loader\) starts a new epoch"):
                next(iterator)
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
        assert not before & {one["pid"] for one in loader.report()["per_worker"]}
    end_workers(loader._iterator)
    assert not any(map(alive, {one["pid"] for one in loader.report()["per_worker"]}))


TOO_LATE = """
import atexit
def iterate():
    try:
        next(iterator)
    except RuntimeError as error:
        print(error, flush=True)
atexit.register(iterate)
from headrace import Loader
iterator = iter(Loader(range(100), num_workers=2, multiprocessing_context="fork"))
next(iterator)
"""


@pytest.mark.cold("the script registers its handler before multiprocessing does")
def test_atexit_handler_after_the_workers_end_gets_an_error(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, TOO_LATE).startswith("headrace: this iterator was closed, ")


PYTESTS = """
from headrace import Loader
iterators = []
def test_leaves_an_iterator():
    iterators.append(iter(Loader(range(100), num_workers=2, multiprocessing_context="fork")))
    next(iterators[0])
def test_fails():
    iterator = iter(Loader(range(100), num_workers=2, multiprocessing_context="fork"))
    assert next(iterator) == 1
"""


def test_pytest_ends_in_silence(tmp_path: pathlib.Path) -> None:
    (tmp_path / "test_leaves.py").write_text(PYTESTS)
    code = (
        "import pytest, sys\nsys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '--rootdir=.', 'test_leaves.py']))"
    )
    with Script(tmp_path, code) as script:
        assert script.finish() == 1
        assert "1 failed, 1 passed" in script.stdout
        assert script.stderr == ""
        assert script.left() == []

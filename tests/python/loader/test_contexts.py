# SPDX-License-Identifier: Apache-2.0
"""Which processes may have workers, and what a multiprocessing context may start them as."""

from __future__ import annotations

import contextlib
import gc
import os
import pathlib
import signal
import subprocess
import threading
from collections.abc import Iterator
from multiprocessing import context as contexts
from typing import Any

import headrace
import pytest
from headrace._loader.worker import main as _main
from headrace._loader.worker.descriptors import WorkerDescriptors
from loaders import METHODS, Headrace, only_headrace
from processes import alive, run, with_method

pytestmark = [only_headrace]

# ---- daemons ----

ASKED = """
import multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor
from process_table import children
{imports}

def files():
    return set(os.listdir("/proc/self/fd"))

def ask(method):
    loader = Headrace(list(range(4)), 2, num_workers=1, multiprocessing_context=method)
    before = files()
    try:
        batches = list(loader)
    except AssertionError as error:
        note = "\\n".join(getattr(error, "__notes__", []))
        return repr(error), note, sorted(children(os.getpid())), len(files() - before)
    return [batch.tolist() for batch in batches]

if __name__ == "__main__":
    context = multiprocessing.get_context("{pool}")
    with {executor} as pool:
        print({call})
"""
ADVICE = "num_workers=0 here, or start this process with concurrent.futures.ProcessPoolExecutor"


def ask(folder: pathlib.Path, imports: str, pool: str, method: str, executor: str, call: str) -> Any:
    code = ASKED.format(imports=imports, pool=pool, executor=executor, call=call.format(method))
    return eval(run(folder, code))


PACKAGES = {
    "torch": "from headrace.torch import DataLoader as Headrace",
    "numpy": "from headrace import Loader as Headrace",
}


@pytest.mark.parametrize(
    "package, pool, method",
    [*(("torch", "fork", method) for method in METHODS), *(("numpy", method, method) for method in METHODS)],
)
def test_loader_in_pool_is_refused_with_advice(tmp_path: pathlib.Path, package: str, pool: str, method: str) -> None:
    found = ask(tmp_path, PACKAGES[package], pool, method, "context.Pool(1)", "pool.apply(ask, ['{}'])")
    error, note, left, files = found
    assert error == "AssertionError('daemonic processes are not allowed to have children')"
    assert ADVICE in note
    assert (left, files) == ([], 0)


@pytest.mark.parametrize("method", METHODS)
def test_loader_in_process_pool_executor_works(tmp_path: pathlib.Path, method: str) -> None:
    executor = "ProcessPoolExecutor(1, mp_context=context)"
    found = ask(tmp_path, PACKAGES["numpy"], method, method, executor, "pool.submit(ask, '{}').result()")
    assert found == [[0, 1], [2, 3]]


class Nested:
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return list(headrace.Loader([1, 2], num_workers=1, multiprocessing_context="fork"))


def test_loader_in_worker_is_refused_with_advice() -> None:
    for kind, options in ((Headrace, {"batch_size": None}), (headrace.Loader, {"batch_size": None})):
        with pytest.raises(AssertionError, match="daemonic processes are not allowed to have children") as caught:
            list(kind(Nested(), num_workers=1, multiprocessing_context="fork", **options))
        assert ADVICE in str(caught.value)


# ---- threads ----


class ThreadAsProcess(threading.Thread):
    """The thread that MONAI's ThreadDataLoader starts instead of a process."""

    @property
    def pid(self) -> int:
        return id(self)


class ThreadContext(contexts.SpawnContext):
    Process = ThreadAsProcess  # type: ignore[assignment]


class FunctionContext(contexts.SpawnContext):
    def Process(self, *arguments: Any, **named: Any) -> Any:  # type: ignore[override]
        return ThreadAsProcess(*arguments, **named)


THREADED = """
import os, queue, sys, threading, warnings
from multiprocessing.context import SpawnContext

class ThreadAsProcess(threading.Thread):
    pid = property({pid})
    sentinel = property(lambda self: 0)

class ThreadQueue(queue.Queue):
    def close(self): pass
    def cancel_join_thread(self): pass

class ThreadContext(SpawnContext):
    _name = "spawn"
    Process = ThreadAsProcess
    Queue = ThreadQueue

import numpy.random, torch  # numpy loads it late: two threads at once recurse without end
from headrace.torch import DataLoader
if __name__ == "__main__":
    share, found = torch.UntypedStorage._new_shared, []
    for kind in (DataLoader, torch.utils.data.DataLoader):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                loader = kind(range(6), 2, num_workers=2, multiprocessing_context=ThreadContext(), {options})
                found.append([batch.tolist() for batch in loader])
        print(*(str(warning.message) for warning in caught if "headrace" in str(warning.message)))
    print(found[0], found.count(found[0]), torch.UntypedStorage._new_shared == share)
"""


@pytest.mark.parametrize("pid", ["id", "lambda self: os.getpid()"])
@pytest.mark.parametrize("options", ["", "**({'rng': 'sample', 'max_restarts': 2} if kind is DataLoader else {})"])
def test_thread_workers_get_torchs_engine(tmp_path: pathlib.Path, pid: str, options: str) -> None:
    lines = run(tmp_path, THREADED.format(pid=pid, options=options)).splitlines()
    assert lines == [
        "headrace: using torch's DataLoader instead of headrace's: its multiprocessing_context starts workers as "
        "__main__.ThreadAsProcess, which is not a process of multiprocessing (headrace help disabled)",
        "",
        "[[0, 1], [2, 3], [4, 5]] 4 True",
    ]


@contextlib.contextmanager
def process_unchanged() -> Iterator[None]:
    """Fails if the block changes what a worker changes as it starts, or starts a thread."""

    def state() -> Any:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        return gc.get_threshold(), mask, threading.enumerate(), headrace.get_worker_info()

    before, frozen = state(), gc.get_freeze_count()
    yield
    assert state() == before
    assert gc.get_freeze_count() <= frozen  # an object that was frozen before may be freed meanwhile


def test_numpy_loader_refuses_thread_workers() -> None:
    with process_unchanged(), pytest.raises(TypeError, match=r'ThreadAsProcess, which is not.* give "fork"'):
        headrace.Loader(range(4), num_workers=1, multiprocessing_context=ThreadContext())
    assert len(list(headrace.Loader(range(4), num_workers=0, multiprocessing_context=ThreadContext()))) == 4


def test_process_made_by_function_is_refused_before_it_starts() -> None:
    loaders = [headrace.Loader(range(4), num_workers=1), Headrace(range(4), num_workers=1)]  # type: ignore[arg-type]
    for loader in loaders:
        loader.multiprocessing_context = FunctionContext()
        with process_unchanged(), pytest.raises(TypeError, match="ThreadAsProcess, which is not a process"):
            iter(loader)


def test_worker_main_in_trainer_is_refused() -> None:
    descriptors = WorkerDescriptors(3)
    with (
        process_unchanged(),
        pytest.raises(RuntimeError, match="worker 3 was started inside the process that iterates"),
    ):
        _main.main(descriptors, None, True)  # type: ignore[arg-type]


def test_worker_descriptors_unpickled_in_trainer_are_refused() -> None:
    state = WorkerDescriptors(3).__getstate__()
    with (
        process_unchanged(),
        pytest.raises(RuntimeError, match="worker 3 was started inside the process that iterates"),
    ):
        WorkerDescriptors.__new__(WorkerDescriptors).__setstate__(state)


# ---- wrong pids ----

LIES = """
import multiprocessing, os, sys
from multiprocessing import context as contexts
{imports}

PID = {pid}

def lying(kind):
    class Process(kind):
        pid = property(lambda self: PID)
    Process.__qualname__ = "Process_" + kind.__name__
    globals()[Process.__qualname__] = Process
    return Process

class Context(type(multiprocessing.get_context("{method}"))):
    Process = lying(multiprocessing.get_context("{method}").Process)

if __name__ == "__main__":
    try:
        list(Headrace([1, 2], num_workers=1, multiprocessing_context=Context()))
    except RuntimeError as error:
        print(error)
"""


@pytest.fixture
def other_program() -> Iterator[int]:
    """A process that is no child of this one: its parent has ended."""
    command = "sleep 1000 > /dev/null 2>&1 & echo $!"
    pid = int(subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, start_new_session=True, check=True).stdout)
    yield pid
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("method", METHODS)
def test_worker_with_pid_of_other_program_is_refused(tmp_path: pathlib.Path, other_program: int, method: str) -> None:
    output = run(tmp_path, with_method(LIES, method, pid=other_program))
    assert f"a worker with pid {other_program}, which is not a child of this process" in output
    assert alive(other_program)


@pytest.mark.parametrize("pid", ["os.getpid()", "0", "-1", "None", "1 << 40"])
def test_worker_with_impossible_pid_is_refused(tmp_path: pathlib.Path, pid: str) -> None:
    output = run(tmp_path, with_method(LIES, "fork", pid=pid))
    assert "headrace: multiprocessing_context started a worker with pid" in output


# ---- threads next to a fork ----

WARNED = """
import sys, threading, warnings
{imports}
may_end = threading.Event()
threading.Thread(target=may_end.wait, name="telemetry").start()
try:
    print(len(list(Headrace([1, 2], num_workers=1, multiprocessing_context="fork"))))
except Warning as error:
    print(type(error).__module__, type(error).__name__, isinstance(error, UserWarning))
may_end.set()
"""
IGNORED = "import headrace\nwarnings.simplefilter('error')\nwarnings.simplefilter('ignore', headrace.ForkWarning)"
RAISED = "warnings.simplefilter('error')"


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("filters, expected", [(RAISED, "headrace ForkWarning True"), (IGNORED, "2")])
def test_fork_warning_has_category_of_its_own(
    tmp_path: pathlib.Path, package: str, filters: str, expected: str
) -> None:
    code = WARNED.format(imports=f"{PACKAGES[package]}\n{filters}")
    assert run(tmp_path, code).strip() == expected


def test_fork_warning_is_filtered_from_environment(tmp_path: pathlib.Path) -> None:
    folder = str(pathlib.Path(headrace.__file__).parents[1])  # Python reads the variable before it knows this folder
    output = run(
        tmp_path,
        WARNED.format(imports=PACKAGES["numpy"]),
        PYTHONPATH=folder,
        PYTHONWARNINGS="error,ignore::headrace.ForkWarning",
    )
    assert output.strip() == "2"


AT_TOP_LEVEL = """
import headrace
from loaders import Headrace
loaders = [kind(range(4), 2, num_workers=1, multiprocessing_context={method!r}) for kind in (Headrace, headrace.Loader)]
if __name__ == "__main__":
    print([batch.tolist() for loader in loaders for batch in loader])
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_loader_outside_the_main_guard_works(tmp_path: pathlib.Path, method: str) -> None:
    """The main module makes the loader outside `if __name__ == "__main__"`."""
    assert run(tmp_path, AT_TOP_LEVEL.format(method=method)) == f"{[[0, 1], [2, 3]] * 2}\n"


SETTLES = """
import multiprocessing, headrace
if __name__ == "__main__":
    loader = headrace.Loader(range(4), num_workers=1, multiprocessing_context="forkserver")
    multiprocessing.set_start_method("spawn")
    print(len(list(loader)))
"""


MANY_ARGUMENTS = """
import sys, headrace
from headrace._loader.forkserver import client
sys.argv += [f"data/{number:08}.jpg" for number in range(10_000)]
if __name__ == "__main__":
    loader = headrace.Loader(range(4), num_workers=1, multiprocessing_context="forkserver")
    assert client._current
    print(len(list(loader)))
"""


WITHOUT_FOLDER = """
import os, threading, headrace
os.mkdir("gone")
os.chdir("gone")
os.rmdir("../gone")
for options in {"sampler": [threading.Lock()]}, {"collate_fn": lambda samples: threading.Lock()}:
    try:
        list(headrace.Loader(range(4), num_workers=1, multiprocessing_context="fork", **options))
    except TypeError as error:
        print("cannot pickle '_thread.lock' object" in str(error))
"""


@pytest.mark.parametrize(
    "script, expected",
    [(SETTLES, "4\n"), (MANY_ARGUMENTS, "4\n"), (WITHOUT_FOLDER, "True\nTrue\n")],
    ids=["start method", "arguments", "folder"],
)
def test_a_script_does_what_it_may_with_torch(script: str, expected: str, tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, script) == expected

# SPDX-License-Identifier: Apache-2.0
"""Classes of a main module that is not a file, as in a notebook, and the threads of a Jupyter kernel."""

from __future__ import annotations

import concurrent.futures
import subprocess
import sys
import threading
import types
from collections.abc import Iterator

import pytest
from headrace._base import this_process
from loaders import only_headrace
from processes import environment

pytestmark = only_headrace

CELL = """
import sys, headrace
SCALE = 10
class Result:
    def __init__(self, value):
        self.value = value
class Base:
    def __len__(self):
        return 4
class Squares(Base):
    def __getitem__(self, index):
        return Result(SCALE * index ** 2)
def as_they_are(samples):
    return samples
method, *repair = sys.argv[1:]
loader = headrace.Loader(Squares(), 2, num_workers=1, multiprocessing_context=method, collate_fn=as_they_are,
                         repair=repair[0] if repair else None)
print([[one.value for one in batch] for batch in loader], type(next(iter(loader))[0]) is Result)
"""


def run_cell(*arguments: str, code: str = CELL) -> subprocess.CompletedProcess[str]:
    """Runs code that no file contains, as a notebook does."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment())


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_class_of_a_notebook_is_named_before_workers_start(method: str) -> None:
    result = run_cell(method)
    assert result.returncode == 1
    error = result.stderr[result.stderr.index("RuntimeError") :]
    assert "workers would not find" not in result.stdout
    assert "Squares is defined in __main__, which a worker cannot import: it is not a file (a notebook" in error
    assert "define it in a module that can be imported" in error
    assert "main guard" not in result.stderr and "if __name__" not in result.stderr


def test_class_of_a_notebook_works_with_fork_and_from_modules() -> None:
    assert run_cell("fork").stdout == "[[0, 10], [40, 90]] True\n"
    other = "import headrace; print(list(headrace.Loader(range(4), 2, num_workers=1, multiprocessing_context='spawn')))"
    assert run_cell(code=other).stdout == "[array([0, 1]), array([2, 3])]\n"


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_repair_sends_classes_of_a_notebook_by_value(method: str) -> None:
    pytest.importorskip("cloudpickle")
    result = run_cell(method, "auto")
    assert result.stdout == "[[0, 10], [40, 90]] True\n", result.stderr
    assert 'repair="auto" sends it by value' in result.stderr
    assert "Squares" in result.stderr


# ---- threads that a fork may leave behind ----


@pytest.fixture
def waiting() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_threads_of_a_jupyter_kernel_are_harmless(waiting: threading.Event) -> None:
    class Heartbeat(threading.Thread):
        __module__ = "ipykernel.heartbeat"

        def run(self) -> None:
            waiting.wait()

    def of_stream() -> None:
        waiting.wait()

    of_stream.__module__ = "ipykernel.iostream"
    threads = [Heartbeat(daemon=True), threading.Thread(target=of_stream, daemon=True)]
    other = threading.Thread(target=waiting.wait, name="the user's", daemon=True)
    for thread in [*threads, other]:
        thread.start()
    names = this_process.other_threads()
    assert "the user's" in names
    assert not {thread.name for thread in threads} & set(names)


def test_threads_of_zarr_are_harmless_if_it_resets_them(
    waiting: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = threading.Thread(target=waiting.wait, name="zarr_io", daemon=True)
    thread.start()
    sync = types.ModuleType("zarr.core.sync")
    with concurrent.futures.ThreadPoolExecutor(1, "asyncio") as pool:
        pool.submit(int).result()
        loop = types.SimpleNamespace(_default_executor=pool)
        vars(sync).update(iothread=[thread], loop=[loop], _executor=None)
        monkeypatch.setitem(sys.modules, "zarr.core.sync", sync)
        assert {"zarr_io", "asyncio_0"} <= set(this_process.other_threads()), "it does not say what a fork does to them"
        vars(sync)["reset_resources_after_fork"] = lambda: None
        assert not {"zarr_io", "asyncio_0"} & set(this_process.other_threads())

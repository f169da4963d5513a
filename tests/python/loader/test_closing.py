# SPDX-License-Identifier: Apache-2.0
"""A loader that is closed, dropped or left while something else is under way: its workers end, in silence."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import datasets as d
import pytest
from loaders import Headrace, only_headrace
from processes import Script, run

ENDS = pytest.mark.destructors("they are a part of the end of the interpreter")
DAEMON = """
import multiprocessing, threading
import datasets as d
from loaders import Headrace
context = multiprocessing.get_context("fork")
def work():
    for _ in Headrace(d.Gate(9, 2, context.Event()), num_workers=1, multiprocessing_context="fork"):
        begun.set()
begun = threading.Event()
threading.Thread(target=work, daemon=True).start()
begun.wait(30)
print("end")
"""


@ENDS
def test_waiting_daemon_thread_lets_interpreter_exit_silently(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, DAEMON) == "end\n"


STARVED = """
import datasets as d
from loaders import Headrace
if __name__ == "__main__":
    loader = Headrace(d.Images(64, side=1024), 1, num_workers=2, prefetch_factor=4, arena_limit=6 << 20, {method})
    for _, (image, _) in zip(range(2), loader):
        assert image.nbytes >= 1 << 20
    print("end")
"""


def test_a_break_while_workers_wait_for_memory_is_silent(tmp_path: pathlib.Path) -> None:
    code = STARVED.format(method="multiprocessing_context='fork'").replace("import datasets", SILENT)
    assert run(tmp_path, code) == "end\n"


SILENT = """import warnings
warnings.filterwarnings("ignore", "headrace: batches are copied")
import datasets"""


@only_headrace
def test_no_python_runs_as_a_loader_is_dropped() -> None:
    """`for batch in DataLoader(...)` drops it at once; a Ctrl-C that is due as a callback begins would be lost."""
    loader = Headrace(d.Squares(4), num_workers=1)
    iterator = iter(loader)
    called: list[str] = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        del loader
    finally:
        sys.setprofile(None)
    assert called == [] and len(list(iterator)) == 4


SLOW_IMPORT = """
import threading, time
from loaders import Headrace
if __name__ != "__main__":
    threading.Event().wait()
else:
    iterator = iter(Headrace([1, 2], num_workers=2, multiprocessing_context="spawn"))
    before = time.monotonic()
    del iterator
    print(time.monotonic() - before < 4)
"""


@only_headrace
def test_workers_that_still_import_are_not_waited_for(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, SLOW_IMPORT) == "True\n"


HANDLED = """
import os, signal
import headrace
from loaders import Headrace
from processes import is_still, until
class Waits:
    def __len__(self):
        return 4
    def __getitem__(self, index):
        assert until(lambda: os.path.exists("listens") and is_still(os.getppid()), 60)
        os.kill(os.getppid(), signal.SIGUSR1)
        signal.pause()
if __name__ == "__main__":
    loader = {kind}(Waits(), num_workers=1, multiprocessing_context="fork", shutdown_timeout=0.2)
    iterator = iter(loader)
    signal.signal(signal.SIGUSR1, lambda number, frame: iterator.{close}())
    open("listens", "w").close()
    try:
        next(iterator)
    except RuntimeError as error:
        print(error)
"""


@only_headrace
@pytest.mark.parametrize(("kind", "close"), [("Headrace", "_shutdown_workers"), ("headrace.Loader", "close")])
def test_signal_handler_may_close_a_waiting_loader(tmp_path: pathlib.Path, kind: str, close: str) -> None:
    """The handler closes the loader while the main thread waits for its next batch."""
    assert "closed" in run(tmp_path, HANDLED.format(kind=kind, close=close))


@only_headrace
def test_workers_end_whatever_the_last_report_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    iterator: Any = iter(Headrace([1, 2, 3, 4], num_workers=1, multiprocessing_context="fork"))
    next(iterator)
    with monkeypatch.context() as patch:
        patch.setattr("headrace._base.growth.looks", lambda *_: [].pop())
        with pytest.raises(IndexError):
            iterator._shutdown_workers()
    (worker,) = iterator._workers
    assert not worker.is_alive()


KEPT_AT_EXIT = """
import sys
sys.main_module = sys.modules["__main__"]  # like dill: the globals of the script outlive the modules of headrace
import headrace
from loaders import Headrace
kept = [kind(range(4), 2, num_workers=1, persistent_workers=True) for kind in (Headrace, headrace.Loader)]
if __name__ == "__main__":
    print([len(list(loader)) for loader in kept])
"""


@only_headrace
@ENDS
def test_iterators_that_outlive_modules_end_in_silence(tmp_path: pathlib.Path) -> None:
    with Script(tmp_path, KEPT_AT_EXIT) as script:
        assert script.finish() == 0
        assert (script.stdout, script.stderr) == ("[2, 2]\n", "")

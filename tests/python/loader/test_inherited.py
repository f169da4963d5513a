# SPDX-License-Identifier: Apache-2.0
"""A worker inherits no signal handlers of the trainer, and otherwise the same as a worker of torch."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import pathlib
import signal
import sys
import threading
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from disturbed import BOTH
from loaders import Torch
from mishaps import DEADLINE_S, Marks
from processes import run, until

HANDLED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGALRM, signal.SIGCHLD, signal.SIGINT)


class Answers:
    """Each sample is what `ask` returns in the worker."""

    def __init__(self, ask: Callable[[], Any], count: int = 4) -> None:
        self.ask, self.count = ask, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.ask()


def as_is(sample: Any) -> Any:
    return sample


def load(kind: Any, ask: Callable[[], Any], count: int = 4, **options: Any) -> Any:
    fixed = {"batch_size": None, "collate_fn": as_is, "num_workers": 1, "multiprocessing_context": "fork"}
    if kind is not Torch:
        fixed["max_restarts"] = 0
    return kind(Answers(ask, count), **{**fixed, **options})


def answer(kind: Any, ask: Callable[[], Any]) -> Any:
    """Returns the sample that the worker makes."""
    (found,) = load(kind, ask, 1)
    return found


@pytest.fixture
def handlers() -> Iterator[None]:
    """Leaves this process with the handlers, the mask and the wakeup descriptor that it has."""
    before = {number: signal.getsignal(number) for number in (*HANDLED, signal.SIGQUIT)}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.set_wakeup_fd(-1)


def name_handlers() -> dict[str, str]:
    found = {number.name: signal.getsignal(number) for number in HANDLED}
    return {name: str(getattr(handler, "__name__", handler)) for name, handler in found.items()}


@BOTH
def test_forked_worker_begins_with_default_handlers(kind: Any, handlers: None) -> None:
    for number in HANDLED:
        signal.signal(number, lambda *_: None)
    expected = {number.name: str(signal.SIG_DFL) for number in HANDLED}
    assert answer(kind, name_handlers) == {**expected, "SIGINT": "raise_interrupt"}


STARTED = """
import os, signal, headrace
{imports}

class Asks:
    def __len__(self):
        return 1
    def __getitem__(self, index):
        found = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)]
        return " ".join(getattr(handler, "__name__", str(handler)) for handler in found)

def as_is(sample):
    return sample

signal.signal(signal.SIGTERM, lambda *_: print("saved", flush=True))
signal.signal(signal.SIGUSR1, lambda *_: print("saved", flush=True))
signal.signal(signal.SIGINT, lambda *_: print("saved", flush=True))

if __name__ == "__main__":
    options = dict(batch_size=None, collate_fn=as_is, num_workers=1, multiprocessing_context={method!r})
    print(*{kind}(Asks(), **options))
"""


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
@pytest.mark.parametrize("kind", ["headrace.Loader", "headrace.torch.DataLoader"])
def test_started_worker_begins_with_default_handlers(tmp_path: pathlib.Path, kind: str, method: str) -> None:
    imports = "import headrace.torch" if "torch" in kind else ""
    default = f"{signal.SIG_DFL} {signal.SIG_DFL} raise_interrupt\n"
    assert run(tmp_path, STARTED.format(imports=imports, kind=kind, method=method)) == default


@BOTH
def test_worker_ignores_what_trainer_ignores_except_sigterm(kind: Any, handlers: None) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    found = answer(
        kind, lambda: [int(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)]
    )
    assert found == [signal.SIG_DFL, signal.SIG_IGN, signal.SIG_IGN]


@BOTH
@pytest.mark.parametrize("what", ["handles", "ignores", "blocks"])
def test_sigterm_ends_worker_of_trainer_that(kind: Any, what: str, handlers: None, marks: Marks) -> None:
    if what == "blocks":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
    else:
        handler = signal.SIG_IGN if what == "ignores" else lambda *_: marks.first("saved")
        signal.signal(signal.SIGTERM, handler)  # type: ignore[arg-type]
    iterator = iter(load(kind, os.getpid))
    pid = next(iterator)
    os.kill(pid, signal.SIGTERM)
    with pytest.raises(RuntimeError, match=rf"DataLoader worker \(pid(\(s\))? {pid}\)"):
        list(iterator)
    assert not marks.has("saved")


@BOTH
def test_worker_keeps_mask_of_trainer(kind: Any, handlers: None) -> None:
    """Signals without a default that ends the worker: its user may wait for them there."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    signal.signal(signal.SIGUSR2, lambda *_: None)  # blocked while the worker is forked
    asked = lambda: sorted(int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ()))  # noqa: E731
    assert answer(kind, asked) == [signal.SIGUSR1]
    assert signal.SIGUSR2 not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


AT_FORK = """
import os, signal, warnings
from headrace import Loader
from loaders import Headrace

def save(*_):
    print("saved", os.getpid() == trainer, flush=True)

def tell_first_child():
    global is_reported
    if not os.path.exists("reported"):
        open("reported", "w").close()
        os.kill(os.getpid(), signal.SIGTERM)

if __name__ == "__main__":
    trainer = os.getpid()
    signal.signal(signal.SIGTERM, save)
    os.register_at_fork(after_in_child=tell_first_child)
    warnings.simplefilter("ignore")
    for kind in Loader, Headrace:
        loader = kind(range(4), 2, num_workers=1, multiprocessing_context="fork", max_restarts=1)
        print([batch.tolist() for batch in loader])
        os.unlink("reported")
"""


def test_handler_does_not_run_in_worker_that_is_being_forked(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, AT_FORK) == "[[0, 1], [2, 3]]\n[[0, 1], [2, 3]]\n"


@BOTH
def test_worker_has_no_wakeup_descriptor(kind: Any, handlers: None) -> None:
    """Through it a signal of the worker's would run a handler in the trainer's event loop."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    assert answer(kind, lambda: signal.set_wakeup_fd(-1)) == -1
    signal.set_wakeup_fd(-1)
    os.close(reader)
    os.close(writer)


def run_own_loop() -> int:
    """Uses the current event loop as older code does."""
    warnings.simplefilter("ignore")  # Python 3.10 and 3.12 on warn if they make one
    try:
        loop = asyncio.get_event_loop()
    except RuntimeError:
        asyncio.set_event_loop(loop := asyncio.new_event_loop())
    return loop.run_until_complete(asyncio.sleep(0, 7))


@BOTH
def test_worker_has_event_loop_of_its_own(kind: Any) -> None:
    """The trainer runs inside an event loop, like a notebook."""

    async def train() -> Any:
        found = answer(kind, run_own_loop)
        await asyncio.sleep(0.01)  # its timer and its files are as they were
        return found

    assert asyncio.run(train()) == 7


def raise_and_catch() -> str:
    """Returns what a SIGINT of this process raises."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        return "KeyboardInterrupt"
    return "nothing"


@BOTH
def test_ctrl_c_in_worker_of_asyncio_run_raises_at_once(kind: Any) -> None:
    """asyncio.run sets a handler that only cancels the trainer's task."""

    async def train() -> Any:
        return answer(kind, raise_and_catch)

    assert asyncio.run(train()) == "KeyboardInterrupt"


# ---- what stays ----


def hooks() -> list[Any]:
    return [
        sys.gettrace() is not None,
        sys.getprofile() is not None,
        sys.excepthook.__name__,
        sys.unraisablehook.__name__,
        threading.excepthook.__name__,
        tracemalloc.is_tracing(),
        [one[:2] for one in warnings.filters[:1]],
        len(logging.getLogger().handlers),
    ]


@contextlib.contextmanager
def own_hooks() -> Iterator[None]:
    def hook(*_: Any) -> None:
        return None

    logger, handler = logging.getLogger(), logging.NullHandler()
    trace, profile, kept = sys.gettrace(), sys.getprofile(), (sys.excepthook, sys.unraisablehook, threading.excepthook)
    logger.addHandler(handler)
    tracemalloc.start()
    sys.excepthook = sys.unraisablehook = threading.excepthook = hook
    sys.settrace(hook)
    sys.setprofile(hook)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "a filter of the trainer's")
            yield
    finally:
        sys.settrace(trace)
        sys.setprofile(profile)
        sys.excepthook, sys.unraisablehook, threading.excepthook = kept
        tracemalloc.stop()
        logger.removeHandler(handler)


@BOTH
def test_worker_keeps_hooks_as_torchs_worker(kind: Any) -> None:
    """Debuggers, coverage and error trackers that work in torch's workers work here."""
    with own_hooks():
        found = answer(kind, hooks)
        assert found == answer(Torch, hooks)
        assert found[:6] == [True, True, "hook", "hook", "hook", True]


@BOTH
def test_stacks_on_a_signal_of_the_users_stay_in_worker(kind: Any, tmp_path: pathlib.Path) -> None:
    """faulthandler.register for SIGUSR1 is not a handler in Python: `kill -USR1` of a worker writes its stacks."""
    with open(tmp_path / "stacks", "w") as file:
        faulthandler.register(signal.SIGUSR1, file)
        try:
            answer(kind, lambda: os.kill(os.getpid(), signal.SIGUSR1))
        finally:
            faulthandler.unregister(signal.SIGUSR1)
    assert until(lambda: "in __getitem__" in (tmp_path / "stacks").read_text(), DEADLINE_S)


SHARED_FILE = """
from loaders import Headrace
file = open(__file__, "rb", buffering=0)
class Positions:
    def __len__(self):
        return 1
    def __getitem__(self, index):
        before = file.tell()
        file.seek(7)
        return before
if __name__ == "__main__":
    loader = Headrace(Positions(), num_workers=1, multiprocessing_context="forkserver")
    print([batch.item() for _ in range(2) for batch in loader])
"""


def test_a_file_that_the_main_module_opens_is_each_workers_own(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, SHARED_FILE) == "[0, 0]\n"

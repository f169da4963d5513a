# SPDX-License-Identifier: Apache-2.0
"""Runs a program of moments.py with torch's loader and with headrace's, and says what differs."""

from __future__ import annotations

import contextlib
import copy
import math
import os
import pickle
import re
import select
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import compare
import moments
import torch
from loaders import Headrace, Torch
from torch.utils.data._utils.fetch import _MapDatasetFetcher

LIMIT_S = 20.0  # of a program in a process of its own


class Observed(NamedTuple):
    """All that a program showed: its batches and errors, its warnings, what its functions saw, and the random numbers
    that it left."""

    events: list[Any]
    warned: list[tuple[str, str]]
    seen: list[Any]
    random: tuple[Any, ...]


class NoCase(Exception):
    """Raised for a program whose torch says nothing: it hangs, or differs from itself."""


def _without_ours(warned: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Leaves out warnings that are headrace's own: torch's loader gives none for the same."""
    return [one for one in warned if "headrace" not in one[1]]


def _states(names: dict[str, Any]) -> tuple[Any, ...]:
    generators = [getattr(names.get(name), "generator", None) for name in ("loader", "sampler")]
    return (*compare.states(), *(None if one is None else one.get_state().numpy().tobytes() for one in generators))


def observe(kind: Any, text: str, name: str = "program") -> Observed:
    """Runs a program in this process."""
    events: list[Any] = []

    def take(value: Any) -> None:
        is_error = isinstance(value, Exception)
        events.append(compare.failure(value) if is_error else compare.describe(value))
        if is_error:
            value.__traceback__ = None  # its frames hold the iterator

    names: dict[str, Any] = {"DataLoader": kind, "take": take, "__name__": name}
    compare.seed()
    with compare.recorded() as warned:
        try:
            exec(compile(text, f"<{name}>", "exec"), names)
        except Exception as error:
            events.append(("stopped", compare.failure(error)))
            error.__traceback__ = None
        for mode in reversed(names.get("modes", ())):
            mode.__exit__(None, None, None)
        torch.set_default_device(None)
        names.pop("iterator", None)
    return Observed(
        events, _without_ours(warned), [compare.describe(one) for one in names.get("seen", ())], _states(names)
    )


def _write(fd: int, data: bytes) -> None:
    view = memoryview(len(data).to_bytes(8, "little") + data)
    while view:
        view = view[os.write(fd, view) :]


def _read(fd: int, deadline: float) -> bytes | None:
    """Returns the answer of a child; None: it gives none in time, or it has died. Its end is known by its length,
    because workers that live on keep the pipe open."""
    data = b""
    while len(data) < 8 or len(data) < 8 + int.from_bytes(data[:8], "little"):
        ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        piece = os.read(fd, 1 << 20) if ready else b""
        if not piece:
            return None
        data += piece
    return data[8:]


def observe_apart(kind: Any, text: str) -> Observed:
    """Runs a program in a forked child. Raises NoCase if it does not end."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            os.close(read_end)
            _write(write_end, pickle.dumps(observe(kind, text)))
        finally:
            os._exit(0)
    os.close(write_end)
    try:
        data = _read(read_end, time.monotonic() + LIMIT_S)
    finally:
        os.close(read_end)
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if data is None:
        raise NoCase("no answer")
    return pickle.loads(data)  # type: ignore[no-any-return]


# Differences on purpose: each has a row in docs/conformance.md, which contains its key.
KNOWN = (
    "views-arrive-contiguous",
    "sampler-error-keeps-batch",
    "collate-error-in-worker",
    "sent-memory-is-shared",
    "failed-start-is-repeated",
)
_SPARSE_VIEW = 4  # a view whose span is more than so many times its size arrives contiguous


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(size, 1))
    return tuple(reversed(strides)) if shape else ()


def _arrived(event: Any) -> Any:
    """Returns what a worker sent, with views of much memory as headrace delivers them (views-arrive-contiguous)."""
    if not isinstance(event, (tuple, list)):
        return event
    if len(event) > 7 and event[0] == "torch.Tensor" and event[3] == "torch.strided":
        shape, strides = event[2], event[7]
        count, span = math.prod(shape), 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
        if count and span > _SPARSE_VIEW * count:
            return (*event[:7], _dense(shape), *event[8:])
        return event
    return type(event)(map(_arrived, event))


def _is_same_event(ours: Any, theirs: Any) -> bool:
    """headrace may add lines to the text of an error, such as the index of the sample."""
    if ours == theirs:
        return True
    if not (isinstance(ours, tuple) and isinstance(theirs, tuple)) or len(ours) != len(theirs):
        return False
    if ours[:1] == theirs[:1] == ("stopped",):
        return _is_same_event(ours[1], theirs[1])
    if ours[:1] != ("raised",) or theirs[:1] != ("raised",):
        return False
    if "UnboundLocalError: " in theirs[3] and "'fetcher'" in theirs[3]:  # failed-start-is-repeated
        return "UnboundLocalError" not in ours[3]
    if ours[1] != theirs[1]:
        return False
    if "Trying to resize storage that is not resizable" in theirs[3]:  # collate-error-in-worker
        return "stack expects each tensor to be equal size" in ours[3]
    return bool(_lines(theirs[3]) <= _lines(ours[3]) or _last(ours[3]).startswith(_last(theirs[3])))


def _is_of_sampler(event: Any) -> bool:
    """Returns True for an exception that no worker has sent."""
    return isinstance(event, tuple) and event[:1] == ("raised",) and "in DataLoader worker" not in event[3]


def _lines(text: str) -> set[str]:
    return {re.sub(r"DataLoader worker process \d+", "DataLoader worker process N", line) for line in text.split("\n")}


def _last(text: str) -> str:
    return next((line for line in reversed(text.split("\n")) if line.strip()), "")


def difference(ours: Observed, theirs: Observed, workers: int) -> str | None:
    """Returns what differs, or None. What the dataset saw is known without workers only."""
    for number in range(max(len(ours.events), len(theirs.events))):
        pair = [one.events[number] if number < len(one.events) else "nothing" for one in (ours, theirs)]
        if not (_is_same_event(*pair) or (workers and _is_same_event(*map(_arrived, pair)))):
            return f"event {number}: headrace {pair[0]!r:.700}, torch {pair[1]!r:.700}"
        if workers and _is_of_sampler(pair[1]):  # sampler-error-keeps-batch: torch has lost one that a worker has made
            return None
    for name in ("warned", "random", *(() if workers else ("seen",))):
        one, other = getattr(ours, name), getattr(theirs, name)
        if one != other:
            return f"{name}: headrace {one!r:.500}, torch {other!r:.500}"
    return None


@contextlib.contextmanager
def _sending_copies() -> Iterator[None]:
    """Lets torch's workers send copies of what collate_fn returns. Otherwise a batch of views of the dataset's data is
    sent by a thread a moment later, and shares that memory: the next changes show in it (sent-memory-is-shared)."""
    fetch = _MapDatasetFetcher.fetch
    _MapDatasetFetcher.fetch = lambda self, indices: copy.deepcopy(fetch(self, indices))
    try:
        yield
    finally:
        _MapDatasetFetcher.fetch = fetch


def _difference(ours: Observed, theirs: Observed, case: moments.Case, run: Callable[..., Observed]) -> str | None:
    """Returns a difference that is not one of KNOWN. Raises NoCase if torch differs from itself."""
    found = difference(ours, theirs, case.cell.workers)
    if found is None:
        return None
    if difference(run(Torch, case.text), theirs, case.cell.workers) is not None:
        raise NoCase("torch differs from itself")
    if case.cell.workers:
        with _sending_copies():
            copied = run(Torch, case.text)
        if difference(ours, copied, case.cell.workers) is None:
            return None
    return found


def compare_case(case: moments.Case) -> str | None:
    """Returns what differs in a case, or None. Raises NoCase."""
    run = observe_apart if case.cell.needs_process else observe
    theirs = run(Torch, case.text)
    try:
        ours = run(Headrace, case.text)
    except NoCase:
        return "headrace gives no answer"
    return _difference(ours, theirs, case, run)


class Threaded(Headrace):  # type: ignore[misc]
    """headrace's loader with sample_threads."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, sample_threads=3, **options)


Threaded.__name__ = "DataLoader"  # which torch's errors name


def compare_with_threads(case: moments.Case) -> str | None:
    """Does what compare_case does, with sample_threads. Raises NoCase for what that refuses, too."""

    def run(kind: Any, text: str) -> Observed:
        observed = (observe_apart if case.cell.needs_process else observe)(kind, text)
        return observed._replace(seen=sorted(observed.seen, key=repr))  # threads make samples in any order

    theirs, ours = run(Torch, case.text), run(Threaded, case.text)
    if any(text in repr(ours.events) for text in ("headrace help sample-threads", "sample_threads= needs a map-style")):
        raise NoCase("sample_threads is refused")
    return _difference(ours, theirs, case, run)


def script_of(case: moments.Case, found: str) -> str:
    """Returns a case as a program that shows it: run it with `torch` or `headrace` as its argument."""
    head = (
        "import sys\nif sys.argv[1] == 'torch':\n    from torch.utils.data import DataLoader\n"
        "else:\n    from headrace.torch import DataLoader\n"
    )
    return f"# {case.cell}\n# {found}\n{head}loader_kind, take = DataLoader, print\n{case.text}"

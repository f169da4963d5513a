# SPDX-License-Identifier: Apache-2.0
"""Asks for an object: attaches it, builds it in this process, or waits for the process that builds it.

All functions that build use `obtain`. The library does the waiting; this module shows it to the user, and carries the
exception of a builder to those that waited for it.
"""

from __future__ import annotations

import multiprocessing
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

from headrace import _core
from headrace._base import exception_text
from headrace._base.raising import Sent, remade, traceback_of
from headrace._base.units import in_duration, in_units
from headrace._base.warn import say
from headrace._cache import attached

_SLICE_S = 0.2  # between two looks at signals
_PATIENCE_S = 2.0  # waiting for another builder is reported after this time, then at intervals that double
_LONGEST_S = 60.0
_SHOWN_BYTES = 16 << 20  # smaller objects are attached without a line on stderr
_building = threading.local()  # builds: the stack of CacheBuilds of this thread
_shown: set[str] = set()  # the ids of objects whose line was printed

Make = Callable[[_core.CacheBuild], str | None]  # fills a build; returns the meta text


# ---- waiting ----


def describe_builder(builder: dict[str, Any]) -> str:
    """Describes a builder: its pid, its command, how long it has been building, and how far it is."""
    since_s = max(0.0, time.monotonic() - builder["since_ns"] / 1e9)
    where = "" if builder["is_visible"] else " of another container"
    text = (
        f"process {builder['pid']}{where} ({builder['command'][:80]}) has been building it for {in_duration(since_s)}"
    )
    if builder["total"]:
        text += f", {100 * builder['done'] // builder['total']} % done"
    if builder["is_stopped"]:
        text += "; it is stopped (SIGSTOP or a debugger): continue it with kill -CONT, or end it"
    return text


class _Waiting:
    """Reports a wait to the user, and ends it after the timeout."""

    def __init__(self, name: str, timeout: float | None) -> None:
        self._name = name
        self._timeout = timeout
        self._start = time.monotonic()
        self._next = self._start + _PATIENCE_S
        self._interval = _PATIENCE_S

    def slice(self) -> float:
        if self._timeout is None:
            return _SLICE_S
        return max(0.0, min(_SLICE_S, self._start + self._timeout - time.monotonic()))

    def look(self, ticket: _core.CacheTicket) -> None:
        """Prints a line from time to time. Raises TimeoutError after the timeout."""
        now = time.monotonic()
        if self._timeout is not None and now >= self._start + self._timeout:
            raise TimeoutError(
                f"headrace: '{self._name}' was not built within {self._timeout} s: {describe_builder(ticket.builder())}"
            )
        if now >= self._next:
            say(f"cache {self._name}: waiting: {describe_builder(ticket.builder())}")
            self._interval = min(2 * self._interval, _LONGEST_S)
            self._next = now + self._interval


def _raise_failure(ticket: _core.CacheTicket, name: str, error: _core.CacheError) -> None:
    """Raises the exception of the builder that failed. Returns if there is no such exception."""
    data = ticket.failure()
    if data is None:
        return
    try:
        sent = pickle.loads(data)
    except Exception:  # the file was damaged, or written by another version
        return
    if not isinstance(sent, Sent):
        return
    made = sent.open()
    if isinstance(made, BaseException):
        made = remade(lambda: made, Exception, sent.text)
        exception_text.add_text(made, f"{error} This process waited for it.")
        raise made
    raise _core.CacheError(f"{error}. Its traceback:\n{sent.text}")


def await_object(ticket: _core.CacheTicket, name: str, timeout: float | None) -> _core.Cached | _core.CacheBuild:
    """Waits until an object exists, or until this process has to build it. Raises as obtain."""
    waiting = _Waiting(name, timeout)
    while True:
        try:
            found = ticket.wait(waiting.slice())
        except _core.CacheError as error:
            _raise_failure(ticket, name, error)
            raise
        if found is not None:
            return found
        waiting.look(ticket)


def obtain(
    cache: _core.Cache,
    name: str,
    version: str,
    stamp: str | None,
    form: str,
    keep: int,
    make: Make,
    *,
    timeout: float | None = None,
    keeps_chunks: bool = False,
) -> _core.Cached:
    """Returns an object of the cache, which `make` builds if no other process does.

    stamp: None takes whatever is published. Raises what `make` raises, here or in the process that was waited for;
    CacheError if builders died or wait for each other; TimeoutError.
    """
    found = await_object(cache.ask(name, version, stamp, form, keep), name, timeout)
    if isinstance(found, _core.CacheBuild):
        found = _build(found, make, keeps_chunks)
    return attached.adopt(cache, found)


# ---- building ----


def _stack() -> list[_core.CacheBuild]:
    if not hasattr(_building, "builds"):
        _building.builds = []
    stack: list[_core.CacheBuild] = _building.builds
    return stack


def push(build: _core.CacheBuild) -> None:
    """Makes a build the one that `progress` is about, until `pop`."""
    _stack().append(build)


def pop() -> None:
    _stack().pop()


def _send(error: Exception) -> bytes:
    return pickle.dumps(Sent.of(error, traceback_of(error)))


def _build(build: _core.CacheBuild, make: Make, keeps_chunks: bool) -> _core.Cached:
    push(build)
    start = time.monotonic()
    try:
        cached = build.finish(make(build))
    except Exception as error:
        build.fail(_send(error), keeps_chunks)
        raise
    except BaseException:  # Ctrl-C, SystemExit: another process builds it
        build.abandon()
        raise
    finally:
        pop()
    _tell_built(cached, time.monotonic() - start)
    return cached


def progress(done: float, total: float) -> None:
    """Says how far the function that builds an object is; processes that wait for it see it. Call it inside that
    function, in the same thread. Raises RuntimeError elsewhere, and ValueError unless 0 <= done <= total."""
    stack = _stack()
    if not stack:
        raise RuntimeError("headrace.cache.progress: call it inside the function that builds, in the same thread")
    if not 0 <= done <= total:
        raise ValueError(f"headrace.cache.progress: done is {done} and total is {total}; give 0 <= done <= total")
    stack[-1].progress(int(1000 * done / total) if total else 1000, 1000)


# ---- what the user sees ----


def is_main_process() -> bool:
    return multiprocessing.parent_process() is None


def _tell_built(cached: _core.Cached, seconds: float) -> None:
    info = cached.info()
    if info["is_private"]:
        say(
            f"cache {info['name']}: the folder of the cache was removed while it was built; only this process has the "
            "data (RemoveIPC=yes in logind.conf, or a clean-up job, removes folders in /dev/shm)"
        )
    elif is_main_process() and cached.bytes >= _SHOWN_BYTES and info["format"] != "samples":
        _shown.add(info["id"])
        say(f"cache {info['name']}: built {in_units(cached.bytes)} in {in_duration(seconds)}, in {info['path']}")


def tell_attached(cache: _core.Cache, cached: _core.Cached) -> None:
    """Prints one line for a large object that this job attaches."""
    if cached.bytes < _SHOWN_BYTES or not is_main_process():
        return
    if cached.id in _shown:
        return
    _shown.add(cached.id)
    info = cached.info()
    count = len(cache.claims(info["id"]))
    shared = f", shared by {count} processes" if count > 1 else ""
    say(f"cache {info['name']}: {in_units(cached.bytes)} in {info['path']}{shared}")

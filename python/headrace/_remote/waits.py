# SPDX-License-Identifier: Apache-2.0
"""Tells whether a worker waits for the network, and what the fetcher waits for: a file in the folder of remote objects,
which the fetcher writes while requests take longer than usual, and which a trainer shows."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from headrace import _core
from headrace._base.warn import say

_NAME = "waits"
_SHOWN_AFTER_S = 1.0  # a request that takes longer is written down
_MOST = 100  # in the file
_THREAD = "hr-network"  # of a thread that waits: hr__link_receive in src/remote/connect.c
_OUT_OF_DATE_S = 10.0  # a file that is older was left by a fetcher that was killed


class Wait:
    """A request of the fetcher. shown: its URL without secrets. begin: on time.monotonic(). failure: of its last try;
    "": it has none yet."""

    def __init__(self, shown: str, begin: float) -> None:
        self.shown = shown
        self.begin = begin
        self.tries = 0
        self.failure = ""


class Waits:
    """The requests that are on their way, by their threads. The fetcher has one object of it."""

    def __init__(self) -> None:
        self._open: dict[int, Wait] = {}
        self._is_written = False
        self._lock = threading.Lock()
        self._requests = self._retries = 0

    def count(self, is_retry: bool) -> None:
        """Counts a request to a server."""
        with self._lock:
            self._requests += 1
            self._retries += is_retry

    def counts(self) -> tuple[int, int]:
        """Returns how many requests were made, and how many of them were made again."""
        with self._lock:
            return self._requests, self._retries

    def begin(self, shown: str, asked: float | None = None) -> Wait:
        wait = self._open[threading.get_ident()] = Wait(shown, time.monotonic() if asked is None else asked)
        return wait

    def end(self) -> None:
        self._open.pop(threading.get_ident(), None)

    def write(self, folder: str) -> None:
        """Writes those that take long, the longest first, or removes the file if none does."""
        now = time.monotonic()
        long = sorted((one for one in list(self._open.values()) if now - one.begin > _SHOWN_AFTER_S), key=_begin_of)
        path = os.path.join(folder, _NAME)
        with contextlib.suppress(OSError):  # on a full disk nothing is shown
            if long:
                lines = [[one.shown, now - one.begin, one.tries, one.failure] for one in long[:_MOST]]
                with open(f"{path}.new", "w") as file:
                    json.dump(lines, file)
                os.replace(f"{path}.new", path)
            elif self._is_written:
                os.remove(path)
        self._is_written = bool(long)


def _begin_of(wait: Wait) -> float:
    return wait.begin


def describe(most: int = 3) -> str:
    """Returns a line for each request that the fetcher waits for, the longest first, at most `most`; "": it says
    nothing."""
    try:
        path = os.path.join(os.fsdecode(_core.remote_folder()), _NAME)
        with open(path) as file:
            age = time.time() - os.fstat(file.fileno()).st_mtime
            found = json.load(file)
    except (OSError, ValueError):
        return ""
    if age > _OUT_OF_DATE_S or not isinstance(found, list):
        return ""
    lines = [_line_of(one) for one in found[:most]]
    return "".join(lines) if all(lines) else ""


def _line_of(entry: Any) -> str:
    try:
        shown, seconds, tries, failure = entry
        what = f"{failure}, {tries:d} tries" if failure else "no answer yet"
        return f"\n  {shown!s:.300}: {what!s:.300}, for {seconds:.0f} s"
    except (TypeError, ValueError):
        return ""


_FIRST_S, _NEXT_S = 10.0, 60.0  # until the first line, and from one line to the next


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """Prints what the fetcher waits for while the body takes long: no loader runs yet that could warn of it."""
    has_ended = threading.Event()

    def tell() -> None:
        pause = _FIRST_S
        while not has_ended.wait(pause):
            lines = describe()
            if lines:
                say(f"{what} waits for the network{lines}")
            pause = _NEXT_S if lines else _FIRST_S

    teller = threading.Thread(target=tell, name="headrace-waits", daemon=True)
    teller.start()
    try:
        yield
    finally:
        has_ended.set()
        teller.join()


# ---- which worker waits ----


def waits_for_network(pid: int) -> bool:
    """Returns True if a thread of a process waits for the fetcher. A worker in its place would wait as well."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    return any(_name_of(pid, thread) == _THREAD for thread in threads)


def _name_of(pid: int, thread: str) -> str:
    try:
        with open(f"/proc/{pid}/task/{thread}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""

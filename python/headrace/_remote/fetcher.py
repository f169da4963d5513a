# SPDX-License-Identifier: Apache-2.0
"""The fetcher: the one process of a folder and user that asks servers for remote objects.

Its threads take jobs of the C library (include/headrace/face/fetcher.h): parts of objects, and calls, which are lines
of text. A request that fails in a way that may pass is tried again, with waits that all threads keep to for one host.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from headrace import _core
from headrace._base.units import size_of
from headrace._remote import addresses, failures, https, settings
from headrace._remote.addresses import Address
from headrace._remote.failures import Failed, Passing
from headrace._remote.https import Found
from headrace._remote.waits import Wait, Waits

Result = TypeVar("Result")

TAKEN = 3  # exit code: another process is the fetcher of the folder
_MOST_THREADS = 512  # the C library gives them jobs of one host for at most 64 of them
_MOST_IDLE = 64
_FILES_OF_THREAD = 8  # under a low limit of open files (ulimit -n) there are fewer threads
_LOOKS = 32  # at the same time, of one call
_SAVE_S = 60.0
_LOOK_S = 0.2
_WRITE_S = 0.5  # between two looks at what it waits for
_IDLE_MS = 10_000
_FREE_BYTES = 1 << 30
_FIRST_WAIT_S = 0.1
_MOST_WAIT_S = 10.0
_KNOWN_S = 60.0  # for which sizes and versions are not asked for again
_TOGETHER_S = 1.0  # in which another thread may answer what this one asks, too
_MOST_KNOWN = 1_000_000  # of 370 bytes each, with URLs of 60
_NO_QUOTA = 2**64 - 1


# ---- threads ----


class Threads:
    """The threads that do jobs: one more than there are jobs, until there are `most`. So a host that does not answer
    holds up no other one: it gets only some of them (src/remote/hosts.c)."""

    def __init__(self, fetcher: Any, most: int) -> None:
        self._fetcher = fetcher
        self._most = most
        self._lock = threading.Lock()
        self._count = self._idle = 0
        self._start()

    def _start(self) -> None:
        with self._lock:
            if self._idle or self._count >= self._most:
                return
            self._count += 1
            self._idle += 1
        try:
            threading.Thread(target=self._work, daemon=True).start()
        except RuntimeError:  # the process may have no more of them
            with self._lock:
                self._count -= 1
                self._idle -= 1

    def _stay(self) -> bool:
        """Called after a job. Returns False if so many threads have nothing to do that this one ends."""
        with self._lock:
            stays = self._idle < _MOST_IDLE
            self._idle += stays
            self._count -= not stays
        return stays

    def _work(self) -> None:
        while (job := self._take()) is not None:
            with self._lock:
                self._idle -= 1
            self._start()
            do_job(self._fetcher, job)
            if not self._stay():
                return

    def _take(self) -> tuple[Any, ...] | None:
        while True:
            try:
                job: tuple[Any, ...] | None = self._fetcher.take(None)
                if job != ():
                    return job
            except MemoryError:
                time.sleep(1)


# ---- requests that are tried again ----


class Hosts:
    """When the next request to a host may be sent: after a failure, all threads wait."""

    def __init__(self) -> None:
        self._begins: dict[str, float] = {}

    def wait(self, host: str, deadline: float) -> None:
        begin = self._begins.get(host, 0.0)
        left = min(begin, deadline) - time.monotonic()
        if left > 0:
            time.sleep(left)

    def note(self, host: str, wait_s: float) -> None:
        self._begins[host] = max(self._begins.get(host, 0.0), time.monotonic() + wait_s)


_hosts = Hosts()
_waits = Waits()


def retry(address: Address, given: dict[str, Any], request: Callable[[], Result], asked: float | None = None) -> Result:
    """Returns request(), which is made again while its failures may pass, for retry_s seconds. asked: since then, on
    time.monotonic(); None: from now on. Raises Failed."""
    wait = _waits.begin(address.shown, asked)
    try:
        return _retry(wait, address, float(given.get("retry_s", settings.RETRY_S)), request)
    finally:
        _waits.end()


def _retry(wait: Wait, address: Address, most_s: float, request: Callable[[], Result]) -> Result:
    while True:
        _hosts.wait(address.host, wait.begin + most_s)
        wait.tries += 1
        _waits.count(wait.tries > 1)
        try:
            return request()
        except Passing as failure:
            wait.failure = failure.what
            waited = time.monotonic() - wait.begin
            if waited >= most_s:
                raise failures.gave_up(address.shown, wait.tries, waited, failure.what) from None
            wait_s = max(failure.wait_s, min(_MOST_WAIT_S, _FIRST_WAIT_S * 2 ** min(wait.tries - 1, 10)))
            wait_s = min(wait_s * (0.5 + random.random()), most_s - waited)
            if failure.what.startswith("status"):
                _hosts.note(address.host, wait_s)
            time.sleep(max(wait_s, 0.01))


# ---- jobs ----


def _reader_of(address: Address) -> Any:
    """Returns the module that reads an object: it has look, read and, for what can be listed, list_objects. It is
    imported when it is needed, because the first reader waits for the start of the fetcher."""
    if address.scheme in addresses.BUCKETS:
        from headrace._remote import buckets

        return buckets
    if address.scheme == "hf":
        from headrace._remote import hub

        return hub
    return https


def read_part(url: str, version: str, text: str, size: int, at: int, count: int, asked: float) -> Any:
    """Returns a part of an object. asked: see retry."""
    given = json.loads(text)
    address = settings.address_of(url, given)
    reader = _reader_of(address)
    return retry(address, given, lambda: reader.read(address, text, given, version, size, at, count), asked)


_Known = tuple[float, int, str]  # until when it holds, a size and a version


class Looks:
    """Sizes and versions, which are known for a minute, so that all ranks and jobs ask once."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, _Known]] = {}  # by settings and URL
        self._asked: dict[tuple[str, str], threading.Event] = {}  # by URL and settings: a thread asks now
        self._lock = threading.Lock()
        self.fetcher: Any = None

    def look(self, url: str, text: str) -> tuple[Address, Found]:
        given = json.loads(text)
        address = settings.address_of(url, given)
        found = self._known_now(url, text)
        if found is None:
            with self._first(url, text):
                found = self._known_now(url, text)
                if found is None:
                    found = retry(address, given, lambda: _reader_of(address).look(address, text, given))
                    self._keep(address, text, found)
                    self.note(url, text, found)
        return address, found

    def _known_now(self, url: str, text: str) -> Found | None:
        known = self._known.get(text, {}).get(url)
        return Found(known[1], known[2], b"") if known is not None and known[0] > time.monotonic() else None

    @contextlib.contextmanager
    def _first(self, url: str, text: str) -> Iterator[None]:
        """Lets another thread that asks for the same object answer first, for a second at most: ranks open a source
        at the same time. Then each asks by itself, for its own retry_s."""
        with self._lock:
            asked = self._asked.get((url, text))
            own = None if asked is not None else self._asked.setdefault((url, text), threading.Event())
        if asked is not None:
            asked.wait(_TOGETHER_S)
        try:
            yield
        finally:
            if own is not None:
                with self._lock:
                    del self._asked[url, text]
                own.set()

    def _keep(self, address: Address, text: str, found: Found) -> None:
        """Keeps the first bytes of an object, which came with its size."""
        name = addresses.name_of(address, found.size, found.version)
        texts = [one.encode() for one in (name, address.url, found.version, text)]
        with contextlib.suppress(OSError):
            if self.fetcher is not None and found.head:
                self.fetcher.keep(*texts, found.size, found.head)

    def note(self, url: str, text: str, found: Found) -> None:
        with self._lock:
            if self.count() >= _MOST_KNOWN:
                self._forget_old()
            if self.count() >= _MOST_KNOWN:
                self._known.clear()
            self._known.setdefault(text, {})[url] = time.monotonic() + _KNOWN_S, found.size, found.version

    def count(self) -> int:
        return sum(map(len, self._known.values()))

    def forget_old(self) -> None:
        """Frees the memory of what is not known any more."""
        with self._lock:
            self._forget_old()

    def _forget_old(self) -> None:
        now = time.monotonic()
        left = {}
        for text, known in self._known.items():
            of_text = {url: one for url, one in known.items() if one[0] > now}
            if of_text:
                left[text] = of_text
        self._known = left

    def forget(self, url: str) -> None:
        with self._lock:
            for known in self._known.values():
                known.pop(url, None)


_looks = Looks()


def _line_of(address: Address, found: Found) -> str:
    name = addresses.name_of(address, found.size, found.version)
    return f"ok\t{name}\t{found.size}\t{found.version}\t{address.path}"


def _look_line(url: str, text: str) -> str:
    try:
        return _line_of(*_looks.look(url, text))
    except Failed as failure:
        return f"failed\t{-failure.code}\t{failure.text}"
    except ValueError as error:
        return f"failed\t{-errno.EINVAL}\tremote: {error}"


def answer_call(lines: list[str]) -> str:
    """Answers a call. "look", settings, URLs: a line for each, see take_line in src/remote/known.c. "list", settings,
    the begin of a URL: for each object its URL, size and version, between tabs. "pin", settings, a URL of the hub: the
    same with a commit. "status": JSON, see Fetcher.look. "remove", "0" or "1", name: the result of Fetcher.remove, see
    ask_fetcher in src/remote/remove.c."""
    if lines == ["status"]:
        return json.dumps(_looks.fetcher.look())
    if len(lines) == 3 and lines[0] == "remove":
        return str(_looks.fetcher.remove(lines[2].encode(), lines[1] == "1"))
    if len(lines) < 3 or lines[0] not in ("look", "list", "pin"):
        raise Failed(errno.EPROTO, "remote: the fetcher received an unknown call")
    text = lines[1]
    if lines[0] != "look":
        try:
            return (_list if lines[0] == "list" else _pin)(lines[2], text)
        except ValueError as error:
            raise Failed(errno.EINVAL, f"remote: {error}") from None
    if len(lines) == 3:
        return _look_line(lines[2], text) + "\n"
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(_LOOKS, len(lines) - 2)) as pool:
        return "\n".join(pool.map(lambda url: _look_line(url, text), lines[2:])) + "\n"


def _list(url: str, text: str) -> str:
    given = json.loads(text)
    address = settings.address_of(url, given)

    def list_all() -> list[str]:
        found = []
        for one, meta in _reader_of(address).list_objects(address, text, given):
            found.append(f"{one}\t{meta.size}\t{meta.version}")
        return found

    return "\n".join(retry(address, given, list_all))


def _pin(url: str, text: str) -> str:
    given = json.loads(text)
    address = settings.address_of(url, given)
    return str(retry(address, given, lambda: _reader_of(address).pin(address, text, given)))


def do_job(fetcher: Any, job: tuple[Any, ...]) -> None:
    """Does a job, and gives what it is for, or its failure."""
    try:
        if len(job) == 2:
            data: Any = answer_call(job[1].decode().split("\n")).encode()
        else:
            data = read_part(*(one.decode() for one in job[1:4]), *job[4:])
        fetcher.give(job[0], data)
    except Failed as failure:
        if failure.code == errno.ESTALE and len(job) > 2:
            _looks.forget(job[1].decode())
        fetcher.fail(job[0], -failure.code, failure.text.encode("utf-8", "replace"))
    except Exception as error:  # its text may have secrets
        text = f"remote: the fetcher failed ({type(error).__name__} in {_where(error)})"
        fetcher.fail(job[0], -errno.EIO, text.encode())


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "?"
    return f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"


# ---- the process ----


def quota_of(text: str | None) -> int:
    """Returns the bytes of HEADRACE_REMOTE_QUOTA: a number, with K, M, G or T. Raises ValueError."""
    return size_of(text, "HEADRACE_REMOTE_QUOTA") if text else _NO_QUOTA


def _close_inherited() -> None:
    """Closes what the program had open that started this process, which may wait for the end of a pipe."""
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2:
                with contextlib.suppress(OSError):
                    os.close(int(name))


def _become_daemon() -> None:
    """Goes on in a child. The parent ends, which says that the fetcher answers. By its name, `headrace run`
    knows that no rank has left it (HR__FETCHER_NAME)."""
    if os.fork():
        os._exit(0)
    os.setsid()
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write("hr-fetcher")
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    if null > 2:
        os.close(null)


def _count_threads() -> int:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # to which the start of the fetcher raises it
    return _MOST_THREADS if files < 0 else min(_MOST_THREADS, max(4, files // _FILES_OF_THREAD))


def _serve(fetcher: Any, folder: str, idle_s: float) -> None:
    """Saves from time to time, and when no reader is left for a while. The end is then short, and the next fetcher does
    not wait for it."""
    fetcher.show(0, 0)
    saved = used = written = time.monotonic()
    while not (info := fetcher.look())["is_ending"]:
        now = time.monotonic()
        if info["connections"]:
            used = now
        if now - saved > _SAVE_S or (now - used > idle_s / 3 and saved < used):
            fetcher.save()
            _looks.forget_old()
            saved = time.monotonic()
        if now - written > _WRITE_S:
            _waits.write(folder)
            fetcher.show(*_waits.counts())
            written = now
        time.sleep(min(_LOOK_S, idle_s / 10))
    fetcher.save()


def main(words: list[str] | None = None) -> int:
    """Runs the fetcher of a folder, until no reader is left. words: the folder; None: of the command line."""
    words = sys.argv[1:] if words is None else words
    if len(words) != 1:
        print("usage: python -m headrace._remote FOLDER", file=sys.stderr)
        return 2
    folder = os.path.abspath(words[0])
    _close_inherited()
    os.chdir("/")
    settings.forget_environment()
    try:
        quota = quota_of(os.environ.get("HEADRACE_REMOTE_QUOTA"))
    except ValueError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    try:
        fetcher = _core.Fetcher(os.fsencode(folder))
    except BlockingIOError:
        sys.exit(TAKEN)
    except OSError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    _become_daemon()
    idle_ms = int(os.environ.get("HEADRACE_REMOTE_IDLE_MS", _IDLE_MS))
    _looks.fetcher = fetcher
    threads, system = _count_threads(), os.statvfs(folder)
    fetcher.start(quota, min(_FREE_BYTES, system.f_blocks * system.f_frsize // 10), idle_ms, threads)
    Threads(fetcher, threads)
    _serve(fetcher, folder, idle_ms / 1000)
    os._exit(0)  # threads may be in requests that no reader waits for


if __name__ == "__main__":
    main()

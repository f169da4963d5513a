# SPDX-License-Identifier: Apache-2.0
"""Finds what a test has left behind: files, processes, sockets, descriptors, mappings, and signals that stay blocked.

Other programs use /dev/shm and /tmp too, and another run of these tests may be in progress. So something counts only if
its name is headrace's, torch's or multiprocessing's and a process of this run has made it or holds it, or if it lies in
the folder of this run. A process is of this run if it descends from pytest, or if it has inherited its variable.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection
from multiprocessing import forkserver, resource_sharer, resource_tracker, util
from typing import Any

import warm
from process_table import all_pids, children
from processes import parent_of, until

VARIABLE = "HEADRACE_TEST_RUN"  # the pid of pytest
SHARED = pathlib.Path("/dev/shm")
# Names of files in /dev/shm. Most have the pid of the process that made them.
NAME = re.compile(r"(?:headrace-(\d+)-|torch_(\d+)_|pym-(\d+)-|psm_|sem\.mp-).*")
_MAPPING = re.compile(rf"/memfd:headrace\S*|{SHARED}/\S+")
_SOCKET = re.compile(r"@headrace/\d+/(\d+)/\S*")  # of loaders, for `headrace top`
# Temporary files that torch and multiprocessing keep for the next process, or leave if they are killed.
_LIBRARIES = re.compile(r"torchinductor_.*|torchelastic_.*|pytorch-errorfile-.*|pymp-.*|[a-z0-9_]{8}")
PATIENCE_S = 20.0  # for what a test has left to disappear: the ends of processes take long on a busy machine
State = dict[str, set[Any]]


class Run:
    """The processes of one run of pytest."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._variable = f"{VARIABLE}={pid}".encode()

    def _has_variable(self, pid: int) -> bool:
        try:
            return self._variable in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:  # it has ended, or belongs to another user
            return False

    def has(self, pid: int) -> bool:
        """Returns True if a process is of this run. A zombie is while its parent is."""
        if self._has_variable(pid):
            return True
        while pid not in (0, self.pid):
            pid = parent_of(pid)
        return pid == self.pid

    def pids(self) -> set[int]:
        return {pid for pid in all_pids() if self.has(pid)}

    def made(self, name: str) -> bool:
        """Returns True if a process of this run has made a file in /dev/shm. If its name does not tell: has it open."""
        match = NAME.fullmatch(name)
        if match is None:
            return False
        maker = next(filter(None, match.groups()), None)
        if maker is not None:
            return self.has(int(maker))
        path = SHARED / name
        return path.exists() and any(_holds(pid, str(path)) for pid in self.pids())  # most are removed at once


def _holds(pid: int, path: str) -> bool:
    """Returns True if a process has a file open or mapped."""
    try:
        links = [entry.path for entry in os.scandir(f"/proc/{pid}/fd")]
        return any(os.readlink(link) == path for link in links) or path in pathlib.Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


class Watch:
    """A process that looks at each new file in /dev/shm while its maker still runs: leftover_watch.py."""

    def __init__(self, removed: list[str]) -> None:
        path = pathlib.Path(__file__).with_name("leftover_watch.py")
        command = [sys.executable, str(path), str(os.getpid()), *removed]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout
        self.pid, self.descriptors = self._process.pid, {self._to.fileno(), self._from.fileno()}
        self.files()  # it watches from now on

    def files(self) -> set[str]:
        """Returns the names of the files in /dev/shm that processes of this run have made."""
        self._to.write(b"\n")
        self._to.flush()
        line = self._from.readline()
        assert line.endswith(b"\n"), "the watch on /dev/shm has ended; its own error is printed above"
        return set(line.decode().split())

    def close(self) -> None:
        self._process.communicate()


def _helpers() -> tuple[set[int], set[int]]:
    """Returns the processes of multiprocessing, headrace and warm.py that outlive tests, and descriptors for them."""
    server, tracker = forkserver._forkserver, resource_tracker._resource_tracker  # type: ignore[attr-defined]
    pids = {server._forkserver_pid, tracker._pid}
    descriptors = {server._forkserver_alive_fd, tracker._fd}
    client = sys.modules.get("headrace._loader.forkserver.client")
    for one in [*client._current, *client._retired] if client else []:
        pids |= {one.pid, *children(one.pid)}  # with the process that it forks workers from
        descriptors |= {one._control.fileno(), one._alive}
    warm_pids, warm_descriptors = warm.helpers()
    return (pids | warm_pids) - {None}, (descriptors | warm_descriptors) - {None}


def mark_run() -> pathlib.Path:
    """Sets the variables of this run, which its processes inherit. Returns its folder of temporary files."""
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # where tmp_path is
    tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="hrt-")
    util.Finalize(None, shutil.rmtree, (tempfile.tempdir, True), exitpriority=-101)  # after multiprocessing's own
    os.environ[VARIABLE] = str(os.getpid())
    return pathlib.Path(tempfile.tempdir)


class Leftovers:
    """Compares what there is of this run of pytest before and after a test."""

    def __init__(self, folder: pathlib.Path, *removed: str) -> None:
        """folder: that of the temporary files of this run. removed: folders that go with it, also if it is killed."""
        self._folder, self._run, self._watch = folder, Run(os.getpid()), Watch([*removed])
        self._is_ours: dict[int, bool] = {}

    def close(self) -> None:
        self._watch.close()

    def _pids(self) -> set[int]:
        """Like Run.pids, but asks only about processes that are new: this runs before and after each test."""
        self._is_ours = {pid: self._is_ours[pid] if pid in self._is_ours else self._run.has(pid) for pid in all_pids()}
        return {pid for pid, is_ours in self._is_ours.items() if is_ours}

    def _sockets(self) -> set[str]:
        found = _SOCKET.finditer(pathlib.Path("/proc/net/unix").read_text())
        return {match[0] for match in found if self._is_ours.get(int(match[1]), False)}

    def _temporary_files(self) -> set[str]:
        return {name for name in os.listdir(self._folder) if not _LIBRARIES.fullmatch(name)}

    def state(self) -> State:
        pids, descriptors = _helpers()
        descriptors |= self._watch.descriptors
        ours = self._pids()
        return {
            "files in /dev/shm": self._watch.files(),
            "temporary files": self._temporary_files(),
            "processes": ours - pids - {os.getpid(), self._watch.pid},
            "sockets": self._sockets(),
            "descriptors": {one for one in _open_descriptors() if one[0] not in descriptors},
            "mappings": set(_MAPPING.findall(pathlib.Path("/proc/self/maps").read_text())),
            "blocked signals": {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())},
        }

    def left(self, before: State, patience_s: float = PATIENCE_S, meant: Collection[str] = ()) -> State:
        """Returns what is new and stays, except for kinds that are meant to."""
        gc.collect()
        gc.collect()  # of cycles that were held by what the first has freed, such as a dataset by its loader's epoch
        resource_sharer.stop(timeout=5)  # multiprocessing's own, where a test sent a tensor to another process
        stays: State = {}

        def are_gone() -> bool:
            warm.reap_adopted()
            for name, after in self.state().items():
                if name in meant:
                    continue
                new = after - before[name]
                stays[name] = stays.get(name, new) & new
            return not any(stays.values())

        until(are_gone, patience_s)
        return {name: new for name, new in stays.items() if new}


def describe(left: State) -> str:
    """Says what is left, and of each process its parent, its state, and its command line, or its name if it is dead."""
    lines = [f"left behind: {left}"]
    for pid in sorted(left.get("processes", ())):
        with contextlib.suppress(OSError):
            folder = pathlib.Path(f"/proc/{pid}")
            name, _, state = (folder / "stat").read_text().partition("(")[2].rpartition(") ")
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            lines.append(f"process {pid}, child of {parent_of(pid)}, state {state[0]}: {command or name}")
    return "\n".join(lines)


def _open_descriptors() -> set[tuple[int, str]]:
    """Returns the descriptors of this process, each with the kind of its file."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing
            found.add((int(name), os.readlink(f"/proc/self/fd/{name}").removeprefix("anon_inode:").split(":")[0]))
    return found

# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: SIM115
"""Open files that forked workers would share: they are named before the first batch, with the lines that open them in
each worker."""

from __future__ import annotations

import gzip
import io
import mmap
import multiprocessing
import os
import pathlib
import pickle
import socket
import sqlite3
import sys
import tarfile
import tempfile
import threading
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

import headrace
import numpy as np
import pytest
from headrace._base import shared_files
from headrace.doctor.machine import fork
from loaders import Headrace, only_headrace

pytestmark = only_headrace
COUNT = 64
Open = Callable[[pathlib.Path], Any]


class Rows:
    """Reads from what it holds open, at the place of a sample."""

    def __init__(self, opened: Any) -> None:
        self.opened = opened

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        self.opened.seek(8 * index)
        return int.from_bytes(self.opened.read(8), "little")


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "raw").write_bytes(b"".join(index.to_bytes(8, "little") for index in range(COUNT)))
    with zipfile.ZipFile(tmp_path / "zip", "w") as archive:
        archive.writestr("a", "text")
    with tarfile.open(tmp_path / "tar", "w") as tar:
        tar.add(tmp_path / "raw", "raw")
    with gzip.open(tmp_path / "gz", "wb") as packed:
        packed.write(b"text")
    np.savez(tmp_path / "arrays.npz", a=np.arange(3))
    np.save(tmp_path / "array.npy", np.arange(3))
    return tmp_path


def find(dataset: Any, workers: int = 2, **others: Any) -> list[str]:
    return [one.path for one in shared_files.find({"dataset": dataset, **others}, workers)]


OPEN: dict[str, Open] = {
    "binary": lambda at: open(at / "raw", "rb"),
    "unbuffered": lambda at: open(at / "raw", "rb", buffering=0),
    "text": lambda at: open(at / "raw"),
    "read and write": lambda at: open(at / "raw", "r+b"),
    "zip": lambda at: zipfile.ZipFile(at / "zip"),
    "npz": lambda at: np.load(at / "arrays.npz"),
    "tar": lambda at: tarfile.open(at / "tar"),
    "gzip": lambda at: gzip.open(at / "gz"),
    "temporary": lambda at: tempfile.NamedTemporaryFile(),
    "socket": lambda at: socket.socketpair()[0],
    "file of a socket": lambda at: socket.socketpair()[0].makefile("rb"),
    "pipe": lambda at: multiprocessing.Pipe()[0],
    "fifo": lambda at: (os.mkfifo(at / "fifo"), open(at / "fifo", "r+b", buffering=0))[1],
    "sqlite": lambda at: sqlite3.connect(at / "db"),
    "list": lambda at: [None, open(at / "raw", "rb")],
    "dict": lambda at: {"a": {"b": open(at / "raw", "rb")}},
    "many": lambda at: [open(at / "raw", "rb")] * 1000,
}
PATHS = {"list": "dataset.opened[1]", "dict": "dataset.opened['a']['b']", "many": "dataset.opened[0]"}


@pytest.mark.parametrize("kind", OPEN)
def test_open_file_is_found(kind: str, folder: pathlib.Path) -> None:
    assert find(Rows(OPEN[kind](folder))) == [PATHS.get(kind, "dataset.opened")]


@pytest.mark.parametrize("kind", ["socket", "pipe", "fifo"])
def test_pipe_of_one_worker_is_not_found(kind: str, folder: pathlib.Path) -> None:
    """The trainer has made it for this worker."""
    assert find(Rows(OPEN[kind](folder)), workers=1) == []
    assert find(Rows(OPEN["binary"](folder)), workers=1) == ["dataset.opened"]


def closed(value: Any) -> Any:
    value.close()
    return value


class Released:
    """A file and a lock of multiprocessing, which the dataset holds while it reads."""

    def __init__(self, path: pathlib.Path) -> None:
        self.file, self.lock = open(path, "rb"), multiprocessing.get_context("fork").Lock()

    def read(self) -> Any:
        with self.lock:
            return self.file.read()


class Mapped:
    def __init__(self, path: pathlib.Path) -> None:
        self.file = open(path, "rb")
        self.map = mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_READ)

    def read(self) -> Any:
        return self.file.name, self.map[0]


class Positioned:
    def __init__(self, path: pathlib.Path) -> None:
        self.file = open(path, "rb")

    def read(self) -> Any:
        return os.pread(self.file.fileno(), 8, 0)


class Unused:
    def __init__(self, path: pathlib.Path) -> None:
        self.left_open = open(path, "rb")
        self.data = self.left_open.read()

    def read(self) -> Any:
        return self.data


class OfEachProcess:
    def __init__(self, path: pathlib.Path) -> None:
        self.path, self.pid, self.file = path, os.getpid(), open(path, "rb")

    def read(self) -> Any:
        if self.pid != os.getpid():
            self.pid, self.file = os.getpid(), open(self.path, "rb")
        return self.file.read()


CLOSED: dict[str, Open] = {
    "closed": lambda at: closed(open(at / "raw", "rb")),
    "closed text": lambda at: closed(open(at / "raw")),
    "closed zip": lambda at: closed(zipfile.ZipFile(at / "zip")),
    "closed npz": lambda at: closed(np.load(at / "arrays.npz")),
    "closed tar": lambda at: closed(tarfile.open(at / "tar")),
    "closed socket": lambda at: closed(socket.socketpair()[0]),
    "closed pipe": lambda at: closed(multiprocessing.Pipe()[0]),
    "closed sqlite": lambda at: closed(sqlite3.connect(at / "db")),
    "detached": lambda at: (one := open(at / "raw"), one.detach().close())[0],
    "log": lambda at: open(at / "log", "a"),
    "written": lambda at: open(at / "new", "wb"),
    "stdout": lambda at: sys.stdout,
    "real stderr": lambda at: sys.__stderr__,
    "device": lambda at: open("/dev/urandom", "rb"),
    "memory": lambda at: io.BytesIO(b"text"),
    "zip in memory": lambda at: zipfile.ZipFile(io.BytesIO((at / "zip").read_bytes())),
    "mapped array": lambda at: np.load(at / "array.npy", mmap_mode="r"),
    "map": lambda at: mmap.mmap(-1, 4096),
    "queue": lambda at: multiprocessing.get_context("fork").Queue(),
    "event": lambda at: multiprocessing.get_context("fork").Event(),
    "thread": lambda at: threading.Thread(),
    "under a lock": lambda at: Released(at / "raw"),
    "map of its file": lambda at: Mapped(at / "raw"),
    "pread": lambda at: Positioned(at / "raw"),
    "read at once": lambda at: Unused(at / "raw"),
    "opened in each process": lambda at: OfEachProcess(at / "raw"),
}


@pytest.mark.parametrize("kind", CLOSED)
def test_file_that_may_be_shared_is_not_found(kind: str, folder: pathlib.Path) -> None:
    assert find(Rows(CLOSED[kind](folder))) == []


def test_file_in_a_class_a_closure_and_a_module_is_found(folder: pathlib.Path) -> None:
    class WithClass(Rows):
        shared = open(folder / "raw", "rb")

        def __getitem__(self, index: int) -> int:
            return len(self.shared.read(index))

    assert find(WithClass(None)) == ["dataset.shared"]
    globals()["FILE"] = open(folder / "raw", "rb")
    try:
        assert find(range(3), collate_fn=read_of_module) == [f"{__name__}.FILE"]
    finally:
        globals().pop("FILE").close()


def read_of_module(samples: Any) -> Any:
    return FILE.read(1)  # type: ignore[name-defined] # noqa: F821


def test_file_that_worker_init_fn_opens_is_not_found(folder: pathlib.Path) -> None:
    def init(worker: int) -> None:
        dataset.opened = open(folder / "raw", "rb")

    dataset = Rows(open(folder / "raw", "rb"))
    assert find(dataset, worker_init_fn=init) == []
    assert find(dataset, worker_init_fn=print) == ["dataset.opened"]


def test_search_runs_no_code_of_the_dataset(folder: pathlib.Path) -> None:
    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            calls.append(name)
            return super().__getattribute__(name)

    class Watched(Rows, metaclass=Meta):
        @property
        def closed(self) -> Any:
            calls.append("closed")
            return None

        def __getattribute__(self, name: str) -> Any:
            calls.append(name)
            return super().__getattribute__(name)

    class Reader(io.BufferedReader):
        @property
        def closed(self) -> bool:
            calls.append("closed")
            return True

    calls: list[str] = []
    dataset = Watched(Reader(io.FileIO(folder / "raw")))
    calls.clear()
    assert find(dataset) == ["dataset.opened"]
    assert calls == []


def test_search_is_bounded(folder: pathlib.Path) -> None:
    class Node(Rows):
        pass

    root = Rows([Rows([Rows(None) for _ in range(100)]) for _ in range(100)])
    search = shared_files._Search({"dataset": root})
    assert len(search._seen) <= shared_files._MOST


def read(loader: Any) -> tuple[list[int], str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        values = [int(value) for batch in loader for value in batch]
    return values, "".join(str(one.message) for one in caught if "they share what is open" in str(one.message))


@pytest.mark.parametrize("kind", [headrace.Loader, Headrace])
def test_loader_names_the_file_and_the_lines_that_open_it(kind: Any, folder: pathlib.Path) -> None:
    """The lines are right: with them nothing is shared."""
    dataset = Rows(open(folder / "raw", "rb", buffering=0))
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "multiprocessing_context": "fork"}
    _, text = read(kind(dataset, **options))
    assert f"dataset.opened (FileIO, '{folder / 'raw'}')" in text and "(headrace help shared-files)" in text
    lines = [line.strip() for line in text.splitlines()[1:4]]
    assert lines[0] == "def open_files(worker):"
    assert lines[2] == f"dataset.opened = open('{folder / 'raw'}', \"rb\")"
    space: dict[str, Any] = {"headrace": headrace, "torch": sys.modules["torch"]}
    exec("\n    ".join(lines), space)
    _, again = read(kind(dataset, **options))
    assert again == ""  # it is said once
    values, text = read(kind(Rows(open(folder / "raw", "rb")), worker_init_fn=space["open_files"], **options))
    assert values == list(range(COUNT)) and text == ""


def test_loader_whose_workers_get_nothing_open_says_nothing(folder: pathlib.Path) -> None:
    dataset = Reopened(folder / "raw")
    for options in ({"num_workers": 0}, {"num_workers": 1, "multiprocessing_context": "forkserver"}):
        values, text = read(headrace.Loader(dataset, 4, **options))  # type: ignore[arg-type]
        assert values == list(range(COUNT)) and text == ""


class Reopened(Rows):
    def __init__(self, path: pathlib.Path) -> None:
        super().__init__(open(path, "rb"))
        self.path = path

    def __getstate__(self) -> Any:
        return {"path": self.path}

    def __setstate__(self, state: Any) -> None:
        self.__init__(**state)  # type: ignore[misc]


def test_doctor_names_the_file(folder: pathlib.Path) -> None:
    assert pickle.loads(pickle.dumps(Reopened(folder / "raw")))[3] == 3
    (one,) = fork.open_files(Headrace(Rows(open(folder / "raw", "rb")), num_workers=2, multiprocessing_context="fork"))
    assert one.severity == "error" and "dataset.opened (BufferedReader, " in one.consequence
    assert "dataset.opened = open(" in one.fix
    assert fork.open_files(Headrace(range(3), num_workers=2, multiprocessing_context="fork")) == []


@pytest.mark.parametrize("kind", OPEN)
def test_check_for_fork_names_what_is_open(kind: str, folder: pathlib.Path) -> None:
    rows = Rows(OPEN[kind](folder))
    (one,) = headrace.doctor.check(rows, "fork", "data").findings
    path = PATHS.get(kind, "dataset.opened")
    assert (one.path, one.severity) == (path.replace("dataset", "data"), "warning")
    assert "forked workers share it (" in one.reason and "samples may be wrong without an error" in one.reason
    assert f"; {path} = " in one.fix
    loader = Headrace(rows, num_workers=2)
    report = headrace.doctor.check(loader, "fork", "loader")
    assert [one.path for one in report.findings] == [f"loader.{path}"]
    assert report.ok and report.exit_code == 1 and f"loader.{path}" in str(report)


@pytest.mark.parametrize("kind", CLOSED)
def test_check_for_fork_is_silent_about_what_may_be_shared(kind: str, folder: pathlib.Path) -> None:
    assert headrace.doctor.check(Rows(CLOSED[kind](folder)), "fork").findings == ()


def test_check_knows_the_parts_of_a_loader(folder: pathlib.Path) -> None:
    """A pipe may be meant for one worker, and worker_init_fn opens files again. Other methods share nothing."""

    def init(worker: int) -> None:
        dataset.opened = open(folder / "raw", "rb")

    dataset = Rows(open(folder / "raw", "rb"))
    assert headrace.doctor.check(Headrace(dataset, num_workers=2, worker_init_fn=init), "fork").findings == ()
    pipe = Rows(OPEN["pipe"](folder))
    assert headrace.doctor.check(Headrace(pipe, num_workers=1), "fork").findings == ()
    assert len(headrace.doctor.check(Headrace(pipe, num_workers=2), "fork").findings) == 1
    assert all("share" not in one.reason for one in headrace.doctor.check(dataset, "spawn").findings)
    globals()["FILE"] = open(folder / "raw", "rb")
    try:
        (one,) = headrace.doctor.check(Headrace(range(3), num_workers=2, collate_fn=read_of_module), "fork").findings
        assert one.path == f"{__name__}.FILE"
    finally:
        globals().pop("FILE").close()

# SPDX-License-Identifier: Apache-2.0
"""Sends workers arguments that are larger than a pipe: the trainer does not wait for them, and no file is left."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import pickle
import signal
from typing import Any, ClassVar

import headrace
import pytest
from headrace._base import memory_file
from headrace._loader.start import transport
from loaders import only_headrace
from processes import Script, seconds_to_die_with, until

pytestmark = only_headrace

SENT = ["forkserver", "spawn"]
LARGE_BYTES = 3 * transport.CHUNK_BYTES + 12345

# A module that is imported quickly in the trainer, and slowly in a worker.
LATE = """
import os, pathlib, time

class Data(list):
    pass

def import_for_long():
    pathlib.Path("imports.part").write_text(str(os.getpid()))
    os.rename("imports.part", "imports")
    time.sleep(600)

if os.environ.setdefault("TRAINER", str(os.getpid())) != str(os.getpid()):
    import_for_long()
"""

TRAINER = """
import os, time
from headrace import Loader

if __name__ == "__mp_main__" and {is_main_late}:
    import late

if __name__ == "__main__":
    import late
    data = late.Data(os.urandom(1000) for _ in range(2000))
    iterator = iter(Loader(data, num_workers=2, multiprocessing_context={method!r}))
    print("now", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("method, is_main_late", [("spawn", True), ("spawn", False)])  # forkserver: test_forkserver.py
def test_worker_that_imports_dies_with_trainer(tmp_path: pathlib.Path, method: str, is_main_late: bool) -> None:
    (tmp_path / "late.py").write_text(LATE)

    def died() -> float:
        imports = tmp_path / "imports"
        imports.unlink(missing_ok=True)
        with Script(tmp_path, TRAINER.format(method=method, is_main_late=is_main_late)) as script:
            assert until(imports.exists, 60)
            assert script.line() == "now"  # the trainer did not wait until a worker reads
            took = seconds_to_die_with(script.process, int(imports.read_text()))
            assert script.finish(30) == -signal.SIGKILL
            assert script.left() == []
        return took

    assert any(died() < 1.0 for _ in range(3))  # usually 0.1


def argument_files(pid: int | str) -> list[str]:
    links = (entry.path for entry in os.scandir(f"/proc/{pid}/fd"))
    return [name for link in links if os.path.lexists(link) and "headrace-arguments" in (name := os.readlink(link))]


class Large:
    """A large dataset that returns the argument files its worker has open, and writes to a queue."""

    def __init__(self, context: Any) -> None:
        self.data = os.urandom(LARGE_BYTES)
        self.parts = [os.urandom(1000) for _ in range(2000)]
        self.lock, self.queue = context.Lock(), context.SimpleQueue()

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        with self.lock:
            self.queue.put(index)
        return self.data, b"".join(self.parts), argument_files("self")


class Refuses:
    def __reduce__(self) -> Any:
        raise ValueError("not me")


@pytest.mark.parametrize("method", SENT)
@pytest.mark.parametrize("has_memfd", [True, False])
def test_large_dataset_reaches_workers_and_its_file_is_freed(
    method: str, has_memfd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = multiprocessing.get_context(method)
    dataset = Large(context)
    if not has_memfd:
        monkeypatch.delattr(os, "memfd_create")
    iterator = iter(headrace.Loader(dataset, None, num_workers=2, multiprocessing_context=method))
    assert argument_files("self") == []
    for _ in range(2):
        assert next(iterator) == (dataset.data, b"".join(dataset.parts), [])
    assert {dataset.queue.get(), dataset.queue.get()} == {0, 1}
    iterator.close()


class Looks:
    """Records how much memory the file has when this object is loaded."""

    fd = -1
    found: ClassVar[list[int]] = []

    def __getstate__(self) -> str:
        return "some state"

    def __setstate__(self, _: object) -> None:
        self.found.append(os.fstat(self.fd).st_blocks * 512)


class Sent:
    def __init__(self, fd: int) -> None:
        self.detach = fd.__int__


def test_reading_frees_file_that_others_have_open() -> None:
    parts = [os.urandom(2 * transport.CHUNK_BYTES) for _ in range(2)]
    with memory_file.create("headrace-arguments") as file:
        pickle.dump([parts[0], Looks(), parts[1], Looks()], file)
        file.flush()
        Looks.fd = file.fileno()
        Looks.found.clear()
        assert transport._load_arguments(Sent(os.dup(file.fileno()))).value[::2] == parts
        first, second = Looks.found
        assert first < 3 * transport.CHUNK_BYTES
        assert second < 2 * transport.CHUNK_BYTES
        assert os.fstat(file.fileno()).st_blocks == 0


@pytest.mark.parametrize("method", SENT)
def test_no_file_is_left_if_pickling_fails(method: str) -> None:
    with pytest.raises(ValueError, match="not me"):
        iter(headrace.Loader([bytes(LARGE_BYTES), Refuses()], num_workers=1, multiprocessing_context=method))
    assert argument_files("self") == []

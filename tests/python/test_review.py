# SPDX-License-Identifier: Apache-2.0
"""Found by reading the code anew: what a cold review saw go wrong, as tests."""

from __future__ import annotations

import collections
import multiprocessing
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import datasets as d
import numpy as np
import pytest
import torch
from loaders import Headrace, only_headrace
from processes import run


class Calls:
    """A data set that gives what a function gives."""

    def __init__(self, make: Any, count: int = 4) -> None:
        self.make, self.count = make, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def unbatched(dataset: Any, **options: Any) -> Any:
    fixed = {"batch_size": None, "collate_fn": d.identity, "num_workers": 1, "multiprocessing_context": "fork"}
    return Headrace(dataset, **{**fixed, **options})


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_elements_of_an_array_have_the_type_that_they_were_sent_with(dtype: str) -> None:
    (array,) = unbatched(Calls(lambda _: np.arange(3, dtype=dtype), 1))
    assert type(array[0]) is np.dtype(dtype).type


@pytest.mark.parametrize("dtype", [torch.int4, torch.uint4, torch.uint1])
def test_a_dtype_below_one_byte_stays_itself(dtype: torch.dtype) -> None:
    (tensor,) = unbatched(Calls(lambda _: torch.zeros(16, dtype=torch.uint8).view(dtype), 1))
    assert tensor.dtype is dtype


class Late:
    """A sampler whose store does not answer."""

    def __iter__(self) -> Iterator[int]:
        yield from range(5)
        raise TimeoutError("the store did not answer")

    def __len__(self) -> int:
        return 5


def test_a_timeout_of_the_sampler_is_the_samplers() -> None:
    with pytest.raises(TimeoutError, match="the store did not answer"):
        list(Headrace(d.Squares(9), sampler=Late(), num_workers=1, multiprocessing_context="fork"))


@only_headrace
def test_a_named_tuple_class_that_is_defined_anew_is_the_new_one() -> None:
    def one() -> tuple[Any, type]:
        point = collections.namedtuple("point", ["a", "b"])
        globals()["point"] = point
        (got,) = unbatched(Calls(lambda i: point(i, i), 1))
        return got, point

    try:
        for _ in range(2):
            got, point = one()
            assert type(got) is point
    finally:
        globals().pop("point", None)


class NoDatabase:
    def __reduce__(self) -> Any:
        raise ConnectionError("no database today")


def test_an_oserror_of_the_data_sets_pickling_is_the_data_sets() -> None:
    with pytest.raises(ConnectionError, match=r"^no database today$"):
        list(Headrace([NoDatabase()], num_workers=1, multiprocessing_context="spawn"))


class Unreadable:
    def __reduce__(self) -> Any:
        return int, ("x",)


@only_headrace
def test_batches_that_cannot_be_decoded_do_not_end_the_epoch_early() -> None:
    iterator = iter(unbatched(Calls(lambda i: Unreadable() if i < 2 else i, 8)))
    got = []
    for _ in range(2):
        with pytest.raises(ValueError):
            next(iterator)
    got.extend(iterator)
    assert got == [2, 3, 4, 5, 6, 7]


@pytest.mark.timeout(30)
def test_a_timeout_ends_the_wait_of_a_second_epoch_for_a_stuck_worker() -> None:
    event = multiprocessing.get_context("fork").Event()
    loader = unbatched(d.Gate(4, 1, event), persistent_workers=True, timeout=1)
    assert next(iter(loader)) == 0
    timer = threading.Timer(8, event.set)  # so that the test ends
    timer.start()
    try:
        with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
            iter(loader)
    finally:
        event.set()
        timer.cancel()


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


def test_a_daemon_thread_that_waits_for_a_batch_lets_the_interpreter_exit_in_silence(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, DAEMON) == "end\n"


COLLATE_MAP = """
from torch.utils.data._utils.collate import default_collate_fn_map
default_collate_fn_map[int] = lambda batch, *, collate_fn_map=None: "the user's"
from loaders import Headrace
print(*Headrace([1, 2], batch_size=2, num_workers=1, multiprocessing_context="fork"))
"""


def test_a_replacement_in_the_collate_map_made_before_the_import_is_used(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, COLLATE_MAP) == "the user's\n"


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


BIG = """
import sys
import torch
import datasets as d
from loaders import Headrace
from processes import private_bytes
class Tensors:
    def __len__(self):
        return 60
    def __getitem__(self, index):
        return [{index}, torch.zeros(5_000_000)]  # a set: not a plain tree
options = dict(batch_size=None, collate_fn=d.identity, num_workers=1, multiprocessing_context="fork")
iterator = iter(Headrace(Tensors(), **options))
(worker,) = iterator._workers
most = 0
for batch in iterator:
    most = max(most, private_bytes(worker.pid))
print(most < private_bytes() + 200_000_000)
"""


def test_a_worker_keeps_no_tensor_of_a_pickled_batch_that_is_sent(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, BIG) == "True\n"


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
warnings.filterwarnings("ignore", "headrace: batches arrive as private copies")
import datasets"""


WITHOUT_TORCH = """
import sys

sys.modules["torch"] = None
try:
    import headrace.torch
except ModuleNotFoundError as error:
    print(error)
"""


def test_without_torch_the_import_says_what_to_do(tmp_path: pathlib.Path) -> None:
    said = run(tmp_path, WITHOUT_TORCH)
    assert said.startswith("headrace.torch needs torch") and "pip install torch" in said and "headrace.Loader" in said

# SPDX-License-Identifier: Apache-2.0
"""Arrays and views of the cache in other processes: they travel as handles, and keep what they refer to."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import pickle
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler
from typing import Any

import headrace
import numpy as np
import pytest
from headrace._base import pickling
from loaders import needs_failpoints

pytestmark = pytest.mark.usefixtures("root")

ROWS = np.arange(300_000, dtype="f8").reshape(-1, 3)


def dumped(value: Any) -> bytes:
    return bytes(ForkingPickler.dumps(value))


@pytest.mark.parametrize(
    "part",
    [
        lambda array: array,
        lambda array: array[5:70_000],
        lambda array: array[::-2, 1:],
        lambda array: array.T,
        lambda array: array[7],
        lambda array: array.view("i8"),
        lambda array: np.broadcast_to(array[0], (9, 3)),
    ],
    ids=["whole", "rows", "reversed", "transposed", "row", "view", "broadcast"],
)
def test_slices_are_sent_as_handles(part: Any) -> None:
    array = part(headrace.cache("rows", lambda: ROWS))
    data = dumped(array)
    assert len(data) < 1000
    loaded = pickle.loads(data)
    np.testing.assert_array_equal(loaded, part(ROWS))
    assert loaded.strides == array.strides and not loaded.flags.writeable


def test_arrays_inside_views_are_sent_as_handles() -> None:
    view = headrace.cache("nested", lambda: {"rows": ROWS, "names": ["a"] * 100_000})
    assert len(dumped(view)) < 1000 and len(dumped(view["rows"][10:])) < 1000
    np.testing.assert_array_equal(pickle.loads(dumped(view["rows"][10:])), ROWS[10:])
    assert pickle.loads(dumped(view))["names"] == view["names"]


def test_plain_pickles_contain_the_data() -> None:
    array = headrace.cache("rows", lambda: ROWS)
    assert len(pickle.dumps(array)) > ROWS.nbytes
    assert len(pickle.dumps(headrace.cache("nested", lambda: {"rows": ROWS}))) > ROWS.nbytes


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_other_arrays_are_sent_as_before(protocol: int) -> None:
    headrace.cache("rows", lambda: ROWS)
    for array in (ROWS[:10], np.array(["x", None], object), np.asfortranarray(ROWS[:4]), np.array(5)):
        loaded = pickle.loads(ForkingPickler.dumps(array, protocol))
        assert loaded.flags.writeable
        np.testing.assert_array_equal(loaded, array)


def test_copies_and_derived_arrays_are_sent_as_data() -> None:
    array = headrace.cache("rows", lambda: ROWS)
    for derived in (array.copy(), array + 1, array[[1, 2]]):
        loaded = pickle.loads(dumped(derived))
        assert loaded.flags.writeable
        np.testing.assert_array_equal(loaded, derived)


def test_arrays_in_batches_are_copies_out_of_band() -> None:
    array = headrace.cache("rows", lambda: ROWS)
    data, children = pickling.dump({1, 2} and [array[:100], ROWS[:100].copy()])
    assert len(data) < 2000 and len(children) == 2


def child(connection: Any, array: Any, view: Any) -> None:
    connection.send((float(array.sum()), float(view["rows"].sum()), array.flags.writeable))


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_workers_map_the_same_object(method: str) -> None:
    array, view = headrace.cache("rows", lambda: ROWS), headrace.cache("nested", lambda: {"rows": ROWS})
    context: Any = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    process = context.Process(target=child, args=(theirs, array[1:], view))
    process.start()
    assert ours.poll(100)
    assert ours.recv() == (ROWS[1:].sum(), ROWS.sum(), False)
    process.join()
    ours.close()
    theirs.close()


@needs_failpoints
def test_worker_makes_no_cache_of_its_own(tmp_path: pathlib.Path) -> None:
    """A fork server may be older than the variable that names the trainer's cache."""
    data = dumped(headrace.cache("rows", lambda: ROWS))
    environment = {name: value for name, value in os.environ.items() if name != "HEADRACE_CACHE"}
    environment |= {"HEADRACE_FAIL": "dev_shm:EACCES", "TMPDIR": str(tmp_path)}
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).sum())"
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, input=data, env=environment, capture_output=True, check=True, timeout=100)
    assert float(printed.stdout) == ROWS.sum()
    assert os.listdir(tmp_path) == []


def test_later_workers_attach_a_removed_object() -> None:
    array = headrace.cache("rows", lambda: ROWS)
    data = dumped(array)
    headrace.cache.rm("rows", force=True)
    headrace.cache("rows", lambda: np.zeros(3))
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        assert pool.apply(np.sum, (array,)) == ROWS.sum()
    pool.join()
    del array
    with pytest.raises(headrace.CacheError, match=r"is not in .* any more"):
        pickle.loads(data)


def mapping_of(path: str) -> dict[str, int]:
    """Returns sizes in kB of the mappings of a file, from /proc/self/smaps."""
    sizes: dict[str, int] = {}
    is_ours = False
    for line in pathlib.Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            is_ours = line.endswith(path)
        elif is_ours and line.split()[-1] == "kB":
            sizes[first] = sizes.get(first, 0) + int(line.split()[1])
    return sizes


def test_reading_makes_no_private_pages() -> None:
    array = headrace.cache("rows", lambda: ROWS)
    assert array.sum() == ROWS.sum()
    sizes = mapping_of(headrace.cache.info("rows").path)
    assert sizes["Rss:"] >= ROWS.nbytes // 1024 and sizes["Anonymous:"] == 0


def test_a_process_maps_an_object_once() -> None:
    arrays = [
        headrace.cache("rows", lambda: ROWS),
        headrace.cache("rows"),
        pickle.loads(dumped(headrace.cache("rows"))),
    ]
    assert len({array.__array_interface__["data"][0] for array in arrays}) == 1
    assert len(headrace.cache.info("rows").claims) == 1
    before = len(os.listdir("/proc/self/fd"))
    del arrays
    assert len(os.listdir("/proc/self/fd")) == before - 2

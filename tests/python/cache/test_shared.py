# SPDX-License-Identifier: Apache-2.0
"""headrace.cache.shared: arrays that several processes write, and locks that outlive their holders."""

from __future__ import annotations

import copy
import gc
import json
import multiprocessing
import os
import pathlib
import pickle
import signal
import sys
import threading
import time
import warnings
from multiprocessing.reduction import ForkingPickler
from typing import Any

import headrace
import numpy as np
import pytest
from cache_scripts import Scripts
from headrace._cache.shared import Shared
from headrace._pickles import rules
from loaders import needs_failpoints

sys.path.append(str(pathlib.Path(__file__).parents[2] / "cli"))
from program import run

pytestmark = pytest.mark.usefixtures("root")

PROCESSES = 4
EACH = 2000
ATTACHES = 100
MOMENT_S = 0.05
PATIENCE_S = 100.0


def in_child(work: Any) -> int:
    """Runs a function in a forked process. Returns its wait status."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def hold_in_child(shared: Shared, **options: Any) -> int:
    """Starts a process that has taken a lock and waits. Returns its pid."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        lock = shared.lock(**options)
        lock.__enter__()
        os.write(write_fd, b"1")
        signal.pause()
        os._exit(1)
    assert os.read(read_fd, 1) == b"1"
    os.close(read_fd)
    os.close(write_fd)
    return pid


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


# ---- making, attaching ----


def test_first_call_makes_and_others_attach() -> None:
    made = headrace.cache.shared("losses", shape=(1000,), dtype="float32", fill=0.5)
    assert made.is_new and made.array.tolist() == [0.5] * 1000
    made.array[7] = 3
    found, same = headrace.cache.shared("losses"), headrace.cache.shared("losses", 1000, np.float32)
    assert repr(found) == "<headrace shared array 'losses', shape (1000,), float32>"
    assert not found.is_new and (found.shape, found.dtype, found.name) == ((1000,), np.float32, "losses")
    assert found.array[7] == same.array[7] == 3
    assert headrace.cache.shared("losses", (2,), "i1", version=2).array.tolist() == [0, 0]


def test_threads_that_attach_at_once_have_one_handle() -> None:
    """A thread would not meet its own lock in a second one."""
    headrace.cache.shared("counts", 3, "i8")
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(ATTACHES):
            barrier, found = threading.Barrier(PROCESSES), []

            def attach() -> None:
                barrier.wait()  # noqa: B023
                found.append(headrace.cache.shared("counts"))  # noqa: B023

            threads = [threading.Thread(target=attach) for _ in range(PROCESSES)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(found) == PROCESSES and len({id(shared._core) for shared in found}) == 1
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "f2", "i8", "f8", "c16"])
def test_each_dtype_has_its_fill(dtype: str) -> None:
    shared = headrace.cache.shared("numbers", (3, 5), dtype, fill=1)
    assert shared.array.flags.writeable and (shared.array == np.ones((3, 5), dtype)).all()
    assert headrace.cache.shared("scalar", (), dtype, fill=1).array[()] == 1


def test_another_shape_or_dtype_is_an_error_with_both() -> None:
    headrace.cache.shared("losses", (10,), "f4")
    for shape, dtype in [((10, 1), "f4"), ((11,), "f4"), ((10,), "f8"), ((), "i4")]:
        with pytest.raises(ValueError, match=r"exists with shape \(10,\) and dtype float32, and shape") as caught:
            headrace.cache.shared("losses", shape, dtype)
        assert f"shape {shape} and dtype {np.dtype(dtype)} were asked for" in str(caught.value)
    with pytest.raises(ValueError, match=r'exists with keep="boot", and keep="disk" was asked for'):
        headrace.cache.shared("losses", (10,), "f4", persist="file")


def test_bad_arguments_are_refused() -> None:
    def refuses(error: type[Exception], text: str, *arguments: Any, **options: Any) -> None:
        with pytest.raises(error, match=text):
            headrace.cache.shared(*arguments, **options)

    refuses(KeyError, "there is no 'none'", "none")
    refuses(TypeError, "give both", "none", (3,))
    refuses(TypeError, "a name is a str", 5, (3,), "f4")
    refuses(ValueError, "has a slash", "a/b", (3,), "f4")
    refuses(ValueError, "the name is empty", "", (3,), "f4")
    refuses(ValueError, "NUL", "a\0b", (3,), "f4")
    refuses(ValueError, "dimension 1 .* is 0", "none", (3, 0), "f4")
    refuses(ValueError, "give sizes of 1 or more", "none", (-3,), "f4")
    refuses(ValueError, "33 dimensions", "none", (1,) * 33, "f4")
    refuses(TypeError, "integer", "none", (2.5,), "f4")
    for shape in ("3", ("3", 2), 2.5, [None]):
        refuses(TypeError, r"cache\.shared: shape is an integer or a tuple of integers, not ", "none", shape, "f4")
    for dtype in ("float3", 5, "i4,,"):
        refuses(TypeError, r"cache\.shared: dtype is .*, which numpy refuses.*; give one such as", "none", (3,), dtype)
    refuses(OSError, "no room", "none", 1 << 40, "f4")
    refuses(ValueError, "larger than any machine", "none", (1 << 40, 1 << 40), "f4")
    for dtype in ("O", "S5", "M8[s]", ">f4", [("x", "f4")], "f16"):
        refuses(ValueError, "is not allowed", "none", (3,), dtype)
    refuses(OverflowError, "does not fit", "none", (3,), "u1", fill=256)
    refuses(TypeError, "without a loss", "none", (3,), "i4", fill=0.5)
    refuses(ValueError, "one value", "none", (3,), "i4", fill=[1, 2])
    refuses(ValueError, "persist", "none", (3,), "i4", persist="disk")
    refuses(ValueError, "persist", "none", (3,), "i4", persist="file", keep="job")
    assert headrace.cache.ls() == []


def test_names_are_not_taken_from_other_data() -> None:
    headrace.cache.shared("counts", 3, "i8").array[:] = 7
    for take in (lambda: headrace.cache("counts", lambda: np.ones(3)), lambda: headrace.cache.put("counts", [1])):
        with pytest.raises(headrace.CacheError, match="is not replaced by other data"):
            take()
    with pytest.raises(headrace.CacheError, match=r"use headrace\.cache\.shared"):
        headrace.cache("counts")
    headrace.cache("rows", lambda: np.ones(3))
    with pytest.raises(ValueError, match="'rows' is not a shared array"):
        headrace.cache.shared("rows", 3, "f8")
    assert headrace.cache.shared("counts").array.tolist() == [7] * 3


def test_damaged_array_is_not_made_again() -> None:
    headrace.cache.shared("counts", 100_000, "i8").array[:] = 7
    gc.collect()
    os.truncate(headrace.cache.info("counts").path, 5000)
    with pytest.raises(headrace.CacheError, match="truncated"):
        headrace.cache.shared("counts", 100_000, "i8")
    for take in (lambda: headrace.cache("counts", lambda: np.ones(3)), lambda: headrace.cache.put("counts", [1])):
        with pytest.raises(headrace.CacheError, match="is not replaced by other data"):
            take()
    headrace.cache.rm("counts")
    assert headrace.cache.shared("counts", 100_000, "i8").is_new


@needs_failpoints
@pytest.mark.parametrize("point", ["made", "committed", "filled"])
def test_killed_maker_is_replaced(scripts: Scripts, point: str) -> None:
    script = 'headrace.cache.shared("counts", 3, "i8", fill=5)'
    scripts.end(scripts.start(script, HEADRACE_STOP=f"shared.{point}:9"), -signal.SIGKILL)
    assert headrace.cache.shared("counts", 3, "i8", fill=5).is_new
    assert headrace.cache.shared("counts").array.tolist() == [5] * 3


# ---- locks ----


def test_increments_of_several_processes_are_exact() -> None:
    shared = headrace.cache.shared("counts", 3, "int64")

    def count() -> None:
        for _ in range(EACH):
            with shared.lock():
                shared.array[0] += 1
            shared.add(1, 1)
            shared.fetch_add([2, 1], [1, 1])

    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=count) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert shared.array.tolist() == [PROCESSES * EACH, 2 * PROCESSES * EACH, PROCESSES * EACH]


def test_increments_of_several_threads_are_exact() -> None:
    shared = headrace.cache.shared("counts", 1, "int64")

    def count() -> None:
        for _ in range(EACH):
            with shared.lock():
                shared.array[0] += 1

    threads = [threading.Thread(target=count) for _ in range(PROCESSES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shared.array[0] == PROCESSES * EACH


def test_next_holder_is_told_of_a_death() -> None:
    shared = headrace.cache.shared("counts", 3, "int64")
    pid = hold_in_child(shared)
    with pytest.raises(TimeoutError), shared.lock(timeout=MOMENT_S):
        pass
    end(pid)
    with pytest.warns(RuntimeWarning, match=f"process {pid} died with a lock of .*'counts'") as caught:
        with shared.lock(timeout=PATIENCE_S) as lock:
            assert lock.recovered and lock.dead == [(pid, True)]
    assert len(caught) == 1 and caught[0].filename == __file__
    with shared.lock() as lock:
        assert not lock.recovered and lock.dead == []


@pytest.mark.parametrize("rows", [None, slice(0, 2)])
def test_warning_as_error_leaves_the_notice(rows: slice | None) -> None:
    """The body that would repair the data does not run, so the next holder has to be told, too."""
    shared = headrace.cache.shared("counts", 3, "int64")
    pid = hold_in_child(shared, rows=rows)
    end(pid)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(RuntimeWarning, match="died with a lock"), shared.lock(rows=rows):
                pytest.fail("the lock was given")
    with pytest.warns(RuntimeWarning), shared.lock(timeout=0, rows=rows) as lock:
        assert lock.recovered and lock.dead == [(pid, True)]
    with shared.lock(timeout=0) as lock:
        assert not lock.recovered


def test_stopped_holder_is_named() -> None:
    shared = headrace.cache.shared("counts", 3, "int64")
    pid = hold_in_child(shared)
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    with pytest.raises(TimeoutError, match=f"process {pid}, which is stopped .state T; SIGSTOP"):
        with shared.lock(timeout=MOMENT_S):
            pass
    end(pid)


def test_rows_exclude_what_touches_them() -> None:
    shared = headrace.cache.shared("counts", (1000, 2), "int64")
    assert shared.stripes == 64
    pid = hold_in_child(shared, rows=slice(0, 100))
    with shared.lock(rows=slice(200, None)) as lock:
        assert not lock.recovered
    for rows in (slice(50, 60), slice(-1000, 1), None):
        with pytest.raises(TimeoutError), shared.lock(MOMENT_S, rows):
            pass
    end(pid)
    with pytest.warns(RuntimeWarning, match="died with a lock"), shared.lock(rows=slice(99, 100)) as lock:
        assert lock.recovered


def test_wrong_use_of_a_lock_is_an_error() -> None:
    shared = headrace.cache.shared("counts", 100, "int64")
    with shared.lock() as lock:
        with pytest.raises(headrace.CacheError, match="this thread has a lock"), shared.lock(timeout=PATIENCE_S):
            pass
        with pytest.raises(headrace.CacheError, match="held already"), lock:
            pass
    with pytest.raises(headrace.CacheError, match="not held"):
        lock.__exit__()
    for rows in (slice(3, 3), slice(0, 9, 2), slice(200, 300)):
        with pytest.raises(ValueError, match="give one or more rows"):
            shared.lock(rows=rows)
    with pytest.raises(TypeError, match="are a slice"):
        shared.lock(rows=3)  # type: ignore[arg-type]
    for timeout in (-1, float("nan")):
        with pytest.raises(ValueError, match="0 or more seconds"):
            shared.lock(timeout=timeout)
    with pytest.raises(TypeError, match="timeout of a lock is 'x'; give 0 or more seconds, or None"):
        shared.lock(timeout="x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="once each"):
        shared.lock(row=slice(0, 3))  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="once each"):
        shared.lock(5, timeout=3)  # type: ignore[misc]


def test_signal_handlers_run_while_a_lock_is_awaited() -> None:
    shared = headrace.cache.shared("counts", 3, "int64")
    pid = hold_in_child(shared)

    def raise_interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, raise_interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, MOMENT_S)
        with pytest.raises(KeyboardInterrupt), shared.lock(timeout=PATIENCE_S):
            pass
    finally:
        signal.signal(signal.SIGALRM, before)
        end(pid)
    with pytest.warns(RuntimeWarning), shared.lock(timeout=PATIENCE_S):
        pass


def test_forked_child_does_not_end_its_parents_lock() -> None:
    shared = headrace.cache.shared("counts", 3, "int64")
    lock = shared.lock()

    def leave() -> None:
        with pytest.raises(headrace.CacheError, match="in front of the fork"):
            lock.__exit__()
        with pytest.raises(TimeoutError), shared.lock(timeout=MOMENT_S):
            pass

    with lock:
        assert in_child(leave) == 0
    with shared.lock(timeout=0) as again:
        assert not again.recovered


def test_inherited_lock_does_not_end_the_childs_own() -> None:
    shared = headrace.cache.shared("counts", 3, "int64")
    inherited = [shared.lock()]

    def use() -> None:
        with shared.lock(timeout=PATIENCE_S):
            with pytest.raises(headrace.CacheError, match="in front of the fork"):
                inherited[0].__exit__()
            assert in_child(lambda: refuse_all(shared)) == 0

    def use_and_free() -> None:
        with shared.lock(timeout=PATIENCE_S):
            inherited.clear()  # as at the end of the frame that has it
            assert in_child(lambda: refuse_all(shared)) == 0

    for work in (use, use_and_free):
        read_fd, write_fd = os.pipe()
        inherited[0].__enter__()
        pid = os.fork()
        if pid == 0:
            os.read(read_fd, 1)
            os._exit(in_child(work) != 0)
        inherited[0].__exit__()
        os.write(write_fd, b"1")
        os.close(read_fd)
        os.close(write_fd)
        assert os.waitpid(pid, 0)[1] == 0


def refuse_all(shared: Shared) -> None:
    with pytest.raises(TimeoutError), shared.lock(timeout=MOMENT_S):
        pass


# ---- elements ----


@pytest.mark.parametrize("dtype", ["i4", "i8", "f4", "f8"])
def test_elements_change_as_with_numpy(dtype: str) -> None:
    random = np.random.default_rng(0)
    shared, expected = headrace.cache.shared("numbers", (7, 3), dtype), np.zeros((7, 3), dtype)
    for _ in range(20):
        index = random.integers(-7, 7, 30), random.integers(-3, 3, 30)
        values = random.integers(-50, 50, 30).astype(dtype)
        shared.add(index, values)
        np.add.at(expected, index, values)
        shared.maximum(index, values[:1])
        np.maximum.at(expected, index, values[0])
        assert (shared.fetch_add(([1, 1], 2), 3) == [expected[1, 2], expected[1, 2] + 3]).all()
        expected[1, 2] += 6
        assert (shared.array == expected).all()
    mask = expected > 0
    shared.add(mask, -1)
    assert (shared.array == expected - mask).all()


def test_indices_of_one_dimension_are_as_with_numpy() -> None:
    shared = headrace.cache.shared("numbers", 10, "f8")
    slices, arrays = [slice(2, 9, 3), slice(None, None, -1)], [np.array([], int), np.arange(10) > 7]
    for index in (3, -1, np.int32(4), [1, -2], *slices, *arrays):
        before, expected = shared.array.copy(), shared.array.copy()
        np.add.at(expected, index, 1.5)
        found = shared.fetch_add(index, 1.5)
        assert type(found) is type(before[index]) and np.array_equal(found, before[index])
        assert (shared.array == expected).all()
    assert type(headrace.cache.shared("one", (), "f8").fetch_add((), 1)) is np.float64
    assert type(headrace.cache.shared("rows", (2, 3), "f8").fetch_add((-1, 2), 1)) is np.float64


EMPTY = {
    (6,): (
        [],
        [[]],
        range(0),
        np.zeros(0, np.int64),
        np.zeros(0, np.uint8),
        slice(0, 0),
        np.zeros(6, bool),
        [False] * 6,
    ),
    (6, 3): (([], []), ([], 0), (0, []), np.zeros((6, 3), bool), [[False] * 3] * 6),
}


@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize("shape", EMPTY)
def test_empty_choice_changes_nothing(shape: tuple[int, ...], dtype: str) -> None:
    array = headrace.cache.shared(f"empty-{len(shape)}-{dtype}", shape, dtype)
    array.array[...] = before = np.arange(array.array.size).reshape(shape).astype(dtype)
    for index in EMPTY[shape]:
        for values in (1, [], np.zeros(0, dtype)):
            array.add(index, values)
            array.maximum(index, values)
            found = array.fetch_add(index, values)
            assert found.dtype == dtype and found.shape == before[index].shape and found.size == 0
            assert np.array_equal(array.array, before)
    with pytest.raises(TypeError, match="an int or an array of ints"):
        array.add((np.zeros(0),) * len(shape), 1)


def test_bad_elements_change_nothing() -> None:
    shared = headrace.cache.shared("numbers", (2, 3), "i4")
    for index in ((2, 0), (0, -4), ([0, 5], 0), 1, (1, 1, 1), slice(0, 1)):
        with pytest.raises(IndexError):
            shared.add(index, 1)
    for index in ((0.5, 1), ("a", 0), (None, 0), (True, 0)):
        with pytest.raises(TypeError):
            shared.add(index, 1)
    with pytest.raises(TypeError, match="without a loss"):
        shared.add((0, 0), 0.5)
    with pytest.raises(OverflowError):
        shared.maximum((0, 0), 1 << 31)
    with pytest.raises(ValueError, match="broadcast"):
        shared.add(([0, 1], 0), [1, 2, 3])
    assert not shared.array.any()
    with pytest.raises(TypeError, match="cannot be changed without a lock"):
        headrace.cache.shared("bytes", 3, "u1").add(0, 1)


@pytest.mark.parametrize("dtype", ["i4", "i8"])
def test_single_integers_are_stored_as_they_are(dtype: str) -> None:
    shared, limits = headrace.cache.shared("numbers", 2, dtype), np.iinfo(dtype)
    for value in (0, 1, -1, limits.max, limits.min, True, np.int8(-3)):
        shared.array[0] = 0
        assert shared.fetch_add(0, value) == 0 and shared.array.tolist() == [int(value), 0]
    for value in (limits.max + 1, limits.min - 1, 1 << 100):
        with pytest.raises((OverflowError, TypeError)):
            shared.add(0, value)
    assert shared.array.tolist() == [-3, 0]


def test_numbers_too_large_for_the_dtype_are_refused() -> None:
    shared = headrace.cache.shared("numbers", 3, "f4")
    for values in (1e300, -(10**60), 10**400, np.float64(1e300), [1, 2, 1e300]):
        with pytest.raises(OverflowError, match=r"does not fit into float32|too large"):
            shared.add([0, 1, 2], values)
    with pytest.raises(OverflowError, match="into float16"):
        headrace.cache.shared("small", 3, "f2", fill=70000)
    shared.add([0, 1, 2], [np.inf, -np.inf, 3e38])
    shared.add(2, 3e38)  # a sum, as with numpy
    assert shared.array.tolist() == [np.inf, -np.inf, np.inf]
    assert headrace.cache.shared("nan", 1, "f4", fill=float("nan")).array[0] != 0


# ---- other processes ----


def write(shared: Shared, row: Any, frozen: Any) -> None:
    with shared.lock(timeout=PATIENCE_S):
        shared.array[0, 0] = 1
    row[1] = 2
    shared.fetch_add((2, 0), 3)
    assert not frozen.flags.writeable and frozen[0, 1] == 5


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_other_processes_write_the_same_memory(method: str) -> None:
    shared = headrace.cache.shared("numbers", (3, 2), "int64")
    shared.array[0, 1] = 5
    frozen = shared.array[:]
    frozen.flags.writeable = False
    context: Any = multiprocessing.get_context(method)
    process = context.Process(target=write, args=(shared, shared.array[1], frozen))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert shared.array.tolist() == [[1, 5], [0, 2], [3, 0]]


def test_handles_are_small_and_of_the_same_memory() -> None:
    shared = headrace.cache.shared("numbers", (1000, 20), "f8")
    for part in (shared.array, shared.array[5:7, ::2], shared.array.T[::-1], shared.array.view("i8")):
        data = bytes(ForkingPickler.dumps(part))
        loaded = pickle.loads(data)
        assert len(data) < 1000 and np.shares_memory(loaded, part) and loaded.strides == part.strides
    for one in (pickle.loads(pickle.dumps(shared)), copy.deepcopy(shared)):
        assert np.shares_memory(one.array, shared.array)
    assert not np.shares_memory(pickle.loads(ForkingPickler.dumps(shared.array.copy())), shared.array)


def test_tensors_stay_shared_when_they_are_sent() -> None:
    """torch's own reducer would move the sender's tensor to other memory."""
    torch = pytest.importorskip("torch")
    shared = headrace.cache.shared("numbers", (4, 2), "float32")
    tensor = shared.tensor
    tensor[1] = 7
    loaded = pickle.loads(ForkingPickler.dumps(tensor[1:]))
    loaded[1, 1] = 8
    tensor[3, 0] = 9
    assert shared.array.tolist() == [[0, 0], [7, 7], [0, 8], [9, 0]] and torch.equal(loaded, tensor[1:])
    other = torch.ones(3)
    assert torch.equal(pickle.loads(ForkingPickler.dumps(other)), other)
    for changed in (tensor.view(torch.bfloat16), tensor.detach().requires_grad_()):
        with pytest.raises(pickle.PicklingError, match="send the shared array"):
            ForkingPickler.dumps(changed)
    tensor[0, 0] = 5
    assert shared.array[0, 0] == 5


TENSORS = """
    import pickle
    from multiprocessing.reduction import ForkingPickler
    array = headrace.cache.shared("numbers", (4,), "float32").array
    import torch
    other = torch.nn.Parameter(torch.ones(3))
    assert torch.equal(pickle.loads(ForkingPickler.dumps(other)), other)
    tensor = torch.as_tensor(array)
    for sent in (tensor, torch.nn.Parameter(tensor, requires_grad=False)):
        loaded = pickle.loads(ForkingPickler.dumps(sent))
        assert type(loaded) is type(sent) and loaded.requires_grad == sent.requires_grad
        sent[0] += 1
        loaded[0] += 1
    assert array[0] == 4, array
    for storage in (torch.nn.Parameter(tensor), tensor.untyped_storage(), tensor.storage()):
        try:
            ForkingPickler.dumps(storage)
        except pickle.PicklingError as error:
            assert "send the shared array" in str(error)
        else:
            raise AssertionError(storage)
    tensor[1] = 7
    assert array[1] == 7
"""


@pytest.mark.cold("torch must not be imported yet when the array is made")
def test_tensors_of_a_torch_imported_later_stay_shared(scripts: Scripts) -> None:
    pytest.importorskip("torch")
    scripts.end(scripts.start(TENSORS))


def write_tensor(tensor: Any, parameter: Any) -> None:
    tensor[0], parameter[1] = 42, 43


def test_tensors_made_by_torch_stay_shared() -> None:
    """torch.as_tensor(s.array) instead of s.tensor."""
    torch = pytest.importorskip("torch")
    shared = headrace.cache.shared("numbers", (4,), "float32")
    tensor = torch.as_tensor(shared.array)
    parameter = torch.nn.Parameter(tensor, requires_grad=False)
    process = multiprocessing.get_context("spawn").Process(target=write_tensor, args=(tensor, parameter))
    process.start()
    process.join()
    tensor[2], parameter[3] = 44, 45
    assert process.exitcode == 0 and shared.array.tolist() == [42, 43, 44, 45]


def test_doctor_moves_no_tensors_when_there_are_arrays() -> None:
    """Its dry run has rules of its own instead of torch's reducers, which move what they are given."""
    torch = pytest.importorskip("torch")
    assert headrace.cache.shared("numbers", (4,), "float32").tensor.sum() == 0
    called = rules.Table(rules.Weights()).theirs
    assert not called & {torch.Tensor, torch.nn.Parameter, torch.UntypedStorage}


class Held:
    """A dataset with a large list in which there is an array that is written."""

    def __init__(self, array: Any) -> None:
        self.records: Any = [f"record {i}" for i in range(50_000)]
        self.more: Any = [*self.records, {"losses": array}]


def test_freezing_a_dataset_leaves_written_arrays() -> None:
    shared = headrace.cache.shared("losses", 10, "f4")
    dataset = Held(shared.array)
    report = headrace.freeze_attributes(dataset)
    assert type(dataset.records) is not list and [path for path, _ in report.skipped] == ["dataset.more"]
    assert "would not see what is written" in report.skipped[0][1]
    shared.array[3] = 1
    assert dataset.more[-1]["losses"][3] == 1


class Losses:
    """A dataset whose workers note which samples they have made."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared

    def __len__(self) -> int:
        return len(self.shared.array)

    def __getitem__(self, index: int) -> Any:
        self.shared.add(index, index)
        return np.float32(index)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_write_what_the_trainer_reads(method: str) -> None:
    shared = headrace.cache.shared("losses", 40, "float32")
    loader = headrace.Loader(Losses(shared), batch_size=4, num_workers=2, multiprocessing_context=method)
    for _ in range(2):
        for _ in loader:
            pass
    assert shared.array.tolist() == [2.0 * i for i in range(40)]


# ---- what is there ----


def test_cache_commands_know_arrays() -> None:
    shared = headrace.cache.shared("losses", (10, 3), "float32")
    shared.array[:] = 4
    pid = hold_in_child(headrace.cache.shared("losses"))
    assert [(entry.name, entry.format) for entry in headrace.cache.ls()] == [("losses", "shared")]
    headrace.cache.verify("losses")
    listed, info = run("cache", "ls").stdout, run("cache", "info", "losses").stdout
    assert listed.splitlines()[1].split()[:3] == ["losses", "0", "shared"]
    assert "  written by 1 process\n  array      dtype <f4, shape (10, 3)\n" in info
    assert json.loads(run("cache", "info", "losses", "--json").stdout)["format"] == "shared"
    headrace.cache.gc(older=0, quota=0)
    assert run("cache", "rm", "losses").returncode == 1
    assert headrace.cache.shared("losses").array[9, 2] == 4
    end(pid)
    del shared
    gc.collect()
    assert run("cache", "rm", "losses").returncode == 0
    assert headrace.cache.ls() == []


def test_closed_descriptors_do_not_end_a_claim(scripts: Scripts) -> None:
    process = scripts.start(
        """
        shared = headrace.cache.shared("losses", 3, "i8")
        os.closerange(3, 256)
        note("closed")
        await_("removed")
        shared.array[0] = 99
        """
    )
    scripts.await_("closed")
    assert run("cache", "rm", "losses").returncode == 1
    headrace.cache.gc(older=0, quota=0)
    shared = headrace.cache.shared("losses")
    scripts.note("removed")
    scripts.end(process)
    assert shared.array[0] == 99


@needs_failpoints
def test_array_of_a_job_is_not_split_at_its_end(scripts: Scripts) -> None:
    """The last process that has it ends while another one finds out whether any has it."""
    script = 'shared = headrace.cache.shared("losses", 3, "i8", keep="job")'
    last = scripts.start(f'{script}; note("made"); await_("end")')
    scripts.await_("made")
    one = scripts.start(f'{script}; note("one"); await_("written"); assert shared.array[0] == 5', HEADRACE_STOP=STOP)
    await_state(one.pid, "T")
    scripts.note("end")
    scripts.end(last)
    os.kill(one.pid, signal.SIGCONT)
    scripts.await_("one")
    headrace.cache.shared("losses", 3, "i8", keep="job").array[0] = 5
    scripts.note("written")
    scripts.end(one)


STOP = f"cache.reclaiming:{int(signal.SIGSTOP)}"


def await_state(pid: int, state: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != state:
        assert time.monotonic() < deadline
        time.sleep(MOMENT_S / 10)


def test_processes_that_write_are_counted(scripts: Scripts) -> None:
    shared = headrace.cache.shared("losses", 10, "float32")
    script = """
        shared = headrace.cache.shared("losses")
        shared.add(0, 1)
        note(f"on-{os.getpid()}")
        await_("end")
    """
    started = [scripts.start(script) for _ in range(2)]
    for process in started:
        scripts.await_(f"on-{process.pid}")
    assert "written by 3 processes" in run("cache", "info", "losses").stdout
    scripts.note("end")
    for process in started:
        scripts.end(process)
    assert shared.array[0] == 2


def test_array_of_a_job_ends_with_it(scripts: Scripts) -> None:
    scripts.end(scripts.start('headrace.cache.shared("losses", 3, "f4", keep="job").array[:] = 1'))
    assert headrace.cache.ls() == []
    scripts.end(scripts.start('headrace.cache.shared("losses", 3, "f4").array[:] = 1'))
    assert headrace.cache.shared("losses").array.tolist() == [1] * 3


def test_array_on_disk_is_flushed(tmp_path: pathlib.Path, scripts: Scripts) -> None:
    root = tmp_path / "cache"
    shared = headrace.cache.shared("losses", 1000, "f4", fill=2, persist="file", root=root)
    info = headrace.cache.info("losses", root=root)
    shared.array[5] = 7
    shared.flush()
    assert info.keep == "disk"
    assert np.frombuffer(pathlib.Path(info.path).read_bytes()[-4000:], "f4")[4:7].tolist() == [2, 7, 2]
    script = f's = headrace.cache.shared("losses", 1000, "f4", persist="file", root={str(root)!r})'
    scripts.end(scripts.start(f"{script}; s.array[6] = s.array[5] + 1"))
    assert shared.array[6] == 8


@needs_failpoints
def test_flush_that_fails_is_an_error(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = headrace.cache.shared("losses", 10, "f4", persist="file", root=tmp_path / "cache")
    monkeypatch.setenv("HEADRACE_FAIL", "msync:EIO")
    with pytest.raises(OSError, match="to the disk"):
        shared.flush()


def test_cache_works_without_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_DISABLE", "1")
    assert headrace.cache.shared("counts", 3, "i8").array.tolist() == [0, 0, 0]

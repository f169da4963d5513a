# SPDX-License-Identifier: Apache-2.0
"""headrace.Loader: the engine without torch."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import random
import re
import subprocess
import sys
import traceback
import types
from collections import namedtuple
from typing import Any

import headrace
import numpy as np
import pytest

METHODS = ["fork", "spawn", "forkserver"]
Pair = namedtuple("Pair", "x y")


class Squares:
    """A sample has one of each kind that the default collate knows."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, i: int) -> dict[str, Any]:
        if not 0 <= i < len(self):
            raise IndexError(i)
        return {
            "array": np.full((3, 2), i * i, dtype=np.float32),
            "int": i,
            "float": i / 2,
            "bool": i % 2 == 0,
            "scalar": np.int16(i),
            "text": str(i),
            "bytes": bytes([i]),
            "pair": Pair(np.arange(i, i + 2), i),
            "list": [i, np.float64(i)],
        }


class Numbers:
    """An iterable dataset that the workers share out."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Any:
        info = headrace.get_worker_info()
        number, step = (0, 1) if info is None else (info.id, info.num_workers)
        yield from range(number, self.count, step)


class Random:
    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> tuple[float, float]:
        return random.random(), float(np.random.random())


class Raises:
    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> int:
        if i == 3:
            raise KeyError("no sample three")
        return i


class Large:
    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> Any:
        return np.full((512, 512), i, dtype=np.uint8), i


def assert_equal(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, np.ndarray):
        assert a.dtype == b.dtype and a.shape == b.shape and a.strides == b.strides
        np.testing.assert_array_equal(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_equal(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_equal(x, y)
    else:
        assert a == b


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("workers", [1, 2])
def test_batches_are_those_of_a_loader_without_workers(method: str, workers: int) -> None:
    here = list(headrace.Loader(Squares(), batch_size=4))
    there = list(headrace.Loader(Squares(), batch_size=4, num_workers=workers, multiprocessing_context=method))
    assert_equal(there, here)
    assert here[0]["array"].shape == (4, 3, 2) and here[-1]["int"].tolist() == [20, 21, 22]


def test_shuffling_follows_seed_and_epoch_and_not_the_workers() -> None:
    def order(workers: int, epoch: int) -> list[int]:
        loader = headrace.Loader(Squares(), 4, True, num_workers=workers, seed=7)
        loader.set_epoch(epoch)
        return [i for batch in loader for i in batch["int"].tolist()]

    assert order(0, 0) == order(2, 0) != order(2, 1) == order(1, 1)
    assert sorted(order(2, 0)) == list(range(23))


def test_an_epoch_counts_itself() -> None:
    loader = headrace.Loader(Squares(), 4, True, num_workers=1, seed=7, persistent_workers=True)
    first, second = ([b["int"].tolist() for b in loader] for _ in range(2))
    loader.set_epoch(0)
    assert [b["int"].tolist() for b in loader] == first != second


class Shifted:
    def __init__(self, by: int) -> None:
        self.by = by

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index + self.by


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_of_a_replaced_dataset_are_cached(workers: int) -> None:
    loader = headrace.Loader(Shifted(0), 2, num_workers=workers, cache="8M", multiprocessing_context="fork")
    assert [list(batch) for batch in loader] == [[0, 1], [2, 3]]
    loader.dataset = Shifted(10)
    assert [list(batch) for batch in loader] == [[10, 11], [12, 13]]


def test_replaced_dataset_reaches_workers_that_persist() -> None:
    def loaded() -> Any:
        return [list(batch) for batch in loader], {worker["pid"] for worker in loader.report()["per_worker"]}

    loader = headrace.Loader(range(4), 2, num_workers=1, persistent_workers=True, multiprocessing_context="fork")
    pids = loaded()[1]
    assert loaded() == ([[0, 1], [2, 3]], pids)
    loader.dataset = range(10, 14)
    assert loaded()[0] == [[10, 11], [12, 13]]
    loader.collate_fn = sorted
    assert loaded()[0] == [[10, 11], [12, 13]]
    loader.collate_fn = lambda batch: [-sum(batch)]
    loader.num_workers = 2
    batches, pids = loaded()
    assert batches == [[-21], [-25]] and len(pids) == 2


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_iterable_dataset_is_delivered_once(workers: int) -> None:
    batches = list(headrace.Loader(Numbers(17), batch_size=2, num_workers=workers))
    assert sorted(int(i) for batch in batches for i in batch) == list(range(17))


@pytest.mark.parametrize("in_order", [True, False])
def test_every_sample_comes_in_and_out_of_order(in_order: bool) -> None:
    loader = headrace.Loader(Squares(), batch_size=3, num_workers=2, in_order=in_order)
    assert sorted(int(i) for batch in loader for i in batch["int"]) == list(range(23))


def test_workers_random_numbers_follow_the_seed() -> None:
    def draw(seed: int) -> list[float]:
        loader = headrace.Loader(Random(), batch_size=2, num_workers=2, seed=seed, multiprocessing_context="spawn")
        return [x for a, b in loader for x in [*a.tolist(), *b.tolist()]]

    assert draw(1) == draw(1) != draw(2)
    assert len(set(draw(1))) == 16


def test_a_seed_that_was_drawn_is_shown_and_repeats_the_epoch() -> None:
    drawn = headrace.Loader(Squares(), batch_size=4, shuffle=True, num_workers=1)
    first = [batch["int"].tolist() for batch in drawn]
    seed = drawn.report()["seed"]
    assert seed == drawn.seed
    again = headrace.Loader(Squares(), batch_size=4, shuffle=True, num_workers=1, seed=seed)
    assert [batch["int"].tolist() for batch in again] == first


def test_exception_arrives_with_traceback_and_the_loop_goes_on() -> None:
    """The exception has its type and the worker's traceback."""
    iterator = iter(headrace.Loader(Raises(), batch_size=2, num_workers=2))
    assert next(iterator).tolist() == [0, 1]
    with pytest.raises(KeyError, match="no sample three"):
        next(iterator)
    assert next(iterator).tolist() == [4, 5]
    with pytest.raises(StopIteration):
        next(iterator)


def test_large_arrays_are_views_that_outlive_the_loader() -> None:
    loader = headrace.Loader(Large(), batch_size=2, num_workers=2)
    iterator = iter(loader)
    kept = list(iterator)
    assert iterator.report()["batches"] == 6  # type: ignore[attr-defined]
    del iterator, loader
    for number, (images, labels) in enumerate(kept):
        assert not images.flags.owndata and images.flags.writeable
        assert labels.tolist() == [2 * number, 2 * number + 1]
        np.testing.assert_array_equal(images[1], 2 * number + 1)
        images += 1
    assert int(kept[0][0][0, 0, 0]) == 1


def test_a_batch_crosses_dlpack() -> None:
    images, _ = next(iter(headrace.Loader(Large(), batch_size=2, num_workers=1)))
    np.testing.assert_array_equal(np.from_dlpack(images), images)


def test_an_object_that_is_no_array_is_pickled() -> None:
    loader = headrace.Loader(Squares(), 4, num_workers=1, collate_fn=_as_set)
    assert next(iter(loader)) == ({0, 1, 2, 3}, np.datetime64("2026-01-01"))


def _as_set(samples: list[Any]) -> Any:
    return {sample["int"] for sample in samples}, np.datetime64("2026-01-01")


def _init(worker: int) -> None:
    raise OSError(f"worker {worker} has no disk")


def test_an_exception_of_worker_init_fn_is_the_first_batchs() -> None:
    with pytest.raises(OSError, match="worker 0 has no disk"):
        next(iter(headrace.Loader(Squares(), num_workers=1, worker_init_fn=_init)))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"num_workers": -1}, ValueError, "num_workers"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"prefetch_factor": 0}, ValueError, "prefetch_factor"),
        ({"multiprocessing_context": "thread"}, ValueError, "multiprocessing_context"),
        ({"shuffle": True, "sampler": [1]}, ValueError, "give sampler or shuffle=True, not both"),
        ({"batch_sampler": [[1]], "batch_size": 2}, ValueError, "batch_sampler"),
        ({"arena_limit": 0}, ValueError, "arena_limit"),
        ({"arena_limit": 1}, ValueError, "arena_limit"),
        ({"arena_limit": "2G"}, TypeError, "arena_limit"),
        ({"num_workers": "2"}, TypeError, "num_workers should be an int"),
        ({"num_workers": 2.5}, TypeError, "num_workers should be an int"),
        ({"num_workers": None}, TypeError, "num_workers should be an int"),
        ({"batch_size": 2.5}, TypeError, "batch_size should be an int"),
        ({"batch_size": "3"}, TypeError, "batch_size should be an int"),
        ({"prefetch_factor": 2.5}, TypeError, "prefetch_factor should be an int"),
        ({"timeout": "5"}, TypeError, "timeout should be a number"),
        ({"timeout": -1}, ValueError, "timeout should be at least 0"),
        ({"timeout": float("nan")}, ValueError, "timeout should be at least 0"),
        ({"collate_fn": 5}, TypeError, "collate_fn should be callable"),
        ({"worker_init_fn": 5}, TypeError, "worker_init_fn should be callable"),
        ({"multiprocessing_context": 5}, ValueError, "multiprocessing_context"),
        ({"sampler": 3}, TypeError, "^sampler should be an iterable"),
        ({"batch_sampler": 3}, TypeError, "^batch_sampler should be an iterable"),
        ({"batch_sampler": [[1]], "drop_last": True}, ValueError, "give batch_sampler, or .*drop_last"),
        ({"batch_size": None, "drop_last": True}, ValueError, "drop_last needs batches, but batch_size=None"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        headrace.Loader(Squares(), **options)


def test_object_that_is_no_dataset_is_refused() -> None:
    with pytest.raises(TypeError, match="__getitem__ or __iter__, but int has neither"):
        headrace.Loader(5)


@pytest.mark.parametrize("number", [np.int32(2), np.uint8(2)])
def test_counts_may_be_numpys(number: Any) -> None:
    assert len(list(headrace.Loader(range(6), number, num_workers=number, prefetch_factor=number))) == 3


@pytest.mark.parametrize(("epoch", "error"), [(-1, ValueError), ("1", TypeError), (1.5, TypeError)])
def test_invalid_epoch_is_refused(epoch: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="epoch should"):
        headrace.Loader(range(6)).set_epoch(epoch)


class Stops(Raises):
    def __getitem__(self, i: int) -> int:
        if i == 3:
            raise StopIteration("no more")
        return i


@pytest.mark.parametrize("workers", [0, 1])
def test_stop_iteration_of_dataset_does_not_end_loop_silently(workers: int) -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(headrace.Loader(Stops(), num_workers=workers))


def test_a_key_error_shows_the_workers_traceback_in_lines() -> None:
    with pytest.raises(KeyError) as caught:
        list(headrace.Loader(Raises(), num_workers=1))
    assert "\nOriginal Traceback (most recent call last):\n" in str(caught.value)


class Dates:
    """numpy's scalars that are no numbers."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Any:
        return np.datetime64("2020-01-02") + i, np.timedelta64(i, "s"), np.bytes_(b"%d" % i), np.str_(i), np.void(b"ab")


def test_non_numeric_scalars_are_stacked_with_their_type() -> None:
    here, there = (list(headrace.Loader(Dates(), 2, num_workers=workers)) for workers in (0, 1))
    assert_equal(there, here)
    assert there[0][0].dtype == "M8[D]" and there[0][2].dtype == "S1"


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "samples, error, text",
    [
        ([1, "cat"], TypeError, r"sample 1 of the batch has builtins\.str, but other samples have numbers"),
        ([1.5, 2, None], TypeError, r"sample 2 of the batch has builtins\.NoneType"),
        ([True, b"x"], TypeError, r"sample 1 of the batch has builtins\.bytes"),
        ([{"y": 1}, {"y": "1"}], TypeError, r"sample 1 of the batch has builtins\.str"),
        ([7, 2**63 + 12345, 12], OverflowError, r"sample 1 of the batch has 9223372036854788153.*numpy\.uint64"),
        ([2**63], OverflowError, r"sample 0 of the batch has 9223372036854775808"),
        ([1, 2**70], OverflowError, r"sample 1 of the batch has 1180591620717411303424.*int64; give the loader a"),
        ([1.0, -(2**64)], OverflowError, r"sample 1 of the batch has -18446744073709551616.*int64; give the loader a"),
        ([1, 10**5000], OverflowError, r"sample 1 of the batch has an int of 16610 bits"),
    ],
)
def test_samples_that_make_no_numeric_batch_are_named(
    samples: list[Any], error: type[Exception], text: str, workers: int
) -> None:
    with pytest.raises(error, match=text):
        next(iter(headrace.Loader(samples, len(samples), num_workers=workers, multiprocessing_context="fork")))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "samples, error, text",
    [
        ([np.zeros(1), np.zeros(2)], ValueError, r"sample 0 of the batch has shape \(1,\), and sample 1 has \(2,\)"),
        (
            [{"x": [np.zeros(2), np.zeros(3)]}, {"x": [np.zeros(2), np.zeros((3, 1))]}],
            ValueError,
            r"has shape \(3,\) in its entry \['x'\]\[1\], and sample 1 has \(3, 1\); return the same shape",
        ),
        (
            [{"a": {"b": 1}}, {"a": {}}],
            KeyError,
            r"has the key 'b' in its entry \['a'\], and sample 1 does not have it",
        ),
        ([(1, [2]), (1, [2, 3])], ValueError, r"has 1 entries in its entry \[1\], and sample 1 has 2"),
    ],
)
def test_samples_that_differ_are_named_with_the_field(
    samples: list[Any], error: type[Exception], text: str, workers: int
) -> None:
    with pytest.raises(error) as caught:
        next(iter(headrace.Loader(samples, len(samples), num_workers=workers, multiprocessing_context="fork")))
    assert re.search(text, "".join(traceback.format_exception(caught.value)))


class Masked:
    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> Any:
        whole, part = np.ma.array([1.0, 2.0]), np.ma.array([1.0, -999.0], mask=[0, 1], fill_value=-999.0)
        return part, {"x": part if i else whole, "y": part if i else np.zeros(2)}, np.ma.masked


@pytest.mark.parametrize("workers", [0, 1])
def test_masked_arrays_keep_their_masks(workers: int) -> None:
    (batch,) = headrace.Loader(Masked(), 2, num_workers=workers)
    part, fields, constant = batch
    assert part.mask.tolist() == [[False, True]] * 2 and part.fill_value == -999
    assert fields["x"].mask.tolist() == fields["y"].mask.tolist() == [[False, False], [False, True]]
    assert constant.mask.tolist() == [True, True]


def test_matrices_are_stacked_along_a_new_dimension() -> None:
    batch = headrace.default_collate([np.matrix([[1, 2]])] * 3)
    assert type(batch) is np.ndarray and batch.shape == (3, 1, 2)


@pytest.mark.parametrize("workers", [0, 1])
def test_batch_without_samples_says_what_to_do(workers: int) -> None:
    loader = headrace.Loader(range(4), batch_sampler=[[0, 1], []], num_workers=workers)
    with pytest.raises(ValueError, match="a batch_sampler must not give empty lists of indices"):
        list(loader)


@pytest.mark.parametrize(
    "sampler, argument",
    [
        (lambda: headrace.Order(4), "sampler"),
        (lambda: headrace.Mixture({"a": range(4)}, {"a": 1.0}), "sampler"),
        (lambda: headrace.Plan([1, 2, 3], max_sum=3), "batch_sampler"),
    ],
)
def test_sampler_that_is_given_as_dataset_is_refused(sampler: Any, argument: str) -> None:
    with pytest.raises(TypeError, match=rf"which gives indices; give Loader\(dataset, {argument}=...\)"):
        headrace.Loader(sampler())


def test_numbers_of_several_types_are_of_their_common_dtype() -> None:
    assert headrace.default_collate([1, 2.5]).tolist() == [1.0, 2.5]
    assert headrace.default_collate([True, 2]).dtype == "i8"
    assert headrace.default_collate([1, np.float32(2), np.array(3)]).tolist() == [1, 2, 3]
    assert headrace.default_collate([1.0, 2j]).dtype == "c16"
    assert headrace.default_collate([-(2**63), 2**63 - 1]).dtype == "i8"


class Labelled:
    """Strings in the columns of tuples, lists and named tuples."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Any:
        return i, str(i), [str(i), bytes([i])], Pair(str(i), (str(i), {"name": str(i)}))


def test_strings_stay_a_list_wherever_they_stand() -> None:
    here, there = (list(headrace.Loader(Labelled(), 2, num_workers=workers)) for workers in (0, 1))
    assert_equal(there, here)
    assert there[0][1] == ["0", "1"]


def test_limit_changes_between_loops_unless_persistent() -> None:
    """arena_limit can be set between two loops, but not with persistent workers."""
    loader = headrace.Loader(Squares(), num_workers=1, multiprocessing_context="fork", persistent_workers=True)
    loader.arena_limit = 8 << 20
    iterator = iter(loader)
    with pytest.raises(ValueError, match="persistent"):
        loader.arena_limit = 16 << 20
    assert iterator.report()["limit_bytes"] == 8 << 20


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions take no notes before Python 3.11")
def test_an_argument_that_cannot_be_pickled_is_named() -> None:
    loader = headrace.Loader(Squares(), num_workers=1, multiprocessing_context="spawn", collate_fn=lambda batch: batch)
    with pytest.raises(Exception, match="lambda") as caught:
        iter(loader)
    assert any("collate_fn cannot be sent" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_of_a_loader_keeps_its_limit(how: Any) -> None:
    loader = headrace.Loader(Squares(), num_workers=1, arena_limit=8 << 20)
    assert how(loader).arena_limit == 8 << 20 and type(how(loader)) is headrace.Loader


def test_a_loader_pickles() -> None:
    loader = headrace.Loader(Squares(), 4, num_workers=1, multiprocessing_context="spawn", persistent_workers=True)
    first = next(iter(loader))["int"].tolist()
    assert next(iter(pickle.loads(pickle.dumps(loader))))["int"].tolist() == first


def test_loader_does_not_import_torch() -> None:
    script = (
        "import sys, headrace\n"
        "class D:\n"
        "    def __len__(self): return 4\n"
        "    def __getitem__(self, i): return i\n"
        "if __name__ == '__main__':\n"
        "    print([b.tolist() for b in headrace.Loader(D(), 2, num_workers=1, multiprocessing_context='fork')])\n"
        "    print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[[0, 1], [2, 3]]\nFalse\n"


def test_a_kept_batch_is_read_by_a_process_that_forks_later() -> None:
    iterator = iter(headrace.Loader(Large(), batch_size=1, num_workers=1))
    images, _ = next(iterator)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)
        os.read(read, 1)  # until the parent has gone on
        os._exit(0 if (images == 0).all() else 1)
    os.close(read)
    del images
    rest = [int(labels[0]) for _, labels in iterator]
    os.close(write)
    assert os.waitpid(pid, 0)[1] == 0
    assert rest == list(range(1, 12))


def test_the_defaults_start_method_is_not_settled_by_a_loader() -> None:
    script = (
        "import multiprocessing, headrace\n"
        "headrace.Loader([1, 2], num_workers=1)\n"
        "print(multiprocessing.get_start_method(allow_none=True))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "None\n"
    assert multiprocessing.get_all_start_methods()


def test_class_with_its_own_epoch_shuffles_each_epoch() -> None:
    class Counted(headrace.Loader):
        epoch = 0  # hides the attribute of the base

    loader = Counted(np.arange(50), 10, shuffle=True, seed=1)
    first, second = ([batch.tolist() for batch in loader] for _ in range(2))
    assert first != second


def test_dataset_that_divides_by_torchs_workers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker of an iterable dataset of Hugging Face would give all samples."""
    module = types.ModuleType("datasets.iterable_dataset")
    made = type("IterableDataset", (), {"__module__": module.__name__, "__iter__": lambda self: iter(range(4))})
    module.IterableDataset = made  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(
        ValueError, match=r"each of num_workers=2 would give all samples: use headrace\.torch\.DataLoader"
    ):
        headrace.Loader(made(), num_workers=2)
    assert [batch.tolist() for batch in headrace.Loader(made(), batch_size=2, num_workers=0)] == [[0, 1], [2, 3]]

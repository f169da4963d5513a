# SPDX-License-Identifier: Apache-2.0
"""Batches of a TensorDataset that are gathered in C: bit for bit those of torch, and torch's way for all that is not
known to be the same."""

from __future__ import annotations

import mmap
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as torchs
from compare import describe
from drawn import draws
from headrace._loader.worker.batch_maker import DatasetBatchMaker
from headrace.sources import Arrays
from headrace.torch import DataLoader
from headrace.torch._batches import rows as _rows
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import forward_ad
from torch.utils.data import ConcatDataset, Subset, TensorDataset

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.bool, torch.int64]
DTYPES += [torch.uint8, torch.int8, torch.int16, torch.int32]
WORKERS = pytest.mark.parametrize("workers", [0, 1])


class Counter:
    """Counts the batches that are gathered, also in workers that are forked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._memory = mmap.mmap(-1, 1)
        here, in_worker = _rows.batch_of, DatasetBatchMaker._gather
        monkeypatch.setattr(_rows, "batch_of", lambda *given: self._note(here(*given)))
        monkeypatch.setattr(DatasetBatchMaker, "_gather", lambda *given: self._note(in_worker(*given)))

    def _note(self, batch: Any) -> Any:
        self._memory[0] += batch is not None
        return batch

    def take(self) -> int:
        count, self._memory[0] = self._memory[0], 0
        return count


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> Counter:
    return Counter(monkeypatch)


def batches(kind: Any, dataset: Any, tasks: Any, **options: Any) -> Any:
    """Returns the batches of a loader, or the exception that ended it."""
    if options.get("num_workers"):
        options["multiprocessing_context"] = "fork"
    try:
        return list(kind(dataset, batch_sampler=tasks, **options))
    except Exception as error:
        return type(error), str(error).splitlines()[-1]


def assert_same(found: Any, expected: Any) -> None:
    assert describe(found) == describe(expected)


def compare(dataset: Any, tasks: Any, workers: int = 0) -> None:
    found, expected = (batches(kind, dataset, tasks, num_workers=workers) for kind in (DataLoader, torchs.DataLoader))
    if workers and isinstance(expected, tuple):  # torch's collate in a worker says something else of several shapes
        found, expected = found[0], expected[0]
    assert_same(found, expected)


# ---- drawn ----


@st.composite
def columns(draw: st.DrawFn, rows: int) -> torch.Tensor:
    """Draws a tensor with so many rows: any dtype, shape, and memory format, perhaps a view, expanded or shared."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    count = rows * int(np.prod(shape, dtype=int))
    tensor = torch.arange(count).sub(3).to(dtype).reshape(rows, *shape)
    form = draw(st.sampled_from(["plain", "permuted", "channels_last", "strided", "offset", "expanded", "shared"]))
    if form == "permuted":
        order = draw(st.permutations(range(1, tensor.dim())))
        tensor = tensor.permute(0, *order).contiguous().permute(0, *np.argsort(order).__add__(1).tolist())
    elif form == "channels_last" and tensor.dim() == 4:
        tensor = tensor.contiguous(memory_format=torch.channels_last)
    elif form == "strided":
        tensor = torch.stack([tensor, tensor], dim=-1)[..., 0]
    elif form == "offset":
        tensor = torch.cat([tensor[:1], tensor])[1:]
    elif form == "expanded" and rows:
        tensor = tensor[:1].expand(rows, *shape)
    elif form == "shared":
        tensor = tensor.clone().share_memory_()
    return tensor


@st.composite
def datasets(draw: st.DrawFn, depth: int = 2) -> Any:
    """Draws a TensorDataset, or wrappers around some."""
    rows = draw(st.integers(1, 9))
    kind = draw(st.sampled_from(["tensors", "subset", "concat"] if depth else ["tensors"]))
    if kind == "tensors":
        return TensorDataset(*(draw(columns(rows)) for _ in range(draw(st.integers(1, 3)))))
    if kind == "subset":
        inner = draw(datasets(depth - 1))
        numbers = draw(st.lists(st.integers(-len(inner), len(inner) - 1), min_size=1, max_size=9))
        form = draw(
            st.sampled_from([list, tuple, np.array, torch.tensor, lambda one: range(len(one) % len(inner) + 1)])
        )
        return Subset(inner, form(numbers))
    first = draw(datasets(depth - 1))
    second = first if draw(st.booleans()) else draw(datasets(depth - 1))
    return ConcatDataset([first, second])


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, list[list[int]]]:
    dataset = draw(datasets())
    number = st.integers(-len(dataset) - draw(st.sampled_from([0, 0, 0, 1])), len(dataset) - 1)
    usual = st.integers(0, len(dataset) - 1)
    numbers = draw(st.sampled_from([usual, usual, number]))
    return dataset, draw(st.lists(st.lists(numbers, min_size=1, max_size=5), min_size=1, max_size=3))


@settings(max_examples=draws(200), deadline=None)
@given(cases())
def test_drawn_batches_are_those_of_torch(case: tuple[Any, list[list[int]]]) -> None:
    compare(*case)


@settings(max_examples=draws(12), deadline=None)
@given(cases())
def test_drawn_batches_of_workers_are_those_of_torch(case: tuple[Any, list[list[int]]]) -> None:
    compare(*case, workers=1)


# ---- what is gathered ----

X = torch.arange(60.0).reshape(10, 3, 2)
Y = torch.arange(10)
TASKS = [[3, 1, 1], [9, 0]]
WHOLE = TensorDataset(X, Y)


@WORKERS
@pytest.mark.parametrize(
    "dataset",
    [
        WHOLE,
        TensorDataset(X.to(torch.bfloat16)),
        TensorDataset(X.permute(0, 2, 1), Y[:, None].expand(10, 4)),
        TensorDataset(Y, X[:, :0]),
        Subset(WHOLE, list(range(9, -1, -1))),
        Subset(WHOLE, np.arange(10)),
        Subset(WHOLE, torch.arange(10)),
        Subset(Subset(WHOLE, range(10)), [-1, *range(1, 10)]),
        ConcatDataset([WHOLE, TensorDataset(X + 1, Y)]),
        ConcatDataset([torchs.random_split(WHOLE, [4, 6])[1], ConcatDataset([WHOLE])]),
    ],
    ids=lambda one: type(one).__name__,
)
def test_rows_of_torchs_datasets_are_gathered(dataset: Any, workers: int, gathered: Counter) -> None:
    compare(dataset, TASKS, workers)
    assert gathered.take() == 2


class Mine(TensorDataset):
    """A dataset of the user's."""


class MineWithItems(TensorDataset):
    def __getitem__(self, index: Any) -> Any:
        return (X[index] * 2,)


class Labelled(torch.Tensor):
    """A subclass of torch.Tensor."""


def with_items(dataset: Any) -> Any:
    dataset.__getitems__ = lambda indices: [(torch.tensor(index),) for index in indices]
    return dataset


LEFT: dict[str, Callable[[], Any]] = {
    "a subclass": lambda: Mine(X),
    "a subclass with items": lambda: MineWithItems(X),
    "an instance with __getitems__": lambda: with_items(TensorDataset(X)),
    "a gradient": lambda: TensorDataset(X.clone().requires_grad_()),
    "a tensor's subclass": lambda: TensorDataset(X.as_subclass(Labelled)),
    "a parameter": lambda: TensorDataset(torch.nn.Parameter(X, requires_grad=False)),
    "a sparse tensor": lambda: TensorDataset(X[:, 0].to_sparse()),
    "a conjugated tensor": lambda: TensorDataset(torch.complex(X, X).conj()),
    "a negated tensor": lambda: TensorDataset(torch.complex(X, X).conj().imag),
    "zeros without memory": lambda: TensorDataset(torch._efficientzerotensor((10, 3))),
    "tensors of several dtypes": lambda: ConcatDataset([TensorDataset(Y), TensorDataset(Y.int())]),
    "tensors of several shapes": lambda: ConcatDataset([TensorDataset(X), TensorDataset(X[:, :1])]),
    "datasets of several widths": lambda: ConcatDataset([TensorDataset(X), WHOLE]),
    "a list of a list": lambda: Subset([(one,) for one in X], range(10)),
    "indices that are bools": lambda: Subset(TensorDataset(Y), [True] * 10),
    "a mask": lambda: Subset(TensorDataset(Y), torch.ones(10, dtype=torch.uint8)),
}


@pytest.mark.parametrize("make", LEFT.values(), ids=LEFT)
def test_unknown_kinds_are_left_to_torch(make: Callable[[], Any], gathered: Counter) -> None:
    compare(make(), TASKS)
    assert gathered.take() == 0


@pytest.mark.parametrize("tasks", [[[-1, 2]], [[10]], [[0, 10]], [[1.5]], [[True]], [[np.int64(3), 1]], [(1, 2)]])
def test_other_indices_are_left_to_torch(tasks: Any, gathered: Counter) -> None:
    compare(WHOLE, tasks)
    assert gathered.take() == 0


def test_an_index_outside_of_its_part_takes_no_row_of_the_next(gathered: Counter) -> None:
    first = TensorDataset(Y[:4])
    dataset = ConcatDataset([Subset(first, [0, 4]), TensorDataset(Y)])
    compare(dataset, [[1]])
    assert batches(DataLoader, dataset, [[1]])[0] is IndexError
    dataset = ConcatDataset([first, TensorDataset(Y)])
    first.tensors = (Y[:2],)  # shorter than ConcatDataset knows
    compare(dataset, [[2]])
    compare(dataset, [[5, 1]])
    assert batches(DataLoader, dataset, [[2]])[0] is IndexError


def test_rows_of_parts_that_were_changed_stay_apart(gathered: Counter) -> None:
    first, second = TensorDataset(Y[:5], Y[:5]), TensorDataset(Y[5:], Y[5:])
    dataset = ConcatDataset([first, second])
    first.tensors, second.tensors = (Y[:5], Y[:4]), (Y[5:], Y[4:])  # in all, the columns still have as many rows
    compare(dataset, [[0, 7], [4]])
    assert gathered.take() == 0


def test_a_replaced_method_is_called(monkeypatch: pytest.MonkeyPatch, gathered: Counter) -> None:
    loader = DataLoader(WHOLE, 5)
    assert len(list(loader)) == gathered.take() == 2
    monkeypatch.setattr(TensorDataset, "__getitem__", lambda self, index: index)
    assert [one.tolist() for one in loader] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert gathered.take() == 0


def test_users_collate_function_is_called(gathered: Counter) -> None:
    assert list(DataLoader(WHOLE, 5, collate_fn=len)) == [5, 5]
    assert len(list(DataLoader(WHOLE, batch_size=None))) == 10
    assert gathered.take() == 0


def test_an_added_collate_type_is_used(monkeypatch: pytest.MonkeyPatch, gathered: Counter) -> None:
    table = torch.utils.data._utils.collate.default_collate_fn_map
    monkeypatch.setitem(table, torch.Tensor, lambda batch, *, collate_fn_map: len(batch))
    assert list(DataLoader(WHOLE, 5)) == [[5, 5], [5, 5]]
    assert gathered.take() == 0


def test_a_mode_sees_torchs_operations(gathered: Counter) -> None:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Functions(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
            return function(*given, **(named or {}))

    class Dispatched(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
            return function(*given, **(named or {}))

    for mode in (Functions(), Dispatched(), torch.device("cpu")):
        with mode:
            compare(WHOLE, TASKS)
    assert gathered.take() == 0


def test_sources_follow_the_default_device(gathered: Counter) -> None:
    batches = iter(DataLoader(Arrays(np.arange(10.0), Y), 5))
    with torch.device("meta"):
        x, y = next(batches)
    assert (x.device.type, y.device.type) == ("meta", "cpu")
    assert next(batches)[0].tolist() == [5, 6, 7, 8, 9]
    assert gathered.take() == 1


def test_inference_mode_is_that_of_the_loop(gathered: Counter) -> None:
    with torch.inference_mode():
        inside = TensorDataset(X.clone())
        compare(WHOLE, TASKS)
        compare(inside, TASKS)
    compare(inside, TASKS)
    assert gathered.take() == 6


def test_tangents_of_dual_tensors_are_kept(gathered: Counter) -> None:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(4, 2), torch.full((4, 2), 7.0))
        [batch] = batches(DataLoader, TensorDataset(Y[:4], dual), [[0, 3]])
        assert forward_ad.unpack_dual(batch[1]).tangent.tolist() == [[7, 7], [7, 7]]
        compare(WHOLE, TASKS)
    assert gathered.take() == 0


# ---- edits ----


def edits(loader: Any, dataset: Any) -> Iterator[Any]:
    """Gives the batches of a loader while the tensors of the dataset are changed, resized and replaced."""
    x = dataset.tensors[0]
    batches = iter(loader)
    yield next(batches)
    x += 100
    yield next(batches)
    dataset.tensors = (x.double(), dataset.tensors[1])
    yield next(batches)
    dataset.tensors[0].resize_(12, 3, 2)
    yield next(batches)


def test_edits_between_batches_are_seen(gathered: Counter) -> None:
    tasks = [[1, 2], [2, 3], [4], [5]]
    found, expected = [], []
    for kind, results in ((DataLoader, found), (torchs.DataLoader, expected)):
        dataset = TensorDataset(X.clone(), Y)
        results += edits(kind(dataset, batch_sampler=tasks), dataset)
    assert_same(found, expected)
    assert gathered.take() == 3  # the resized tensor has other rows than the second one


@WORKERS
@pytest.mark.parametrize("kind", [TensorDataset, Arrays])
def test_a_storage_that_was_shrunk_is_not_left(kind: Any, workers: int, gathered: Counter) -> None:
    x = torch.arange(30).reshape(10, 3)
    dataset = kind(x)
    x.untyped_storage().resize_(5 * 3 * x.itemsize)
    compare(dataset, [[4, 1]], workers)
    assert "out of bounds for storage" in batches(DataLoader, dataset, [[4], [5]], num_workers=workers)[1]
    assert gathered.take() == 0


def test_workers_see_edits_of_shared_tensors(gathered: Counter) -> None:
    x = torch.zeros(4, 2).share_memory_()
    loader = DataLoader(TensorDataset(x), 2, num_workers=1, multiprocessing_context="fork", prefetch_factor=1)
    before = [batch[0].sum().item() for batch in loader]
    x += 1
    after = [batch[0].sum().item() for batch in loader]
    assert (before, after, gathered.take()) == ([0, 0], [4, 4], 4)


# ---- with the options of headrace ----


@WORKERS
@pytest.mark.parametrize(
    "options", [{"rng": "sample"}, {"on_bad_sample": "skip"}, {"on_bad_sample": "refill"}, {"retries": 1}]
)
def test_policies_of_samples_gather_too(options: dict[str, Any], workers: int, gathered: Counter) -> None:
    expected = batches(torchs.DataLoader, WHOLE, TASKS)
    state = random.getstate()
    assert_same(batches(DataLoader, WHOLE, TASKS, num_workers=workers, **options), expected)
    assert gathered.take() == 2
    assert random.getstate() == state


@WORKERS
def test_bad_indices_are_skipped_as_before(workers: int, gathered: Counter) -> None:
    found = batches(DataLoader, TensorDataset(Y), [[1, 99], [2, 3]], num_workers=workers, on_bad_sample="skip")
    assert [one[0].tolist() for one in found] == [[1], [2, 3]]
    assert gathered.take() == 1


def test_the_cache_is_left_out_with_a_word(gathered: Counter) -> None:
    loader = DataLoader(WHOLE, 5, cache="1M")
    with pytest.warns(UserWarning, match="the option cache is left out for a TensorDataset"):
        assert len(list(loader)) == 2
    assert len(list(loader)) == 2  # without a second warning
    assert loader.report() == {"rows": "TensorDataset"}
    assert gathered.take() == 4


@WORKERS
def test_the_report_says_that_rows_are_gathered(workers: int) -> None:
    loader = DataLoader(Subset(WHOLE, range(4)), 2, num_workers=workers)
    list(loader)
    assert loader.report()["rows"] == "Subset"
    loader = DataLoader(WHOLE, 2, num_workers=workers, rng="sample", collate_fn=len)
    list(loader)
    assert "rows" not in loader.report()


@WORKERS
def test_a_state_continues_with_the_same_batches(workers: int, gathered: Counter) -> None:
    def loader() -> Any:
        generator = torch.Generator().manual_seed(3)
        return DataLoader(WHOLE, 3, shuffle=True, num_workers=workers, generator=generator)

    whole = list(loader())
    first = loader()
    iterator = iter(first)
    next(iterator)
    second = loader()
    second.load_state_dict(first.state_dict())
    assert_same(list(second), whole[1:])
    assert gathered.take() >= 7


def test_installed_torch_loaders_gather(gathered: Counter) -> None:
    import headrace.torch

    headrace.torch.install()
    try:
        compare(WHOLE, TASKS)
        assert gathered.take() == 4
    finally:
        headrace.torch.uninstall()


def test_rows_of_arrays_and_tensors_are_collated_by_torch() -> None:
    """torch's result depends on the first sample of each batch: it takes arrays and tensors, or raises."""
    data = ConcatDataset([TensorDataset(torch.arange(5)), TensorDataset(torch.arange(10, 14))])
    data.datasets[0].tensors = (np.arange(5),)  # type: ignore[attr-defined]
    order = [2, 8, 7, 8, 2, 7]

    def outcomes(kind: Any, workers: int) -> list[Any]:
        iterator, found = iter(kind(data, 3, sampler=order, num_workers=workers)), list[Any]()
        for _ in range(2):
            try:
                found.append(next(iterator)[0].tolist())
            except Exception as error:
                found.append(type(error))
        return found

    for workers in (0, 1):
        assert outcomes(DataLoader, workers) == outcomes(torchs.DataLoader, workers)
        assert outcomes(DataLoader, workers)[0] == [2, 13, 12]

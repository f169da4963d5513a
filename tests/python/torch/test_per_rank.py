# SPDX-License-Identifier: Apache-2.0
"""headrace.torch.per_rank: each rank gets its part of any order, and all ranks equally many entries."""

from __future__ import annotations

import copy
import itertools
import pathlib
import pickle
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import headrace
import numpy
import pytest
import torch
import torch.distributed
import torch.utils.data
from drawn import draws
from headrace.sampling import _deal
from headrace.torch import DataLoader, per_rank
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import run_python, start_python
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

Torch = torch.utils.data.DistributedSampler
TAILS = ["pad", "drop", "exact"]


def parts(sampler: Any, world_size: int, epoch: int | None = None, **options: Any) -> list[list[Any]]:
    """Returns what each rank draws."""
    drawn = []
    for rank in range(world_size):
        one = per_rank(sampler, num_replicas=world_size, rank=rank, **options)
        if epoch is not None:
            one.set_epoch(epoch)
        drawn.append(list(one))
        assert len(one) == len(drawn[-1]) == one.num_samples and one.total_size == one.num_samples * world_size
    return drawn


def in_turn(dealt: list[list[Any]]) -> list[Any]:
    """Returns the entries of all ranks in the order of the sampler."""
    return [entry for step in zip(*dealt, strict=True) for entry in step]


# ---- dealing ----


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 8, 9, 64, 65])
@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_pad_and_drop_give_indices_of_torchs_sampler(n: int, world_size: int) -> None:
    for rank, tail in itertools.product(range(world_size), ("pad", "drop")):
        theirs: Any = Torch(range(n), world_size, rank, shuffle=False, drop_last=tail == "drop")  # type: ignore[arg-type]
        ours = per_rank(SequentialSampler(range(n)), tail=tail, num_replicas=world_size, rank=rank)
        assert list(ours) == list(theirs)
        for name in ("num_samples", "total_size", "drop_last", "num_replicas", "rank", "epoch", "seed", "shuffle"):
            assert getattr(ours, name) == getattr(theirs, name), name


@pytest.mark.parametrize("kind", ["torch", "stream"])
def test_shuffled_order_is_dealt_as_torchs_sampler_deals(kind: str) -> None:
    for rank in range(3):
        theirs: Any = Torch(range(100), 3, rank, seed=4)  # type: ignore[arg-type]
        ours = per_rank(headrace.Order(100, kind=kind, seed=4), num_replicas=3, rank=rank)
        theirs.set_epoch(2)
        ours.set_epoch(2)
        order = headrace.Order(100, kind=kind, seed=4, epoch=2)
        dealt = list(ours)
        assert dealt == [order[i % 100] for i in range(rank, 102, 3)]
        assert (dealt == list(theirs)) == (kind == "torch")


@given(n=st.integers(0, 300), world_size=st.integers(1, 40), tail=st.sampled_from(TAILS), as_batches=st.booleans())
@settings(deadline=None, max_examples=draws(200))
def test_each_entry_comes_once_and_ranks_are_equal(n: int, world_size: int, tail: str, as_batches: bool) -> None:
    entries: list[Any] = [[i, i + 1] for i in range(n)] if as_batches else list(range(n, 0, -1))
    dealt = parts(entries, world_size, tail=tail)
    assert len({len(one) for one in dealt}) == 1
    order = in_turn(dealt)
    if tail == "drop":
        assert order == entries[: n - n % world_size]
    else:
        assert order == list(itertools.islice(itertools.cycle(entries), -(-n // world_size) * world_size))
    known = [per_rank(entries, tail=tail, num_replicas=world_size, rank=rank).repeats for rank in range(world_size)]
    once = [entry for one, repeats in zip(dealt, known, strict=True) for entry in one[: len(one) - repeats]]
    assert sorted(once) == sorted(order[: len(order) if tail == "drop" else n])


@given(
    n=st.integers(0, 60),
    position=st.integers(0, 60),
    world_size=st.integers(1, 9),
    tail=st.sampled_from(TAILS),
    data=st.data(),
)
@settings(deadline=None, max_examples=draws(200))
def test_rest_of_an_order_is_dealt_with_and_without_extension(
    n: int, position: int, world_size: int, tail: str, data: st.DataObject
) -> None:
    position, rank = min(position, n), data.draw(st.integers(0, world_size - 1))
    sampler = per_rank(range(n), tail=tail, num_replicas=world_size, rank=rank)
    with pytest.MonkeyPatch.context() as patch:
        dealt = sampler.deal(n, position)
        patch.setattr(_deal, "_core", None)
        assert sampler.deal(n, position) == dealt
    first, step, count, once = dealt
    rest = [*range(position, n), *list(range(n)) * world_size]
    wanted = rest[rank::world_size][:count]
    assert [(first + k * step) % n for k in range(count)] == wanted
    assert once == min(count, len(range(position + rank, n, world_size)))


def test_batches_are_dealt_whole() -> None:
    batches = [[0], [1, 2, 3], [4, 5], [6]]
    assert parts(batches, 2) == [[[0], [4, 5]], [[1, 2, 3], [6]]]
    assert parts(BatchSampler(range(7), 2, False), 3, tail="exact") == [
        [[0, 1], [6]],
        [[2, 3], [0, 1]],
        [[4, 5], [2, 3]],
    ]


def test_entries_of_any_kind_arrive_as_they_are() -> None:
    entries = [True, 2**70, "name", ("a", 1), None, numpy.int64(3)]
    assert [type(entry) for entry in in_turn(parts(entries, 2))] == [type(entry) for entry in entries]
    assert in_turn(parts(entries, 2)) == entries


@pytest.mark.parametrize(
    "make", [lambda n: range(n), lambda n: headrace.Order(n), lambda n: SequentialSampler(range(n))]
)
def test_ranges_and_orders_are_not_copied(make: Callable[[int], Any]) -> None:
    n = 10**9
    sampler = per_rank(make(n), num_replicas=8, rank=3)
    tracemalloc.start()
    try:
        drawn = list(itertools.islice(sampler, 10))
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()
    assert drawn == [sampler.draw()[3 + 8 * k] for k in range(10)]
    assert len(sampler) == n // 8


def test_indices_are_kept_in_eight_bytes_each() -> None:
    generator = torch.Generator()
    drawn = per_rank(RandomSampler(range(100_000), generator=generator), num_replicas=2, rank=0).draw()
    assert sys.getsizeof(drawn) < 9 * 100_000
    assert sorted(drawn) == list(range(100_000))


# ---- arguments ----


class Dealt(Torch):  # type: ignore[type-arg]
    """The usual subclass."""


class OfOneRank:
    """A sampler without torch's class, which deals on its own."""

    rank, num_replicas = 0, 4

    def __iter__(self) -> Iterator[int]:
        return iter(range(0, 20, 4))


WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: per_rank(Torch(range(9), 2, 0)), ValueError, "DistributedSampler (num_replicas=2) gives the part of one"),  # type: ignore[arg-type]
    (lambda: per_rank(Dealt(range(9), 2, 0)), ValueError, "Dealt (num_replicas=2) gives the part of one rank"),  # type: ignore[arg-type]
    (lambda: per_rank(BatchSampler(Torch(range(9), 2, 0), 2, False)), ValueError, "gives the part of one"),  # type: ignore[arg-type]
    (lambda: per_rank(per_rank(range(9), num_replicas=2, rank=0)), ValueError, "PerRank (num_replicas=2)"),
    (lambda: per_rank(OfOneRank()), ValueError, "OfOneRank (num_replicas=4) gives the part of one rank"),
    (lambda: per_rank(range(9), tail="padded"), ValueError, "tail should be one of ('pad', 'drop', 'exact')"),
    (lambda: per_rank(range(9), tail=None), ValueError, "tail should be one of"),  # type: ignore[arg-type]
    (lambda: per_rank(range(9), num_replicas=0, rank=0), ValueError, "num_replicas should be 1 or more"),
    (lambda: per_rank(range(9), num_replicas=2, rank=2), ValueError, "rank should be from 0 to 1 of 2 ranks"),
    (lambda: per_rank(range(9), num_replicas=2, rank=-1), ValueError, "rank should be from 0 to 1 of 2 ranks"),
    (lambda: per_rank(range(9), seed="1"), TypeError, "seed should be an int or None, but got '1'"),  # type: ignore[arg-type]
    (lambda: per_rank(torch.utils.data.TensorDataset(torch.ones(3))), TypeError, "but got TensorDataset"),
    (lambda: per_rank(None), TypeError, "needs a sampler"),
    (lambda: per_rank(5), TypeError, "needs a sampler"),
    (lambda: per_rank(iter(range(9))), TypeError, "is an iterator, which is empty after the first epoch"),
    (lambda: per_rank(range(9), num_replicas=2, rank=0, mesh=Mesh([4])), ValueError, "give only one of"),
    (lambda: per_rank(range(9), mesh=Mesh([2, 2], ("dp", "tp"))), ValueError, "2 dimensions (dp, tp)"),
    (lambda: per_rank(range(9), mesh=Mesh([2, 2])), ValueError, "2 dimensions (without names)"),
    (lambda: per_rank(range(9), mesh=Mesh([4], own=None)), ValueError, "this process is not in the mesh"),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_wrong_arguments_are_errors_that_say_what_to_do(number: int) -> None:
    make, kind, message = WRONG[number]
    with pytest.raises(kind) as error:
        make()
    assert message in str(error.value)


class Mesh:
    """A DeviceMesh as this process sees it."""

    def __init__(self, shape: list[int], names: tuple[str, ...] | None = None, own: Any = ()) -> None:
        self.shape, self.mesh_dim_names = torch.Size(shape), names
        self.own = [1] * len(shape) if own == () else own

    def get_coordinate(self) -> Any:
        return self.own


@pytest.mark.parametrize(
    ("mesh", "rank", "world_size"),
    [
        (Mesh([4], ("data",), [3]), 3, 4),
        (Mesh([4], None, [2]), 2, 4),
        (Mesh([2, 3], ("dp_replicate", "dp_shard"), [1, 2]), 5, 6),
    ],
)
def test_mesh_gives_the_data_parallel_rank(mesh: Any, rank: int, world_size: int) -> None:
    sampler = per_rank(range(12), mesh=mesh)
    assert (sampler.rank, sampler.num_replicas) == (rank, world_size)
    assert sampler.place.source.startswith("mesh of torch.distributed")


IN_GROUPS = """
import sys, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from headrace.torch import per_rank
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=4)
groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
made = [per_rank(range(8)), per_rank(range(8), group=groups[rank % 2]), per_rank(range(8), mesh=mesh["dp"])]
made.append(per_rank(range(8), num_replicas=4))
for one in made:
    print(one.rank, one.num_replicas, one.place.source, sep="; ")
for wrong in ({"group": groups[1 - rank % 2]}, {"mesh": mesh}, {"num_replicas": 2}):
    try:
        per_rank(range(8), **wrong)
    except ValueError as error:
        print(str(error)[:60])
dist.barrier()
dist.destroy_process_group()
"""


def test_groups_and_meshes_of_processes_give_their_ranks(tmp_path: Any) -> None:
    store = str(tmp_path / "store")
    started = [start_python(tmp_path, "-c", IN_GROUPS, str(rank), store) for rank in range(4)]
    for rank, process in enumerate(started):
        lines = process.communicate(timeout=200)[0].splitlines()
        assert process.returncode == 0
        data_parallel = f"{rank // 2}; 2; "
        assert lines == [
            f"{rank}; 4; torch.distributed's default group",
            f"{data_parallel}group of torch.distributed",
            f"{data_parallel}mesh of torch.distributed (dp)",
            f"{rank}; 4; torch.distributed's default group",
            "headrace: this process is not in the group; give the group of its data-parallel ranks"[:60],
            "headrace: the mesh has 2 dimensions (dp, tp), and it is not known which"[:60],
            f"headrace: num_replicas=2 is given without rank, but this process is rank {rank}"[:60],
        ]


def test_ranks_that_appear_later_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampler that was made before init_process_group would give each rank the whole order."""
    sampler = per_rank(range(8))
    assert list(sampler) == list(range(8))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match=r"now this is rank 1 of 2 \(environment: RANK, WORLD_SIZE\); call per_rank"):
        next(iter(sampler))
    assert list(per_rank(range(8))) == [1, 3, 5, 7]


# ---- the object ----


def test_class_is_torchs_so_that_frameworks_leave_it_alone() -> None:
    sampler = per_rank(range(9), num_replicas=2, rank=1)
    assert isinstance(sampler, Torch)
    assert sampler.dataset == range(9)
    assert sampler.sampler is sampler  # where frameworks look for set_epoch of a batch sampler


@pytest.mark.parametrize("make_copy", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_draw_the_same(make_copy: Callable[[Any], Any]) -> None:
    sampler = per_rank(BatchSampler(RandomSampler(range(20)), 3, False), tail="exact", num_replicas=2, rank=1, seed=3)
    sampler.set_epoch(4)
    other = make_copy(sampler)
    assert list(other) == list(sampler)
    assert (repr(other), other.place, other.repeats) == (repr(sampler), sampler.place, sampler.repeats)
    text = "headrace.torch.per_rank(BatchSampler, tail='exact', num_replicas=2, rank=1, seed=3)"
    assert repr(sampler) == text


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [DataLoader, torch.utils.data.DataLoader])
def test_loaders_take_it_as_sampler_and_as_batch_sampler(kind: Any, workers: int) -> None:
    dataset: Any = torch.arange(20) * 2
    sampler = per_rank(headrace.Order(20, kind="torch", seed=1), num_replicas=2, rank=1)
    batches = per_rank([[0, 1], [2], [3, 4, 5]], num_replicas=2, rank=1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        loader: Any = kind(dataset, batch_size=4, sampler=sampler, num_workers=workers)
        theirs: Any = Torch(range(20), 2, 1, seed=1)  # type: ignore[arg-type]
        theirs.set_epoch(epoch)
        assert [value // 2 for batch in loader for value in batch.tolist()] == list(theirs)
        assert len(loader) == 3
        loader = kind(dataset, batch_sampler=batches, num_workers=workers)
        assert [batch.tolist() for batch in loader] == [[4], [0, 2]]
        del loader


WITHOUT = """
import warnings
warnings.simplefilter("ignore")
import headrace.torch
from torch.utils.data import RandomSampler, SequentialSampler
from headrace.torch import per_rank
assert headrace.torch._reason is not None
print([list(per_rank(range(7), tail=tail, num_replicas=3, rank=2)) for tail in ("pad", "drop", "exact")])
print([tuple(per_rank(SequentialSampler(range(7)), num_replicas=3, rank=rank).deal(7)) for rank in range(3)])
print(sorted(i for rank in range(2) for i in per_rank(RandomSampler(range(6)), num_replicas=2, rank=rank, seed=0)))
"""


@pytest.mark.parametrize("way", ["disabled", "without extension"])
def test_fallback_has_it_too(tmp_path: pathlib.Path, way: str) -> None:
    block = 'import sys; sys.modules["headrace._core"] = None\n' if way == "without extension" else ""
    disabled = "1" if way == "disabled" else None
    done = run_python(tmp_path, "-c", block + WITHOUT, HEADRACE_DISABLE=disabled)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[[2, 5, 1], [2, 5], [2, 5, 1]]",
        "[(0, 3, 3, 3), (1, 3, 3, 2), (2, 3, 3, 2)]",
        "[0, 1, 2, 3, 4, 5]",
    ]


# ---- epochs of what is dealt ----


def _orders() -> list[Any]:
    rows = range(100)
    mix = headrace.Mixture({"a": rows, "b": rows}, {"a": 2, "b": 1}, length=96, epoch=2)
    order = headrace.Order(96, epoch=2)
    return [order, mix, BatchSampler(headrace.Order(96, epoch=2), 4, False)]


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_epoch_is_that_of_the_order_that_is_dealt(kind: int) -> None:
    """An epoch that the order was made with, or that its own set_epoch has set, is that of a state too."""
    whole = _orders()[kind]
    order = getattr(whole, "sampler", whole)
    one = per_rank(whole, num_replicas=2, rank=1)
    assert one.epoch == 2 and list(one) == list(whole)[1::2]
    for epoch in (3, 5):
        one.draw()  # which is that of the epoch before
        order.set_epoch(epoch)
        assert one.epoch == epoch and list(one) == list(whole)[1::2]
    one.set_epoch(7)
    assert one.epoch == order.epoch == 7 and list(one) == list(whole)[1::2]


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_order_made_in_a_later_epoch_is_continued(kind: int) -> None:
    def loader(world: int, epoch: int) -> tuple[Any, Any]:
        whole = _orders()[kind]
        getattr(whole, "sampler", whole).set_epoch(epoch)
        one = per_rank(whole, num_replicas=world, rank=0)
        batches = {"batch_sampler": one} if kind == 2 else {"sampler": one, "batch_size": 4}
        return whole, DataLoader(range(200), **batches)

    whole, first = loader(2, epoch=2)
    entries = [index for entry in whole for index in ([entry] if kind < 2 else entry)]
    iterator = iter(first)
    for _ in range(3):
        next(iterator)
    second = loader(1, epoch=0)[1]
    second.load_state_dict(first.state_dict())
    seen: list[int] = []
    for _ in second:
        seen += second.last.indices
    assert seen == entries[24:]

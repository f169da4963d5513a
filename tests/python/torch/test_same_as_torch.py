# SPDX-License-Identifier: Apache-2.0
"""headrace's loader and torch's, side by side: what a user can observe is the same."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pathlib
import pickle
import signal
import threading
import time
from typing import Any

import datasets as d
import headrace
import headrace.torch
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
import torch.utils.data
from compare import Make, Trace, assert_same, describe, epoch, failures, mask, seed, trace, without_lost
from loaders import LOADERS, METHODS, Headrace, Torch, only_headrace
from processes import Script, alive, run, until
from torch.utils.data import dataloader as torch_dataloader
from torch_features import collates_numpy_booleans, skip_unless_said

STARTED = ("spawn", "forkserver")
# Samples that this torch cannot collate, and headrace can.
REFUSED = [] if collates_numpy_booleans() else ["numpy bool"]


def forked(kind: Any, dataset: Any, **options: Any) -> Any:
    options.setdefault("num_workers", 2)
    options.setdefault("multiprocessing_context", "fork")
    return kind(dataset, **options)


def unbatched(kind: Any, dataset: Any, **options: Any) -> Any:
    return forked(kind, dataset, batch_size=None, collate_fn=d.identity, **options)


# ---- what is in a batch ----


Traces = list[Trace]  # of headrace's loader and of torch's


def traces(make: Make) -> Traces:
    """Uses one loader of each kind, whose batches are compared by many tests."""
    return [trace(kind, make, errors=1000) for kind in (Headrace, Torch)]


@pytest.fixture(scope="module")
def zoo() -> Traces:
    return traces(lambda kind: unbatched(kind, d.Zoo(), num_workers=1))


@pytest.mark.parametrize("name", d.ZOO_NAMES)
def test_an_item_of_the_zoo_arrives_as_torch_sends_it(zoo: Traces, name: str) -> None:
    ours, theirs = (one.events[0] for one in zoo)
    assert len(ours) == len(theirs) == len(d.ZOO_NAMES) + 1
    at = d.ZOO_NAMES.index(name)
    assert ours[at] == theirs[at]


def test_the_whole_zoo_crosses_in_order_with_two_workers() -> None:
    found = assert_same(lambda kind: unbatched(kind, d.Zoo(), prefetch_factor=3))
    assert len(found.events[0]) == len(d.ZOO_NAMES) + 1


@pytest.mark.parametrize("collated", [False, True])
def test_the_zoo_crosses_by_dlpack_capsules_too(monkeypatch: pytest.MonkeyPatch, collated: bool) -> None:
    """Makes torch look like one without an exchange table; trainer and worker read the variable when they start."""
    monkeypatch.setenv("HEADRACE_DLPACK", "capsule")
    if collated:
        data = d.SamplesOfKinds([name for name in d.SAMPLES if name not in REFUSED])
        assert_same(lambda kind: forked(kind, data, batch_sampler=data.batches(4), num_workers=1), errors=1000)
    else:
        assert_same(lambda kind: unbatched(kind, d.Zoo(), prefetch_factor=3))


def test_strides_are_kept_where_capsules_change_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The capsules of torch before 2.10 have a stride of 1 for each dimension of size 0 or 1."""
    give = torch.Tensor.__dlpack__

    def give_as_before(tensor: torch.Tensor, **options: Any) -> Any:
        strides = [stride if size > 1 else 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
        return give(tensor.as_strided(tensor.shape, strides), **options)

    monkeypatch.setenv("HEADRACE_DLPACK", "capsule")
    monkeypatch.setattr(torch.Tensor, "__dlpack__", give_as_before)
    assert_same(lambda kind: unbatched(kind, d.Zoo(), num_workers=1))


def test_the_whole_zoo_in_one_batch_arrives_as_torch_sends_it() -> None:
    assert_same(lambda kind: forked(kind, d.Zoo(), batch_size=200, collate_fn=d.identity, num_workers=1))


@pytest.mark.parametrize("method", STARTED)
def test_the_whole_zoo_crosses_from_a_started_worker(method: str) -> None:
    names = [name for name in d.ZOO_NAMES if name != "meta"]
    assert_same(lambda kind: unbatched(kind, d.Zoo(names), num_workers=1, multiprocessing_context=method))


@pytest.fixture(scope="module")
def collated() -> Traces:
    data = d.SamplesOfKinds(list(d.SAMPLES))
    return traces(lambda kind: forked(kind, data, batch_sampler=data.batches(4), num_workers=1))


@pytest.mark.parametrize("name", list(d.SAMPLES))
def test_default_collate_gives_what_torch_gives(collated: Traces, name: str) -> None:
    if name in REFUSED:
        pytest.skip(f"torch {torch.__version__} refuses to collate it")
    ours, theirs = collated
    assert len(ours.events[0]) == len(theirs.events[0]) == 2 * len(d.SAMPLES) + 1
    at = 2 * list(d.SAMPLES).index(name)  # a batch of 4 samples, and one of the fifth
    for mine, other in zip(ours.events[0][at : at + 2], theirs.events[0][at : at + 2], strict=True):
        if other[0] == "raised":
            # headrace may add the sample's index as a note, after torch's text
            assert mine[:3] == other[:3]
            assert mine[3].startswith(other[3].rstrip()), (mine[3], other[3])
        else:
            assert mine == other
    assert ours.warned == theirs.warned


@pytest.fixture(scope="module")
def converted() -> Traces:
    return traces(lambda kind: forked(kind, d.SamplesOfKinds(list(d.SAMPLES), 2), batch_size=None, num_workers=1))


@pytest.mark.parametrize("name", list(d.SAMPLES))
def test_default_convert_gives_what_torch_gives(converted: Traces, name: str) -> None:
    ours, theirs = converted
    assert len(ours.events[0]) == len(theirs.events[0]) == 2 * len(d.SAMPLES) + 1
    at = 2 * list(d.SAMPLES).index(name)
    assert ours.events[0][at : at + 2] == theirs.events[0][at : at + 2]
    assert ours.warned == theirs.warned and ours.random == theirs.random


def test_a_users_addition_to_the_collate_map_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.data._utils.collate import default_collate_fn_map

    monkeypatch.setitem(default_collate_fn_map, d.Tagged, d.collate_tagged)
    monkeypatch.setitem(d.SAMPLES, "tagged", lambda i: {"x": d.Tagged(i), "y": (d.Tagged(-i), i)})
    found = assert_same(lambda kind: forked(kind, d.Samples("tagged"), batch_size=3))
    assert "[0, -1, -2]" not in repr(found.events) and failures(found) == []


def test_a_users_replacement_in_the_collate_map_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.data._utils.collate import default_collate_fn_map

    def words(batch: list[Any], *, collate_fn_map: Any = None) -> Any:
        return f"{len(batch)} numbers"

    monkeypatch.setitem(default_collate_fn_map, int, words)
    found = assert_same(lambda kind: forked(kind, d.Squares(5), batch_size=3))
    assert "3 numbers" in repr(found.events)


@pytest.mark.parametrize("name", ["default_collate", "collate", "collate_int_fn"])
def test_replaced_collate_function_is_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = torch.utils.data._utils.collate

    def mine(batch: list[Any], *, collate_fn_map: Any = None) -> Any:
        return f"{len(batch)} of them"

    monkeypatch.setattr(module, name, mine)
    if name == "collate_int_fn":
        monkeypatch.setitem(module.default_collate_fn_map, int, mine)
    found = assert_same(lambda kind: forked(kind, d.Squares(5), batch_size=3))
    assert "3 of them" in repr(found.events)


@pytest.mark.parametrize("collate", [d.collate_to_pair, d.collate_to_numpy, d.CollateOnce()])
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_custom_collate_function_is_called_as_torch_calls_it(collate: Any, method: str) -> None:
    options = {"batch_size": 4, "num_workers": 1, "multiprocessing_context": method}
    assert_same(lambda kind: forked(kind, d.Squares(10), collate_fn=copy.copy(collate), **options))


@pytest.mark.parametrize("size", [50, 60_000])
@LOADERS
def test_views_of_one_storage_arrive_sharing_one(kind: Any, size: int) -> None:
    d.ZOO["views"] = lambda: [(base := torch.arange(float(size)))[10:], base[:20], {"all": base}]
    try:
        (tail, head, rest), *_ = list(unbatched(kind, d.Zoo(["views"]), num_workers=1))
    finally:
        del d.ZOO["views"]
    head[15] = -1.0
    assert tail[5] == -1.0 and rest["all"][15] == -1.0
    rest["all"][0] = -2.0
    assert head[0] == -2.0


@pytest.mark.parametrize("dtype", [torch.int8, torch.float64, torch.complex128, torch.bool])
@LOADERS
def test_views_from_the_middle_of_one_storage_arrive_sharing_one(kind: Any, dtype: Any) -> None:
    d.ZOO["views"] = lambda: [(base := torch.zeros(200, dtype=dtype))[10:100], base[30:60], base[90:90], torch.ones(3)]
    try:
        ((first, second, none, other),) = list(unbatched(kind, d.Zoo(["views"]), num_workers=1))
    finally:
        del d.ZOO["views"]
    second[0] = 1
    assert first[20] == 1 and first.to(torch.complex128).abs().sum() == 1
    assert none.shape == (0,) and none.dtype == dtype and other.sum() == 3


@pytest.mark.parametrize("count", [2, 300])
@pytest.mark.parametrize("size", [3, 40_000])
@LOADERS
def test_many_tensors_of_their_own_arrive_apart(kind: Any, count: int, size: int) -> None:
    d.ZOO["many"] = lambda: [torch.full((size,), i) for i in range(count)]
    try:
        (tensors,) = list(unbatched(kind, d.Zoo(["many"]), num_workers=1))
    finally:
        del d.ZOO["many"]
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == count
    assert all((tensor == i).all() for i, tensor in enumerate(tensors))


def test_list_of_tensors_and_others_is_converted_as_by_torch() -> None:
    d.ZOO["mixed"] = lambda: [torch.ones(2), np.ones(3), (torch.ones(1), 2), torch.nn.Parameter(torch.ones(2), False)]
    d.ZOO["plain"] = lambda: [torch.ones(2), torch.zeros(3)]
    d.ZOO["empty"] = list
    try:
        assert_same(lambda kind: forked(kind, d.Zoo(["mixed", "plain", "empty"]), batch_size=None, num_workers=1))
    finally:
        for name in ("mixed", "plain", "empty"):
            del d.ZOO[name]


@LOADERS
def test_a_users_own_default_convert_is_called(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.utils.data._utils.collate, "default_convert", lambda data: ["mine", len(data)])
    d.ZOO["plain"] = lambda: [torch.ones(2), torch.zeros(3)]
    try:
        assert list(forked(kind, d.Zoo(["plain"]), batch_size=None, num_workers=1)) == [["mine", 2]]
    finally:
        del d.ZOO["plain"]


@LOADERS
def test_a_tensor_that_appears_twice_arrives_as_one_memory(kind: Any) -> None:
    ((first, second),) = list(unbatched(kind, d.Zoo(["one tensor twice"]), num_workers=1))
    first[0] = 42
    assert second[0] == 42


@LOADERS
def test_a_list_that_appears_twice_arrives_as_one_list(kind: Any) -> None:
    d.ZOO["list twice"] = lambda: [(one := [1, {"a": 2}]), one, {"again": one}]
    try:
        ((first, second, third),) = list(unbatched(kind, d.Zoo(["list twice"]), num_workers=1))
    finally:
        del d.ZOO["list twice"]
    assert first is second and third["again"] is first


def test_a_list_that_contains_itself_arrives_containing_itself() -> None:
    d.ZOO["self"] = d.self_referential
    try:
        found = assert_same(lambda kind: unbatched(kind, d.Zoo(["self"]), num_workers=1))
    finally:
        del d.ZOO["self"]
    assert "cycle" in repr(found.events)


# ---- order, options ----


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("prefetch", [1, 4])
def test_batches_come_in_order_whatever_the_options(workers: int, drop_last: bool, prefetch: int) -> None:
    options = {"num_workers": workers, "drop_last": drop_last, "prefetch_factor": prefetch, "batch_size": 3}
    found = assert_same(lambda kind: forked(kind, d.Squares(20), **options))
    assert len(found.events[0]) == (6 if drop_last else 7) + 1


def test_default_start_method_of_the_interpreter_is_used() -> None:
    assert_same(lambda kind: kind(d.Squares(5), batch_size=2, num_workers=1))


@pytest.mark.parametrize("method", METHODS)
def test_a_context_object_is_used(method: str) -> None:
    context = multiprocessing.get_context(method)
    assert_same(lambda kind: kind(d.Squares(3), num_workers=1, multiprocessing_context=context))


def test_no_workers_is_torchs_own() -> None:
    assert_same(lambda kind: kind(d.Draws(7), batch_size=2, shuffle=True), epochs=2)


def test_an_empty_dataset_ends_at_once() -> None:
    found = assert_same(lambda kind: forked(kind, d.Squares(0), batch_size=2), epochs=2)
    assert found.events == [["end"], ["end"]]


def test_more_workers_than_batches_do_no_harm() -> None:
    assert_same(lambda kind: forked(kind, d.Draws(2), batch_size=2, num_workers=3), epochs=2)


def test_batches_out_of_order_are_the_same_batches() -> None:
    def make(kind: Any) -> Any:
        return forked(kind, d.Squares(40), batch_size=3, in_order=False)

    ours, theirs = trace(Headrace, make, epochs=2), trace(Torch, make, epochs=2)
    for mine, other in zip(ours.events, theirs.events, strict=True):
        assert mine[-1] == other[-1] == "end"
        assert sorted(map(repr, mine)) == sorted(map(repr, other))
    assert ours.random == theirs.random


@LOADERS
def test_a_fast_batch_overtakes_a_slow_one_only_out_of_order(kind: Any) -> None:
    class FirstWaits(d.Gate):
        def __getitem__(self, index: int) -> int:
            return super().__getitem__(self.count - 1 - index)

    event = multiprocessing.get_context("fork").Event()
    loader = forked(kind, FirstWaits(6, 5, event), batch_size=None, in_order=False, prefetch_factor=1)
    iterator = iter(loader)
    got = [next(iterator) for _ in range(3)]
    event.set()
    assert 5 not in got
    assert sorted(got + list(iterator)) == [0, 1, 2, 3, 4, 5]


def test_a_batch_sampler_decides_the_batches() -> None:
    batches = [[3, 1], [0], [], [2, 2, 2], [4, 0]]
    assert_same(lambda kind: forked(kind, d.Samples("int"), batch_sampler=batches, collate_fn=d.identity), epochs=2)


def test_a_sampler_decides_the_order() -> None:
    weighted = torch.utils.data.WeightedRandomSampler([1, 2, 3, 4], 20)
    assert_same(lambda kind: forked(kind, d.Squares(4), sampler=weighted, batch_size=3), epochs=2)


def test_indices_of_any_kind_reach_the_dataset() -> None:
    indices = ["a", ("b", 1), 2, -3, 2**70, 1.5, None, True, b"x", d.Point(1, [2]), slice(1, 2), np.int32(4), {"k": 1}]
    assert_same(lambda kind: forked(kind, d.Echo(), sampler=indices, batch_size=None, collate_fn=d.identity))
    assert_same(lambda kind: forked(kind, d.Echo(), sampler=indices, batch_size=3, collate_fn=d.identity))
    assert_same(lambda kind: forked(kind, d.Echo(), sampler=[torch.tensor(3)], batch_size=1, collate_fn=d.identity))


def test_indices_reach_dataset_as_the_batch_sampler_made_them() -> None:
    batches = [[0, 1], (2, 3), range(4), {"a": 1}, "ab", np.arange(3)]
    assert_same(lambda kind: forked(kind, d.Echo(), batch_sampler=batches, collate_fn=d.identity))
    assert_same(lambda kind: forked(kind, d.Echo(), sampler=batches, batch_size=None, collate_fn=d.identity))


def test_a_sampler_that_yields_many_thousand_indices_per_batch() -> None:
    assert_same(lambda kind: forked(kind, d.Squares(50_000), batch_size=25_000, num_workers=1))


def test_getitems_gets_the_complete_batch() -> None:
    assert_same(lambda kind: forked(kind, d.Getitems(), batch_size=3))


def test_indices_are_drawn_exactly_when_torch_draws_them() -> None:
    def draws(kind: Any) -> list[tuple[int, int]]:
        sampler = d.CountingSampler(30)
        iterator = iter(forked(kind, d.Squares(30), sampler=sampler, batch_size=2, prefetch_factor=3))
        seen = [(sampler.iters, sampler.drawn)]
        for _ in iterator:
            seen.append((sampler.iters, sampler.drawn))
        return seen

    assert draws(Headrace) == draws(Torch)


@pytest.mark.parametrize("persistent", [False, True])
def test_sampler_is_iterated_as_often_as_with_torch(persistent: bool) -> None:
    def asked(kind: Any) -> list[int]:
        sampler = d.CountingSampler(4)
        options = {"batch_size": None, "persistent_workers": persistent, "num_workers": 1}
        loader = forked(kind, d.Squares(4), sampler=sampler, **options)
        out = []
        for _ in range(3):
            list(loader)
            out.append(sampler.iters)
        return out

    assert asked(Headrace) == asked(Torch)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_sampler_that_draws_in_iter_gives_torchs_order(persistent: bool) -> None:
    options = {"batch_size": None, "persistent_workers": persistent}
    assert_same(lambda kind: forked(kind, d.Draws(6), sampler=d.EagerSampler(6), **options), epochs=3)


# ---- random numbers ----


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("with_generator", [False, True])
def test_random_numbers_are_torchs_over_three_epochs(persistent: bool, with_generator: bool) -> None:
    def make(kind: Any) -> Any:
        generator = torch.Generator().manual_seed(11) if with_generator else None
        options = {"batch_size": 3, "shuffle": True, "persistent_workers": persistent}
        return forked(kind, d.Draws(14), generator=generator, worker_init_fn=d.init_adds, **options)

    assert_same(make, epochs=3)


@pytest.mark.parametrize("method", STARTED)
def test_random_numbers_are_torchs_in_started_workers(method: str) -> None:
    def make(kind: Any) -> Any:
        options = {"shuffle": True, "persistent_workers": True, "multiprocessing_context": method}
        generator = torch.Generator().manual_seed(5)
        return kind(d.Draws(5), 2, num_workers=2, generator=generator, worker_init_fn=d.init_adds, **options)

    assert_same(make, epochs=2)


def test_breaking_off_an_epoch_consumes_what_torch_consumes() -> None:
    for persistent in (False, True):
        options = {"batch_size": 2, "shuffle": True, "persistent_workers": persistent}
        assert_same(lambda kind, options=options: forked(kind, d.Draws(20), **options), epochs=3, limit=2)


def test_distributed_samplers_follow_set_epoch() -> None:
    def orders(kind: Any) -> list[Any]:
        sampler = torch.utils.data.distributed.DistributedSampler(d.Squares(11), num_replicas=2, rank=1, seed=3)
        loader = forked(kind, d.Squares(11), sampler=sampler, batch_size=2)
        out = []
        for number in range(3):
            loader.sampler.set_epoch(number)
            out.append(epoch(loader))
        return out

    ours = orders(Headrace)
    assert ours == orders(Torch)
    assert ours[0] != ours[1]


# ---- iterable datasets ----


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("uneven", [False, True])
def test_an_iterable_dataset_is_shared_out_as_torch_does(workers: int, drop_last: bool, uneven: bool) -> None:
    options = {"num_workers": workers, "drop_last": drop_last, "batch_size": 2}
    assert_same(lambda kind: forked(kind, d.Sharded(13, uneven), **options))


@pytest.mark.parametrize("batch_size", [None, 3])
def test_persistent_workers_iterate_an_iterable_dataset_again(batch_size: int | None) -> None:
    options = {"batch_size": batch_size, "persistent_workers": True}
    assert_same(lambda kind: forked(kind, d.Sharded(11, uneven=True), **options), epochs=3)
    assert_same(lambda kind: forked(kind, d.Sharded(30), **options), epochs=3, limit=3)


@pytest.mark.parametrize("method", STARTED)
def test_an_iterable_dataset_in_started_workers(method: str) -> None:
    assert_same(lambda kind: kind(d.Sharded(9, True), 2, num_workers=2, multiprocessing_context=method))


def test_every_worker_without_sharding_yields_everything() -> None:
    assert_same(lambda kind: forked(kind, d.Count(5), batch_size=2))


def test_an_empty_iterable_dataset_ends_at_once() -> None:
    assert_same(lambda kind: forked(kind, d.Count(0), batch_size=2, persistent_workers=True), epochs=2)


@pytest.mark.parametrize("claimed", [3, 8, 100])
def test_wrong_length_of_an_iterable_dataset_warns_as_with_torch(claimed: int) -> None:
    def make(kind: Any) -> Any:
        loader = forked(kind, d.SizedCount(4, claimed), batch_size=None)
        assert len(loader) == claimed
        return loader

    found = assert_same(make)
    assert bool(found.warned) == (claimed < 8)


@pytest.mark.parametrize("at", [-1, 0, 3])
def test_failing_iterable_dataset_raises_as_with_torch(at: int) -> None:
    found = assert_same(lambda kind: forked(kind, d.FailingIter(at), batch_size=2), errors=2)
    assert failures(found)


def test_an_iterator_that_can_go_on_after_an_error_goes_on() -> None:
    found = assert_same(lambda kind: forked(kind, d.Resumable(), batch_size=None), epochs=2)
    assert len(found.events[0]) == 13


# ---- errors ----


@pytest.mark.parametrize("name", list(d.FAILURES))
def test_an_exception_in_the_dataset_arrives_with_type_and_text(name: str) -> None:
    found = assert_same(lambda kind: forked(kind, d.Failing(12, (3, 9), name), batch_size=2))
    assert len(failures(found)) == 2 and len(found.events[0]) == 7
    assert "datasets.py" in repr(failures(found)[0]) and "in DataLoader worker process 1" in repr(failures(found)[0])


def test_an_exception_arrives_from_a_started_worker() -> None:
    options = {"num_workers": 1, "multiprocessing_context": "forkserver", "persistent_workers": True}
    assert_same(lambda kind: kind(d.Failing(6, (3,), "two arguments"), 2, **options), epochs=2)


def test_an_exception_in_collate_arrives() -> None:
    found = assert_same(lambda kind: forked(kind, d.Failing(8, ()), batch_size=2, collate_fn=d.collate_that_fails))
    assert "cannot collate 2" in repr(failures(found))


def test_a_batch_that_is_a_wrapped_exception_is_raised() -> None:
    found = assert_same(lambda kind: forked(kind, d.Squares(8), batch_size=2, collate_fn=d.collate_to_exception))
    assert len(failures(found)) == 1 and "from far away" in repr(failures(found))


@pytest.mark.parametrize("init, count", [(d.init_raises, 2), (d.init_raises_in_1, 1)])
def test_an_exception_in_worker_init_fn_arrives(init: Any, count: int) -> None:
    def make(kind: Any) -> Any:
        return forked(kind, d.Squares(20), batch_size=2, worker_init_fn=init)

    ours, theirs = (trace(kind, make, limit=2) for kind in (Headrace, Torch))
    assert ours.events == theirs.events
    assert len(failures(theirs)) == count and "cannot start" in repr(failures(theirs))


@only_headrace
@pytest.mark.parametrize("kind", [Headrace, headrace.Loader])
def test_a_worker_that_could_not_begin_says_so_for_each_batch(kind: Any) -> None:
    events = epoch(forked(kind, d.Squares(8), batch_size=2, num_workers=1, worker_init_fn=d.init_raises))
    assert len(events) == 5 and events[-1] == "end"
    assert all("worker 0 cannot start" in event[3] for event in events[:4])


@only_headrace
@pytest.mark.parametrize("kind", [Headrace, headrace.Loader])
def test_persistent_worker_that_failed_starts_in_next_epoch(kind: Any) -> None:
    options = {"batch_size": 2, "num_workers": 1, "worker_init_fn": d.init_raises, "persistent_workers": True}
    loader = forked(kind, range(8), **options)
    first, second = epoch(loader), epoch(loader)
    assert all(event[0] == "raised" for event in first[:-1]) and len(first) == 5
    assert all(event[0] != "raised" for event in second[:-1]) and len(second) == 5


def test_failure_of_worker_init_fn_comes_with_the_first_batch() -> None:
    def make(kind: Any) -> Any:
        options = {"batch_size": 2, "worker_init_fn": d.init_raises_in_1, "persistent_workers": True}
        return forked(kind, d.Squares(8), sampler=d.GrowingSampler(), **options)

    found = assert_same(make, epochs=3)
    assert [len(failures(found._replace(events=[events]))) for events in found.events] == [0, 1, 0]


def test_persistent_workers_deliver_all_but_the_failed_batches() -> None:
    options = {"batch_size": None, "persistent_workers": True}
    assert_same(lambda kind: forked(kind, d.Failing(10, (0, 4, 5, 9)), **options), epochs=3)


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": -1},
        {"timeout": -1},
        {"num_workers": 0, "prefetch_factor": 2},
        {"prefetch_factor": -1},
        {"prefetch_factor": 0},
        {"num_workers": 0, "persistent_workers": True},
        {"num_workers": 0, "multiprocessing_context": "fork"},
        {"multiprocessing_context": "thread"},
        {"multiprocessing_context": 3},
        {"shuffle": True, "sampler": [1]},
        {"batch_sampler": [[1]], "batch_size": 2},
        {"batch_size": None, "drop_last": True},
        {"batch_size": 0},
        {"batch_size": -1},
        {"batch_size": "two"},
        {"num_workers": "two"},
        {"no_such_option": 1},
        {"sampler": 3},
        {"collate_fn": 3},
    ],
    ids=repr,
)
def test_wrong_options_raise_what_torch_raises(options: dict[str, Any]) -> None:
    options = {"num_workers": 1, **options}
    if options.get("prefetch_factor") == 0:
        skip_unless_said("prefetch_factor must be greater than 0")

    def outcome(kind: Any) -> Any:
        try:
            return epoch(kind(d.Squares(4), **options))
        except Exception as error:
            return type(error), mask(str(error)).replace(kind.__module__, "")

    assert outcome(Headrace) == outcome(Torch)


@pytest.mark.parametrize("prefetch", [None, 0, 1.5])
def test_changed_number_of_workers_raises_as_with_torch(prefetch: Any) -> None:
    if not prefetch:
        skip_unless_said("prefetch_factor must be greater than 0")

    def make(kind: Any) -> Any:
        loader = kind(d.Squares(4))
        loader.num_workers, loader.prefetch_factor = 1, prefetch
        return loader

    assert failures(assert_same(make))


def test_attributes_are_guarded_as_torch_guards_them() -> None:
    loader = Headrace(d.Squares(4), num_workers=1)
    with pytest.raises(ValueError, match="should not be set after DataLoader is initialized"):
        loader.batch_size = 3
    with pytest.raises(ValueError, match="expected unspecified sampler option"):
        Headrace(d.Count(3), sampler=[1])


def once_started(iterator: Any) -> Any:
    """The first batch. While the worker does not run yet, that times out too."""
    while True:
        try:
            return next(iterator)
        except RuntimeError as error:
            if "timed out" not in str(error):
                raise


@pytest.mark.parametrize("method", ["fork"])
@LOADERS
def test_a_slow_batch_times_out(kind: Any, method: str) -> None:
    event = multiprocessing.get_context(method).Event()
    loader = forked(kind, d.Gate(4, 1, event), batch_size=1, timeout=1, num_workers=1)
    iterator = iter(loader)
    assert once_started(iterator).tolist() == [0]
    before = time.monotonic()
    with pytest.raises(RuntimeError) as caught:
        next(iterator)
    assert str(caught.value) == "DataLoader timed out after 1 seconds"
    assert 0.9 < time.monotonic() - before < 10
    event.set()


def test_unpicklable_dataset_raises_as_with_torch() -> None:
    skip_unless_said("Got pickle error")
    dataset = [threading.Lock()]
    found = assert_same(lambda kind: kind(dataset, num_workers=1, multiprocessing_context="spawn"))
    assert "cannot pickle" in repr(failures(found))
    assert found.warned


# ---- what the loader and its iterator are ----


def test_the_loader_is_a_torch_loader() -> None:
    loader = forked(Headrace, d.Squares(7), batch_size=2)
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert issubclass(Headrace, torch.utils.data.DataLoader)
    assert repr(Headrace[int]).endswith("DataLoader[int]")
    assert Headrace[int](d.Squares(3)).batch_size == 1
    assert len(loader) == 4
    ours, theirs = vars(loader), vars(forked(Torch, d.Squares(7), batch_size=2))
    assert theirs.keys() <= ours.keys()


@pytest.mark.parametrize("persistent", [False, True])
@LOADERS
def test_the_iterator_is_one_that_torch_recognises(kind: Any, persistent: bool) -> None:
    loader = forked(kind, d.Pids(20), batch_size=2, persistent_workers=persistent)
    iterator = iter(loader)
    assert isinstance(iterator, torch_dataloader._BaseDataLoaderIter)
    assert iter(iterator) is iterator and len(iterator) == 10
    assert (loader._iterator is iterator) == persistent
    workers = list(iterator._workers)
    assert len(workers) == 2
    pids = [worker.pid for worker in workers]
    assert all(worker.is_alive() and worker.exitcode is None for worker in workers)
    assert all(alive(pid) for pid in pids)
    seen = [batch.tolist() for batch in iterator]
    assert seen == [[pids[k % 2]] * 2 for k in range(10)]
    with pytest.raises(StopIteration):
        next(iterator)
    if persistent:
        assert all(worker.is_alive() for worker in workers)
        assert iter(loader) is iterator and [worker.pid for worker in iterator._workers] == pids
        assert [batch.tolist() for batch in iterator] == seen
    else:
        for worker in workers:
            worker.join(60)
            assert not worker.is_alive() and worker.exitcode == 0
    with pytest.raises(NotImplementedError):
        pickle.dumps(iterator)
    del iterator, loader
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0


@pytest.mark.parametrize("method", METHODS)
@LOADERS
def test_a_worker_can_be_terminated_and_joined(kind: Any, method: str) -> None:
    iterator = iter(kind(d.Squares(4), num_workers=1, multiprocessing_context=method))
    next(iterator)
    (worker,) = iterator._workers
    pid = worker.pid
    worker.terminate()
    worker.join(60)
    assert not worker.is_alive() and not alive(pid)
    # torch's handler ends a worker that its own parent terminates with code 0; a fork server's child has another one.
    # headrace's workers end by the signal, so that a report can name it.
    is_own = issubclass(kind, headrace.torch.DataLoader)
    assert worker.exitcode == (-signal.SIGTERM if is_own or method == "forkserver" else 0)
    del iterator


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_sees_the_same_surroundings(method: str) -> None:
    os.environ["HEADRACE_TEST_TRAINER"] = str(os.getpid())
    try:
        options = {"batch_size": None, "num_workers": 1, "multiprocessing_context": method}
        assert_same(lambda kind: kind(d.Surroundings(), collate_fn=d.identity, **options))
    finally:
        del os.environ["HEADRACE_TEST_TRAINER"]


def test_a_loader_can_be_pickled_and_copied() -> None:
    def remade(how: Any) -> Any:
        return lambda kind: how(forked(kind, d.Draws(7), batch_size=2, multiprocessing_context=None))

    assert_same(remade(lambda loader: pickle.loads(pickle.dumps(loader))), epochs=2)
    assert_same(remade(copy.copy), epochs=2)
    assert_same(remade(copy.deepcopy), epochs=2)
    for how in (copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))):
        again = how(Headrace(d.Squares(1), arena_limit=1 << 26))
        assert type(again) is Headrace and again.arena_limit == 1 << 26


def test_a_subclass_of_the_loader_works() -> None:
    def make(kind: Any) -> Any:
        class Doubled(kind):  # type: ignore[misc]
            def __iter__(self) -> Any:
                for batch in super().__iter__():
                    yield batch, batch

        return Doubled(d.Squares(5), batch_size=2, num_workers=2, multiprocessing_context="fork")

    assert_same(make, epochs=2)


def test_pinning_without_an_accelerator_warns_as_torch_does() -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    found = assert_same(lambda kind: forked(kind, d.Squares(5), batch_size=2, pin_memory=True))
    skip_unless_said("no accelerator is found")
    assert "no accelerator is found" in repr(found.warned)


def test_too_many_workers_warn_as_torch_does() -> None:
    many = (os.cpu_count() or 1) + 1
    if many > 9:
        pytest.skip("too many cores to start a worker on each")
    found = assert_same(lambda kind: forked(kind, d.Squares(4), num_workers=many))
    assert "suggested max number of worker" in repr(found.warned)


# ---- life ----


@pytest.mark.parametrize("method", METHODS)
@LOADERS
def test_change_of_dataset_between_epochs_reaches_workers(kind: Any, method: str) -> None:
    dataset = d.Setting(3)
    loader = kind(dataset, 3, num_workers=1, multiprocessing_context=method)
    for number in range(2):
        dataset.set_epoch(number)
        assert [value.tolist() for _, value in loader] == [[number] * 3]


def test_persistent_workers_keep_their_dataset() -> None:
    dataset = d.Setting(2)
    for kind in (Headrace, Torch):
        dataset.set_epoch(5)
        loader = forked(kind, dataset, batch_size=2, num_workers=1, persistent_workers=True)
        assert [value.tolist() for _, value in loader] == [[5, 5]]
        dataset.set_epoch(6)
        assert [value.tolist() for _, value in loader] == [[5, 5]]


@pytest.mark.parametrize("method", METHODS)
@LOADERS
def test_break_in_mid_epoch_ends_the_workers(kind: Any, method: str) -> None:
    loader = kind(d.Squares(1000), num_workers=1, multiprocessing_context=method)
    for _ in loader:
        break
    iterator = iter(loader)
    next(iterator)
    pids = [worker.pid for worker in iterator._workers]
    del iterator
    assert until(lambda: not any(map(alive, pids)), 60)


def test_nested_iteration_of_one_loader() -> None:
    def nested(kind: Any) -> list[Any]:
        seed()
        loader = forked(kind, d.Draws(6), batch_size=2, num_workers=1, shuffle=True)
        return [(describe(outer), [describe(inner) for inner in loader]) for outer in loader]

    assert nested(Headrace) == nested(Torch)


def test_two_loaders_at_once() -> None:
    def pairs(kind: Any) -> list[Any]:
        seed()
        first = forked(kind, d.Draws(9), batch_size=2)
        second = forked(kind, d.Sharded(9), batch_size=3, persistent_workers=True)
        return [describe(pair) for _ in range(2) for pair in zip(first, second, strict=False)]

    assert pairs(Headrace) == pairs(Torch)


@LOADERS
def test_loaders_work_in_a_thread_and_the_main_thread_at_once(kind: Any) -> None:
    results: dict[str, Any] = {}

    def work(name: str) -> None:
        results[name] = [i.tolist() for i, _ in forked(kind, d.Squares(40), batch_size=3)]

    threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    work("main")
    for thread in threads:
        thread.join(60)
    expected = [list(range(start, min(start + 3, 40))) for start in range(0, 40, 3)]
    assert results == {"a": expected, "b": expected, "main": expected}


@LOADERS
def test_an_iterator_can_be_used_in_another_thread_than_its_own(kind: Any) -> None:
    iterator = iter(forked(kind, d.Squares(20), batch_size=2))
    got = [next(iterator)[0].tolist()]

    def work() -> None:
        got.extend(batch[0].tolist() for batch in iterator)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert got == [[i, i + 1] for i in range(0, 20, 2)]


@LOADERS
@pytest.mark.parametrize(("method", "persistent"), [("fork", False), ("fork", True), ("forkserver", False)])
def test_generators_are_closed_when_an_epoch_is_left(
    kind: Any, method: str, persistent: bool, tmp_path: pathlib.Path
) -> None:
    options = {"batch_size": 2, "num_workers": 2, "persistent_workers": persistent, "prefetch_factor": 1}
    iterator = iter(kind(d.Tidy(tmp_path), multiprocessing_context=method, **options))
    for _ in range(2):
        next(iterator)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["worker 0", "worker 1"]
    del iterator
    gc.collect()
    assert until(lambda: not list(tmp_path.iterdir()), 60)


def test_iterable_dataset_may_raise_anything_for_attributes() -> None:
    assert_same(lambda kind: forked(kind, d.Configured(7), batch_size=2))


IN_TWO_THREADS = """
import sys, threading, time
import headrace

def take(iterator, barrier):
    barrier.wait()
    while True:
        try:
            (value,) = next(iterator).tolist()
            assert 0 <= value < 64
        except StopIteration:
            return
        except RuntimeError as error:
            errors.add("its own iterator" in str(error))
        except BaseException as error:
            errors.add(repr(error))

if __name__ == "__main__":
    sys.setswitchinterval(1e-6)
    errors = set()
    options = dict(num_workers=2, prefetch_factor=32, persistent_workers=True, multiprocessing_context="fork")
    loader = headrace.Loader(range(64), 1, **options)
    begin = time.monotonic()
    while time.monotonic() < begin + (5 if errors else 60):
        iterator, barrier = iter(loader), threading.Barrier(2)
        threads = [threading.Thread(target=take, args=(iterator, barrier)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(errors)
"""


def test_one_iterator_in_two_threads_raises_and_says_what_to_do(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, IN_TWO_THREADS) == "{True}\n"


@LOADERS
def test_a_loader_made_in_one_process_works_in_its_forked_child(kind: Any) -> None:
    loader = forked(kind, d.Squares(10), batch_size=3)
    list(loader)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(write, repr([i.tolist() for i, _ in loader]).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read) as stream:
        output = stream.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert output == "[[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]"


@LOADERS
def test_forked_child_does_not_end_the_workers_of_its_parent(kind: Any) -> None:
    iterator = iter(forked(kind, d.Squares(12), batch_size=2))
    next(iterator)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert [i.tolist() for i, _ in iterator] == [[2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]


def tell_report(loader: Any, write: int) -> None:
    try:
        loader.report()
    except RuntimeError as error:
        os.write(write, str(error).encode())


@pytest.mark.parametrize("by", ["fork", "multiprocessing"])
def test_a_report_in_a_forked_child_says_where_to_ask(by: str) -> None:
    loader = forked(Headrace, d.Squares(12), batch_size=2)
    iterator = iter(loader)
    next(iterator)
    read, write = os.pipe()
    if by == "multiprocessing":
        child = multiprocessing.get_context("fork").Process(target=tell_report, args=(loader, write))
        child.start()
        child.join()
    elif (pid := os.fork()) == 0:
        try:
            tell_report(loader, write)
        finally:
            os._exit(0)
    else:
        os.waitpid(pid, 0)
    os.close(write)
    with os.fdopen(read) as stream:
        assert "belong to the process that forked this one; call report() there" in stream.read()
    assert loader.report()["batches"] >= 1
    assert len(list(iterator)) == 5


class Slow(d.Squares):
    """Makes sample 3 when it may."""

    def __init__(self, count: int, gate: Any) -> None:
        super().__init__(count)
        self.gate = gate

    def __getitem__(self, index: int) -> Any:
        if index == 3:
            self.gate.wait(60)
        return super().__getitem__(index)


def test_iterator_after_a_failed_start_asks_for_a_new_loop() -> None:
    gate = multiprocessing.get_context("fork").Event()
    loader = forked(Headrace, Slow(8, gate), num_workers=1, prefetch_factor=4, persistent_workers=True, timeout=2)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(RuntimeError, match="timed out after 2"):
        iter(loader)
    with pytest.raises(RuntimeError, match="this epoch could not be started; start a new loop over the loader"):
        next(iterator)
    gate.set()
    assert [index.tolist() for index, _ in loader] == [[index] for index in range(8)]


ODD_WORDS = """
import pathlib, sys
from loaders import {kind}
if __name__ == "__main__":
    sys.argv.append(pathlib.Path("there"))
    print(*[batch.tolist() for batch in {kind}(range(4), 2, num_workers=1, multiprocessing_context="forkserver")])
"""


@pytest.mark.parametrize("kind", ["Headrace", "Torch"])
def test_script_arguments_need_not_be_strings(tmp_path: pathlib.Path, kind: str) -> None:
    assert run(tmp_path, ODD_WORDS.format(kind=kind)) == "[0, 1] [2, 3]\n"


EXIT = """
import sys
from multiprocessing import set_start_method
import datasets as d
from loaders import {kind}
if __name__ == "__main__":
    options = dict(num_workers=2, multiprocessing_context={method!r}, persistent_workers={persistent})
    loader = {kind}(d.Images(1000), 4, **options)
    iterator = iter(loader)
    batch = next(iterator)
    print(batch[1].tolist(), flush=True)
    {ending}
"""


@pytest.mark.destructors("they are a part of the end")
@pytest.mark.parametrize(
    "kind, method, persistent, ending",
    [
        ("Headrace", "fork", False, "pass"),
        ("Headrace", "fork", True, "pass"),
        ("Headrace", "fork", False, "iterator.cycle = [iterator, batch]"),
        ("Headrace", "fork", False, "sys.exit(0)"),
        ("Headrace", "forkserver", False, "pass"),
        ("Headrace", "spawn", True, "pass"),
        ("Torch", "fork", False, "pass"),
        ("Torch", "fork", True, "pass"),
        ("Torch", "forkserver", False, "pass"),
    ],
)
def test_the_interpreter_exits_in_mid_epoch_in_silence(
    tmp_path: pathlib.Path, kind: str, method: str, persistent: bool, ending: str
) -> None:
    code = EXIT.format(kind=kind, method=method, persistent=persistent, ending=ending)
    assert run(tmp_path, code) == "[0, 1, 2, 3]\n"


CTRL_C = """
import multiprocessing, os, sys
import datasets as d
from loaders import {kind}
if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    reached = context.Event()
    dataset = d.Gate(100, 3, context.Event(), reached)
    iterator = iter({kind}(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork"))
    print(*[worker.pid for worker in iterator._workers], flush=True)
    try:
        for item in iterator:
            if item == 2:
                reached.wait(60)
                print("waiting", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        {handling}
"""


@pytest.mark.parametrize("whole_group", [True, False], ids=["as a terminal does", "to the trainer alone"])
@pytest.mark.parametrize("kind", ["Headrace", "Torch"])
def test_ctrl_c_in_mid_epoch_raises_and_leaves_no_worker(tmp_path: pathlib.Path, kind: str, whole_group: bool) -> None:
    with Script(tmp_path, CTRL_C.format(kind=kind, handling="raise SystemExit(7)")) as script:
        pids = [int(pid) for pid in script.line().split()]
        assert script.line() == "waiting"
        (os.killpg if whole_group else os.kill)(script.process.pid, signal.SIGINT)
        assert script.finish() == 7, script.stderr
        assert script.stdout == "interrupted\n"
        assert script.left() == []
        assert not any(map(alive, pids))


# ---- drawn ----

EXAMPLES = int(os.environ.get("HEADRACE_EXAMPLES", "60"))  # `make soak` draws more
RARER = {"fork": 1, "forkserver": 40, "spawn": 100}  # each new worker of torch imports torch
FAILURES = sorted(set(d.FAILURES) - {"recursion"})
INITS = [d.init_adds, d.init_raises, d.init_raises_in_1]
scalars = st.sampled_from(["int", "float", "bool", "str", "bytes", "npfloat", "rand", "pyrand", "worker", "ragged"])
shapes = st.lists(st.integers(0, 4), max_size=3)
leaves = st.one_of(
    scalars.map(lambda name: [name]),
    st.tuples(st.just("tensor"), st.sampled_from(d.DTYPES), shapes).map(list),
    st.tuples(st.just("tensor"), st.sampled_from(["uint8", "float32"]), st.just([120, 100])).map(list),
    st.tuples(st.just("numpy"), st.sampled_from(["?", "u1", "i4", "f4", "f8", "c8", "U7"]), shapes).map(list),
)
structures = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["list", "tuple"]), st.lists(inner, max_size=3)).map(list),
        st.tuples(st.just("point"), inner, inner).map(list),
        st.tuples(st.just("dict"), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)).map(list),
    ),
    max_leaves=5,
)


indices = st.lists(st.integers(-3, 16), max_size=12)
samplers = st.one_of(
    st.tuples(st.just("sampler"), indices),
    st.tuples(st.just("batch_sampler"), st.lists(indices, max_size=6)),
    st.tuples(st.just("replacement"), st.integers(1, 12)),
    st.tuples(st.just("eager"), st.integers(0, 12)),
    st.tuples(st.just("broken"), st.integers(0, 12)),
)


def add_sampler(options: dict[str, Any], drawn: tuple[str, Any] | None) -> None:
    """A new one for each loader: some remember what they have drawn."""
    name, what = drawn or ("", None)
    if name == "batch_sampler":
        del options["batch_size"], options["drop_last"]
        options["batch_sampler"] = what
    elif name == "sampler":
        options["sampler"] = what
    elif name == "replacement":
        options["sampler"] = torch.utils.data.RandomSampler(range(what), replacement=True)
    elif name == "eager":
        options["sampler"] = d.EagerSampler(what)
    elif name == "broken":
        options["sampler"] = d.BrokenSampler(what)


@st.composite
def works(draw: Any) -> dict[str, Any]:
    """A dataset and options that torch accepts."""
    count = draw(st.integers(0, 14))
    failing = tuple(draw(st.lists(st.integers(0, 13), max_size=2)))
    workers = draw(st.integers(1, 3))
    batch_size = draw(st.sampled_from([None, 1, 2, 3, 5, 20]))
    iterable = draw(st.booleans())
    return {
        "dataset": d.Drawn(count, draw(structures), failing, draw(st.sampled_from(FAILURES))),
        "shares": tuple(draw(st.lists(st.integers(0, 2), min_size=1, max_size=3))) if iterable else None,
        "identity": draw(st.booleans()),
        "getitems": draw(st.booleans()) and not iterable,
        "shuffle": draw(st.booleans()) and not iterable and count > 0,
        "sampler": None if iterable else draw(st.none() | samplers),
        "generator": draw(st.none() | st.integers(0, 99)),
        "epochs": draw(st.integers(1, 2)),
        "limit": draw(st.none() | st.integers(0, 4)),
        "options": {
            "batch_size": batch_size,
            "num_workers": workers,
            "prefetch_factor": draw(st.integers(1, 3)),
            "drop_last": batch_size is not None and draw(st.booleans()),
            "persistent_workers": draw(st.booleans()),
            "in_order": workers == 1 or draw(st.integers(0, 4)) > 0,
            "worker_init_fn": draw(st.sampled_from(INITS)) if draw(st.integers(0, 3)) == 0 else None,
        },
    }


def loosened(events: list[Any]) -> list[Any]:
    """Notes that headrace may add after torch's text are left out, line by line, by the caller."""
    return sorted(map(repr, events))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.timeout(120 + 10 * EXAMPLES)
def test_drawn_loaders_do_the_same(method: str) -> None:
    @hypothesis.settings(
        max_examples=max(1, EXAMPLES // RARER[method]),
        deadline=None,
        database=None,
        derandomize="HEADRACE_EXAMPLES" not in os.environ,
        print_blob=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(works())
    def check(work: dict[str, Any]) -> None:
        assert_drawn_loaders_do_the_same(work, method)

    check()


def assert_drawn_loaders_do_the_same(work: dict[str, Any], method: str) -> None:
    dataset, shares = work["dataset"], work["shares"]
    if work["getitems"]:
        dataset = d.DrawnGetitems(**vars(dataset))
    options = dict(work["options"], multiprocessing_context=method)
    if work["identity"]:
        options["collate_fn"] = d.identity
    if work["shuffle"] and not work["sampler"]:
        options["shuffle"] = True

    def make(kind: Any) -> Any:
        generator = None if work["generator"] is None else torch.Generator().manual_seed(work["generator"])
        mine = dict(options)
        add_sampler(mine, work["sampler"])
        return kind(d.DrawnIterable(dataset, shares) if shares else dataset, generator=generator, **mine)

    in_order = options["in_order"]
    limit = work["limit"] if in_order else None
    ours, theirs = (trace(kind, make, epochs=work["epochs"], limit=limit) for kind in (Headrace, Torch))
    assert ours.random == theirs.random
    assert ours.warned == theirs.warned
    assert len(ours.events) == len(theirs.events)
    if in_order:
        for mine, other in zip(ours.events, theirs.events, strict=True):
            is_broken = "the sampler broke" in repr(other)  # torch loses the batch that was due; headrace does not
            assert_epoch(without_lost(mine, other) if is_broken else mine, other)
    elif not failures(theirs) and not draws_numbers(dataset.structure) and shares is None:
        # then it is random which worker makes which batch: only results that do not depend on it are equal
        for mine, other in zip(ours.events, theirs.events, strict=True):
            assert loosened(mine) == loosened(other) if isinstance(other, list) else mine == other


def draws_numbers(structure: Any) -> bool:
    return any(name in repr(structure) for name in ("'rand'", "'pyrand'", "'worker'"))


def assert_epoch(mine: Any, other: Any) -> None:
    if not isinstance(other, list):
        assert mine == other
        return
    assert len(mine) == len(other), (mine, other)
    for number, (a, b) in enumerate(zip(mine, other, strict=True)):
        if b[:2] == ("raised", "builtins.UnboundLocalError"):
            # torch has no fetcher, since this worker failed to begin: headrace says why, again
            assert a in mine[:number] and "cannot start" in a[3]
        elif b[0] == "raised":
            assert a[:3] == b[:3]
            assert a[3].startswith(b[3].rstrip()), (a[3], b[3])
        else:
            assert a == b


# ---- better than torch ----


@only_headrace
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_iterator_in_a_cycle_ends_workers_when_collected(method: str) -> None:
    def took() -> float:
        iterator = iter(Headrace(d.Squares(100), num_workers=2, multiprocessing_context=method))
        for _ in range(2):  # one of each worker
            next(iterator)
        pids = [worker.pid for worker in iterator._workers]
        iterator.itself = iterator  # torch: 5 s per worker
        del iterator
        before = time.monotonic()
        gc.collect()
        assert until(lambda: not any(map(alive, pids)), 60)
        return time.monotonic() - before

    assert any(took() < 2 for _ in range(3))


# ---- the suite itself ----


@only_headrace
def test_headrace_is_not_torch_with_another_name() -> None:
    loader = forked(Headrace, d.Squares(3))
    iterator = iter(loader)
    assert type(iterator) is not torch_dataloader._MultiProcessingDataLoaderIter
    list(iterator)


def test_the_masking_of_tracebacks_keeps_the_users_own_frames() -> None:
    here = str(pathlib.Path(__file__).parent / "x.py")
    text = (
        "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        '  File "/lib/worker.py", line 1, in loop\n    call()\n    ^^^^^^\n'
        f'  File "{here}", line 2, in get\n    raise ValueError\nValueError: at 0x7f'
    )
    assert mask(text) == (
        "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        f'  File "{here}", line 2, in get\n    raise ValueError\nValueError: at 0x0'
    )


COLLATE_MAP = """
from torch.utils.data._utils.collate import default_collate_fn_map
default_collate_fn_map[int] = lambda batch, *, collate_fn_map=None: "the user's"
from loaders import Headrace
print(*Headrace([1, 2], batch_size=2, num_workers=1, multiprocessing_context="fork"))
"""


def test_collate_map_changed_before_the_import_is_used(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, COLLATE_MAP) == "the user's\n"

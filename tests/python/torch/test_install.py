# SPDX-License-Identifier: Apache-2.0
"""headrace.torch.install: the engine under torch's own loader."""

from __future__ import annotations

import itertools
import multiprocessing
import pathlib
from collections.abc import Iterator
from typing import Any

import datasets as d
import headrace._base.this_process
import headrace.torch
import pytest
import torch.utils.data
from processes import run

MB = 1 << 20


class Sub(torch.utils.data.DataLoader[Any]):
    """A framework's own loader."""


@pytest.fixture(autouse=True)
def torchs_engine_afterwards() -> Iterator[None]:
    yield
    headrace.torch.uninstall()


def engine_of(loader: Any) -> str:
    iterator = iter(loader)
    assert len(list(iterator)) == 5
    return type(iterator).__module__.partition(".")[0]


def make(kind: Any, **options: Any) -> Any:
    return kind(d.Images(10, side=8), batch_size=2, num_workers=1, multiprocessing_context="fork", **options)


def test_loader_made_before_install_gets_and_returns_the_engine() -> None:
    loader, sub = make(torch.utils.data.DataLoader), make(Sub)
    assert engine_of(loader) == engine_of(sub) == "torch"
    headrace.torch.install()
    assert engine_of(loader) == engine_of(sub) == "headrace"
    headrace.torch.uninstall()
    assert engine_of(loader) == engine_of(sub) == "torch"


def test_headraces_own_loader_is_the_same_with_and_without() -> None:
    loader = make(headrace.torch.DataLoader)
    assert engine_of(loader) == "headrace"
    headrace.torch.install()
    assert engine_of(loader) == "headrace"


def test_a_with_block_restores_what_was_there() -> None:
    loader = make(torch.utils.data.DataLoader)
    with headrace.torch.installed():
        with headrace.torch.installed():
            assert engine_of(loader) == "headrace"
        assert engine_of(loader) == "headrace"
    assert engine_of(loader) == "torch"


def limit_of(loader: Any) -> int:
    iterator = iter(loader)
    assert len(list(iterator)) == 5
    return iterator.report()["limit_bytes"]  # type: ignore[no-any-return]


class StandIn:
    """Like fastai's: not a loader, but with the attributes that torch's iterator reads."""

    dataset = d.Count(10)
    num_workers, prefetch_factor, timeout, persistent_workers = 1, 2, 0, False
    pin_memory, pin_memory_device, in_order, drop_last = False, "", True, False
    generator = worker_init_fn = None
    multiprocessing_context = multiprocessing.get_context("fork")
    _IterableDataset_len_called, _auto_collation = None, False
    _dataset_kind = torch.utils.data.dataloader._DatasetKind.Iterable

    @property
    def _index_sampler(self) -> Any:
        return itertools.count()

    def collate_fn(self, sample: Any) -> Any:
        return sample


class OwnIterator(torch.utils.data.dataloader._MultiProcessingDataLoaderIter):
    """A framework's own, with its own ideas of what torch's iterator has."""


def test_torch_iterator_class_makes_an_iterator_of_the_engine() -> None:
    its_class: Any = torch.utils.data.dataloader._MultiProcessingDataLoaderIter

    def engine_of_called(cls: Any) -> str:
        iterator = cls(StandIn())
        assert list(iterator) == [(number, 0) for number in range(10)]
        return str(type(iterator).__module__).partition(".")[0]

    assert engine_of_called(its_class) == "torch"
    with headrace.torch.installed():
        assert engine_of_called(its_class) == "headrace"
        assert engine_of_called(OwnIterator) == __name__
    assert engine_of_called(its_class) == "torch"
    assert engine_of_called(OwnIterator) == __name__


class Resumed(torch.utils.data.dataloader._MultiProcessingDataLoaderIter):
    def __init__(self, dataloader: Any, *, state: int) -> None:
        self.state = state
        super().__init__(dataloader)


def test_iterator_class_of_a_framework_may_take_more_arguments() -> None:
    with headrace.torch.installed():
        iterator = Resumed(dataloader=make(torch.utils.data.DataLoader), state=3)
        assert (len(list(iterator)), iterator.state) == (5, 3)


class Bad(d.Images):
    def __getitem__(self, index: int) -> Any:
        if index == 3:
            raise ValueError("bad")
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [torch.utils.data.DataLoader, headrace.torch.DataLoader])
@pytest.mark.filterwarnings("ignore:headrace. 1 bad sample")
def test_install_sets_options_for_loaders_without_their_own(kind: Any, workers: int) -> None:
    options = {"batch_size": 2, "num_workers": workers}
    method = {"multiprocessing_context": "fork"} if workers else {}
    with headrace.torch.installed(on_bad_sample="skip"):
        assert [len(labels) for _, labels in kind(Bad(6, side=8), **options, **method)] == [2, 1, 2]
        if kind is headrace.torch.DataLoader:
            refilled = kind(Bad(6, side=8), **options, **method, on_bad_sample="refill")
            assert [len(labels) for _, labels in refilled] == [2, 2, 2]


def test_torch_iterator_class_stays_if_the_engine_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headrace._base.this_process, "why_engine_cannot_run", lambda: "no reason")
    loader = make(torch.utils.data.DataLoader)
    with headrace.torch.installed(), pytest.warns(UserWarning, match="no reason"):
        assert engine_of(loader) == "torch"


PATCHED = """
import torch.utils.data

class Counted:
    calls = 0
    def __init__(self, function):
        self.function = function
    def __get__(self, loader, cls):
        return self if loader is None else lambda: self(loader)
    def __call__(self, loader):
        Counted.calls += 1
        return self.function(loader)

torch.utils.data.DataLoader._get_iterator = Counted(torch.utils.data.DataLoader._get_iterator)
from headrace.torch import DataLoader
print(len(list(DataLoader(range(4), num_workers=0))), Counted.calls)
print(len(list(DataLoader(range(4), num_workers=1, multiprocessing_context="fork"))), Counted.calls)
"""


def test_another_tool_may_have_wrapped_torchs_method_before(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, PATCHED) == "4 1\n4 1\n"


def test_limit_of_install_is_for_loaders_without_their_own() -> None:
    theirs, ours = make(torch.utils.data.DataLoader), make(headrace.torch.DataLoader)
    own = make(headrace.torch.DataLoader, arena_limit=64 * MB)
    with headrace.torch.installed(arena_limit=32 * MB):
        assert [limit_of(loader) for loader in (theirs, ours, own)] == [32 * MB, 32 * MB, 64 * MB]
        with headrace.torch.installed():
            assert limit_of(theirs) > 64 * MB
        assert limit_of(theirs) == 32 * MB
        with pytest.raises(ValueError, match="arena_limit"):
            headrace.torch.install(arena_limit=0)
        assert limit_of(theirs) == 32 * MB
        headrace.torch.uninstall()
        assert limit_of(ours) > 64 * MB


def test_a_loader_without_workers_stays_torchs() -> None:
    with headrace.torch.installed():
        iterator = iter(torch.utils.data.DataLoader(d.Images(4, side=8)))
        assert isinstance(iterator, torch.utils.data.dataloader._SingleProcessDataLoaderIter)


def test_iterating_twice_at_once_and_batches_are_as_ever() -> None:
    loader = make(torch.utils.data.DataLoader)
    theirs = [labels.tolist() for _, labels in loader]
    with headrace.torch.installed():
        assert [a[1].tolist() for a, b in zip(loader, loader, strict=True)] == theirs


def test_install_keeps_the_iteration_of_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool may have replaced __iter__ of torch's DataLoader; headrace wraps it only while loops are measured."""
    theirs = torch.utils.data.DataLoader.__iter__
    seen: list[Any] = []

    def watched(loader: Any) -> Any:
        seen.append(loader)
        return theirs(loader)

    monkeypatch.setattr(torch.utils.data.DataLoader, "__iter__", watched)
    with headrace.torch.installed():
        assert engine_of(make(torch.utils.data.DataLoader)) == "headrace" and len(seen) == 1
    monkeypatch.setenv("HEADRACE_HEADSPACE", "100")
    with headrace.torch.installed():
        assert torch.utils.data.DataLoader.__iter__ is not watched
    assert torch.utils.data.DataLoader.__iter__ is watched

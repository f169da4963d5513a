# SPDX-License-Identifier: Apache-2.0
"""The handler of a signal raises an exception while a rank compares its epoch with the others."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType

import pytest
from headrace._ranks import agreement
from loaders import only_headrace

torch = pytest.importorskip("torch")
from headrace.torch import DataLoader, DistributedSampler  # noqa: E402

pytestmark = only_headrace


class Interrupted(Exception):
    pass


def interrupt(number: int, frame: FrameType | None) -> None:
    raise Interrupted


class Store:
    """A store of two processes, of which the other one never comes. The first call of gather is interrupted."""

    def __init__(self) -> None:
        self.added: list[tuple[str, bool]] = []  # for each call, the key, and whether a text was added

    def process_count(self) -> int:
        return 2

    def gather(self, key: str, text: str | None, count: int, deadline: float) -> tuple[int, list[str]]:
        self.added.append((key, text is not None))
        if len(self.added) == 1:
            signal.raise_signal(signal.SIGALRM)
        return 2, []

    def forget(self, key: str) -> None:
        pass


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    one = Store()
    monkeypatch.setattr(agreement, "_store", one)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    before = signal.signal(signal.SIGALRM, interrupt)
    yield one
    signal.signal(signal.SIGALRM, before)


def test_epoch_that_was_interrupted_is_published_once(store: Store) -> None:
    loader = DataLoader(range(16), 4, sampler=DistributedSampler(range(16), 2, 0))
    iterator = iter(loader)
    with pytest.raises(Interrupted):
        next(iterator)
    assert len(list(iterator)) == 2
    (first, was_added), (again, was_added_again) = store.added
    assert first == again and was_added and not was_added_again
    loader.sampler.set_epoch(1)
    list(loader)
    assert len(store.added) == 3 and store.added[2][0] != first and store.added[2][1]


class InterruptedLength(DistributedSampler):
    interrupted = 0

    def __len__(self) -> int:
        if self.interrupted == 1:
            self.interrupted = 2
            signal.raise_signal(signal.SIGALRM)
        return super().__len__()


def test_interruption_in_the_length_of_a_sampler_is_raised(store: Store) -> None:
    store.added.append(("", False))
    sampler = InterruptedLength(range(16), 2, 0)
    iterator = iter(DataLoader(range(16), 4, sampler=sampler))
    sampler.interrupted = 1
    with pytest.raises(Interrupted):
        next(iterator)
    assert sampler.interrupted == 2 and len(list(iterator)) == 2

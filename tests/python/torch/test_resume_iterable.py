# SPDX-License-Identifier: Apache-2.0
"""The state of loaders with an iterable dataset, of both kinds of loaders."""

from __future__ import annotations

import collections
import itertools
import warnings
from typing import Any

import headrace
import pytest
import torch
from headrace.torch import DataLoader
from loaders import only_headrace
from resumed import Counting, Stateless, plain
from torch.utils.data import IterableDataset

pytestmark = [only_headrace, pytest.mark.filterwarnings("ignore:headrace. the state has none of the dataset")]
LOADERS = pytest.mark.parametrize("kind", [DataLoader, headrace.Loader], ids=["torch", "numpy"])


def _states_of(loader: Any, held_back: int = 0) -> tuple[list[list[Any]], list[tuple[int, int, dict[str, str]]]]:
    """Returns the batches of two epochs, and a state after each batch with the epoch and batch that it continues at."""
    states, epochs = [(0, 0, loader.state_dict())], []
    for epoch in range(2):
        batches: list[Any] = []
        for batch in loader:
            batches.append(plain(batch))
            states.append((epoch, max(0, len(batches) - held_back), loader.state_dict()))
        states.append((epoch + 1, 0, loader.state_dict()))
        epochs.append(batches)
    return epochs, states


OPTIONS: list[tuple[int, dict[str, Any]]] = [
    (0, {}),
    (1, {"persistent_workers": True}),
    (3, {"snapshot_every_n_steps": 3}),
]


@LOADERS
@pytest.mark.parametrize("dataset", [Counting, Stateless])
@pytest.mark.parametrize("held_back", [0, 1])
@pytest.mark.parametrize(("workers", "options"), OPTIONS)
def test_each_worker_goes_on_where_it_was(
    kind: Any, dataset: Any, held_back: int, workers: int, options: dict[str, Any]
) -> None:
    def make() -> Any:
        return kind(dataset(), 2, num_workers=workers, held_back=held_back, **options)

    epochs, states = _states_of(make(), held_back)
    some = states[::4] if workers < 3 else states[::8]  # each starts all workers
    for epoch, done, state in [*some, states[-2], states[-1]]:
        loader = make()
        loader.load_state_dict(state)
        whole = epochs[min(epoch, 1)]
        rest = [plain(batch) for batch in loader]
        # After the last batch the next epoch begins, if the loader could know that it was the last one.
        assert rest == whole[done:] or (done == len(whole) and dataset is Counting and rest == whole)
        assert [plain(batch) for batch in loader] == whole


class StartsAgain(Counting):
    """At its end, the dataset is at its beginning again."""

    def __iter__(self) -> Any:
        yield from super().__iter__()
        self.next = 0


@LOADERS
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_worker_that_has_ended_does_not_begin_again(kind: Any, workers: int) -> None:
    """Its state is that of a dataset at its beginning, but it has no more in this epoch."""
    epochs, states = _states_of(kind(StartsAgain(), 2, num_workers=workers))
    for epoch, done, state in states:
        loader = kind(StartsAgain(), 2, num_workers=workers)
        loader.load_state_dict(state)
        rest = [plain(batch) for batch in loader]
        whole = epochs[min(epoch, 1)]
        assert rest == (whole if done == len(whole) else whole[done:])


@LOADERS
def test_out_of_order_no_sample_is_lost_or_repeated(kind: Any) -> None:
    def make() -> Any:
        return kind(Counting(), 2, num_workers=3, in_order=False)

    loader, seen = make(), []
    for batch in loader:
        seen.append(plain(batch))
        other = make()
        other.load_state_dict(loader.state_dict())
        if len(seen) in (1, 4, 9):
            rest = [plain(one) for one in other]
            found = collections.Counter(itertools.chain.from_iterable(seen + rest))
            assert found == {i: 1 for i in range(41) if i % 3 != 1 or i < 20}


@LOADERS
def test_a_dead_worker_is_continued_after_a_resume(kind: Any) -> None:
    """The worker that replaces a dead one starts after the batches of the earlier process."""
    loader = kind(Counting(60), 2, num_workers=2, max_restarts=2)
    iterator = iter(loader)
    seen = [plain(next(iterator)) for _ in range(8)]
    state = loader.state_dict()
    whole = [*seen, *(plain(batch) for batch in iterator)]
    loader = kind(Counting(60), 2, num_workers=2, max_restarts=2)
    loader.load_state_dict(state)
    iterator = iter(loader)
    rest = [plain(next(iterator))]
    engine = iterator._engine
    engine.processes[0].kill()
    engine.processes[0].join(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rest += [plain(batch) for batch in iterator]
    assert rest == whole[8:] and engine.report()["restarts"] == 1


@LOADERS
def test_skip_makes_batches_and_drops_them(kind: Any) -> None:
    whole = [plain(batch) for batch in kind(Counting(), 2, num_workers=2)]
    loader = kind(Counting(), 2, num_workers=2)
    loader.skip(3)
    assert [plain(batch) for batch in loader] == whole[3:]


@LOADERS
def test_batches_that_are_made_again_are_announced(kind: Any) -> None:
    loader = kind(Stateless(), 2)
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = loader.state_dict()
    loader = kind(Stateless(), 2)
    loader.load_state_dict(state)
    with pytest.warns(UserWarning, match=r"Stateless has no state_dict and load_state_dict\), so the 2 batches"):
        assert plain(next(iter(loader))) == [4, 5]


class WithObject(Counting):
    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next, "object": self}


BAD: list[tuple[Any, Any, str]] = [
    ((Counting, 2), (Counting, 3), "taken with num_workers=2, and this loader has num_workers=3"),
    ((Counting, 2), (Stateless, 2), "taken with iterable Counting, and this loader has iterable Stateless"),
]


@LOADERS
@pytest.mark.parametrize(("taken", "loaded", "message"), BAD)
def test_a_state_that_does_not_fit_is_refused(kind: Any, taken: Any, loaded: Any, message: str) -> None:
    loader = kind(taken[0](), 2, num_workers=taken[1])
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(ValueError, match=message):
        kind(loaded[0](), 2, num_workers=loaded[1]).load_state_dict(loader.state_dict())


@LOADERS
def test_a_dataset_state_with_other_objects_is_refused(kind: Any) -> None:
    loader = kind(WithObject(), 2, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(ValueError, match=r"a state_dict contains a \w*\.?WithObject; a loader's state can contain"):
        loader.state_dict()
    assert len(list(iterator)) == 20


class KeepsState(IterableDataset[int]):
    """Does what datasets of Hugging Face do: a state that was loaded stays for each later iteration."""

    def __init__(self) -> None:
        self.start = self.next = 0

    def __iter__(self) -> Any:
        for number in range(self.start, 10):
            self.next = number + 1
            yield number

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state["next"]


@LOADERS
@pytest.mark.parametrize("workers", [0, 1])
def test_the_epoch_after_a_resume_begins_at_the_beginning(kind: Any, workers: int) -> None:
    loader = kind(KeepsState(), 2, num_workers=workers)
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = loader.state_dict()
    loader = kind(KeepsState(), 2, num_workers=workers)
    loader.load_state_dict(state)
    assert [plain(batch) for batch in loader] == [[4, 5], [6, 7], [8, 9]]
    assert [plain(batch) for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


class WithEpoch(Counting):
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def test_the_epoch_of_the_dataset_is_loaded() -> None:
    loader = DataLoader(WithEpoch(), 2)
    loader.dataset.set_epoch(4)  # type: ignore[attr-defined]
    next(iter(loader))
    state = loader.state_dict()
    loader = DataLoader(WithEpoch(), 2)
    loader.load_state_dict(state)
    assert loader.dataset.epoch == 4  # type: ignore[attr-defined]


def test_after_a_load_iter_draws_no_base_seed() -> None:
    torch.manual_seed(3)
    loader = DataLoader(Counting(), 2, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    state, seed = loader.state_dict(), iterator._base_seed
    loader = DataLoader(Counting(), 2, num_workers=1)
    loader.load_state_dict(state)
    before = torch.get_rng_state()
    assert iter(loader)._base_seed == seed and torch.equal(torch.get_rng_state(), before)

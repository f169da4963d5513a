# SPDX-License-Identifier: Apache-2.0
"""Cases that test_resume_fallback.py runs in a process where HEADRACE_DISABLE=1 leaves torch's own iterators. Each
function is a case, and returns what the test compares."""

from __future__ import annotations

import gc
import itertools
import json
import multiprocessing
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from headrace.torch import DataLoader
from headrace.torch._own import table
from resumed import MAKERS, Numbers, Stateless, plain, run
from torch.utils.data import IterableDataset, get_worker_info

OPTIONS: list[dict[str, Any]] = [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}]


class SeededOrder(IterableDataset[int]):
    """An iterable dataset that shuffles with the seed of its worker."""

    def __iter__(self) -> Iterator[int]:
        info: Any = get_worker_info()
        order = torch.randperm(20, generator=torch.Generator().manual_seed(info.seed))
        yield from (100 * info.id + order).tolist()


class WaitsForOthers(Numbers):
    """Sample 0 is made when the event is set."""

    def __init__(self) -> None:
        super().__init__(40)
        self.event = multiprocessing.get_context("fork").Event()

    def __getitem__(self, index: int) -> int:
        assert index or self.event.wait(120)
        return index


def begin(loader: Any, batches: int) -> list[Any]:
    """Takes so many batches and leaves the loop. The iterator is gone then, unless its workers persist."""
    return [plain(batch) for batch in itertools.islice(iter(loader), batches)]


def place(loader: Any) -> list[Any]:
    """Returns how far a loader is: the epoch, the steps, and the step of the last batch."""
    state = json.loads(loader.state_dict()["headrace"])
    return [state["epoch"], state["steps"], loader.last and loader.last.step]


def _continued(make: Callable[[], Any]) -> list[list[Any]]:
    """Stops in several places, and compares what is left with a run that was never stopped. Returns the places."""
    torch.manual_seed(5)
    whole, places = run(make()), []
    for epoch, batches in ((0, 0), (0, 3), (1, 2), (1, len(whole[1]))):
        torch.manual_seed(5)
        loader = make()
        run(loader, epochs=epoch)
        begin(loader, batches)
        places.append(place(loader))
        state, numbers = loader.state_dict(), torch.get_rng_state()
        torch.seed()
        loader = make()
        torch.set_rng_state(numbers)
        loader.load_state_dict(state)
        first, done, _ = places[-1]
        assert run(loader, first) == [whole[first][done:], *whole[first + 1 :]], (epoch, batches)
    return places


def indices_after_break() -> list[Any]:
    makers = MAKERS["shuffle, generator"], MAKERS["own state"]
    return [_continued(partial(make, **one)) for make in makers for one in OPTIONS]


def samples_after_break() -> list[Any]:
    return [_continued(partial(DataLoader, Stateless(), 4, **one)) for one in OPTIONS]


def worker_seeds_after_break() -> list[Any]:
    return [_continued(partial(DataLoader, SeededOrder(), 4, **one)) for one in OPTIONS[1:]]


def ends() -> list[Any]:
    """Returns the places after the last batch, after the end, and after a batch of the next epoch."""
    found = []
    for dataset, held_back, one in itertools.product((Numbers(16), Stateless(16)), (0, 1), OPTIONS):
        loader: Any = DataLoader(dataset, 4, held_back=held_back, **one)
        iterator = iter(loader)
        places = [[next(iterator) for _ in range(4)] and place(loader)]
        places += [next(iterator, None) or place(loader)]
        del iterator
        found.append([*places, place(loader), begin(loader, 1) and place(loader)])
    return found


def out_of_order() -> list[Any]:
    """Returns the holes and the samples before and after a stop, when the first batch had not come."""
    dataset, found = WaitsForOthers(), []
    for options in OPTIONS[1:]:
        dataset.event.clear()
        loader = DataLoader(dataset, 4, in_order=False, **options)
        iterator = iter(loader)
        seen = [plain(next(iterator)) for _ in range(3)]
        dataset.event.set()  # a worker that waits could not end
        del iterator
        state, last = loader.state_dict(), loader.last
        loader = DataLoader(dataset, 4, in_order=False, **options)
        loader.load_state_dict(state)
        rest = [plain(batch) for batch in loader]
        assert last is not None and last.indices == seen[-1]
        found.append([json.loads(state["headrace"])["holes"], sorted(itertools.chain(*seen, *rest)), place(loader)])
    return found


def kept_alive() -> int:
    """Returns how many iterators, epochs and loaders only the garbage collector would free."""
    gc.collect()
    gc.disable()
    dead = []
    for dataset, one in itertools.product((Numbers(16), Stateless(16)), OPTIONS):
        loader: Any = DataLoader(dataset, 4, **one)
        for _ in range(2):
            iterator = iter(loader)
            next(iterator)
            dead += [weakref.ref(iterator), weakref.ref(table.kept(loader).position.progress)]
            loader.load_state_dict(loader.state_dict())
            begin(loader, 1)
        dead.append(weakref.ref(loader))
        del loader, iterator
    return sum(one() is not None for one in dead)


def too_few() -> str:
    """Returns the error if the dataset gives fewer batches than before."""
    loader = DataLoader(Stateless(16), 4)
    begin(loader, 3)
    other = DataLoader(Stateless(8), 4)
    other.load_state_dict(loader.state_dict())
    try:
        iter(other)
    except ValueError as error:
        return str(error)
    return ""


def continued_from(path: str) -> list[Any]:
    """Continues a state of the engine over SeededOrder. Returns a state after two batches more, and all batches."""
    with open(path) as file:
        state = json.load(file)
    loader = DataLoader(SeededOrder(), 4, num_workers=2)
    loader.load_state_dict(state)
    before = torch.get_rng_state()
    iterator = iter(loader)
    assert torch.equal(before, torch.get_rng_state())
    batches = [plain(next(iterator)) for _ in range(2)]
    return [loader.state_dict(), batches + [plain(batch) for batch in iterator]]


def main() -> None:
    """Runs the case that the first argument names, with the others as its arguments."""
    warnings.simplefilter("ignore")
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))

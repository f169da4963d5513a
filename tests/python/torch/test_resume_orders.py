# SPDX-License-Identifier: Apache-2.0
"""Orders after a resume: samplers that cannot be put back, epochs that random numbers of a new process repeat, and data
that is not the same when it is made again."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import headrace
import numpy as np
import pytest
import torch
from drawn_orders import SHUFFLES, Batches, Counting, CountingWithState, N, Shuffled, ShuffledInPlace, seed_all
from headrace.sampling._epoch_indices import hash_of
from headrace.torch import DataLoader, per_rank
from loaders import only_headrace
from resumed import Numbers, plain
from torch.utils.data import RandomSampler, Sampler, SubsetRandomSampler, WeightedRandomSampler

pytestmark = only_headrace


def _after(loader: Any, steps: int | None) -> dict[str, str]:
    """Returns the state after so many batches, or after an epoch and its StopIteration."""
    for number, _ in enumerate(loader, start=1):
        if number == steps:
            break
    state: dict[str, str] = loader.state_dict()
    return state


# ---- samplers that cannot be put back, dealt to ranks or divided in another way ----


def _dealt(sampler: Any, world: int = 1, batch: int = 4, **options: Any) -> Any:
    return DataLoader(Numbers(N), batch, sampler=per_rank(sampler, num_replicas=world, rank=0, **options))


@pytest.mark.parametrize(("world", "batch"), [(1, 4), (2, 4), (1, 6), (3, 2)])
def test_other_order_of_per_rank_is_refused_on_any_ranks(world: int, batch: int) -> None:
    sampler = Counting(SHUFFLES["torch"]())
    loader = _dealt(sampler)
    list(loader)
    state = _after(loader, 2)  # of the second epoch
    other = _dealt(Counting(SHUFFLES["torch"]()), world, batch)
    other.load_state_dict(state)
    with pytest.raises(ValueError, match=r"the per_rank\(Counting\) gives other entries than before"):
        iter(other)


@pytest.mark.parametrize("world", [1, 2])
def test_sampler_with_state_in_per_rank_is_put_back(world: int) -> None:
    loader = _dealt(CountingWithState(SHUFFLES["torch"]()))
    list(loader)
    state = _after(loader, 3)
    other = _dealt(CountingWithState(SHUFFLES["torch"]()), world)
    other.load_state_dict(state)
    seen = [index for batch in other for index in plain(batch)]
    order = [5 * (at + 1) % N for at in range(N)]
    assert seen == order[12:][::world]


def test_other_weights_are_refused_at_other_batch_size() -> None:
    def weighted(weights: list[float]) -> Any:
        return WeightedRandomSampler(weights, N)

    pairs: list[tuple[Any, Any]] = [
        (weighted([1.0] * N), weighted([1.0, 5.0] * (N // 2))),
        (SubsetRandomSampler(range(20)), SubsetRandomSampler(range(4, 24))),
    ]
    torch.manual_seed(0)
    for then, now in pairs:
        other = DataLoader(Numbers(N), 5, sampler=now)
        other.load_state_dict(_after(DataLoader(Numbers(N), 4, sampler=then), 2))
        with pytest.raises(ValueError, match="gives other indices than before in its first 2 batches"):
            iter(other)


def test_change_of_batches_that_are_held_back_is_noticed() -> None:
    def make(size: int) -> Any:
        return DataLoader(Numbers(N), batch_sampler=Batches(range(N), size), held_back=1)

    other = make(6)
    other.load_state_dict(_after(make(4), 2))
    with pytest.raises(ValueError, match="gives other indices"):
        iter(other)


def test_per_rank_refuses_numbers_of_operating_system() -> None:
    with pytest.raises(ValueError, match="draws from the operating system"):
        per_rank(Shuffled(SHUFFLES["operating system"]()), num_replicas=2, rank=0, seed=1)


# ---- states from an epoch's end ----


@pytest.mark.parametrize("make", [DataLoader, headrace.Loader])
def test_state_of_generator_without_state_is_an_error(make: Callable[..., Any]) -> None:
    loader = make(Numbers(N), batch_size=4, sampler=Shuffled(SHUFFLES["operating system"]()))
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(ValueError, match=r"draws from the operating system \(\"how.'shuffle'.0.generator\""):
        loader.state_dict()


@pytest.mark.parametrize("shuffle", ["torch.Generator", "random.Random", "numpy.Philox", "numpy.RandomState"])
def test_numpy_loader_keeps_generators_of_samplers(shuffle: str) -> None:
    def make() -> Any:
        return headrace.Loader(Numbers(N), batch_size=4, sampler=Shuffled(SHUFFLES[shuffle]()))

    whole = make()
    batches = [list(map(plain, whole)) for _ in range(2)]
    for steps in (2, 6, None):
        other = make()
        other.load_state_dict(_after(make(), steps))
        rest = batches[1] if steps in (6, None) else batches[0][2:]
        assert list(map(plain, other)) == rest


def test_samplers_own_count_of_epochs_is_warned_of() -> None:
    for sampler, name in ((Counting, "number"), (ShuffledInPlace, "indices")):

        def make(cls: Any = sampler) -> Any:
            return DataLoader(Numbers(N), 4, sampler=cls(SHUFFLES["random.Random"]()))

        loader = make()
        state = _after(loader, None)
        other = make()
        other.load_state_dict(state)
        with pytest.warns(UserWarning, match=f"changes '{name}' of its own in each epoch, and has no state_dict"):
            list(other)
        loader.load_state_dict(state)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            list(loader)  # here it is where it was


def _deal(data: Any, batch: int, sampler: Any) -> Any:
    return DataLoader(data, batch, sampler=per_rank(sampler, num_replicas=2, rank=0))


@pytest.mark.parametrize("steps", [0, None])
@pytest.mark.parametrize(
    "make",
    [lambda *args, sampler: DataLoader(*args, sampler=sampler), _deal, headrace.Loader],
    ids=["DataLoader", "per_rank", "Loader"],
)
def test_count_of_epochs_between_epochs_is_warned_of(make: Callable[..., Any], steps: int | None) -> None:
    """The state is that of the second epoch's beginning, before or after iter()."""

    def made(epochs: int) -> Any:
        sampler = Counting(SHUFFLES["random.Random"]())
        for _ in range(epochs):
            list(sampler)
        return make(Numbers(N), 4, sampler=sampler)

    loader = made(0)
    list(loader)
    iterator = iter(loader) if steps == 0 else None
    state = loader.state_dict()
    del iterator
    other = made(0)
    with pytest.warns(UserWarning, match="changes 'number' of its own in each epoch, and has no state_dict"):
        other.load_state_dict(state)
        list(other)
    loader = made(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.load_state_dict(state)
        list(loader)  # here it is where it was


def test_count_of_batch_sampler_without_state_is_warned_of() -> None:
    """The last batch was taken, and the sampler has not come to its end, where it counts."""

    def make() -> Any:
        return DataLoader(Numbers(N), batch_sampler=Batches(Counting(SHUFFLES["torch"]()), 4))

    loader = make()
    list(loader)
    other = make()
    other.load_state_dict(_after(loader, 6))
    with pytest.warns(UserWarning, match="the Batches is not where it was when the state was taken"):
        list(other)


class TooShort(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(self.generator.sample(range(N), N))

    def __len__(self) -> int:
        return 8

    generator = random.Random(1)


def test_length_that_is_too_small_is_an_error_after_resume() -> None:
    loader = DataLoader(Numbers(N), 4, sampler=TooShort())
    state = _after(loader, 2)
    loader.load_state_dict(state)
    with pytest.raises(ValueError, match=r"all by the __len__ of the TooShort, but now it has another length"):
        iter(loader)


def test_sampler_may_have_the_generator_of_the_loader() -> None:
    def make() -> Any:
        generator = torch.Generator().manual_seed(3)
        sampler = Shuffled(lambda items: [items[at] for at in torch.randperm(N, generator=generator).tolist()])
        return DataLoader(Numbers(N), 4, sampler=sampler, generator=generator)

    loader = make()
    whole = [[plain(batch) for batch in loader] for _ in range(3)]
    for steps in (2, 6, None):
        other = make()
        other.load_state_dict(_after(make(), steps))
        rest = [] if steps in (6, None) else [whole[0][2:]]
        assert [[plain(batch) for batch in other] for _ in range(1 + len(rest))] == [*rest, whole[1]]


# ---- iterable datasets that are not the same when they are made again ----


class Unseeded(torch.utils.data.IterableDataset[int]):
    """Shuffles with a generator that is seeded otherwise in each process, as webdataset does."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __iter__(self) -> Iterator[int]:
        yield from random.Random(self.seed).sample(range(N), N)


SAYS = "are others than before: the Unseeded gives another order"


@pytest.mark.parametrize("make", [DataLoader, headrace.Loader])
@pytest.mark.parametrize("steps", [1, 3, 4])
def test_other_batches_made_again_are_warned_of(make: Callable[..., Any], steps: int) -> None:
    for seed in (2, 1):
        state = _after(make(Unseeded(1), batch_size=4), steps)
        loader = make(Unseeded(seed), batch_size=4)
        loader.load_state_dict(state)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            next(iter(loader))
        assert [SAYS in str(one.message) for one in caught] == ([False, True] if seed == 2 else [False])
    second = loader.state_dict()  # after one that was continued
    loader = make(Unseeded(3), batch_size=4)
    loader.load_state_dict(second)
    with pytest.warns(UserWarning, match=SAYS):
        next(iter(loader))


@pytest.mark.parametrize("make", [DataLoader, headrace.Loader])
def test_worker_says_that_batches_made_again_are_others(make: Callable[..., Any]) -> None:
    for seed in (1, 2):
        state = _after(make(Unseeded(1), batch_size=4, num_workers=2, multiprocessing_context="fork"), 5)
        loader = make(Unseeded(seed), batch_size=4, num_workers=2, multiprocessing_context="fork")
        loader.load_state_dict(state)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            list(loader)
        said = [str(one.message).partition(" makes the batches again")[0] for one in caught]
        assert sorted(said[1:]) == (["headrace: worker 0", "headrace: worker 1"] if seed == 2 else [])


# ---- random numbers that begin again ----


@pytest.mark.parametrize("steps", [2, 6, None])
@pytest.mark.parametrize(
    "make_sampler",
    [
        lambda: RandomSampler(range(N)),
        lambda: SubsetRandomSampler(range(N)),
        lambda: Shuffled(SHUFFLES["numpy"]()),
    ],
)
def test_order_of_earlier_epoch_is_warned_of(make_sampler: Callable[[], Any], steps: int | None) -> None:
    def make() -> Any:
        seed_all(0)  # as at the top of a script
        return DataLoader(Numbers(N), 4, sampler=make_sampler())

    loader = make()
    first = [plain(batch) for batch in loader]
    state = _after(make(), steps)
    loader = make()
    loader.load_state_dict(state)
    if steps == 2:
        list(loader)
    with pytest.warns(UserWarning, match="this epoch has the same order as an earlier one, because the random numbers"):
        assert [plain(batch) for batch in loader] == first
    assert len(json.loads(loader.state_dict()["headrace"])["seeds"]["past"]) == 2


def test_orders_that_do_not_repeat_are_not_warned_of() -> None:
    def run(loader: Any, epochs: int, reseeds: bool = False) -> None:
        for _ in range(epochs):
            if reseeds:
                torch.manual_seed(0)  # meant to be so
            list(loader)

    for generator, reseeds in ((None, False), (torch.Generator().manual_seed(1), False), (None, True)):
        torch.manual_seed(0)
        loader = DataLoader(Numbers(N), 4, shuffle=True, generator=generator)
        run(loader, 2, reseeds)
        state, numbers = loader.state_dict(), torch.get_rng_state()
        torch.manual_seed(0)
        loader = DataLoader(Numbers(N), 4, shuffle=True, generator=generator)
        torch.set_rng_state(numbers)
        loader.load_state_dict(state)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run(loader, 2, reseeds)


def test_long_batches_of_arrays_are_compared_in_full() -> None:
    """The repr of an array of more than 1,000 indices leaves out most of them."""
    one = np.arange(2000)
    other = one.copy()
    other[[900, 901]] = other[[901, 900]]
    assert hash_of(one) != hash_of(other)
    assert hash_of(one) == hash_of(one.tolist()) == hash_of(torch.from_numpy(one))


@pytest.mark.parametrize("kind", ["bfloat16", "quantised", "conjugated"])
def test_sampler_may_hold_tensors_that_numpy_has_not(kind: str) -> None:
    class Held(Sampler[int]):
        def __init__(self) -> None:
            plain_ones = torch.ones(N)
            self.weights = {
                "bfloat16": plain_ones.to(torch.bfloat16),
                "quantised": torch.quantize_per_tensor(plain_ones, 0.1, 0, torch.qint8),
                "conjugated": torch.ones(N, dtype=torch.complex64).conj(),
            }[kind]

        def __iter__(self) -> Iterator[int]:
            return iter(range(N))

        def __len__(self) -> int:
            return N

    loader = DataLoader(Numbers(N), 4, sampler=Held())
    next(iter(loader))
    assert loader.state_dict()

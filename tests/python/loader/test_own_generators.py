# SPDX-License-Identifier: Apache-2.0
"""rng="sample" with random number generators that a dataset and its transforms have of their own."""

from __future__ import annotations

import contextvars
import functools
import itertools
import random
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import headrace
import headrace.torch
import numpy as np
import pytest
import torch
from disturbed import BOTH, HERE, SLOW_METHODS, load
from headrace._samples import own_generators, random_numbers
from loaders import only_headrace
from mishaps import collected_warnings, epoch

pytestmark = only_headrace
COUNT = 12


class Noise:
    """A dataset whose samples are one number of the function that it is given."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return index, float(self.draw())


class Holder:
    """A transform with a generator in an attribute."""

    def __init__(self, generator: Any, method: str) -> None:
        self.generator = generator
        self.method = method

    def __call__(self) -> float:
        drawn = getattr(self.generator, self.method)
        return float(drawn())


class TorchHolder:
    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self) -> float:
        return torch.rand((), generator=self.generator).item()


class Slotted:
    __slots__ = ("rng",)

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __call__(self) -> float:
        return self.rng.random()


class Shared:
    """Does as monai.transforms.Randomizable: all instances have one generator, until one gets its own."""

    R = np.random.RandomState()

    def __call__(self) -> float:
        return self.R.uniform()


class Lazy:
    """Makes its generator when it is asked first."""

    rng: Any = None

    def __call__(self) -> float:
        if self.rng is None:
            self.rng = np.random.default_rng(0)
        return self.rng.random()


class Compose:
    """Does as albumentations 2: the steps of a Compose share its two generators."""

    def __init__(self, steps: list[Any]) -> None:
        self.steps = steps
        self.random_generator = np.random.default_rng(0)
        self.py_random = random.Random(0)
        for step in steps:
            step.generator = self.random_generator

    def __call__(self) -> float:
        return self.py_random.random() + sum(step() for step in self.steps)


MODULE_RNG = np.random.default_rng(0)
MODULE_STEP = Holder(random.Random(0), "random")


def draw_of_module() -> float:
    return MODULE_RNG.random() + MODULE_STEP()


def of_helper() -> float:
    return draw_of_module()


def draw_from(generator: Any) -> float:
    return float(generator.random())


def closure() -> Callable[[], float]:
    rng = random.Random(0)
    return lambda: rng.random()


def stream() -> Any:
    rng = random.Random(0)
    while True:
        yield rng.random()


class OfMethod:
    def __init__(self) -> None:
        self.rng = random.Random(0)

    def draw(self) -> float:
        return self.rng.random()


class Weakly(random.Random):
    """A weak reference to random.Random itself is not possible."""


class Meta(type):
    source = random.Random(0)


class WithMeta(metaclass=Meta):
    pass


@functools.lru_cache
def cached_generator() -> random.Random:
    return random.Random(0)


LOCAL = threading.local()
LOCAL.source = random.Random(0)
PROXY = types.MappingProxyType({"source": random.Random(0)})
CONTEXT = contextvars.ContextVar[Any]("source")
CONTEXT.set(random.Random(0))
WEAKLY = Weakly(0)
WEAK = weakref.ref(WEAKLY)
cached_generator()


SENT: dict[str, Callable[[], Callable[[], float]]] = {  # by pickle too
    "numpy Generator": lambda: Holder(np.random.default_rng(0), "random"),
    "numpy MT19937": lambda: Holder(np.random.Generator(np.random.MT19937(0)), "standard_normal"),
    "numpy Philox": lambda: Holder(np.random.Generator(np.random.Philox(0)), "random"),
    "RandomState": lambda: Holder(np.random.RandomState(0), "randn"),
    "RandomState SFC64": lambda: Holder(np.random.RandomState(np.random.SFC64(0)), "random_sample"),
    "Random": lambda: Holder(random.Random(0), "gauss"),
    "torch": TorchHolder,
    "slots": Slotted,
    "of the class": Shared,
    "lazy": Lazy,
    "compose": lambda: Compose([Holder(None, "random"), Holder(None, "random")]),
    "module": lambda: draw_of_module,
    "helper": lambda: of_helper,
    "partial": lambda: functools.partial(draw_from, random.Random(0)),
    "method": lambda: OfMethod().draw,
    "method in C": lambda: random.Random(0).random,
    "nested": lambda: Holder({"steps": [(Holder(np.random.default_rng(0), "random"),)]}["steps"][0][0], "__call__"),
}
FORKED: dict[str, Callable[[], Callable[[], float]]] = SENT | {
    "closure": closure,
    "iterator": lambda: functools.partial(next, stream()),
    "thread-local": lambda: lambda: LOCAL.source.random(),
    "cached result": lambda: lambda: cached_generator().random(),
    "proxy": lambda: lambda: PROXY["source"].random(),
    "context": lambda: lambda: CONTEXT.get().random(),
    "weak": lambda: lambda: WEAK().random(),
    "metaclass": lambda: lambda: WithMeta.source.random(),
}
ITERATORS = {
    "cycle": itertools.cycle([random.Random(0), random.Random(1)]),
    "map": map(draw_from, itertools.repeat(random.Random(0))),
}


def epochs(kind: Any, draw: Callable[[], float], count: int = 2, **options: Any) -> list[Any]:
    loader = load(kind, Noise(draw), rng="sample", **{"seed": 5, "batch_size": 2, **options})
    return [epoch(loader) for _ in range(count)]


def values(batches: list[Any]) -> list[float]:
    return [value for _, drawn in batches for value in drawn]


@BOTH
@pytest.mark.parametrize("name", FORKED)
def test_own_generators_are_seeded_by_sample_and_epoch(kind: Any, name: str) -> None:
    with collected_warnings() as texts:
        here = epochs(kind, FORKED[name](), **HERE)
        assert epochs(kind, FORKED[name](), num_workers=1) == here
        assert epochs(kind, FORKED[name](), num_workers=3, batch_size=2) == here
        assert epochs(kind, FORKED[name](), num_workers=2, persistent_workers=True) == here
    assert texts == []
    drawn = [*values(here[0]), *values(here[1])]
    assert len(set(drawn)) == 2 * COUNT, "each sample of each epoch has its own"
    assert epochs(kind, FORKED[name](), seed=6, **HERE) != here


@pytest.mark.parametrize("method", SLOW_METHODS)
def test_own_generators_are_seeded_with_every_start_method(method: str) -> None:
    """All of them in one dataset, because each worker has to start a new Python."""
    names = list(SENT)
    assert epochs(headrace.torch.DataLoader, Sum(names), 1, multiprocessing_context=method) == epochs(
        headrace.torch.DataLoader, Sum(names), 1, **HERE
    )


class Sum:
    def __init__(self, names: list[str]) -> None:
        self.steps = [SENT[name]() for name in names]

    def __call__(self) -> float:
        return sum(step() for step in self.steps)


def state_of(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state)
    return generator.getstate()


@BOTH
def test_own_generators_are_put_back_without_workers(kind: Any) -> None:
    step = Compose([Holder(None, "random")])
    own = [step.random_generator, step.py_random, MODULE_RNG]
    before = [*map(state_of, own)]
    iterator = iter(load(kind, Noise(Sum2(step)), rng="sample", seed=5, **HERE))
    for _ in iterator:
        assert [*map(state_of, own)] == before


class Sum2:
    def __init__(self, step: Any) -> None:
        self.step = step

    def __call__(self) -> float:
        return self.step() + draw_of_module()


@BOTH
def test_own_generators_of_two_steps_give_other_numbers(kind: Any) -> None:
    def pair() -> Any:
        return Pair(Holder(random.Random(0), "random"), Holder(random.Random(0), "random"))

    (batches,) = epochs(kind, pair(), 1)
    assert all(abs(value) > 1e-9 for value in values(batches))


def test_own_generators_with_equal_names_get_other_numbers() -> None:
    class Key(float):
        pass

    kept = {(0, 1): random.Random(0), (0, 2): random.Random(0), Key(1): random.Random(0), Key(2): random.Random(0)}
    own = own_generators.OwnGenerators({"dataset": kept})
    own.seed(5)
    assert len({one.path for one in own.found}) == len({one.random() for one in kept.values()}) == 4


def test_own_generators_in_a_set_are_named() -> None:
    (found,) = own_generators.Search({"dataset": {Holder(random.Random(at), "random") for at in range(2)}}).unreachable
    assert (found.path, found.type) == ("dataset", "set")
    assert "another order in each process" in found.why
    assert not own_generators.Search({"dataset": {random.Random(0), "a"}}).unreachable


class Pair:
    def __init__(self, one: Any, other: Any) -> None:
        self.one, self.other = one, other

    def __call__(self) -> float:
        return self.one() - self.other()


class CollateNoise:
    """A collate function with a generator, such as one that mixes the images of a batch."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __call__(self, samples: list[Any]) -> Any:
        return [[index for index, _ in samples], [self.rng.random()]]


@BOTH
def test_generator_of_collate_fn_does_not_depend_on_workers(kind: Any) -> None:
    here = epochs(kind, closure(), collate_fn=CollateNoise(), **HERE)
    assert epochs(kind, closure(), collate_fn=CollateNoise(), num_workers=3) == here
    assert len({repr(batch[1]) for one in here for batch in one}) == COUNT


def use_seed_of_worker(worker: int) -> None:
    info = torch.utils.data.get_worker_info() or headrace.get_worker_info()
    info.dataset.draw.generator = np.random.default_rng(info.seed + worker)


@BOTH
def test_generators_of_worker_init_fn_are_seeded_by_sample(kind: Any) -> None:
    def holder() -> Any:
        return Holder(np.random.default_rng(0), "random")

    assert epochs(kind, holder(), worker_init_fn=use_seed_of_worker) == epochs(kind, holder(), **HERE)


class Late(Noise):
    """Makes a generator at sample 5, in the worker that is asked for it."""

    rng: Any = None

    def __getitem__(self, index: int) -> Any:
        if index >= 5 and self.rng is None:
            self.rng = random.Random(1)
        return index, self.draw() if self.rng is None else self.rng.random()


def test_generator_that_is_made_late_is_named() -> None:
    loader = load(headrace.torch.DataLoader, Late(closure()), rng="sample", seed=5, **HERE)
    with collected_warnings() as texts:
        epoch(loader)
    (text,) = texts
    assert "dataset.rng" in text and "may depend on the number of workers" in text


# ---- what cannot be reached ----


class Locked(random.Random):
    """A generator that cannot be set."""

    def setstate(self, state: Any) -> None:
        raise NotImplementedError("it is on another machine")


@BOTH
@pytest.mark.parametrize("workers", [HERE, {}], ids=["here", "workers"])
def test_generator_that_cannot_be_seeded_is_named_once(kind: Any, workers: dict[str, Any]) -> None:
    own_generators._warned.clear()
    draw = Pair(Holder(random.SystemRandom(), "random"), Holder(Locked(0), "random"))
    with collected_warnings() as texts:
        epochs(kind, draw, **workers)
    (text,) = texts
    assert "dataset.draw.one.generator (SystemRandom): it draws from the operating system" in text
    assert "dataset.draw.other.generator (Locked): it cannot be seeded: NotImplementedError: it is on another" in text


@pytest.mark.parametrize("name", ITERATORS)
def test_generator_behind_an_iterator_is_named(name: str) -> None:
    """Each worker has its own copy of the iterator, so seeding what it gives would not make equal samples."""
    found = own_generators.Search({"dataset": Holder(ITERATORS[name], "__next__")})
    (one,) = (one for one in found.unreachable if one.path == "dataset.generator")
    assert (one.type, one.why) == (name, "an iterator gives other objects in each worker")


def test_several_cached_results_are_named() -> None:
    @functools.lru_cache
    def generator(seed: int) -> random.Random:
        return random.Random(seed)

    generator(1), generator(2)
    found = own_generators.Search({"dataset": generator})
    assert [one.why for one in found.unreachable if one.path == "dataset"] == [
        "the results that a function keeps (lru_cache) have another order in each process"
    ]


def paths(value: Any) -> list[str]:
    return [one.path for one in own_generators.Search({"dataset": value}).found]


def test_search_finds_the_shortest_paths() -> None:
    compose = Compose([Holder(None, "random")])
    assert paths(compose) == ["dataset.py_random", "dataset.random_generator"]
    assert paths(draw_of_module) == [f"{__name__}.MODULE_RNG", f"{__name__}.MODULE_STEP.generator"]
    assert paths(Shared()) == [f"{__name__}.Shared.R"]
    assert paths(closure()) == ["dataset.rng"]
    assert paths([random._inst, np.random.mtrand._rand, torch.default_generator, random.random]) == []  # type: ignore[attr-defined]


def test_search_runs_no_code_and_ends_in_cycles() -> None:
    class Answers:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

        @property
        def costly(self) -> Any:
            raise AssertionError("a property")

    one = Answers()
    vars(one).update(self=one, rng=random.Random(0))
    assert paths([one, one]) == ["dataset[0].rng"]


def test_search_looks_at_few_objects_of_large_containers() -> None:
    assert paths({"items": [object() for _ in range(200_000)], "rng": random.Random(0)}) == ["dataset['rng']"]
    search = own_generators.Search({"dataset": [[[str(i)] * 200 for i in range(200)] for _ in range(200)]})
    assert not search.unreachable
    assert len(search._kept) < 20_000


def test_containers_that_are_searched_in_part_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = own_generators.Search({"dataset": {"steps": [Holder(random.Random(0), "random") for _ in range(5000)]}})
    (one,) = found.unreachable
    assert (one.path, one.type) == ("dataset['steps']", "list")
    assert "only some of its 5,000 entries were searched" in one.why
    monkeypatch.setattr(own_generators, "_MOST", 20)
    (ended,) = own_generators.Search({"dataset": [object() for _ in range(40)]}).unreachable
    assert (ended.path, ended.why[:30]) == ("dataset[19]", "20 objects were searched befor")


def test_another_global_generator_of_numpy_is_put_back() -> None:
    """numpy warns of the older form of its state, which only MT19937 has."""
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(3))
    try:
        with collected_warnings() as texts, random_numbers.generators_kept():
            drawn = np.random.random()
        assert np.random.random() == drawn
        assert texts == []
    finally:
        np.random.set_bit_generator(before)

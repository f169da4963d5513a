# SPDX-License-Identifier: Apache-2.0
"""DataLoader(cache=) with random samples: they are refused before the first batch, and what is kept is not random."""

from __future__ import annotations

import os
import pathlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import drawn_steps as steps
import headrace
import hypothesis
import hypothesis.strategies as st
import numpy as np
import photos
import pytest
import torch
from headrace._cache import tables
from headrace._samples import kept_generators
from headrace._samples.compare import difference
from headrace._samples.kept_generators import Own, is_same
from headrace.torch import DataLoader
from loaders import ENGINE

if not ENGINE or photos.MISSING:
    pytest.skip("a cache and torchvision are needed", allow_module_level=True)

photos.import_torchvision()
from torchvision import transforms as t  # noqa: E402

EXAMPLES = int(os.environ.get("HEADRACE_EXAMPLES", "100"))


@pytest.fixture(autouse=True)
def own_root(root: pathlib.Path) -> Iterator[None]:
    yield
    tables._kept.clear()


def _compose(*more: Any) -> Any:
    return t.Compose([t.CenterCrop(6), *more])


def _run(dataset: Any, epochs: int = 3, workers: int = 0, got: list[Any] | None = None, **options: Any) -> list[Any]:
    """Returns all batches. got: is filled with them, also if an error is raised."""
    got = [] if got is None else got
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    context = "fork" if workers else None
    loader = DataLoader(
        dataset, 2, num_workers=workers, multiprocessing_context=context, collate_fn=list, shuffle=True, **options
    )
    for _ in range(epochs):
        got.extend(loader)  # extend keeps what came before an error
    return got


@pytest.mark.parametrize("after", sorted(steps.AFTER))
@pytest.mark.parametrize("around", ["", "subset"])
def test_random_transform_is_refused_and_its_steps_are_named(after: str, around: str) -> None:
    dataset: Any = steps.Pictures(_compose(steps.GlobalNoise("numpy"), t.RandomCrop(4)), after)
    if around:
        dataset = torch.utils.data.Subset(dataset, range(4))
    got: list[Any] = []
    text = r"The transform of the dataset is CenterCrop, GlobalNoise, RandomCrop\..*cache_samples\(.*transform="
    with pytest.raises(headrace.SamplesDiffer, match=text):
        _run(dataset, 1, got=got, cache="8M")
    assert not got


@pytest.mark.parametrize("transform", [None, steps.GlobalNoise("numpy"), t.RandomCrop(4)])
def test_other_transforms_are_not_named(transform: Any) -> None:
    dataset = steps.Pictures(transform or steps.OwnNoise("python"))
    with pytest.raises(headrace.SamplesDiffer) as caught:
        headrace.cache_samples(dataset, "8M").begin(True)
    assert "The transform of the dataset is" not in str(caught.value)


@pytest.mark.parametrize("workers", [0, 2])
def test_steps_given_as_transform_draw_the_same_numbers(workers: int) -> None:
    def whole() -> Any:
        return steps.Pictures(_compose(t.RandomCrop(4)))

    crop = t.RandomCrop(4)
    cached = headrace.cache_samples(
        steps.Pictures(_compose()), "8M", transform=lambda sample: (crop(sample[0]), sample[1])
    )
    expected = _run(whole(), workers=workers)
    assert difference(_run(cached, workers=workers), expected) is None
    assert cached.report()["hits"] >= 6


@pytest.mark.parametrize("kind", ["python", "generator", "state", "torch", None])
@pytest.mark.parametrize("count", [1, 2, 6])
def test_memory_of_random_samples_is_refused(kind: str | None, count: int) -> None:
    """The second time, such a sample is the same, and draws nothing."""
    noise = steps.GlobalNoise("python") if kind is None else steps.OwnNoise(kind)
    for transform in (_compose(noise), noise):
        with pytest.raises(headrace.SamplesDiffer, match="draws random numbers when it is made"):
            headrace.cache_samples(steps.Pictures(transform, "kept", count), "8M").begin(True)


def test_step_whose_numbers_are_not_known_is_refused() -> None:
    class System:
        def __call__(self, x: Any) -> Any:
            return x + random.SystemRandom().random()

    with pytest.raises(headrace.SamplesDiffer):
        _run(steps.Pictures(_compose(System())), 1, cache="8M")


# ---- generators ----


_late: Any = None  # a generator that is made when a sample is


class Places:
    """A dataset with generators in many places, from which each sample draws."""

    of_class = random.Random(1)

    def __init__(self) -> None:
        closed, default = np.random.default_rng(2), np.random.RandomState(3)
        self.listed = [{"a": (random.Random(4), torch.Generator().manual_seed(5))}]
        self.closure = lambda: closed.random()
        self.default = lambda one=default: one.rand()
        self.array = np.array([random.Random(9)], object)
        self.made_later: Any = None
        self.table: dict[str, Any] = {}
        self.replaced = np.random.default_rng(6)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> float:
        global _late
        if self.made_later is None:
            self.made_later = self.table["made later"] = _late = random.Random(7)
        pair = self.listed[0]["a"]
        drawn = sum(map(steps.draw, [self.of_class, steps._shared, *pair, *self.array, _late, self.replaced]))
        self.replaced = np.random.default_rng(8)
        return drawn + float(self.closure()) + float(self.default())


def test_checks_leave_every_generator_as_it_was() -> None:
    dataset = Places()
    own, replaced = Own(dataset), dataset.replaced
    before = own.states()
    assert len(before) == 8
    with pytest.raises(headrace.SamplesDiffer, match="was made twice"):
        headrace.cache_samples(dataset, "8M").begin(True)
    assert dataset.replaced is replaced and dataset.made_later is None and dataset.table == {} and _late is None
    assert is_same(own.states(), before)


def test_plain_containers_are_searched_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset may have millions of annotations, and each worker that checks a table searches them."""
    looked: list[Any] = []
    real = kept_generators.own_attributes
    monkeypatch.setattr(kept_generators, "own_attributes", lambda value: looked.append(value) or real(value))
    dataset = Places()
    dataset.listed += [{"box": [1.0, 2.0], "parts": [[1, 2], (3,)]} for _ in range(1000)]  # type: ignore[arg-type]
    assert len(Own(dataset).states()) == 8
    assert len(looked) < 100


@pytest.mark.parametrize("kind", ["python", "numpy", "torch", "own"])
def test_sample_that_draws_without_effect_is_refused(kind: str) -> None:
    generator = random.Random(3)
    draw = {"python": random.random, "numpy": np.random.rand, "torch": lambda: torch.rand(1), "own": generator.random}

    class Rarely(steps.Pictures):
        def __getitem__(self, index: int) -> Any:
            return index + (float(draw[kind]()) < 0)

    with pytest.raises(headrace.SamplesDiffer, match="draws random numbers when it is made"):
        headrace.cache_samples(Rarely(None), "8M").begin(True)


@pytest.mark.parametrize("kind", ["python", "numpy", "torch", "own"])
def test_sample_that_seeds_its_numbers_is_cached(kind: str) -> None:
    generator = random.Random(3)

    class Seeded(steps.Pictures):
        def __getitem__(self, index: int) -> Any:
            if kind == "own":
                generator.seed(index)
                return generator.random()
            {"python": random.seed, "numpy": np.random.seed, "torch": torch.manual_seed}[kind](index)
            return steps.GlobalNoise(kind)(index)

    cached = headrace.cache_samples(Seeded(None), "8M")
    cached.begin(True)
    assert [cached[2], cached[2]] == [Seeded(None)[2]] * 2


# ---- drawn ----

kinds = st.sampled_from(["python", "generator", "state", "torch"])
random_steps = st.one_of(
    st.builds(lambda kind: lambda: steps.GlobalNoise(kind), st.sampled_from(["python", "numpy", "torch"])),
    st.builds(lambda kind, share: lambda: steps.OwnNoise(kind, share), kinds, st.sampled_from([1.0, 0.5])),
    st.just(steps.SharedNoise),
    st.sampled_from([lambda: t.RandomHorizontalFlip(), lambda: t.RandomCrop(3)]),
)
known_steps = st.sampled_from(
    [lambda: t.CenterCrop(6), lambda: t.Pad(1), lambda: t.Normalize([1.0], [2.0]), steps.Scale]
)
all_steps = st.sampled_from([known_steps, known_steps, st.one_of(known_steps, random_steps)])
drawn_steps = all_steps.flatmap(lambda kind: st.lists(kind, min_size=2, max_size=6))
afters = st.sampled_from([*steps.AFTER, "twice", "kept", "draws before"])


@pytest.mark.timeout(120 + 2 * EXAMPLES)
def test_drawn_datasets_are_equal_or_refused(root: pathlib.Path) -> None:
    """With cache=, three epochs are those without it, or an error is raised before the first batch."""

    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize="HEADRACE_EXAMPLES" not in os.environ,
        print_blob=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(drawn_steps, afters, st.sampled_from([0] * 18 + [1, 2]))
    def check(made: list[Callable[[], Any]], after: str, workers: int) -> None:
        def run(**options: Any) -> list[Any]:
            steps._shared.bit_generator.state = shared
            return _run(steps.Pictures(t.Compose([one() for one in made]), after), workers=workers, **options)

        shared = steps._shared.bit_generator.state
        expected, got = run(), list[Any]()
        try:
            found = run(cache="8M", got=got)
        except headrace.SamplesDiffer:
            assert not got
            hypothesis.event("refused")
        else:
            hypothesis.event("equal")
            assert difference(found, expected) is None
        tables._kept.clear()

    check()

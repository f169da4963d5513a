# SPDX-License-Identifier: Apache-2.0
"""DataLoader(cache=) with a transform that is divided: equal to the whole transform, or not divided, or refused."""

from __future__ import annotations

import copy
import operator
import os
import pathlib
import pickle
import random
import sys
import types
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
from headrace._cache import stand_in, tables
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


# ---- the stand-in ----

USES: dict[str, Callable[[Any], Any]] = {
    "item": lambda x: x[0],
    "length": len,
    "truth": bool,
    "equal": lambda x: x == 1,
    "differs": lambda x: x != 255,
    "hash": hash,
    "iteration": list,
    "in": lambda x: 1 in x,
    "attribute": lambda x: x.shape,
    "set attribute": lambda x: setattr(x, "a", 1),
    "set item": lambda x: operator.setitem(x, 0, 1),
    "add": lambda x: x + 1,
    "add to": lambda x: np.zeros(3) + x,
    "in place": lambda x: operator.iadd(x, 1),
    "negate": lambda x: -x,
    "float": float,
    "index": lambda x: [1, 2][x],
    "array": np.asarray,
    "tensor": torch.as_tensor,
    "class": lambda x: isinstance(x, torch.Tensor),
    "text": str,
    "format": lambda x: f"{x}",
    "copy": copy.copy,
    "deep copy": copy.deepcopy,
    "pickle": pickle.dumps,
    "call": lambda x: x(),
    "path": os.fspath,
    "bytes": bytes,
    "sort": lambda x: sorted([x, x]),
    "with": lambda x: x.__enter__(),
}


@pytest.mark.parametrize("name", USES)
def test_stand_in_refuses_use(name: str) -> None:
    noted: list[str] = []
    one = stand_in.StandIn(stand_in.Mark(0, "", 3), noted.append)
    with pytest.raises((TypeError, ValueError)):
        USES[name](one)
    assert noted


# ---- what a dataset does with the result ----


@pytest.mark.parametrize("after", ["", "dict", "twice"])
@pytest.mark.parametrize("workers", [0, 2])
def test_divided_samples_are_those_of_whole_transform(after: str, workers: int) -> None:
    def dataset() -> Any:
        return steps.Pictures(_compose(steps.OwnNoise("python", 0.5), t.RandomCrop(4)), after)

    expected = _run(dataset(), workers=workers)
    assert difference(_run(dataset(), workers=workers, cache="8M"), expected) is None


REFUSED = [*(set(steps.AFTER) - {"", "dict", "some"}), "kept", "draws before"]


@pytest.mark.parametrize("after", sorted(REFUSED))
def test_dataset_that_uses_random_result_is_refused(after: str) -> None:
    dataset = steps.Pictures(_compose(steps.GlobalNoise("numpy")), after)
    with pytest.raises(headrace.SamplesDiffer, match="transform="):
        _run(dataset, 1, cache="8M")


@pytest.mark.parametrize("kind", ["python", "generator", "state", "torch", None])
@pytest.mark.parametrize("count", [1, 2, 6])
def test_memory_of_random_samples_is_refused(kind: str | None, count: int) -> None:
    """The second time, such a sample is the same, and draws nothing."""
    noise = steps.GlobalNoise("python") if kind is None else steps.OwnNoise(kind)
    for transform in (_compose(noise), noise):
        with pytest.raises(headrace.SamplesDiffer, match="draws random numbers when it is made"):
            headrace.cache_samples(steps.Pictures(transform, "kept", count), "8M").begin(True)


@pytest.mark.parametrize("after", ["item", "length", "differs", "is a tensor", "swallows", "some"])
def test_dataset_that_uses_result_is_cached_whole(after: str, capfd: pytest.CaptureFixture[str]) -> None:
    dataset = steps.Pictures(_compose(steps.Scale()), after)
    loader = DataLoader(dataset, 2, cache="8M", collate_fn=list)
    expected = list(DataLoader(dataset, 2, collate_fn=list))
    for _ in range(2):
        assert difference(list(loader), expected) is None
    assert loader.report()["cache"]["ready"] == 6 and loader.report()["cache"]["hits"] >= 6
    assert "is not divided: the dataset uses the result of its transform" in capfd.readouterr().err


def test_sample_that_uses_result_later_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only sample 4 uses the result, and the samples that are compared first do not."""
    from headrace._samples import checks

    monkeypatch.setattr(checks, "spread", lambda count, most: [0, 1])
    dataset = steps.Pictures(_compose(steps.GlobalNoise("torch")), "some")
    loader = DataLoader(dataset, 1, cache="8M", collate_fn=list, on_bad_sample="skip")
    with pytest.raises(headrace.SamplesDiffer, match=r"sample 4 shows.*__add__"):
        list(loader)


def test_steps_replaced_later_are_an_error() -> None:
    dataset = steps.Pictures(_compose(steps.GlobalNoise("torch")))
    loader = DataLoader(dataset, 2, cache="8M", collate_fn=list)
    list(loader)
    dataset.transform.transforms[0] = t.CenterCrop(3)
    with pytest.raises(RuntimeError, match="was replaced"):
        list(loader)


def test_step_whose_numbers_are_not_known_is_refused() -> None:
    class System:
        def __call__(self, x: Any) -> Any:
            return x + random.SystemRandom().random()

    with pytest.raises(headrace.SamplesDiffer):
        _run(steps.Pictures(_compose(System())), 1, cache="8M")


def test_same_steps_with_other_random_ones_share_samples() -> None:
    first = steps.Pictures(_compose(steps.GlobalNoise("torch")))
    second = steps.Pictures(_compose(steps.OwnNoise("python")))
    cached = [headrace.cache_samples(one, "8M") for one in (first, second)]
    assert cached[0].name == cached[1].name
    cached[0].begin(True)
    expected = _run(steps.Pictures(_compose(steps.OwnNoise("python"))), 2)
    assert difference(_run(cached[1], 2), expected) is None


# ---- a library whose steps draw whether they are applied ----


def _like_albumentations(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a module whose steps share two generators, and draw a number at each call, as albumentations 2 does."""
    module: Any = types.ModuleType("albumentations")
    module.__file__ = __file__

    class NoOp:
        def __init__(self, p: float = 0.5) -> None:
            self.p = p
            self.set_random_state(np.random.default_rng(), random.Random())

        def set_random_state(self, generator: Any, py_random: Any) -> None:
            self.random_generator, self.py_random = generator, py_random

        def __call__(self, **data: Any) -> Any:
            return self.apply(data) if self.py_random.random() < self.p else data

        def apply(self, data: Any) -> Any:
            return data

    class Resize(NoOp):
        def apply(self, data: Any) -> Any:
            return {**data, "image": data["image"][::2]}

    class HorizontalFlip(NoOp):
        def apply(self, data: Any) -> Any:
            return {**data, "image": data["image"][:, ::-1].copy()}

    class Compose:
        def __init__(self, transforms: list[Any], p: float = 1.0) -> None:
            self.transforms, self.p = transforms, p
            self.random_generator, self.py_random = np.random.default_rng(5), random.Random(5)
            for step in transforms:
                step.set_random_state(self.random_generator, self.py_random)

        def __call__(self, **data: Any) -> Any:
            if self.py_random.random() < self.p:
                for step in self.transforms:
                    data = step(**data)
            return data

    for cls in (NoOp, Resize, HorizontalFlip, Compose):
        cls.__module__ = "albumentations"
        setattr(module, cls.__name__, cls)
    monkeypatch.setitem(sys.modules, "albumentations", module)
    return module


class Named:
    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return self.transform(image=np.arange(64).reshape(8, 8) + index)["image"], index


@pytest.mark.parametrize("workers", [0, 2])
def test_steps_that_always_draw_are_divided(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    a = _like_albumentations(monkeypatch)

    def dataset() -> Any:
        return Named(a.Compose([a.Resize(p=1), a.HorizontalFlip(p=0.5)]))

    expected = _run(dataset(), workers=workers)
    assert difference(_run(dataset(), workers=workers, cache="8M"), expected) is None


def test_names_do_not_depend_on_state_of_generators(monkeypatch: pytest.MonkeyPatch) -> None:
    a = _like_albumentations(monkeypatch)
    dataset = Named(a.Compose([a.Resize(p=1), a.HorizontalFlip(p=0.5)]))
    name = headrace.cache_samples(dataset, "8M").name
    dataset[0]
    assert headrace.cache_samples(dataset, "8M").name == name


def test_known_steps_that_draw_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    a = _like_albumentations(monkeypatch)
    dataset = Named(a.Compose([a.Resize(p=1)]))
    loader = DataLoader(dataset, 2, cache="8M", collate_fn=list)
    expected = list(DataLoader(dataset, 2, collate_fn=list))
    assert difference([list(loader), list(loader)], [expected, expected]) is None
    assert loader.report()["cache"]["ready"] == 6


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
known_steps = st.sampled_from([lambda: t.CenterCrop(6), lambda: t.Pad(1), lambda: t.Normalize([1.0], [2.0])])
drawn_steps = st.lists(st.one_of(known_steps, random_steps, st.just(steps.Scale)), min_size=2, max_size=6)
afters = st.sampled_from([*steps.AFTER, "", "", "dict", "twice", "kept", "draws before"])


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

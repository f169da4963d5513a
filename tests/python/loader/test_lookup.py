# SPDX-License-Identifier: Apache-2.0
"""headrace looks the methods of a user's object up in the object and its class: the `__getattr__` of a proxy returns
something for every name."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import headrace
import headrace.torch
import pytest
from disturbed import BOTH, load
from headrace._commands import doctor_machine, replay
from headrace.doctor.run import order
from loaders import Torch
from mishaps import Marks, Plan, Resumable, Stream, epoch
from processes import run
from torch.utils.data import IterableDataset

COUNT = 12


class Remote:
    """The value that a stub gives for any name: it is true, and fails when it is called."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise ConnectionError(f"the server knows no {self.name}")


class Answers:
    """Answers every name."""

    def __getattr__(self, name: str) -> Any:
        return Remote(name)


class Stub(Answers, IterableDataset[Any]):
    """A dataset for both loaders that goes through a stream."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __iter__(self) -> Iterator[Any]:
        return iter(self.stream)


class Mocked(mock.Mock):
    """A mock that can be iterated."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def ordered(batches: list[Any]) -> list[int]:
    return sorted(sample for batch in batches for sample in batch)


# ---- how an iterable dataset is continued ----


@BOTH
def test_iterable_that_answers_every_name_is_iterated(kind: Any, marks: Marks) -> None:
    dataset = Stub(Stream(COUNT, Plan(marks)))
    assert ordered(epoch(load(kind, dataset))) == list(range(COUNT))


def test_iterable_mock_is_iterated() -> None:
    assert epoch(load(headrace.Loader, Mocked(), num_workers=1)) == [[0, 1, 2], [3]]


@BOTH
def test_death_in_iterable_that_answers_every_name_raises(kind: Any, marks: Marks) -> None:
    """It has no attribute `replayable` of its own: to replay what cannot be replayed would give samples twice."""
    dataset = Stub(Stream(COUNT, Plan(marks, {7: ["SIGKILL"]})))
    with pytest.raises(RuntimeError, match="headrace cannot replace it: an iterable dataset is continued only if"):
        epoch(load(kind, dataset))


class Slotted(Stub):
    __slots__ = ("replayable",)


class Given(Stub):
    """Its state is asked for by attributes of the instance."""

    def __init__(self, stream: Resumable) -> None:
        super().__init__(stream)
        self.state_dict = stream.state_dict
        self.load_state_dict = stream.load_state_dict


def replayed(cls: type, stream: Stream) -> Any:
    dataset = cls(stream)
    dataset.replayable = True
    return dataset


@BOTH
@pytest.mark.parametrize("how", ["attribute", "slot", "property", "methods of the instance"])
@pytest.mark.filterwarnings("ignore:DataLoader worker")
def test_death_in_iterable_with_resume_is_continued(kind: Any, how: str, marks: Marks) -> None:
    class Property(Stub):
        @property
        def replayable(self) -> bool:
            return True

    plan = Plan(marks, {7: ["SIGKILL"]})
    made = {
        "attribute": lambda: replayed(Stub, Stream(COUNT, plan)),
        "slot": lambda: replayed(Slotted, Stream(COUNT, plan)),
        "property": lambda: Property(Stream(COUNT, plan)),
        "methods of the instance": lambda: Given(Resumable(COUNT, plan)),
    }
    assert ordered(epoch(load(kind, made[how]()))) == list(range(COUNT))
    assert marks.has("7.0")


class Disowned(Resumable):
    """A subclass that says, as one says it of __hash__, that it has no state."""

    state_dict = None  # type: ignore[assignment]


def test_method_set_to_none_is_no_feature(marks: Marks) -> None:
    dataset = Disowned(COUNT, Plan(marks))
    assert ordered(epoch(load(headrace.Loader, dataset))) == list(range(COUNT))


# ---- datasets, samplers, indices, samples, collate functions ----


class Registry(type):
    """A metaclass with special methods of its own, which its classes' instances do not have."""

    def __getitem__(cls, name: str) -> Any:
        return getattr(cls, name)

    def __iter__(cls) -> Iterator[Any]:
        return iter(vars(cls))


class Registered(metaclass=Registry):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


class Unregistered(metaclass=Registry):
    pass


def test_special_methods_of_metaclass_are_not_the_datasets() -> None:
    assert epoch(headrace.Loader(Registered(), 2)) == [[0, 1], [2, 3]]
    with pytest.raises(TypeError, match="dataset should have __getitem__ or __iter__, but Unregistered has neither"):
        headrace.Loader(Unregistered())


class NoIndices(list[int]):
    __getitem__ = None  # type: ignore[assignment]


def test_dataset_with_getitem_none_is_iterable() -> None:
    assert epoch(headrace.Loader(NoIndices(range(4)), 2)) == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sampler": Answers()}, "sampler should be an iterable"),
        ({"batch_sampler": Answers()}, "batch_sampler should be an iterable"),
        ({"batch_size": Answers()}, "batch_size should be an int"),
        ({"num_workers": Answers()}, "num_workers should be an int"),
        ({"seed": Answers()}, "seed should be an int"),
    ],
)
def test_option_that_answers_every_name_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        headrace.Loader(range(4), **options)


def test_context_that_answers_every_name_is_refused() -> None:
    with pytest.raises(ValueError, match="multiprocessing_context should be one of"):
        headrace.Loader(range(4), multiprocessing_context=Answers())


class Index(Answers):
    def __reduce__(self) -> Any:
        return Index, ()

    def __repr__(self) -> str:
        return "an index"


class RaisesForAll:
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> Any:
        raise ValueError("bad sample")


@BOTH
def test_index_that_answers_every_name_hides_no_error(kind: Any) -> None:
    with pytest.raises(ValueError, match="bad sample"):
        epoch(load(kind, RaisesForAll(), batch_size=None, sampler=[Index()]))


class Pair(tuple[int, int]):
    def __getattr__(self, name: str) -> Any:
        return Remote(name)


def test_tuple_that_answers_every_name_is_no_named_tuple() -> None:
    (batch,) = headrace.Loader([Pair((1, 2)), Pair((3, 4))], 2)
    assert type(batch) is list and [part.tolist() for part in batch] == [[1, 3], [2, 4]]


class Strict:
    """A collate function that lets the KeyError of its table of names through."""

    def __call__(self, samples: list[int]) -> int:
        return sum(samples)

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


@BOTH
def test_collate_function_that_knows_no_names_is_called(kind: Any) -> None:
    assert epoch(load(kind, range(6), collate_fn=Strict())) == [3, 12]


class AnyOption(Answers, Torch[Any]):
    """A loader of torch's with a __getattr__, under install()."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return Remote(name)


def test_loader_that_answers_every_name_has_no_options() -> None:
    with headrace.torch.installed():
        loader = AnyOption(range(6), 3, num_workers=1, multiprocessing_context="fork")
        assert epoch(loader) == [[0, 1, 2], [3, 4, 5]]


# ---- the commands ----


class StubByIndex(Answers):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return range(4)[index]


def test_replay_takes_stub_for_the_dataset_that_it_is() -> None:
    assert not replay._is_loader(StubByIndex())
    assert not replay._is_loader(Stub(range(4)))
    assert replay._is_loader(Torch(range(4))) and replay._is_loader(headrace.Loader(range(4)))


def test_doctor_takes_no_stub_for_a_loader() -> None:
    assert not doctor_machine._is_loader(Stub(range(4)))
    assert doctor_machine._is_loader(Torch(range(4))) and doctor_machine._is_loader(headrace.Loader(range(4)))


def test_doctor_knows_the_loader_that_accelerate_prepares() -> None:
    """Its parts come from __getattr__; its __class__ says that it is a loader of torch."""
    from accelerate.data_loader import DataLoaderShard

    loader = DataLoaderShard(range(4))  # type: ignore[arg-type]
    assert doctor_machine._is_loader(loader) and replay._is_loader(loader)
    assert [one.name for one in order.check_order(loader)] == ["sampler"]


class AnySampler(Answers):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def test_doctor_finds_no_ranks_in_sampler_with_every_attribute() -> None:
    (found,) = order.check_order(headrace.Loader(range(4), sampler=AnySampler()))
    assert found.severity == "ok"


# ---- frozen data ----


class Many(Answers):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, at: int) -> int:
        return (1, 3)[at]


def test_get_many_takes_indices_that_answer_every_name() -> None:
    assert headrace.freeze(list("abcd")).get_many(Many()) == ["b", "d"]


THAW = """
import headrace, numpy

class Buffer(bytearray):
    def __getattr__(self, name):
        return self

print(headrace.thaw(numpy.ndarray(2, "u1", Buffer(b"ab"))))
"""


def test_thaw_of_array_over_buffer_that_answers_every_name_ends(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, THAW, timeout_s=60) == "[97 98]\n"

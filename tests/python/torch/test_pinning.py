# SPDX-License-Identifier: Apache-2.0
"""pin_memory, with an accelerator that is made up: torch's own pinning thread runs, and what it calls is watched."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from headrace.torch._device import pinning
from loaders import ENGINE, Headrace

if not ENGINE:
    pytest.skip("torch's thread is torch's", allow_module_level=True)


class Squares(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        if index == 13:
            raise ValueError("thirteen")
        return torch.full((100,), float(index)), index


class Numbers(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        return iter(range(10 * info.id, 10 * info.id + 4 * (info.id + 1)))


def pin_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "headrace-pin"]


def loader_of(dataset: Any, **options: Any) -> Any:
    options = {"batch_size": 2, "num_workers": 2, "multiprocessing_context": "fork", "pin_memory": True, **options}
    return Headrace(dataset, **options)


@pytest.mark.parametrize("in_order", [True, False])
def test_batches_are_pinned_in_a_thread_complete_and_in_order(pinned: dict[int, str], in_order: bool) -> None:
    got = []
    iterator = iter(loader_of(Squares(), in_order=in_order))
    while True:
        try:
            values, indices = next(iterator)
        except ValueError as error:
            assert "thirteen" in str(error)
            continue
        except StopIteration:
            break
        assert pinned[values.data_ptr()] == "headrace-pin"
        assert values[:, 0].tolist() == indices.tolist()
        got.append(indices.tolist())
    expected = [[i, i + 1] for i in range(0, 24, 2) if i != 12]
    assert got == expected if in_order else sorted(got) == expected
    assert pin_threads() == []


def test_indices_are_drawn_when_a_batch_is_delivered(pinned: dict[int, str]) -> None:
    drawn: list[int] = []

    def sampler() -> Any:
        for index in range(12):
            drawn.append(index)
            yield index

    class Sampler:
        def __iter__(self) -> Any:
            return sampler()

    iterator = iter(loader_of(list(range(12)), sampler=Sampler(), batch_size=1, num_workers=1))
    for delivered in range(1, 11):
        next(iterator)
        assert len(drawn) == min(12, 2 + delivered)


def test_iterable_datasets_of_uneven_length(pinned: dict[int, str]) -> None:
    loader = loader_of(Numbers(), persistent_workers=True)
    for _ in range(3):
        got = sorted(index for batch in loader for index in batch.tolist())
        assert got == [0, 1, 2, 3, 10, 11, 12, 13, 14, 15, 16, 17]


def test_exception_of_pinning_is_raised_and_the_loop_goes_on(pinned: dict[int, str]) -> None:
    data = [torch.zeros(3 if index == 2 else 4) for index in range(6)]
    iterator = iter(loader_of(data, batch_size=None))
    shapes = []
    for _ in range(6):
        try:
            shapes.append(tuple(next(iterator).shape))
        except RuntimeError as error:
            assert "no pinned memory" in str(error) and "pin memory thread" in str(error)
            shapes.append(("failed",))
    assert shapes == [(4,), (4,), ("failed",), (4,), (4,), (4,)]


def test_a_broken_off_epoch_leaves_nothing_to_the_next(pinned: dict[int, str]) -> None:
    loader = loader_of(list(range(40)), persistent_workers=True)
    for taken in range(5):
        for number, batch in enumerate(loader):
            assert batch.tolist() == [2 * number, 2 * number + 1]
            if number == taken:
                break
    assert [batch.tolist() for batch in loader] == [[i, i + 1] for i in range(0, 40, 2)]


def test_the_thread_ends_with_the_iterator(pinned: dict[int, str]) -> None:
    iterator = iter(loader_of(list(range(40))))
    next(iterator)
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "headrace-pin"]
    del iterator
    thread.join(50)
    assert not thread.is_alive()


class Hesitates:
    """A sampler that raises once, in the middle."""

    def __iter__(self) -> Any:
        self.drawn = -1
        return self

    def __next__(self) -> int:
        self.drawn += 1
        if self.drawn == 6:
            raise ConnectionError("the sampler's store is away")
        if self.drawn > 12:
            raise StopIteration
        return self.drawn


class HasMessage(Exception):
    message = "a text of the class"


def test_pin_error_of_class_with_message_shows_text(pinned: dict[int, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def pin(_: torch.Tensor, device: object = None) -> torch.Tensor:
        raise HasMessage("the original text")

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    with pytest.raises(RuntimeError, match=r"(?s)in pin memory thread.*HasMessage: the original text"):
        next(iter(loader_of(Squares())))


def test_loop_continues_after_a_sampler_that_raised_once(pinned: dict[int, str]) -> None:
    iterator = iter(loader_of(list(range(13)), sampler=Hesitates(), batch_size=None, num_workers=1))
    got, raised = [], 0
    while True:
        try:
            got.append(int(next(iterator)))
        except ConnectionError:
            raised += 1
        except StopIteration:
            break
    assert raised == 1
    assert got == [one for one in range(13) if one != 6] or got == [one for one in range(13) if one not in (4, 6)]


def test_handler_that_raises_during_pinning_loses_no_batch(
    pinned: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler that raises while a batch is pinned loses no batch and delivers none twice."""
    loader = loader_of(list(range(24)), persistent_workers=True)
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1]
    take = pinning.Pinner.take

    def interrupted(self: Any, number: int) -> Any:
        monkeypatch.setattr(pinning.Pinner, "take", take)
        raise KeyboardInterrupt

    monkeypatch.setattr(pinning.Pinner, "take", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert next(iterator).tolist() == [2, 3]
    monkeypatch.setattr(pinning.Pinner, "take", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert [batch.tolist() for batch in loader] == [[i, i + 1] for i in range(0, 24, 2)]


def test_pinning_thread_that_has_died_is_reported(pinned: dict[int, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.utils.data._utils.pin_memory, "_pin_memory_loop", lambda *arguments: None)
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        next(iter(loader_of(Squares())))

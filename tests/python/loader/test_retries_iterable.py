# SPDX-License-Identifier: Apache-2.0
"""retries with iterable datasets: after an I/O error that may pass they go back to their last state, so that no sample
is lost and none comes twice."""

from __future__ import annotations

import errno
import os
import pathlib
import random
import warnings
from typing import Any

import headrace
import headrace.torch
import numpy as np
import pytest
import torch.utils.data
from headrace._samples import last_state, retry
from headrace.torch import DataLoader
from loaders import METHODS, only_headrace

pytestmark = only_headrace
COUNT, BATCH, RETRIES = 23, 4, 3
LOADERS = pytest.mark.parametrize("kind", [headrace.Loader, DataLoader], ids=["numpy", "torch"])
Torch = torch.utils.data.DataLoader


def worker_of_now() -> tuple[int, int]:
    info = torch.utils.data.get_worker_info() or headrace.get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """Gives (number, random number), each worker its part. It is at the next number before it reads, so that a sample
    would be lost if its iterator went on. Files count how often a number was tried, in all processes."""

    def __init__(self, folder: pathlib.Path, fails: dict[int, int] | None = None, error: Any = errno.EIO) -> None:
        self.folder, self.fails, self.error = folder, fails or {}, error
        self.at = self.start = 0
        self.replayable = True

    def read(self) -> Any:
        at, drawn = self.at, random.random()
        self.at += 1
        worker, workers = worker_of_now()
        if at % workers != worker:
            return None
        for tried in range(self.fails.get(at, 0)):
            try:
                os.close(os.open(self.folder / f"{at} {tried}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            self.fail(at)
        return np.array([at, drawn])

    def fail(self, at: int) -> None:
        raise OSError(self.error, os.strerror(self.error)) if isinstance(self.error, int) else self.error(str(at))

    def __iter__(self) -> Any:
        self.at, self.start = self.start, 0
        while self.at < COUNT:
            sample = self.read()
            if sample is not None:
                yield sample

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state["at"]


class Itself(Stream):
    """It is its own iterator, which goes on after an exception."""

    def __iter__(self) -> Any:
        self.at = 0
        return self

    def __next__(self) -> Any:
        while self.at < COUNT:
            sample = self.read()
            if sample is not None:
                return sample
        raise StopIteration

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Reader:
    def __init__(self, stream: Any) -> None:
        self.stream = stream
        stream.at, stream.start = stream.start, 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return Itself.__next__(self.stream)


class Separate(Stream):
    """Its iterator is an object of its own, which begins at once."""

    def __iter__(self) -> Any:
        return Reader(self)


class Keeping(Stream):
    """Keeps the state that was loaded for each further iteration."""

    def __iter__(self) -> Any:
        start = self.start
        yield from super().__iter__()
        self.start = start

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


KINDS = [Stream, Itself, Separate, Keeping]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_FIRST_WAIT_S", 1e-4)


def loader_of(kind: Any, dataset: Any, workers: int, **options: Any) -> Any:
    options = {"batch_size": BATCH, "retries": RETRIES, **options}
    if workers:
        options = {"multiprocessing_context": "fork", **options}
    if kind is headrace.Loader:
        options["seed"] = 3
    torch.manual_seed(3)
    random.seed(3)
    return kind(dataset, num_workers=workers, **options)


def values_of(loader: Any) -> list[Any]:
    return [np.asarray(batch).tolist() for batch in loader]


def read(loader: Any) -> tuple[list[Any], list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        values = values_of(loader)
    return values, [str(one.message) for one in caught if "I/O errors that may pass" in str(one.message)]


def numbers(values: list[Any]) -> list[int]:
    return [int(one[0]) for batch in values for one in (batch if isinstance(batch[0], list) else [batch])]


FAILS = {0: 2, 1: 1, 6: 1, 7: 3, 22: 2}
TRIES = sum(FAILS.values())


@LOADERS
@pytest.mark.parametrize("dataset", KINDS)
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("options", [{}, {"batch_size": None}, {"snapshot_every_n_steps": 3}], ids=str)
def test_no_sample_is_lost_or_doubled(
    kind: Any, dataset: Any, workers: int, options: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    """The samples are those that come without an error, random numbers included."""
    expected = values_of(loader_of(kind, dataset(tmp_path), workers, **options))
    assert sorted(numbers(expected)) == list(range(COUNT))
    loader = loader_of(kind, dataset(tmp_path, FAILS), workers, **options)
    values, messages = read(loader)
    assert values == expected
    assert loader.report()["retried"] == TRIES
    (message,) = messages
    assert f"{TRIES} times in all" in message and f"OSError: [Errno 5] {os.strerror(5)}" in message


@LOADERS
@pytest.mark.parametrize("method", [*METHODS, "headrace"])
def test_samples_are_those_without_errors_with_each_start_method(
    kind: Any, method: str, tmp_path: pathlib.Path
) -> None:
    options = {"multiprocessing_context": method, "persistent_workers": True}
    expected = values_of(loader_of(kind, Stream(tmp_path), 1, **options))
    loader = loader_of(kind, Stream(tmp_path, {0: 1, 6: 1, 22: 1}), 1, **options)
    assert values_of(loader) == expected
    assert loader.report()["retried"] == 3


@LOADERS
@pytest.mark.parametrize("dataset", KINDS)
@pytest.mark.parametrize("workers", [0, 2])
def test_next_epochs_are_whole(kind: Any, dataset: Any, workers: int, tmp_path: pathlib.Path) -> None:
    """A dataset may keep the state that it was given for each further iteration."""
    loader = loader_of(kind, dataset(tmp_path, {9: 1, 10: 1}), workers, persistent_workers=bool(workers))
    for epoch in range(3):
        if hasattr(loader.dataset, "set_epoch"):
            loader.dataset.set_epoch(epoch)
        assert sorted(numbers(values_of(loader))) == list(range(COUNT))
        assert loader.report()["retried"] == (0 if epoch else 2)
        assert getattr(loader.dataset, "epoch", epoch) == epoch


class InEpochs(Keeping):
    """Its state has its epoch, which says what the samples are."""

    epoch = 0

    def read(self) -> Any:
        sample = super().read()
        return None if sample is None else sample + 1000 * self.epoch

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start, self.epoch = state["at"], state["epoch"]


@LOADERS
@pytest.mark.parametrize("workers", [0, 1])
def test_dataset_stays_in_its_epoch(kind: Any, workers: int, tmp_path: pathlib.Path) -> None:
    loader = loader_of(kind, InEpochs(tmp_path, {9: 1}), workers, persistent_workers=bool(workers))
    for epoch in (0, 5, 5):
        loader.dataset.set_epoch(epoch)
        assert numbers(values_of(loader)) == [1000 * epoch + at for at in range(COUNT)]


@LOADERS
@pytest.mark.parametrize("workers", [0, 1])
def test_last_error_is_raised(kind: Any, workers: int, tmp_path: pathlib.Path) -> None:
    loader = loader_of(kind, Stream(tmp_path, {9: 99}), workers)
    with pytest.raises(OSError) as caught:
        values_of(loader)
    assert "the sample was tried 4 times (retries)" in str(caught.value) + str(getattr(caught.value, "__notes__", ""))
    assert loader.report()["retried"] == RETRIES


@LOADERS
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("word", ["skip", "refill"])
def test_on_bad_sample_decides_after_the_last_try(kind: Any, workers: int, word: str, tmp_path: pathlib.Path) -> None:
    """Samples after it are neither lost nor doubled, also if the dataset goes back and meets it again."""
    loader = loader_of(kind, Itself(tmp_path, {9: 99, 10: 1}), workers, on_bad_sample=word)
    values, _ = read(loader)
    assert numbers(values) == [at for at in range(COUNT) if at != 9]
    assert [one.index for one in loader.report()["bad_samples"]] == [9]
    assert loader.report()["retried"] == RETRIES + 1


@LOADERS
def test_loop_that_goes_on_after_an_error_loses_no_more(kind: Any, tmp_path: pathlib.Path) -> None:
    """Only the sample that was raised, and its batch, are missing."""
    loader = loader_of(kind, Itself(tmp_path, {9: RETRIES + 1, 14: 1}), 1, snapshot_every_n_steps=5)
    iterator, found = iter(loader), []
    while True:
        try:
            found.append(np.asarray(next(iterator)).tolist())
        except StopIteration:
            break
        except OSError:
            continue
    assert numbers(found) == [*range(8), *range(10, COUNT)]


class Refusing(Stream):
    """load_state_dict needs the server, too."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for tried in range(2):
            if not (self.folder / f"load {tried}").exists():
                (self.folder / f"load {tried}").touch()
                raise TimeoutError("no answer")
        super().load_state_dict(state)


@LOADERS
@pytest.mark.parametrize("workers", [0, 1])
def test_errors_on_the_way_back_are_further_tries(kind: Any, workers: int, tmp_path: pathlib.Path) -> None:
    loader = loader_of(kind, Refusing(tmp_path, {9: 1}), workers)
    assert numbers(values_of(loader)) == list(range(COUNT))
    assert loader.report()["retried"] == 3


def test_dataset_that_could_not_go_back_does_so_later(tmp_path: pathlib.Path) -> None:
    """With one try the loop ends. A program that catches the error and goes on gets each sample, except for those of
    the batch, which torch would have dropped, too."""
    loader = loader_of(headrace.Loader, Refusing(tmp_path, {9: 1}), 0, retries=1)
    iterator = iter(loader)
    assert numbers([next(iterator).tolist() for _ in range(2)]) == list(range(8))
    with pytest.raises(TimeoutError):
        next(iterator)
    (tmp_path / "load 1").touch()
    assert numbers([batch.tolist() for batch in iterator]) == list(range(9, COUNT))


@LOADERS
@pytest.mark.parametrize("workers", [0, 1])
def test_other_errors_are_raised_at_once(kind: Any, workers: int, tmp_path: pathlib.Path) -> None:
    loader = loader_of(kind, Stream(tmp_path, {9: 1}, error=ValueError), workers)
    with pytest.raises(ValueError, match="9"):
        values_of(loader)
    assert loader.report()["retried"] == 0


@LOADERS
@pytest.mark.parametrize("workers", [0, 1])
def test_first_sample_needs_to_be_replayable(kind: Any, workers: int, tmp_path: pathlib.Path) -> None:
    stream = Stream(tmp_path, {0: 1})
    stream.replayable = False
    with pytest.raises(OSError) as caught:
        values_of(loader_of(kind, stream, workers))
    text = str(caught.value) + str(getattr(caught.value, "__notes__", ""))
    assert "cannot continue the Stream before the first sample of an epoch" in text and "`replayable`" in text
    own = Itself(tmp_path / "own", {0: 1})
    (tmp_path / "own").mkdir()
    own.replayable = False
    assert numbers(values_of(loader_of(kind, own, workers))) == list(range(COUNT))  # it has a state from the start


@LOADERS
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", KINDS)
def test_first_sample_after_a_resume_begins_at_the_state(
    kind: Any, workers: int, dataset: Any, tmp_path: pathlib.Path
) -> None:
    loader = loader_of(kind, dataset(tmp_path), workers)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.state_dict()
    rest = numbers([np.asarray(batch).tolist() for batch in iterator])
    stream = dataset(tmp_path, dict.fromkeys(rest[:3], 1))
    stream.replayable = False
    loader = loader_of(kind, stream, workers)
    loader.load_state_dict(state)
    assert numbers(values_of(loader)) == rest
    assert loader.report()["retried"] == 3
    assert sorted(numbers(values_of(loader))) == list(range(COUNT))


class Dying(Stream):
    """The worker ends once at sample 9."""

    def fail(self, at: int) -> None:
        if at == 9:
            os._exit(7)
        super().fail(at)


@LOADERS
def test_dead_worker_is_continued_with_retries(kind: Any, tmp_path: pathlib.Path) -> None:
    loader = loader_of(kind, Dying(tmp_path, {8: 1, 9: 1, 10: 1}), 1, max_restarts=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert numbers(values_of(loader)) == list(range(COUNT))
    assert loader.report()["restarts"] == 1


class Short(Stream):
    """load_state_dict goes too far."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = COUNT


class NoState(Stream):
    def state_dict(self) -> dict[str, Any]:
        raise RuntimeError("no state today")


@pytest.mark.parametrize("workers", [0, 1])
def test_dataset_whose_state_does_not_continue_it_is_an_error(workers: int, tmp_path: pathlib.Path) -> None:
    with pytest.raises(RuntimeError, match="has loaded the last state of the Short, and then it gave fewer samples"):
        values_of(loader_of(DataLoader, Short(tmp_path, {10: 1}), workers))
    with pytest.raises(OSError) as caught:
        values_of(loader_of(DataLoader, NoState(tmp_path, {11: 1}), workers))
    text = str(caught.value) + str(getattr(caught.value, "__notes__", ""))
    assert "cannot continue the NoState: its state_dict raised RuntimeError: no state today" in text


class Stateless(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    replayable = True

    def __iter__(self) -> Any:
        return iter(range(COUNT))


@LOADERS
def test_dataset_that_cannot_be_continued_is_refused(kind: Any) -> None:
    with pytest.raises(
        ValueError, match=r"retries= needs a map-style dataset .*, or an iterable one that is continued"
    ):
        list(kind(Stateless(), retries=2))


@pytest.mark.parametrize("workers", [0, 1])
def test_installed_option_is_used_if_a_dataset_has_a_state(workers: int, tmp_path: pathlib.Path) -> None:
    options: dict[str, Any] = {"batch_size": BATCH, "num_workers": workers}
    if workers:
        options["multiprocessing_context"] = "fork"
    with headrace.torch.installed(retries=RETRIES):
        loader: Any = Torch(Stream(tmp_path, {9: 2}), **options)
        assert numbers(values_of(loader)) == list(range(COUNT))
        assert headrace.torch.report(loader)["retried"] == 2
        assert len(list(Torch(Stateless(), **options))) == -(-COUNT // BATCH)


def test_states_are_taken_only_if_they_are_needed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(last_state.LastState, "__init__", lambda *_: made.append(1))
    values_of(loader_of(headrace.Loader, Stream(tmp_path), 0, retries=0))
    assert not made

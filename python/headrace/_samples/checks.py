# SPDX-License-Identifier: Apache-2.0
"""Checks that a dataset gives the same sample each time, and that kept samples are those of the dataset.

They make samples of the dataset. Afterwards all random number generators are as they were: those that all code shares,
and those that the dataset and its transforms have of their own.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from headrace._base import exception_text, lookup, signals
from headrace._base.help_key import help_on
from headrace._base.warn import warn_user
from headrace._samples import random_numbers
from headrace._samples.compare import difference
from headrace._samples.kept_generators import Own, is_same
from headrace._samples.random_numbers import generators_kept, seed_all

_COMPARED = 64  # samples of a new table, spread over the dataset
_LEAST = 2  # of these are compared however long they take
_MOST_S = 3.0
_STALE = 2  # samples of a table that exists
_TRIED = 64  # to find them


class SamplesDiffer(ValueError):
    """A dataset whose samples are cached gave another sample than before."""


def settled(sample: Any) -> Any:
    """Returns a sample whose images from headrace.images have their pixels."""
    _settle(sample, set())
    return sample


def _settle(sample: Any, met: set[int]) -> None:
    if isinstance(sample, (list, tuple, dict)):
        if id(sample) in met:
            return
        met.add(id(sample))
        for value in sample.values() if isinstance(sample, dict) else sample:
            _settle(value, met)
    elif getattr(type(sample), "headrace_lazy", False):
        sample.load()
        sample.im  # noqa: B018


def spread(count: int, most: int) -> list[int]:
    """Returns at most so many numbers below `count`, at equal distances."""
    few = min(most, count)
    return [number * count // few for number in range(few)]


def _differs(one: Any, other: Any) -> str | None:
    """Returns what differs. Samples that cannot be compared, such as tensors without values, count as equal."""
    try:
        return difference(one, other)
    except Exception:
        return None


@contextlib.contextmanager
def _all_kept(own: Own) -> Iterator[None]:
    with generators_kept(), own.kept():
        yield


def say_random(name: str, why: str, dataset: Any) -> str:
    steps = _steps_of(dataset)
    return (
        f"headrace: the samples of '{name}' cannot be cached, because they are random: {why}. "
        f"{f'The transform of the dataset is {steps}. ' if steps else ''}Leave the random steps "
        "out of the dataset, and give them to the cache, which applies them to each sample that it returns: "
        "headrace.cache_samples(dataset_without_them, transform=random_steps), where random_steps(sample) gets a whole "
        "sample. Or leave out cache=" + help_on("random-samples")
    )


def _steps_of(dataset: Any) -> str:
    """Returns the names of the steps, if the dataset, or the one that it is a Subset of, has a Compose as transform."""
    transform = lookup.attribute(dataset, "transform")
    if transform is None and type(dataset).__name__ == "Subset":
        return _steps_of(lookup.attribute(dataset, "dataset"))
    steps = lookup.attribute(transform, "transforms")
    if type(transform).__name__ != "Compose" or not isinstance(steps, (list, tuple)):
        return ""
    return ", ".join(getattr(step, "__name__", None) or type(step).__name__ for step in steps)


# ---- random samples ----


class _Run(NamedTuple):
    """A sample that was made, and the states of the generators before and after."""

    sample: Any
    before: dict[Any, Any]
    after: dict[Any, Any]


def _has_drawn(run: _Run, other: _Run) -> bool:
    """Returns True if a run has left a generator at another place, unless it is where another run of this sample has
    left it, too: then the dataset seeds it for each sample."""
    known = run.before.keys() & run.after.keys() & other.after.keys()
    moved = (one for one in known if not is_same(run.before[one], run.after[one]))
    return any(not is_same(run.after[one], other.after[one]) for one in moved)


class Drawing:
    """Finds out whether the samples of a dataset draw random numbers. Such numbers may have made no difference now, and
    make one the next time. count: of the samples."""

    def __init__(self, dataset: Any, count: int) -> None:
        self.dataset, self.count = dataset, count
        self.own = Own(dataset)
        self._most = min(_LEAST, count)
        self._first_only = 0  # samples that have drawn only when they were made first, as from a memory of their own

    def run(self, make: Callable[[int], Any], epoch: int, index: int, seeds_own: bool = False) -> _Run:
        key = seed_all(epoch, 0, index)
        if seeds_own:
            self.own.seed(key)
        before = self._states()
        return _Run(make(index), before, self._states())

    def _states(self) -> dict[Any, Any]:
        return {**random_numbers.states(), **self.own.states()}

    def draws(self, first: _Run, second: _Run, make: Callable[[int], Any], index: int) -> bool:
        """Returns True if a sample draws, after it was made twice. Another thread may have drawn meanwhile, so it has
        to do so again, or another sample, too."""
        if not _has_drawn(second, first):
            if not is_same(first.before, first.after):
                # Its own generators are where the first run has left them, whether they were seeded or not used.
                self._first_only += _has_drawn(first, self.run(make, 3, index, True))
            return self._first_only >= self._most
        third = self.run(make, 3, index)
        return _has_drawn(third, second) and _has_drawn(self.run(make, 4, index), third)


def _check_sample(
    kept: Callable[[int], Any], make: Callable[[int], Any], index: int, name: str, drawing: Drawing
) -> None:
    first, second = drawing.run(kept, 1, index), drawing.run(make, 2, index)
    # What is kept, because the dataset may return the same object each time, with other values.
    if where := _differs(kept(index), second.sample):
        raise SamplesDiffer(say_random(name, f"sample {index} was made twice, and differs ({where})", drawing.dataset))
    if drawing.draws(first, second, make, index):
        raise SamplesDiffer(say_random(name, f"sample {index} draws random numbers when it is made", drawing.dataset))


def check_not_random(kept: Callable[[int], Any], make: Callable[[int], Any], name: str, drawing: Drawing) -> None:
    """Makes samples again with other random numbers, and raises SamplesDiffer if they differ, or if they draw any.
    kept: returns a sample of the table, and makes it if it is not there."""
    end = time.monotonic() + _MOST_S
    with _all_kept(drawing.own):
        for done, index in enumerate(spread(drawing.count, _COMPARED)):
            if done >= _LEAST and time.monotonic() > end:
                return
            try:
                _check_sample(kept, make, index, name, drawing)
            except SamplesDiffer:
                raise
            except Exception:  # the loader raises it, or skips the sample
                continue


# ---- samples that are kept ----


def say_stale(name: str, index: int, where: str, version: str) -> str:
    option = "" if version == "0" else f" --version {version}"
    return (
        f"headrace: the cache of '{name}' has other samples than this dataset: sample {index} differs "
        f"({where}). If the dataset or its files have changed, give another version= to "
        f"headrace.cache_samples, or remove the samples (headrace cache rm {name}.samples{option}). If it "
        "is another dataset, give it another name=" + help_on("samples-differ")
    )


def say_unreadable(name: str, index: int, error: Exception) -> str:
    return (
        f"headrace: samples of the cache of '{name}' cannot be compared with those of its dataset, because it raises "
        f"for sample {index}, which is kept: {exception_text.in_words(error)}. The kept samples are used. If the files "
        "of the dataset have changed, give another version= to headrace.cache_samples, or remove the samples (headrace "
        f"cache rm {name}.samples)" + help_on("samples-differ")
    )


def _made_again(make: Callable[[int], Any], index: int) -> tuple[Any, Exception | None]:
    """Makes a sample that is kept. Returns it, and the exception if the dataset raises one."""
    try:
        return make(index), None
    except SamplesDiffer:
        raise
    except Exception as error:
        if signals.is_from_signal(error):
            raise
        return None, error


def check_not_stale(
    make: Callable[[int], Any], kept: Callable[[int], Any], name: str, version: str, drawing: Drawing
) -> None:
    """Makes some samples that are kept again, and raises SamplesDiffer if they differ. If the dataset raises instead, a
    warning says so: that does not prove that they differ, because it may only work in a worker."""
    compared = failed = 0
    with _all_kept(drawing.own):
        for index in random.Random().sample(range(drawing.count), min(_TRIED, drawing.count)):
            try:
                before = kept(index)
            except SamplesDiffer:
                raise
            except Exception:  # it is not kept
                continue
            now, error = _made_again(make, index)
            if error is not None:  # a file system may have failed for a moment
                now, error = _made_again(make, index)
            if error is not None:
                if not failed:
                    warn_user(say_unreadable(name, index, error))
                failed += 1
            elif where := _differs(before, now):
                raise SamplesDiffer(say_stale(name, index, where, version))
            else:
                compared += 1
            if _STALE in (compared, failed):
                return

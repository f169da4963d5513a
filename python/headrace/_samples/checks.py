# SPDX-License-Identifier: Apache-2.0
"""Checks that a dataset gives the same sample each time, that kept samples are those of the dataset, and that a divided
transform gives the samples of the whole one.

They make samples of the dataset. Afterwards all random number generators are as they were: those that all code shares,
and those that the dataset and its transforms have of their own.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from headrace._base import exception_text
from headrace._base.help_key import help_on
from headrace._samples import random_numbers
from headrace._samples.compare import difference
from headrace._samples.kept_generators import Own, is_same
from headrace._samples.random_numbers import generators_kept, seed_all

_COMPARED = 64  # samples of a new table, spread over the dataset
_LEAST = 2  # of these are compared however long they take
_MOST_S = 3.0
_STALE = 2  # samples of a table that exists
_TRIED = 64  # to find them
_DIVIDED = 8  # samples that are compared before a transform is divided
_DIVIDED_S = 1.5


class SamplesDiffer(ValueError):
    """A dataset whose samples are cached gave another sample than before."""


class NotProved(Exception):
    """Raised if it is not certain that a divided transform gives the samples of the whole one. Its text is the
    reason."""


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


def say_random(name: str, why: str) -> str:
    return (
        f"headrace: the samples of '{name}' cannot be cached, because they are random: {why}. Leave the random steps "
        "out of the dataset, and give them to the cache, which applies them to each sample that it returns: "
        "headrace.cache_samples(dataset_without_them, transform=random_steps), where random_steps(sample) gets a whole "
        "sample. Or leave out cache=" + help_on("random-samples")
    )


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
    make one the next time. count: of the samples. ignored: the generators of a transform that draws numbers and does
    not use them."""

    def __init__(self, own: Own, count: int, ignored: Own | None = None) -> None:
        self.own = own
        self._ignored = ignored
        self._most = min(_LEAST, count)
        self._first_only = 0  # samples that have drawn only when they were made first, as from a memory of their own

    def run(self, make: Callable[[int], Any], epoch: int, index: int, seeds_own: bool = False) -> _Run:
        key = seed_all(epoch, 0, index)
        if seeds_own:
            self.own.seed(key)
        before = self._states()
        return _Run(make(index), before, self._states())

    def _states(self) -> dict[Any, Any]:
        return {**random_numbers.states(), **self.own.states(self._ignored)}

    def count_first(self, first: _Run, again: _Run) -> None:
        """Counts a sample that has drawn only when it was made first."""
        self._first_only += _has_drawn(first, again)

    def draws(self, first: _Run, second: _Run, make: Callable[[int], Any], index: int) -> bool:
        """Returns True if a sample draws, after it was made twice. Another thread may have drawn meanwhile, so it has
        to do so again, or another sample, too."""
        if not _has_drawn(second, first):
            if not is_same(first.before, first.after):
                # Its own generators are where the first run has left them, whether they were seeded or not used.
                self.count_first(first, self.run(make, 3, index, True))
            return self._first_only >= self._most
        third = self.run(make, 3, index)
        return _has_drawn(third, second) and _has_drawn(self.run(make, 4, index), third)


def _check_sample(
    kept: Callable[[int], Any], make: Callable[[int], Any], index: int, name: str, drawing: Drawing
) -> None:
    first, second = drawing.run(kept, 1, index), drawing.run(make, 2, index)
    # What is kept, because the dataset may return the same object each time, with other values.
    if where := _differs(kept(index), second.sample):
        raise SamplesDiffer(say_random(name, f"sample {index} was made twice, and differs ({where})"))
    if drawing.draws(first, second, make, index):
        raise SamplesDiffer(say_random(name, f"sample {index} draws random numbers when it is made"))


def check_not_random(
    kept: Callable[[int], Any], make: Callable[[int], Any], count: int, name: str, drawing: Drawing
) -> None:
    """Makes samples again with other random numbers, and raises SamplesDiffer if they differ, or if they draw any.
    kept: returns a sample of the table, and makes it if it is not there."""
    end = time.monotonic() + _MOST_S
    with _all_kept(drawing.own):
        for done, index in enumerate(spread(count, _COMPARED)):
            if done >= _LEAST and time.monotonic() > end:
                return
            try:
                _check_sample(kept, make, index, name, drawing)
            except SamplesDiffer:
                raise
            except Exception:  # the loader raises it, or skips the sample
                continue


# ---- a divided transform ----


def _compare_ways(whole: Callable[[int], Any], divided: Callable[[int], Any], index: int, drawing: Drawing) -> None:
    """Makes a sample in both ways, each with the same random numbers. Raises NotProved unless both give the same
    sample, and leave the generators at the same place. Raises the exceptions of the whole way."""

    def run(make: Callable[[int], Any]) -> _Run:
        with _all_kept(drawing.own):
            return drawing.run(make, 1, index)

    one, again = run(whole), run(whole)
    drawing.count_first(one, again)
    if where := _differs(one.sample, again.sample):
        raise NotProved(
            f"sample {index} differs ({where}) each time it is made, although all random number generators that "
            "headrace can find were the same"
        )
    try:
        other = run(divided)
    except NotProved:
        raise
    except Exception as error:
        raise NotProved(exception_text.in_words(error)) from error
    if where := _differs(one.sample, other.sample):
        raise NotProved(f"sample {index} is another one then ({where})")
    if not is_same(one.after, other.after) or not is_same(one.after, again.after):
        raise NotProved(f"sample {index} draws other random numbers then")


def prove_division(
    whole: Callable[[int], Any], divided: Callable[[int], Any], count: int, drawing: Drawing, most: int = _DIVIDED
) -> None:
    """Compares up to `most` samples of a divided transform with those of the whole one. Raises NotProved."""
    end, proved = time.monotonic() + _DIVIDED_S, 0
    for index in spread(count, _TRIED):
        if proved >= most or (proved >= _LEAST and time.monotonic() > end):
            return
        try:
            _compare_ways(whole, divided, index, drawing)
        except NotProved:
            raise
        except Exception:  # the loader raises it, or skips the sample
            continue
        proved += 1
    if not proved and count:
        raise NotProved("no sample could be made to compare")


# ---- samples that are kept ----


def say_stale(name: str, index: int, where: str, version: str) -> str:
    option = "" if version == "0" else f" --version {version}"
    return (
        f"headrace: the cache of '{name}' has other samples than this dataset: sample {index} differs "
        f"({where}). If the dataset or its files have changed, give another version= to "
        f"headrace.cache_samples, or remove the samples (headrace cache rm {name}.samples{option}). If it "
        "is another dataset, give it another name=" + help_on("samples-differ")
    )


def check_not_stale(
    make: Callable[[int], Any], kept: Callable[[int], Any], count: int, name: str, version: str, own: Own
) -> None:
    """Makes some samples that are kept again, and raises SamplesDiffer if they differ."""
    compared = 0
    with _all_kept(own):
        for index in random.Random().sample(range(count), min(_TRIED, count)):
            try:
                before = kept(index)
                now = make(index)
            except SamplesDiffer:
                raise
            except Exception:  # it is not kept, or the loader raises what the dataset does
                continue
            if where := _differs(before, now):
                raise SamplesDiffer(say_stale(name, index, where, version))
            compared += 1
            if compared == _STALE:
                return

# SPDX-License-Identifier: Apache-2.0
"""Checks that a dataset gives the same sample each time, and that kept samples are those of the dataset."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from headrace._samples.compare import difference
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
    if isinstance(sample, (list, tuple)):
        for value in sample:
            settled(value)
    elif isinstance(sample, dict):
        for value in sample.values():
            settled(value)
    elif getattr(type(sample), "headrace_lazy", False):
        sample.load()
        sample.im  # noqa: B018
    return sample


def spread(count: int, most: int) -> list[int]:
    """Returns at most so many numbers below `count`, at equal distances."""
    few = min(most, count)
    return [number * count // few for number in range(few)]


def _differs(one: Any, other: Any) -> str | None:
    """Returns what differs. Samples that cannot be compared, such as those with cycles, count as equal."""
    try:
        return difference(one, other)
    except Exception:
        return None


def _made(make: Callable[[int], Any], epoch: int, index: int) -> Any:
    seed_all(epoch, 0, index)
    return make(index)


def say_random(name: str, why: str) -> str:
    return (
        f"headrace: the samples of '{name}' cannot be cached, because they are random: {why}. Leave the random steps "
        "out of the dataset, and give them to the cache, which applies them to each sample that it returns: "
        "headrace.cache_samples(dataset_without_them, transform=random_steps), where random_steps(sample) gets a whole "
        "sample. Or leave out cache="
    )


def check_not_random(kept: Callable[[int], Any], make: Callable[[int], Any], count: int, name: str) -> None:
    """Makes samples again with other random numbers, and raises SamplesDiffer if they differ. kept: returns a sample of
    the table, and makes it if it is not there."""
    end = time.monotonic() + _MOST_S
    with generators_kept():
        for done, index in enumerate(spread(count, _COMPARED)):
            if done >= _LEAST and time.monotonic() > end:
                return
            try:
                one, other = _made(kept, 1, index), _made(make, 2, index)
            except Exception:  # the loader raises it, or skips the sample
                continue
            if where := _differs(one, other):
                raise SamplesDiffer(say_random(name, f"sample {index} was made twice, and differs ({where})"))


def check_division(
    whole: Callable[[int], Any], first: Callable[[int], Any], rest: Callable[[Any], Any], count: int
) -> None:
    """Compares samples of a divided transform with those of the whole one, from the same random numbers. Raises
    SamplesDiffer."""
    with generators_kept():
        for index in spread(count, _STALE):
            try:
                one, again = _made(whole, 1, index), _made(whole, 1, index)
                other = _made(lambda number: rest(first(number)), 1, index)
            except Exception:  # the loader raises it, or skips the sample
                continue
            if _differs(one, again):  # its steps have generators of their own, as those of MONAI
                continue
            if where := _differs(one, other):
                raise SamplesDiffer(
                    f"headrace: cache= has divided the transform of the dataset, and sample {index} is another one "
                    f"then ({where}), because the dataset does more with the result. Give the random steps yourself: "
                    "headrace.cache_samples(dataset, transform=...), with a dataset that does not have them"
                )


def check_not_stale(
    make: Callable[[int], Any], kept: Callable[[int], Any], count: int, name: str, version: str
) -> None:
    """Makes some samples that are kept again, and raises SamplesDiffer if they differ."""
    compared = 0
    option = "" if version == "0" else f" --version {version}"
    with generators_kept():
        for index in random.Random().sample(range(count), min(_TRIED, count)):
            try:
                before = kept(index)
                now = make(index)
            except Exception:  # it is not kept, or the loader raises what the dataset does
                continue
            if where := _differs(before, now):
                raise SamplesDiffer(
                    f"headrace: the cache of '{name}' has other samples than this dataset: sample {index} differs "
                    f"({where}). If the dataset or its files have changed, give another version= to "
                    f"headrace.cache_samples, or remove the samples (headrace cache rm {name}.samples{option}). If it "
                    "is another dataset, give it another name="
                )
            compared += 1
            if compared == _STALE:
                return

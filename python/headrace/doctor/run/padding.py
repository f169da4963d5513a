# SPDX-License-Identifier: Apache-2.0
"""Measures how much of a loader's batches is padding."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace import _options
from headrace._base import exception_text, lookup
from headrace.doctor.observations import Observation
from headrace.doctor.run import plans

_MAX_S = 5.0  # for the samples that are made here
_BATCHES = 8  # whose padding is measured
_MORE_SAMPLES = 1024  # whose lengths a plan is tried with
_TOO_MUCH = 0.5  # share of a batch that is padding
_MUCH = 0.2


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields arrays and sequences of numbers with their paths."""
    if lookup.has_attribute(value, "shape") and lookup.has_attribute(value, "dtype"):
        yield path, value
    elif lookup.has_attribute(value, "items") and lookup.has_attribute(value, "keys"):
        for key, part in value.items():
            yield from _leaves(part, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        if value and all(isinstance(one, (int, float)) for one in value):
            yield path, value
        else:
            for at, part in enumerate(value[:64]):
                yield from _leaves(part, f"{path}[{at}]")


def _length(leaf: Any) -> int | None:
    shape = lookup.attribute(leaf, "shape")
    if shape is None:
        return len(leaf)
    return int(shape[0]) if len(shape) > 0 else None


def _tail_is_constant(row: Any, start: int) -> bool:
    tail = row[start:]
    return bool((tail == tail[(0,) * len(tail.shape)]).all())


def _share_observe(batch: Any, lengths: Sequence[int]) -> float | None:
    """Returns the share of a batch's array that is after the ends of its samples; None if that is not padding."""
    shape: Any = lookup.attribute(batch, "shape", ())
    if len(shape) < 2 or shape[0] != len(lengths) or shape[1] != max(lengths):
        return None
    for row, length in zip(batch, lengths, strict=True):
        if length < shape[1] and not _tail_is_constant(row, length):
            return None
    return 1 - sum(lengths) / (len(lengths) * int(shape[1]))


def _lengths_of(sample: Any) -> dict[str, int]:
    """Returns the lengths of the parts of a sample by their paths."""
    return {path: length for path, leaf in _leaves(sample) if (length := _length(leaf)) is not None}


def _lengths_by_path(samples: list[Any]) -> dict[str, list[int]]:
    """Returns the lengths of those parts that all samples have."""
    by_path: dict[str, list[int]] = {}
    for sample in samples:
        for path, length in _lengths_of(sample).items():
            by_path.setdefault(path, []).append(length)
    return {path: found for path, found in by_path.items() if len(found) == len(samples)}


def _padded_arrays(lengths: dict[str, list[int]], batch: Any) -> dict[str, str]:
    """Returns the path of the samples' part that each padded array is made of, by the array's path. A part has the same
    path, or is the only one of these lengths."""
    uneven = {path: found for path, found in lengths.items() if len(set(found)) > 1}
    padded = {}
    for path, array in _leaves(batch):
        for part in [path] if path in uneven else uneven:
            if _share_observe(array, uneven[part]) is not None:
                padded[path] = part
                break
    return padded


def batches_of(loader: Any) -> Iterator[list[Any]]:
    batches = getattr(loader, "batch_sampler", None)
    if batches is not None:
        yield from map(list, batches)
    elif callable(getattr(loader, "_tasks", None)) and loader.batch_size is not None:  # headrace.Loader
        yield from loader._tasks()


def _collate_of(loader: Any) -> Callable[[list[Any]], Any]:
    own = getattr(loader, "_batch_function", None)  # of headrace.Loader
    collate: Callable[[list[Any]], Any] = own() if callable(own) else loader.collate_fn
    return collate


def check_padding(loader: Any) -> list[Observation]:
    """Makes some batches in this process, compares them with their samples, and finds the plan that has less
    padding."""
    if _options.is_iterable_only(loader.dataset):
        return []
    end = time.monotonic() + _MAX_S
    parts: dict[str, str] = {}
    batches: list[dict[str, list[int]]] = []
    try:
        for indices in itertools.islice(batches_of(loader), _BATCHES):
            samples = [loader.dataset[index] for index in indices]
            batches.append(_lengths_by_path(samples))
            parts.update(_padded_arrays(batches[-1], _collate_of(loader)(samples)))
            if time.monotonic() > end:
                break
        measured = {path: _measured(loader, part, batches, end) for path, part in parts.items()}
    except Exception as error:
        text = exception_text.in_words(error)
        return [
            Observation(
                "padding", "note", "not measured", text, "The dataset or the collate function raised in this process."
            )
        ]
    return _observe(measured, plans.count_ranks(loader), plans.has_plan(loader))


def _measured(loader: Any, path: str, batches: list[dict[str, list[int]]], end: float) -> plans.Padded:
    """Measures the part of more samples, as long as there is time."""
    others: list[int] = []
    count = len(loader.dataset)
    for index in range(0, count, max(1, count // _MORE_SAMPLES)):
        if time.monotonic() > end or len(others) == _MORE_SAMPLES:
            break
        length = _lengths_of(loader.dataset[index]).get(path)
        others += [] if length is None else [length]
    return plans.Padded([one[path] for one in batches if one.get(path)], others, path)


def _observe(measured: dict[str, plans.Padded], world_size: int, has_plan: bool) -> list[Observation]:
    if not measured:
        return []
    path, worst = max(measured.items(), key=lambda one: one[1].padding)
    value, limit = f"{worst.padding:.0%} of batch{path}", f"in {_BATCHES} batches at most, made in this process"
    # Batches of a plan that follow each other are those of one rank, so they say nothing of the ranks of a step.
    balance = [] if has_plan else plans.check_balance(worst, world_size)
    if worst.padding <= _MUCH:
        return [Observation("padding", "ok", value, "at most"), *balance]
    if has_plan:
        text = "The batches are those of a headrace.Plan; its limits and its window set how much of them is padding."
        return [Observation("padding", "note", value, limit, text)]
    plan = worst.plan(world_size)
    is_too_much = worst.padding > _TOO_MUCH
    text = "More than half of what is collated, sent and computed is after the ends of the samples. " * is_too_much
    text += plans.describe_gain(worst, plan)
    severity = "warning" if is_too_much else "note"
    return [Observation("padding", severity, value, limit, text, plans.fix_of(worst, plan)), *balance]

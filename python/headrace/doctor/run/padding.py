# SPDX-License-Identifier: Apache-2.0
"""Measures how much of a loader's batches is padding."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace import _options
from headrace._errors import exception_text
from headrace._inspect import lookup
from headrace.doctor.observations import Observation

_MAX_S = 5.0  # for the samples that are made here
_BATCHES = 8  # whose padding is measured
_TOO_MUCH = 0.5  # share of a batch that is padding


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


def _shares(samples: list[Any], batch: Any) -> dict[str, float]:
    """Returns the shares of padding by path. A sample's part has the same path, or is the only one of these lengths."""
    by_path: dict[str, list[int]] = {}
    for sample in samples:
        for path, leaf in _leaves(sample):
            length = _length(leaf)
            if length is not None:
                by_path.setdefault(path, []).append(length)
    whole = {path: found for path, found in by_path.items() if len(found) == len(samples) and len(set(found)) > 1}
    shares = {}
    for path, array in _leaves(batch):
        for lengths in [whole[path]] if path in whole else whole.values():
            share = _share_observe(array, lengths)
            if share is not None:
                shares[path] = share
                break
    return shares


def _batches_of(loader: Any) -> Iterator[list[Any]]:
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
    """Makes some batches in this process and compares them with their samples."""
    if _options.is_iterable_only(loader.dataset):
        return []
    end = time.monotonic() + _MAX_S
    sums: dict[str, list[float]] = {}
    try:
        for indices in itertools.islice(_batches_of(loader), _BATCHES):
            samples = [loader.dataset[index] for index in indices]
            for path, share in _shares(samples, _collate_of(loader)(samples)).items():
                sums.setdefault(path, []).append(share)
            if time.monotonic() > end:
                break
    except Exception as error:
        text = exception_text.in_words(error)
        return [
            Observation(
                "padding", "note", "not measured", text, "The dataset or the collate function raised in this process."
            )
        ]
    return _observe({path: sum(shares) / len(shares) for path, shares in sums.items()})


def _observe(shares: dict[str, float]) -> list[Observation]:
    if not shares:
        return []
    path, most = max(shares.items(), key=lambda one: one[1])
    if most <= _TOO_MUCH:
        return [Observation("padding", "ok", f"{most:.0%} of batch{path}", "at most")]
    return [
        Observation(
            "padding",
            "warning",
            f"{most:.0%} of batch{path}",
            f"in {_BATCHES} batches at most, made in this process",
            "More than half of what is collated, sent and computed is after the ends of the samples.",
            "batches of samples of similar length: a batch_sampler that sorts each few hundred indices by length",
        )
    ]

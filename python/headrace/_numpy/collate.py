# SPDX-License-Identifier: Apache-2.0
"""Makes a batch of samples without torch: headrace.default_collate. For exact types the extension does the same in C
(_core/exchange/collate.c)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace._base import exception_text, lookup
from headrace._base.help_key import help_on


def default_collate(samples: list[Any]) -> Any:
    """Makes a batch of samples that have the same structure.

    Arrays and numpy scalars are stacked along a new first dimension, masked arrays with their masks; int, float, bool
    and complex become an array of shape (batch size,); str and bytes stay a list; mappings, named tuples and sequences
    are collated entry by entry, a tuple into a list.

    Raises:
        TypeError: if the samples have other types, or if some samples have numbers and others do not.
        ValueError: if there are no samples, or if they have different lengths or shapes.
        KeyError: if a mapping lacks a key of the first one.
        OverflowError: if an int does not fit into int64.
    """
    if len(samples) == 0:
        raise ValueError(
            "headrace: default_collate got no samples, so nothing says of which type the batch is; a batch_sampler "
            "must not give empty lists of indices, or give the loader a collate_fn that takes empty lists"
        )
    return _collate(samples, "")


def _collate(samples: list[Any], field: str) -> Any:
    """Collates the values of samples. field: where a sample has its value, such as "['image'][0]"."""
    import numpy as np

    first = samples[0]
    if isinstance(first, (np.ndarray, np.generic)):
        return _stack(samples, field)
    if isinstance(first, (bool, int, float, complex)):
        return _collate_numbers(samples)
    if isinstance(first, (str, bytes)):
        return samples
    if isinstance(first, Mapping):
        return {key: _collate(_values_of(key, samples, field), f"{field}[{key!r}]") for key in first}
    if isinstance(first, (tuple, list)):
        return _collate_entries(samples, field)
    raise TypeError(
        f"headrace: default_collate accepts numpy arrays, numbers, strings, mappings and sequences, but found "
        f"{type(first).__module__}.{type(first).__qualname__}; give the loader a collate_fn" + help_on("collate")
    )


def _stack(samples: list[Any], field: str) -> Any:
    import numpy as np

    first, kinds = samples[0], set(map(type, samples))
    try:
        if kinds == {np.ndarray}:
            return np.stack(samples)
        if not any(issubclass(kind, np.ma.MaskedArray) for kind in kinds):
            return np.stack([np.asarray(one) if isinstance(one, np.matrix) else one for one in samples])
        batch = np.ma.stack(samples)
    except ValueError as error:
        for place, one in enumerate(samples):
            if np.shape(one) != np.shape(first):
                exception_text.add_note(
                    error,
                    f"default_collate: sample 0 of the batch has shape {np.shape(first)}{_at(field)}, and sample "
                    f"{place} has {np.shape(one)}; return the same shape for each sample, or give the loader a "
                    "collate_fn that pads",
                )
                break
        raise
    if isinstance(first, np.ma.MaskedArray) and first is not np.ma.masked and batch.dtype == first.dtype:
        batch.fill_value = first.fill_value
    return batch


def _at(field: str) -> str:
    return f" in its entry {field}" if field else ""


def _values_of(key: Any, samples: list[Any], field: str) -> list[Any]:
    """Returns the values that mappings have for a key."""
    found = []
    for place, sample in enumerate(samples):
        try:
            found.append(sample[key])
        except KeyError as error:
            exception_text.add_note(
                error,
                f"default_collate: sample 0 of the batch has the key {key!r}{_at(field)}, and sample {place} does not "
                "have it; return the same keys for each sample, or give the loader a collate_fn",
            )
            raise
    return found


def _collate_numbers(samples: list[Any]) -> Any:
    import numpy as np

    batch = np.array(samples)
    if batch.dtype.kind in "biufc" and not (batch.dtype.kind in "uf" and all(isinstance(one, int) for one in samples)):
        return batch
    for place, one in enumerate(samples):
        if isinstance(one, int) and not -(2**63) <= one < 2**63:
            text = str(one) if one.bit_length() <= 128 else f"an int of {one.bit_length()} bits"
            fit_unsigned = all(isinstance(each, int) and 0 <= each < 2**64 for each in samples)
            advice = "return numpy.uint64 from the dataset for each sample, or " if fit_unsigned else ""
            raise OverflowError(
                f"headrace: sample {place} of the batch has {text}, which does not fit into int64; {advice}give "
                "the loader a collate_fn"
            )
        if np.array(one).dtype.kind not in "biufc":
            raise TypeError(
                f"headrace: sample {place} of the batch has {type(one).__module__}.{type(one).__qualname__}, but "
                "other samples have numbers; give the loader a collate_fn" + help_on("collate")
            )
    return batch


def _collate_entries(samples: list[Any], field: str) -> Any:
    first = samples[0]
    for place, sample in enumerate(samples):
        if len(sample) != len(first):
            raise ValueError(
                f"headrace: the samples of a batch have different lengths: sample 0 of the batch has {len(first)} "
                f"entries{_at(field)}, and sample {place} has {len(sample)}; give the loader a collate_fn"
                + help_on("collate")
            )
    columns = [_collate(list(column), f"{field}[{at}]") for at, column in enumerate(zip(*samples, strict=True))]
    return type(first)(*columns) if lookup.has_attribute(first, "_fields") else columns

# SPDX-License-Identifier: Apache-2.0
"""Makes a batch of samples without torch: headrace.default_collate. For exact types the extension does the same in C
(_core/exchange/collate.c)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace._base import lookup
from headrace._base.help_key import help_on


def default_collate(samples: list[Any]) -> Any:
    """Makes a batch of samples that have the same structure.

    Arrays and numpy scalars are stacked along a new first dimension; int, float, bool and complex become an array of
    shape (batch size,); str and bytes stay a list; mappings, named tuples and sequences are collated entry by entry, a
    tuple into a list.

    Raises:
        TypeError: if the samples have other types, or if some samples have numbers and others do not.
        ValueError: if the samples have different lengths or shapes.
        OverflowError: if an int does not fit into int64.
    """
    import numpy as np

    first = samples[0]
    if isinstance(first, (np.ndarray, np.generic)):
        return np.stack(samples)
    if isinstance(first, (bool, int, float, complex)):
        return _collate_numbers(samples)
    if isinstance(first, (str, bytes)):
        return samples
    if isinstance(first, Mapping):
        return {key: default_collate([sample[key] for sample in samples]) for key in first}
    if isinstance(first, (tuple, list)):
        return _collate_entries(samples)
    raise TypeError(
        f"headrace: default_collate accepts numpy arrays, numbers, strings, mappings and sequences, but found "
        f"{type(first).__module__}.{type(first).__qualname__}; give the loader a collate_fn" + help_on("collate")
    )


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


def _collate_entries(samples: list[Any]) -> Any:
    first = samples[0]
    if any(len(sample) != len(first) for sample in samples):
        raise ValueError(
            "headrace: the samples of a batch have different lengths; give the loader a collate_fn" + help_on("collate")
        )
    columns = [default_collate(list(column)) for column in zip(*samples, strict=True)]
    return type(first)(*columns) if lookup.has_attribute(first, "_fields") else columns

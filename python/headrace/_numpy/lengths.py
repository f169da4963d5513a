# SPDX-License-Identifier: Apache-2.0
"""headrace.lengths: measures the lengths of all samples of a dataset with worker processes, for headrace.Plan."""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, overload

from headrace import _core
from headrace._base import lookup
from headrace._base.cores import check_workers, usable_cores
from headrace._base.progress import Progress
from headrace._base.warn import warn_user
from headrace._numpy.loader import Loader
from headrace._samples import random_numbers

if TYPE_CHECKING:
    import numpy as np

_LONGEST = 2**31 - 1
_FEW = 256  # samples that one process measures
_BATCH = 1024  # samples that a worker measures at a time, at most
_READ_AGAIN = 64
_LOOKED_AT = 256  # items of a list

Key = str | int | Callable[[Any], Any] | None


class _Lengths:
    """The dataset of the loader that measures: its samples are the lengths by each of some keys. A class of the module,
    so that workers of any start method can load it."""

    def __init__(self, dataset: Any, keys: list[Key]) -> None:
        self._dataset, self._keys = dataset, keys

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> list[int]:
        sample = self._dataset[index]
        return [_checked(_length_of(sample, key, index), index) for key in self._keys]


def _length_of(sample: Any, key: Key, index: int) -> int:
    if key is None:
        if lookup.has_attribute(sample, "keys") or isinstance(sample, tuple) or _has_parts(sample):
            raise TypeError(_describe_parts(sample, index))
        return _count(sample, f"sample {index}")
    part = key(sample) if callable(key) else _part_of(sample, key, index)
    if tuple(lookup.attribute(part, "shape", ())) == ():  # an integer is the length itself, an array of one is not
        with contextlib.suppress(TypeError):
            return operator.index(part)
    return _count(part, f"what key={_name(key)} gives of sample {index}")


def _has_parts(sample: Any) -> bool:
    """Returns True for a list whose items are not all numbers, or all strings: it seems to be a list of the parts of a
    sample, such as tokens and a label, whose number is not the length of the sample."""
    if not isinstance(sample, list):
        return False
    kinds = set(map(type, sample[:_LOOKED_AT]))
    return not all(issubclass(kind, str) for kind in kinds) and not all(map(_is_number, sample[:_LOOKED_AT]))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or lookup.attribute(value, "shape") == ()


def _part_of(sample: Any, key: str | int, index: int) -> Any:
    try:
        return sample[key]
    except (LookupError, TypeError, AttributeError):
        raise TypeError(f"lengths: {_describe_parts(sample, index, key)}") from None


def _count(value: Any, what: str) -> int:
    """Returns the number of items of a value: those of the first dimension of an array."""
    try:
        return len(value)
    except TypeError:
        raise TypeError(
            f"lengths: {what} is a {type(value).__name__} without a length; give key, such as a function that returns "
            "the length of a sample"
        ) from None


def _name(key: Key) -> str:
    return getattr(key, "__qualname__", type(key).__name__) if callable(key) else repr(key)


def _describe_parts(sample: Any, index: int, key: Any = None) -> str:
    kind = type(sample).__name__
    if lookup.has_attribute(sample, "keys"):
        names = ", ".join(repr(name) for name in list(sample.keys())[:8]) or "no keys"
        parts, example = f"with {names}", f"key={next(iter(sample.keys()), 'input_ids')!r}"
    elif isinstance(sample, (tuple, list)):
        parts, example = f"of {len(sample)} parts", "key=0 (or key=len, if the number of parts is the length)"
    else:
        parts, example = "without parts", "a function"
    if key is None:
        return f"lengths: sample {index} is a {kind} {parts}; say which part's length counts, such as {example}"
    return f"sample {index} is a {kind} {parts}, and has no {key!r}; give another key, such as {example}"


def _checked(length: int, index: int) -> int:
    if not 0 <= length <= _LONGEST:
        raise ValueError(f"lengths: the length of sample {index} is {length}; lengths are from 0 to 2**31 - 1")
    return length


def _as_array(lengths: list[list[int]]) -> np.ndarray[Any, Any]:
    import numpy as np

    return np.array(lengths, np.int32)


def _check_dataset(dataset: Any) -> None:
    for name in ("__getitem__", "__len__"):
        if not lookup.has_special(dataset, name):
            raise TypeError(
                f"lengths: the dataset is a {type(dataset).__name__} without {name}; lengths are measured for "
                "map-style datasets, whose samples have an index"
            )


def _workers(workers: Any, n: int) -> int:
    count = check_workers(workers, "lengths")
    if count >= 0:
        return count
    return 0 if n <= _FEW else min(usable_cores(_core.machine()), -(-n // _FEW))


def _keys_of(key: Any) -> dict[str, Key]:
    """Returns the keys by name; a single key has the name "". Raises TypeError and ValueError."""
    if not isinstance(key, Mapping):
        return {"": key}
    if not key:
        raise ValueError("lengths: key is an empty dict; give what counts by name, such as {'text': 'input_ids'}")
    for name in key:
        if not isinstance(name, str) or not name:
            raise TypeError(f"lengths: the names of lengths should be strings, but got {name!r}")
    return dict(key)


@overload
def lengths(
    dataset: Any, key: Mapping[str, Key], *, workers: int = -1, progress: bool | None = None
) -> dict[str, np.ndarray[Any, Any]]: ...
@overload
def lengths(
    dataset: Any, key: Key = None, *, workers: int = -1, progress: bool | None = None
) -> np.ndarray[Any, Any]: ...
def lengths(dataset: Any, key: Any = None, *, workers: int = -1, progress: bool | None = None) -> Any:
    """Returns the length of each sample of a map-style dataset, an int32 array of shape (len(dataset),).

    Each sample is made once, by worker processes. Keep the result with the dataset (`numpy.save`) if that takes long.

    Args:
        dataset: an object with `__getitem__` and `__len__`.
        key: which part of a sample counts. None: the sample itself, of which `len()` is taken: the first dimension of
            an array or tensor, the items of a list of numbers or words, the characters of a string. A name or a number:
            `sample[key]`. A function: what it returns for a sample. A part that is an integer is the length itself. A
            sample that is a mapping, a tuple or a list of other things needs a key; `len` counts these things. A
            dict of such keys by name, such as {"text": "input_ids", "patches": "pixel_values"}: the result is a dict of
            arrays by the same names, which are measured together. headrace.Plan takes it.
        workers: number of worker processes. -1: one for each core that this process may use. 0: none.
        progress: show on stderr how far it is. None: if stderr is a terminal.

    Some samples are read a second time. If their lengths differ, a warning says how often: a plan then bounds the
    lengths that were measured, and not those that come. Random numbers of this process are left as they were.

    Raises TypeError and ValueError for arguments that are wrong, and for samples that have no length; any exception of
    the dataset.
    """
    import numpy as np

    _check_dataset(dataset)
    n = len(dataset)
    count = _workers(workers, n)
    batch = max(1, min(_BATCH, n // (16 * max(1, count))))
    keys = _keys_of(key)
    measured = _Lengths(dataset, list(keys.values()))
    again = range(0, n, max(1, n // _READ_AGAIN))[:_READ_AGAIN]
    order = itertools.chain(range(n), again)
    loader = Loader(measured, batch, sampler=order, num_workers=count, collate_fn=_as_array, seed=0)
    found = np.empty((n + len(again), len(keys)), np.int32)
    done = 0
    with random_numbers.generators_kept(), Progress("lengths", n, progress) as shown:
        for part in loader:
            found[done : done + len(part)] = part
            shown.add(min(len(part), max(0, n - done)))
            done += len(part)
    arrays = {name: np.ascontiguousarray(found[:, at]) for at, name in enumerate(keys)}
    for name, array in arrays.items():
        _compare(name, array[:n], array[n:], again)
    return {name: array[:n] for name, array in arrays.items()} if isinstance(key, Mapping) else arrays[""][:n]


def _compare(name: str, found: np.ndarray[Any, Any], second: np.ndarray[Any, Any], again: range) -> None:
    """Warns if samples had another length when they were read a second time."""
    changed = [index for index, length in zip(again, second.tolist(), strict=True) if found[index] != length]
    if changed:
        at = changed[0]
        what = f"another length {name!r}" if name else "another length"
        warn_user(
            f"headrace.lengths: {len(changed)} of {len(again)} samples had {what} when they were read a second time "
            f"(sample {at}: {int(found[at])}, then {int(second[again.index(at)])}). The dataset seems to change "
            "its samples at random. A plan bounds the lengths that were measured, so give it the longest that a sample "
            "can have, or leave room below its limits"
        )

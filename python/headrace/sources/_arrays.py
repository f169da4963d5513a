# SPDX-License-Identifier: Apache-2.0
"""headrace.sources.Arrays: rows of arrays and tensors."""

from __future__ import annotations

import sys
from typing import Any

from headrace.sources._memmap import MappedArray, handle_of
from headrace.sources._source import Source

_NUMBERS = "biufc"  # the kinds of NumPy's dtypes of which batches are made


class Arrays(Source):
    """Samples are the rows of arrays: NumPy's, memmaps, torch's tensors, or what np.asarray takes.

        Arrays(images, labels)      # sample i is (images[i], labels[i])
        Arrays(x=images, y=labels)  # sample i is {"x": images[i], "y": labels[i]}

    The arrays have as many rows each, along their first dimension. They are not copied: a sample shows what an array
    has when it is made. A memmap goes to workers of spawn and forkserver as its path; NumPy would pickle its content.

    Raises TypeError and ValueError for arrays that have no numbers, no dimension, or other numbers of rows, and for
    masked arrays, matrices and other subclasses of NumPy's arrays, which a batch of numbers cannot be.
    """

    gathers = True

    def __init__(self, *arrays: Any, **named: Any) -> None:
        if bool(arrays) == bool(named):
            raise TypeError("Arrays: give arrays, Arrays(x, y), or arrays with names, Arrays(x=x, y=y)")
        self._names = tuple(named) or None
        given = dict(named) if named else dict(enumerate(arrays))
        self._arrays = [_check_array(name, one) for name, one in given.items()]
        counts = [len(one) for one in self._arrays]
        if len(set(counts)) > 1:
            found = ", ".join(f"{name} has {count:,}" for name, count in zip(given, counts, strict=True))
            raise ValueError(f"Arrays: all arrays have to have the same number of rows, but {found}")

    def _count(self) -> int:
        return len(self._arrays[0])

    def _sample(self, index: int) -> Any:
        values = [_row_of(one, index) for one in self._arrays]
        return tuple(values) if self._names is None else dict(zip(self._names, values, strict=True))

    def arrays(self) -> tuple[tuple[Any, ...], tuple[str, ...] | None] | None:
        """See RowSource.arrays."""
        if any(_is_tensor(one) and any(getattr(one, "names", ())) for one in self._arrays):
            return None
        return tuple(self._arrays), self._names

    def _columns(self) -> Any:
        found = self.arrays()
        return None if found is None else self._make_columns(tuple((one,) for one in found[0]), found[1])

    def where(self, index: int) -> str:
        """Returns the array and the row of a sample."""
        return f"row {self._check_index(index):,} of {self!r}"

    def report(self) -> dict[str, Any]:
        """Returns "samples", and "columns": for each array its name or number, dtype and shape of a row."""
        names = self._names or range(len(self._arrays))
        columns = {
            name: {"dtype": str(one.dtype), "shape": tuple(one.shape[1:])}
            for name, one in zip(names, self._arrays, strict=True)
        }
        return {"samples": len(self), "columns": columns}

    def _describe(self) -> str:
        names = self._names or [""] * len(self._arrays)
        shown = [f"{name}={_show(one)}" if name else _show(one) for name, one in zip(names, self._arrays, strict=True)]
        return ", ".join(shown)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_arrays": [handle_of(one) or one for one in self._arrays]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        arrays = [one.open() if isinstance(one, MappedArray) else one for one in state["_arrays"]]
        self.__dict__.update(state, _arrays=arrays)


def _row_of(array: Any, index: int) -> Any:
    """Returns a row, as a copy if its memory runs backwards, which torch does not take."""
    row = array[index]
    runs_back = not _is_tensor(row) and any(stride < 0 for stride in row.strides)
    return row.copy() if runs_back else row


def _show(array: Any) -> str:
    return f"{array.dtype}{list(array.shape)}".removeprefix("torch.")


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _check_class(name: Any, value: Any) -> Any:
    """Returns an array as numpy.ndarray or numpy.memmap, and raises TypeError for any other subclass: what it means
    more than its numbers, a mask or a unit, would be lost."""
    import numpy as np

    array = np.asanyarray(value)
    if isinstance(array, np.ma.MaskedArray) or (isinstance(value, (list, tuple)) and _has_masked(value)):
        raise TypeError(
            f"Arrays: array {name!r} is a masked array, and a batch of numbers has no mask; give array.filled(value), "
            "or the mask as another array: Arrays(x=array.data, mask=np.ma.getmaskarray(array))"
        )
    if type(array) not in (np.ndarray, np.memmap):
        raise TypeError(
            f"Arrays: array {name!r} is a {type(array).__module__}.{type(array).__qualname__}, whose rows would be "
            "plain numbers; if that is right, give np.asarray(array)"
        )
    return array


def _has_masked(values: Any) -> bool:
    import numpy as np

    return any(
        _has_masked(one) if isinstance(one, (list, tuple)) else isinstance(one, np.ma.MaskedArray) for one in values
    )


def _check_array(name: Any, value: Any) -> Any:
    """Returns a tensor as it is, and anything else as an array of exactly numpy.ndarray, without a copy of an array."""
    if _is_tensor(value):
        if not value.dim():
            raise ValueError(f"Arrays: array {name!r} has no dimension, so it has no rows")
        return value
    import numpy as np

    array = np.asarray(_check_class(name, value))
    if array.dtype.kind not in _NUMBERS or not array.dtype.isnative:
        raise TypeError(
            f"Arrays: array {name!r} has dtype {array.dtype}, but batches are made of numbers in the byte order of "
            "this machine"
        )
    if not array.ndim:
        raise ValueError(f"Arrays: array {name!r} has no dimension, so it has no rows")
    return array

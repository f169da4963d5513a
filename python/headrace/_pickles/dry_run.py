# SPDX-License-Identifier: Apache-2.0
"""Runs multiprocessing's pickler without keeping its output. Rules replace the reductions of tensors and arrays."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Iterable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

from headrace import _core
from headrace._pickles import reports, rules

_MAIN = b"main__"  # __main__ or __mp_main__
_FRAME_BYTES = 1 << 20  # a larger piece is one string or buffer, and contains no names
_MAX_PARTS = 200
_LEVELS = 3

Part = tuple[str, Any]


class _Nowhere:
    """A file that only counts bytes, and looks for the name of the main module."""

    def __init__(self) -> None:
        self.bytes = 0
        self.names_main = False

    def write(self, data: Any) -> int:
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        self.bytes += size
        if type(data) is bytes and size < _FRAME_BYTES and not self.names_main:
            self.names_main = _MAIN in data
        return size


class Probe(ForkingPickler):
    """One pickler. Afterwards `weights` and `nowhere` have the results."""

    def __init__(self, is_batch: bool = False) -> None:
        self.weights = rules.Weights()
        self.nowhere = _Nowhere()
        super().__init__(self.nowhere)
        self.dispatch_table = rules.Table(self.weights, is_batch)


def setting(is_batch: bool) -> contextlib.AbstractContextManager[None]:
    """Returns the context to pickle in. Arguments of a process are pickled while it is started; batches are not."""
    return contextlib.nullcontext() if is_batch else rules.as_if_starting()


def error_of(value: object, is_batch: bool = False) -> BaseException | None:
    """Returns the exception that pickling the object raises, or None."""
    with setting(is_batch):
        try:
            Probe(is_batch).dump(value)
        except Exception as error:
            return error
    return None


def parts_of(name: str, value: Any, levels: int = _LEVELS) -> Iterator[tuple[str, Any, bool]]:
    """Yields (path, value, is_whole). A plain object is split into its attributes, and a small dict into its values;
    such an object is not whole, and its parts follow it."""
    attributes = _attributes_of(value) if levels else None
    if attributes is None:
        yield name, value, True
        return
    yield name, value, False
    for path, part in attributes:
        yield from parts_of(name + path, part, levels - 1)


def _attributes_of(value: Any) -> list[Part] | None:
    if type(value) is dict:
        if len(value) > _MAX_PARTS or not all(type(key) is str for key in value):
            return None
        return [(f"[{key!r}]", one) for key, one in value.items()]
    cls = type(value)
    if cls in ForkingPickler(io.BytesIO()).dispatch_table or rules.plain_slots(cls) != ():
        return None
    found = _core.Walker.attributes(value)
    if not isinstance(found, dict) or len(found) > _MAX_PARTS:
        return None
    return [("." + key if str(key).isidentifier() else f".__dict__[{key!r}]", one) for key, one in found.items()]


class Result:
    """The result of pickling some named parts."""

    error: Exception | None = None
    sizes: tuple[reports.Size, ...] = ()
    seconds = 0.0
    has_warnings = False  # something can be pickled, but deserves a look
    names_main = False  # something is pickled as a name in the main module


def attempt(parts: Iterable[Part]) -> Result:
    """Pickles all parts with one memo, like the arguments of a process: a shared object is written once."""
    result = Result()
    probe = Probe()
    pieces = [piece for name, value in parts for piece in parts_of(name, value)]
    apart = {id(value): value for _, value, is_whole in pieces if not is_whole}
    probe.memo = {
        key: (number, value) for number, (key, value) in enumerate(apart.items())
    }  # these count as written already
    start = time.perf_counter()
    sizes = []
    try:
        with setting(False):
            for path, value, is_whole in pieces:
                before = (probe.nowhere.bytes + probe.weights.bytes, probe.weights.shared_bytes)
                probe.dump(value if is_whole else type(value))
                after = (probe.nowhere.bytes + probe.weights.bytes, probe.weights.shared_bytes)
                sizes.append(reports.Size(path, after[0] - before[0], after[1] - before[1]))
        result.sizes = tuple(sizes)
    except Exception as error:
        result.error = error
    result.seconds = time.perf_counter() - start
    result.has_warnings = probe.weights.is_noted
    result.names_main = probe.nowhere.names_main
    return result

# SPDX-License-Identifier: Apache-2.0
"""Turns what a user can observe of a loader into plain values that can be compared."""

from __future__ import annotations

import collections
import contextlib
import os
import pickle
import random
import re
import struct
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from loaders import Headrace, Torch

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
Make = Callable[[Any], Any]


def _type(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _tensor(value: torch.Tensor) -> tuple[Any, ...]:
    if value.is_nested:
        return (_type(value), str(value.layout), [describe(part) for part in value.unbind()])
    grad = (value.requires_grad, value.is_leaf)
    value = value.detach()
    head = (_type(value), str(value.dtype), tuple(value.shape), str(value.layout), str(value.device), *grad)
    if value.device.type == "meta":
        return (*head, value.stride())
    if value.layout is torch.sparse_coo:
        return (*head, value.is_coalesced(), describe(value._indices()), describe(value._values()))
    if value.layout is torch.sparse_csr:
        return (*head, *map(describe, (value.crow_indices(), value.col_indices(), value.values())))
    if value.is_quantized:
        return (*head, value.q_scale(), value.q_zero_point(), describe(value.int_repr()))
    plain = value.as_subclass(torch.Tensor)
    return (*head, plain.stride(), plain.is_conj(), plain.is_neg(), _bytes(plain), value.is_pinned())


def _array(value: np.ndarray) -> tuple[Any, ...]:
    padded = value.dtype.hasobject or value.dtype.char in "gG"  # a long double's padding is whatever was there
    data: Any = repr(value.ravel().tolist()) if padded else np.ma.getdata(value).tobytes()
    mask = np.ma.getmaskarray(value).tolist() if isinstance(value, np.ma.MaskedArray) else None
    # By protocol 5 of pickle, the default since CPython 3.14, torch's is read-only if it was: docs/conformance.md.
    writeable = value.flags.writeable or pickle.DEFAULT_PROTOCOL >= 5
    flags = (writeable, value.flags.c_contiguous, value.flags.f_contiguous, value.flags.aligned)
    return (_type(value), value.dtype.descr, value.dtype.str, value.shape, value.strides, flags, data, mask)


def describe(value: Any, above: tuple[int, ...] = ()) -> Any:
    """A value's types, dtypes, shapes, strides and bytes, all the way down, as plain comparable Python."""
    if id(value) in above and isinstance(value, list | dict):
        return ("cycle", above[::-1].index(id(value)))
    inner = (*above, id(value))
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, np.generic):
        return (_type(value), value.dtype.str, value.tobytes())
    if isinstance(value, float):
        return (_type(value), struct.pack("d", value))
    if isinstance(value, complex):
        return (_type(value), struct.pack("dd", value.real, value.imag))
    if isinstance(value, str | bytes | bytearray | int | type(None) | range | type):
        return (_type(value), repr(value))
    if isinstance(value, Mapping):
        items = [(describe(k, inner), describe(v, inner)) for k, v in value.items()]
        return (_type(value), items, repr(getattr(value, "default_factory", None)))
    if isinstance(value, set | frozenset):
        return (_type(value), sorted(repr(describe(item)) for item in value))
    if isinstance(value, list | tuple | collections.deque):
        extra = getattr(value, "_fields", None), getattr(value, "maxlen", None)
        return (_type(value), [describe(item, inner) for item in value], extra)
    if isinstance(value, BaseException):
        return (_type(value), describe(value.args, inner))
    if callable(value):
        return (_type(value), value.__module__, value.__qualname__)
    slots = getattr(type(value), "__slots__", ())
    if slots and not hasattr(value, "__dict__") and type(value).__module__ == "datasets":
        return (_type(value), [describe(getattr(value, slot), inner) for slot in slots])
    if type(value).__module__ == "datasets" and hasattr(value, "__dict__"):
        return (_type(value), describe(vars(value), inner), str(value) if hasattr(value, "name") else "")
    return (_type(value), repr(value))


_FRAME = re.compile(r'^\s+File "(?P<path>[^"]*)", line \d+, in ')


def mask(text: str) -> str:
    """A message without what is the worker's own business: frames outside the tests, process ids, addresses."""
    kept, skipping = [], False
    for line in text.split("\n"):
        frame = _FRAME.match(line)
        if frame:
            skipping = not frame["path"].startswith(TESTS)
        elif skipping and not line.startswith("    ") and not line.startswith("  [Previous line repeated"):
            skipping = False
        if not skipping:
            kept.append(re.sub(r"\[Previous line repeated \d+ more times\]", "[Previous line repeated]", line))
    masked = re.sub(r"0x[0-9a-f]+", "0x0", "\n".join(kept))
    return re.sub(r"pid(\(s\))? \d+(, \d+)*", r"pid\1 N", masked)


def failure(error: BaseException) -> tuple[Any, ...]:
    return ("raised", _type(error), [_type(argument) for argument in error.args], mask(str(error)))


class Trace(NamedTuple):
    """Everything that one use of a loader showed."""

    events: list[Any]
    warned: list[tuple[str, str]]
    random: tuple[bytes, float, float]


def seed(number: int = 7) -> None:
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def states() -> tuple[bytes, float, float]:
    return torch.random.get_rng_state().numpy().tobytes(), random.random(), float(np.random.rand())


# torch gives these once per process, to the first loader; the last two are headrace's
_ONCE = re.compile(
    "ComplexHalf support is experimental|Sparse invariant checks|Sparse CSR tensor|quantized|TypedStorage|"
    "nested tensor|headrace: workers are started by fork|headrace: the loop ends after|headrace: this epoch ended after"
    "|headrace: no batch for"  # on a busy machine, or if modules are compiled
)


@contextlib.contextmanager
def recorded() -> Any:
    """Warnings, except those of CPython and headrace about fork and threads (torch has a thread per queue)."""
    out: list[tuple[str, str]] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield out
    for warning in caught:
        if not (issubclass(warning.category, DeprecationWarning) and "fork" in str(warning.message)):
            if not issubclass(warning.category, ResourceWarning) and not _ONCE.search(str(warning.message)):
                out.append((warning.category.__name__, mask(str(warning.message))))


def epoch(loader: Any, limit: int | None = None, errors: int = 50) -> list[Any]:
    """One epoch, on after failed batches; `limit` batches, then the rest is left."""
    events: list[Any] = []
    try:
        iterator = iter(loader)
    except Exception as error:
        return [failure(error)]
    while limit is None or len(events) < limit:
        try:
            events.append(describe(next(iterator)))
        except Exception as error:
            # a StopIteration with a text comes from the dataset, and torch goes on after it
            ended = isinstance(error, StopIteration) and not error.args
            events.append("end" if ended else failure(error))
            error.__traceback__ = None  # its frames hold the iterator
            errors -= not ended
            if ended or errors == 0:
                break
    del iterator
    return events


def trace(kind: Any, make: Make, epochs: int = 1, limit: int | None = None, errors: int = 50) -> Trace:
    seed()
    with recorded() as warned:
        try:
            loader = make(kind)
        except Exception as error:
            return Trace([failure(error)], warned, states())
        events = [epoch(loader, limit, errors) for _ in range(epochs)]
        generator = loader.generator
        if generator is not None:
            events.append(generator.get_state().numpy().tobytes())
        del loader
    return Trace(events, warned, states())


def without_lost(ours: list[Any], theirs: list[Any]) -> list[Any]:
    """Returns theirs if it is ours without the one batch that torch loses when a sampler raises, else ours."""
    for position in range(len(ours)):
        without = ours[:position] + ours[position + 1 :]
        if without == theirs[: len(without)] and len(theirs) <= len(ours):
            return theirs
    return ours


def assert_same(make: Make, **options: Any) -> Trace:
    """Runs torch's loader and headrace's, compares all that a user could see, and returns torch's trace."""
    ours, theirs = trace(Headrace, make, **options), trace(Torch, make, **options)
    for number, (a, b) in enumerate(zip(ours.events, theirs.events, strict=True)):
        if isinstance(a, list) and isinstance(b, list):
            if "the sampler broke" in repr(b):  # torch loses the batch that was due; headrace does not
                a = without_lost(a, b)
            for position, (x, y) in enumerate(zip(a, b, strict=False)):
                assert x == y, f"epoch {number}, batch {position}: headrace {x!r:.2000}, torch {y!r:.2000}"
            assert len(a) == len(b), f"epoch {number}: headrace {a[len(b) :]!r:.500}, torch {b[len(a) :]!r:.500}"
        assert a == b, f"part {number}"
    assert ours.warned == theirs.warned, f"headrace {ours.warned}, torch {theirs.warned}"
    assert ours.random == theirs.random, "random numbers left to the trainer differ"
    return theirs


def failures(found: Trace) -> list[tuple[Any, ...]]:
    """The errors of a trace."""
    flat = [event for part in found.events if isinstance(part, list) for event in part]
    flat += [event for event in found.events if isinstance(event, tuple)]
    return [event for event in flat if isinstance(event, tuple) and event[0] == "raised"]

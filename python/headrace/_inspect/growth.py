# SPDX-License-Identifier: Apache-2.0
"""Which attribute of a data set makes the workers' private memory grow.

A worker looks between two tasks, seldom enough to cost nothing, and tells the trainer by its box; the trainer reads
that at the epoch's end. What is looked at is not written to (headrace/_core/growth.c), but for the few objects that
have names: the data set, what it holds under names, and so on.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import time
import types
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from headrace import _core
from headrace._inspect.this_process import is_first_rank
from headrace._inspect.units import count_workers, in_units

MIB = 1 << 20
FIRST_S = 0.25  # after a worker's start; then after half as long again as it has lived,
EVERY_S = 2.0  # but at least this often, and never so often that looking takes more than 1 / RARE of the time
RARE, CLOSE_RARE = 200, 4
PATHS, CLOSE_PATHS, FIRST_PATHS = 256, 2048, 64
LEAST_BYTES = MIB  # of an attribute that is looked at
WARN_BYTES = 64 * MIB  # of growth in all workers together
WARN_SHARE = 0.1  # or of the memory to spare, with what is to come,
EPOCHS = 10  # in so many epochs like the first one
_FEW = 32  # parts of a container that are looked at one by one
_MOST_LEVELS = 5
_MOST_PLACES = 64
_SEED = 0x68656164

look_s: float | None = None  # workers that start from now on look this often, and more closely; None: seldom

_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_NO_PLACES = (
    type(None), bool, int, float, complex, range, slice, type, types.ModuleType, types.FunctionType,
    types.BuiltinFunctionType, types.MethodType, types.CodeType, types.GeneratorType,
)  # fmt: skip
_OPAQUE = ("numpy", "pandas", "torch", "pyarrow", "polars", "builtins", "collections", "array", "threading", "logging")


# ---- what a data set holds under names ----


def _is_opaque(kind: type) -> bool:
    module = kind.__module__
    return module.partition(".")[0] in _OPAQUE and not module.startswith("torch.utils.data")


def _attributes(value: object) -> Iterator[tuple[str, Any]]:
    """An object's own, without running properties."""
    with contextlib.suppress(AttributeError):
        for name, part in dict(object.__getattribute__(value, "__dict__")).items():
            yield f".{name}", part
    for base in type(value).__mro__:
        for name, member in vars(base).items():
            if isinstance(member, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # an empty slot
                    yield f".{name}", member.__get__(value)


def _named_parts(value: Any) -> list[tuple[str, Any]] | None:
    """The parts of a value that can be told apart by names, or None."""
    kind = type(value)  # isinstance would ask an object for its __class__, which may be a property
    if issubclass(kind, dict):
        parts = list(dict.items(value)) if dict.__len__(value) <= _FEW else []
        is_named = bool(parts) and all(type(key) in (str, int) for key, _ in parts)
        return [(f"[{key!r}]", part) for key, part in parts] if is_named else None
    base: Any
    for base in (list, tuple):
        if issubclass(kind, base):
            is_short = base.__len__(value) <= _FEW
            return [(f"[{at}]", part) for at, part in enumerate(base.__iter__(value))] if is_short else None
    if issubclass(kind, _CONTAINERS) or _is_opaque(kind):
        return None
    return list(_attributes(value)) or None


def places(dataset: object) -> list[tuple[str, Any]]:
    """The large-or-not things that a data set holds, each under an expression that begins with `dataset`."""
    found: list[tuple[str, Any]] = []
    seen: set[int] = set()

    def add(path: str, value: Any, level: int) -> None:
        if issubclass(type(value), _NO_PLACES) or id(value) in seen or len(found) >= _MOST_PLACES:
            return
        seen.add(id(value))
        parts = _named_parts(value) if level < _MOST_LEVELS else None
        if parts is None:
            found.append((path, value))
            return
        for name, part in parts:
            add(path + name, part, level + 1)

    add("dataset", dataset, 0)
    return found


@dataclass
class Place:
    """Something large that a data set holds: the memory that it takes, about, and of that what only this process has.

    share: of the pages that were looked at, those that only this process has.
    """

    path: str
    type: str
    count: int  # of entries; -1: none
    bytes: float
    private_bytes: float
    share: float


def _count(value: Any) -> int:
    base: Any = next((base for base in _CONTAINERS if issubclass(type(value), base)), None)
    return -1 if base is None else int(base.__len__(value))


def measure(dataset: object, paths: int = CLOSE_PATHS) -> list[Place]:
    """Looks at what a data set holds, by `paths` samples for each thing. OSError where /proc does not tell."""
    measured = []
    for path, value in places(dataset):
        if _core.private_share(value, FIRST_PATHS, _SEED)[0] < LEAST_BYTES:
            continue
        size, private, pages, private_pages = _core.private_share(value, paths, _SEED)
        share = private_pages / pages if pages else 0.0
        measured.append(Place(path, type(value).__name__, _count(value), size, private, share))
    return measured


# ---- in a worker ----


def _is_forked() -> bool:
    method = getattr(multiprocessing.current_process(), "_start_method", None)
    return (method or multiprocessing.get_start_method(allow_none=True)) == "fork"


class Watch:
    """Looks at a worker's data set now and then, and tells the trainer."""

    def __init__(self, port: _core.Port, dataset: object, look_s: float | None) -> None:
        self._port = port
        self._dataset = dataset
        self._is_forked = _is_forked()
        self._first: dict[str, Place] | None = None
        self._first_samples = 0
        self._born = time.monotonic()
        self._every_s = EVERY_S if look_s is None else look_s
        self._is_close = look_s is not None
        self._first_private = _core.private_bytes() if self._is_close else 0
        port.watch(self.look, min(FIRST_S, self._every_s) if self._is_forked else 0.0)

    def look(self) -> float | None:
        """Returns the seconds until the next look; None where nothing can be seen."""
        start = time.perf_counter()
        try:
            now = measure(self._dataset, CLOSE_PATHS if self._is_close else PATHS)
        except Exception:  # no /proc; or a thread of the data set's changes what is gone through
            return None
        if self._first is None:
            self._first = {place.path: place for place in now}
            self._first_samples = 0 if self._is_forked else self._port.samples
        with contextlib.suppress(OSError):  # a data set may have closed the box
            self._port.tell(self._text(now))
        cost_s = time.perf_counter() - start
        lived_s = time.monotonic() - self._born
        every_s = min(self._every_s, max(FIRST_S, lived_s / 2))  # soon at first: the epoch may be a short one
        return max(every_s, (CLOSE_RARE if self._is_close else RARE) * cost_s)

    def _text(self, now: list[Place]) -> bytes:
        """As JSON, with the things that have grown most as far as there is room."""
        told = sorted((self._grown(place) for place in now), key=lambda one: -one["grown_bytes"])
        look = {
            "samples": self._port.samples - self._first_samples,
            "seconds": round(time.monotonic() - self._born, 3),
            "is_forked": self._is_forked,
            "private_grown": max(0, _core.private_bytes() - self._first_private) if self._is_close else 0,
            "places": told,
        }
        while len(text := json.dumps(look).encode()) > _core.BOX_TOLD_BYTES:
            told.pop()
        return text

    def _grown(self, place: Place) -> dict[str, Any]:
        """What a forked worker has of its own is what it has copied since the fork."""
        first = (self._first or {}).get(place.path)
        before = 0.0 if self._is_forked or first is None else first.private_bytes
        return {
            **asdict(place),
            "grown_bytes": round(max(0.0, place.private_bytes - before)),
            "added_bytes": round(max(0.0, place.bytes - (first.bytes if first else 0.0))),
        }


# ---- in the trainer ----


@dataclass
class Growth:
    """How one thing of a data set has grown in the private memory of the workers, all together."""

    path: str
    type: str
    count: int
    bytes: float  # that it takes in one process
    grown_bytes: float
    is_added_to: bool  # the workers add entries; else it is copied as it is read
    workers: int
    samples: int  # that these workers have made meanwhile
    seconds: float

    @property
    def per_sample(self) -> float:
        return self.grown_bytes / max(1, self.samples)

    @property
    def rest_bytes(self) -> float:
        """What is still to come at most."""
        return float("inf") if self.is_added_to else max(0.0, self.bytes * self.workers - self.grown_bytes)


def _parse(text: bytes) -> dict[str, Any] | None:
    """What a worker told; None for what is none: a worker may write anything."""
    try:
        look = json.loads(text)
        for place in look["places"]:
            Place(**{name: place[name] for name in Place.__dataclass_fields__})
            float(place["grown_bytes"]), float(place["added_bytes"]), str(place["path"])
        return look if min(look["samples"], look["seconds"], look["private_grown"]) >= 0 else None
    except (ValueError, TypeError, KeyError):
        return None


def looks(core: _core.Loader, count: int) -> list[dict[str, Any]]:
    """What the workers told last, those that told something."""
    found = [_parse(text) for text in map(core.told, range(count)) if text]
    return [look for look in found if look is not None]


def sum_up(told: list[dict[str, Any]]) -> list[Growth]:
    """By thing, what has grown most first."""
    sums: dict[str, Growth] = {}
    for look in told:
        for place in look["places"]:
            one = sums.setdefault(
                place["path"], Growth(place["path"], place["type"], place["count"], 0.0, 0.0, False, 0, 0, 0.0)
            )
            one.bytes = max(one.bytes, place["bytes"])
            one.count = max(one.count, place["count"])
            one.grown_bytes += place["grown_bytes"]
            one.is_added_to |= place["added_bytes"] > max(LEAST_BYTES, place["grown_bytes"] / 2)
            one.workers += 1
            one.samples += look["samples"]
            one.seconds = max(one.seconds, look["seconds"])
    return sorted(sums.values(), key=lambda one: -one.grown_bytes)


_told: set[tuple[str, str]] = set()  # this process has said so already


def matters(grown: list[Growth], spare: float) -> bool:
    """Is it worth a word, beside the memory that there is?"""
    total = sum(one.grown_bytes for one in grown)
    coming = sum(min(one.rest_bytes, EPOCHS * one.grown_bytes) for one in grown)
    return total >= LEAST_BYTES and (total >= WARN_BYTES or total + coming >= WARN_SHARE * spare)


def in_words(one: Growth) -> str:
    count = "" if one.count < 0 else f" of {one.count:,}"
    return f"{one.path} ({one.type}{count}, {in_units(one.bytes)})"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def when_full(one: Growth, spare: float, batches: int = 0) -> str:
    """When the memory to spare will be used up, if it will. `batches` that these samples were, where that is known."""
    if one.rest_bytes <= spare:
        most = in_units(one.grown_bytes + one.rest_bytes)
        return f"{in_units(spare)} are to spare; once every worker has copied all of it, it takes {most}"
    samples = spare / max(one.per_sample, 1e-9)
    seconds = samples * one.seconds / max(1, one.samples)
    steps = f" ({samples * batches / max(1, one.samples):,.0f} batches)" if batches else ""
    return (
        f"{in_units(spare)} are to spare: at this rate memory is full after {samples:,.0f} more samples{steps}, in "
        f"about {_duration(seconds)}"
    )


def fix(one: Growth) -> str:
    """The line that ends the growth."""
    if one.is_added_to:
        return (
            f"The workers add to {one.path}, each to its own: bound it, or fill it before they start and share it "
            f"({one.path} = headrace.freeze({one.path}))"
        )
    return (
        "Reading Python objects writes to their reference counts, and that copies the memory that workers share with "
        f"the trainer. {one.path} = headrace.freeze({one.path}), or DataLoader(..., freeze=True), keeps one copy for "
        "all processes"
    )


def message(grown: list[Growth], spare: float) -> str | None:
    """What the trainer says at an epoch's end; None: nothing has grown that matters."""
    if not matters(grown, spare):
        return None
    one = grown[0]
    others = ", ".join(in_words(other) for other in grown[1:4] if other.grown_bytes > one.grown_bytes / 10)
    return (
        f"headrace: the private memory of {count_workers(one.workers)} grows by {in_words(one)}: "
        f"{in_units(one.grown_bytes)} so far, {in_units(1000 * one.per_sample)} per 1,000 samples; "
        f"{when_full(one, spare)}. {fix(one)}" + (f". Also growing: {others}" if others else "")
    )


def news(core: _core.Loader, count: int) -> str | None:
    """What the trainer has to say at an epoch's end on the growth of `count` workers: once per process and thing."""
    told = looks(core, count)
    if not told or not is_first_rank():
        return None
    grown = sum_up(told)
    if not grown or (grown[0].path, grown[0].type) in _told:
        return None
    text = message(grown, float(_core.machine()["spare_bytes"] or 0))
    if text is not None:
        _told.add((grown[0].path, grown[0].type))
    return text

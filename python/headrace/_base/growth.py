# SPDX-License-Identifier: Apache-2.0
"""Finds the attribute of a dataset that makes the private memory of the workers grow.

A worker measures between two tasks, so rarely that it costs nothing, and writes the result into its diagnostics file.
The trainer reads that at the end of the epoch. Measuring does not write to the memory that it measures
(_core/inspect/growth.c), except to the few objects that have names: the dataset, its attributes, and so on.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import time
import types
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

from headrace import _core
from headrace._base import code
from headrace._base.attributes import own_attributes
from headrace._base.help_key import help_on
from headrace._base.lookup import static_dict, static_module, static_mro
from headrace._base.status import Status, parts_of
from headrace._base.this_process import is_first_rank
from headrace._base.units import count_workers, in_units

MIB = 1 << 20
# A forked worker is first checked FIRST_S after its start. The next wait is half of its age, from FIRST_S to EVERY_S,
# or longer if the checks would compute for more than 1 / RARE of the time, or take more than 1 / WAITING_RARE of it
# together with what they wait for: a core on a busy machine, and memory that was swapped out.
FIRST_S = 0.25
EVERY_S = 2.0
RARE, CLOSE_RARE, WAITING_RARE = 200, 4, 4
PATHS, CLOSE_PATHS, FIRST_PATHS = 256, 2048, 64
LEAST_BYTES = MIB  # smaller attributes are not measured
_MOST_BYTES = _core.DIAGNOSTICS_STATUS_BYTES - 1500  # of a measurement; the rest is for the counts of images
# The trainer warns if all workers together grew by WARN_BYTES, or if they will take WARN_SHARE of the available memory
# after EPOCHS epochs like the first one.
WARN_BYTES = 64 * MIB
WARN_SHARE = 0.1
EPOCHS = 10
_FEW = 32  # a container of up to this many parts is measured part by part
_MOST_LEVELS = 5
_MOST_PLACES = 64
_SEED = 0x68656164

look_s: float | None = None  # workers that start from now on measure this often, and with more samples; None: rarely

_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_NO_PLACES = (
    type(None), bool, int, float, complex, range, slice, type, types.ModuleType, types.FunctionType,
    types.BuiltinFunctionType, types.MethodType, types.CodeType, types.GeneratorType,
)  # fmt: skip
_CODE = (types.FunctionType, types.MethodType)
_OPAQUE = ("numpy", "pandas", "torch", "pyarrow", "polars", "builtins", "collections", "array", "threading", "logging")


# ---- the parts of a dataset that have names ----


def is_opaque(kind: type) -> bool:
    """Returns True for classes of libraries whose instances have no parts with names."""
    module = static_module(kind)
    return module.partition(".")[0] in _OPAQUE and not module.startswith("torch.utils.data")


def _named_parts(value: Any) -> list[tuple[str, Any]] | None:
    """Returns the parts of a value that have names, or None if it has none."""
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
    if issubclass(kind, _CONTAINERS) or is_opaque(kind):
        return None
    return [(f".{name}", part) for name, part, _ in own_attributes(value)] or None


def functions_of(value: Any) -> list[types.FunctionType]:
    """Returns a function, that of a method, or the functions in the classes of an instance that is not a library's."""
    if type(value) is types.MethodType:
        value = value.__func__
    if type(value) is types.FunctionType:
        return [value]
    classes = [] if is_opaque(type(value)) else [cls for cls in static_mro(type(value)) if not is_opaque(cls)]
    return [one for cls in classes for one in static_dict(cls).values() if type(one) is types.FunctionType]


def _outer_parts(function: types.FunctionType) -> list[tuple[str, Any]]:
    """Returns the containers in the closure of a function, and in the global variables that its code names."""
    place, module = f"{function.__module__}.{function.__qualname__}", function.__globals__.get("__name__")
    found = [(f"{place}: {name}", part) for name, part in code.cells(function)]
    found += [(f"{module}.{name}", part) for name, part in code.globals_named(function)]
    return [(path, part) for path, part in found if issubclass(type(part), _CONTAINERS)]


def large_parts(dataset: object) -> list[tuple[str, Any]]:
    """Returns the parts of a dataset, large and small, each with an expression that begins with `dataset`; then the
    containers in closures and in global variables that its code names, by their modules.

    It goes through names only, a few levels deep, because it runs between two batches. The walks of headrace.freeze
    (frozen/_search.py) and of the doctor (_pickles/search.py) have other limits.
    """
    found: list[tuple[str, Any]] = []
    seen: set[int] = set()

    owners = [dataset]

    def add(path: str, value: Any, level: int) -> None:
        if type(value) in _CODE:
            owners.append(value)
        if issubclass(type(value), _NO_PLACES) or id(value) in seen or len(found) >= _MOST_PLACES:
            return
        seen.add(id(value))
        parts = _named_parts(value) if level < _MOST_LEVELS else None
        if parts is None:
            found.append((path, value))
            return
        owners.append(value)
        for name, part in parts:
            add(path + name, part, level + 1)

    add("dataset", dataset, 0)
    for function in [one for owner in owners for one in functions_of(owner)]:
        for path, part in _outer_parts(function):
            add(path, part, _MOST_LEVELS)
    return found


@dataclass
class LargePart:
    """A large part of a dataset: estimates of its memory, and of the memory of it that only this process has.

    share: the share of the pages looked at that only this process has.
    """

    path: str
    type: str
    count: int  # of entries; -1 if it is not a container
    bytes: float
    private_bytes: float
    share: float


def _count(value: Any) -> int:
    base: Any = next((base for base in _CONTAINERS if issubclass(type(value), base)), None)
    return -1 if base is None else int(base.__len__(value))


def measure(dataset: object, paths: int = CLOSE_PATHS) -> list[LargePart]:
    """Measures the parts of a dataset with `paths` samples for each. Raises OSError if /proc is not available."""
    measured = []
    for path, value in large_parts(dataset):
        if _core.private_share(value, FIRST_PATHS, _SEED)[0] < LEAST_BYTES:
            continue
        size, private, pages, private_pages = _core.private_share(value, paths, _SEED)
        share = private_pages / pages if pages else 0.0
        measured.append(LargePart(path, type(value).__name__, _count(value), size, private, share))
    return measured


# ---- in a worker ----


def _is_forked() -> bool:
    method = getattr(multiprocessing.current_process(), "_start_method", None)
    return (method or multiprocessing.get_start_method(allow_none=True)) == "fork"


class Watch:
    """Measures a worker's dataset from time to time, and writes the result into its diagnostics file."""

    def __init__(self, port: _core.Port, status: Status, dataset: object, look_s: float | None) -> None:
        self._port = port
        self._status = status
        self._dataset = dataset
        self._is_forked = _is_forked()
        self._first: dict[str, LargePart] | None = None
        self._first_samples = 0
        self._started = time.monotonic()
        self._every_s = EVERY_S if look_s is None else look_s
        self._is_close = look_s is not None
        self._first_private = _core.private_bytes() if self._is_close else 0
        port.watch(self.look, min(FIRST_S, self._every_s) if self._is_forked else 0.0)

    def look(self) -> float | None:
        """Returns the seconds until the next measurement; None if it cannot measure."""
        start, start_cpu = time.monotonic(), time.thread_time()
        try:
            now = measure(self._dataset, CLOSE_PATHS if self._is_close else PATHS)
        except Exception:  # there is no /proc, or a thread of the dataset changes a container meanwhile
            return None
        if self._first is None:
            self._first = {place.path: place for place in now}
            self._first_samples = 0 if self._is_forked else self._port.samples
        with contextlib.suppress(OSError):  # the dataset may have closed the file
            self._status.put("growth", self._look_of(now))
        end = time.monotonic()
        cost_s = time.thread_time() - start_cpu
        age_s = end - self._started
        every_s = min(self._every_s, max(FIRST_S, age_s / 2))  # soon at first, because the epoch may be short
        return max(every_s, (CLOSE_RARE if self._is_close else RARE) * cost_s, WAITING_RARE * (end - start))

    def _look_of(self, now: list[LargePart]) -> dict[str, Any]:
        """Returns the measurement for JSON. If there is not enough room, it leaves out the parts that grew least."""
        grown = sorted((self._grown(place) for place in now), key=lambda one: -one["grown_bytes"])
        look = {
            "samples": self._port.samples - self._first_samples,
            "seconds": round(time.monotonic() - self._started, 3),
            "is_forked": self._is_forked,
            "private_grown": max(0, _core.private_bytes() - self._first_private) if self._is_close else 0,
            "places": grown,
        }
        while len(json.dumps(look)) > _MOST_BYTES:
            grown.pop()
        return look

    def _grown(self, place: LargePart) -> dict[str, Any]:
        """Returns how much a part has grown. All private memory of a forked worker was copied since the fork."""
        first = (self._first or {}).get(place.path)
        before = 0.0 if self._is_forked or first is None else first.private_bytes
        return {
            **asdict(place),
            "grown_bytes": round(max(0.0, place.private_bytes - before)),
            "added_bytes": round(max(0.0, place.bytes - (first.bytes if first else 0.0))),
        }


# ---- in the trainer ----

# Tables of Python objects, which freeze=True leaves as they are: a view of one would be a list, and not such a table.
TABLES = {
    "ndarray": "{0} = headrace.freeze({0}.tolist()) keeps one copy for all processes, if the dataset only reads single "
    "items; {0}.astype(str) has texts without Python objects",
    "DataFrame": '{0} = headrace.freeze({0}.to_dict("records")) keeps one copy of its rows for all processes; '
    '{0}.convert_dtypes(dtype_backend="pyarrow") has texts without Python objects',
    "Series": "{0} = headrace.freeze({0}.tolist()) keeps one copy for all processes, if the dataset only reads single "
    'items by position; {0}.convert_dtypes(dtype_backend="pyarrow") has texts without Python objects',
    "Index": "{0} = headrace.freeze({0}.tolist()) keeps one copy for all processes",
}


def how_to_freeze(kind: str, path: str) -> str:
    """Returns what to do with a table of Python objects, instead of freeze=True."""
    return TABLES[kind].format(path)


@dataclass
class Growth:
    """How much one part of a dataset has grown in the private memory of all workers together."""

    path: str
    type: str
    count: int
    bytes: float  # its size in one process
    grown_bytes: float
    is_added_to: bool  # True: the workers add entries; False: reading copies it
    workers: int
    samples: int  # the samples that these workers made in that time
    seconds: float

    @property
    def per_sample(self) -> float:
        return self.grown_bytes / max(1, self.samples)

    @property
    def rest_bytes(self) -> float:
        """Returns the maximum of further growth."""
        return float("inf") if self.is_added_to else max(0.0, self.bytes * self.workers - self.grown_bytes)


def _checked(look: Any) -> dict[str, Any] | None:
    """Returns the measurement of a worker; None if it is not one, because a worker may write anything."""
    try:
        for place in look["places"]:
            LargePart(**{name: place[name] for name in LargePart.__dataclass_fields__})
            float(place["grown_bytes"]), float(place["added_bytes"]), str(place["path"])
        is_right = min(look["samples"], look["seconds"], look["private_grown"]) >= 0
        return dict(look) if is_right else None
    except (ValueError, TypeError, KeyError):
        return None


def looks(core: _core.Loader, count: int) -> list[dict[str, Any]]:
    """Returns the last measurement of each worker that made one."""
    found = map(_checked, parts_of(core, count, "growth"))
    return [look for look in found if look is not None]


def sum_up(measured: list[dict[str, Any]]) -> list[Growth]:
    """Adds up the measurements by part. The part that has grown most comes first."""
    sums: dict[str, Growth] = {}
    for look in measured:
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


_warned: set[tuple[str, str]] = set()  # (path, type) of the parts that this process has warned of


def matters(grown: list[Growth], available: float) -> bool:
    """Returns True if the growth is large enough for a warning, compared with the available memory."""
    total = sum(one.grown_bytes for one in grown)
    coming = sum(min(one.rest_bytes, EPOCHS * one.grown_bytes) for one in grown)
    return total >= LEAST_BYTES and (total >= WARN_BYTES or total + coming >= WARN_SHARE * available)


def in_words(one: Growth) -> str:
    count = "" if one.count < 0 else f" of {one.count:,}"
    return f"{one.path} ({one.type}{count}, {in_units(one.bytes)})"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def when_full(one: Growth, available: float, batches: int = 0) -> str:
    """Says when the growth will use up the available memory. `batches`: how many batches the samples were, if known."""
    if one.rest_bytes <= available:
        most = in_units(one.grown_bytes + one.rest_bytes)
        return f"{in_units(available)} are available; when every worker has copied all of it, the copies take {most}"
    samples = available / max(one.per_sample, 1e-9)
    seconds = samples * one.seconds / max(1, one.samples)
    steps = f" ({samples * batches / max(1, one.samples):,.0f} batches)" if batches else ""
    return (
        f"{in_units(available)} are available: at this rate memory is full after {samples:,.0f} more samples{steps}, "
        f"in about {_duration(seconds)}"
    )


def fix(one: Growth, is_frozen: bool = False) -> str:
    """Returns the line that ends the growth. is_frozen: the loader has freeze=True."""
    if not one.is_added_to and one.type not in TABLES and not one.path.startswith("dataset"):
        return (
            "Reading Python objects writes to their reference counts, which copies the memory that workers share with "
            "the trainer. freeze=True looks at the attributes of the dataset only: put headrace.freeze(...) of it into "
            "this variable, or into an attribute"
        )
    if one.type in TABLES:
        return f"Reading Python objects writes to their reference counts. {how_to_freeze(one.type, one.path)}"
    if is_frozen and not one.is_added_to:
        return (
            "Reading Python objects writes to their reference counts. freeze=True has left it as it is: "
            "print(headrace.freeze_attributes(dataset)) says why"
        )
    if one.is_added_to:
        return (
            f"Each worker adds to its own copy of {one.path}: limit its size, or fill it before the workers start and "
            f"share it ({one.path} = headrace.freeze({one.path}))"
        )
    return (
        "Reading Python objects writes to their reference counts, which copies the memory that workers share with the "
        f"trainer. {one.path} = headrace.freeze({one.path}), or DataLoader(..., freeze=True), keeps one copy for "
        "all processes"
    )


def message(grown: list[Growth], available: float, is_frozen: bool = False) -> str | None:
    """Returns the warning at the end of an epoch; None if the growth is small. is_frozen: see fix."""
    if not matters(grown, available):
        return None
    one = grown[0]
    others = ", ".join(in_words(other) for other in grown[1:4] if other.grown_bytes > one.grown_bytes / 10)
    return (
        f"headrace: {'adding to' if one.is_added_to else 'reading'} {in_words(one)} increases the memory of "
        f"{count_workers(one.workers)}: {in_units(one.grown_bytes)} so far, {in_units(1000 * one.per_sample)} per "
        f"1,000 samples; {when_full(one, available)}. {fix(one, is_frozen)}"
        + (f". Also growing: {others}" if others else "")
        + help_on("memory-growth")
    )


def news(core: _core.Loader, count: int, is_frozen: bool = False) -> str | None:
    """Returns the warning at the end of an epoch about `count` workers, or None. It warns once of each part. is_frozen:
    see fix."""
    measured = looks(core, count)
    if not measured or not is_first_rank():
        return None
    grown = sum_up(measured)
    if not grown or (grown[0].path, grown[0].type) in _warned:
        return None
    text = message(grown, float(_core.machine()["spare_bytes"] or 0), is_frozen)
    if text is not None:
        _warned.add((grown[0].path, grown[0].type))
    return text

# SPDX-License-Identifier: Apache-2.0
"""freeze and open: one copy of any Python data for all processes.

`freeze` writes an object into frozen data, in sealed memory or in a file, and returns a view of it. The view of a
container is a Sequence, Mapping or Set that compares, prints and hashes as the original, and that any number of
processes read without writing to its memory. An instance of a class is read as an instance (made without `__init__`);
its containers and arrays are views.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, overload

from headrace import _core
from headrace._core import FrozenError as FrozenError
from headrace.frozen import _pickling

Progress = bool | Callable[[int], object] | None

_PATIENCE_S = 2.0  # a build may take this long before the progress line appears
_EVERY_S = 0.2


class Report(NamedTuple):
    """The contents of frozen data, by kind and by path."""

    bytes: int
    kinds: dict[str, tuple[int, int]]  # by kind of value: the number of values, and their bytes
    pickles: list[str]  # the paths of values that are kept as pickles
    paths: dict[str, int]  # bytes by path, three steps deep; all items of a list have one path, `[*]`

    def __str__(self) -> str:
        lines = [f"{self.bytes:,} bytes"]
        for kind, (count, size) in sorted(self.kinds.items(), key=lambda entry: -entry[1][1]):
            lines.append(f"{size:>16,}  {kind} x {count:,}")
        for path, size in sorted(self.paths.items(), key=lambda entry: -entry[1]):
            lines.append(f"{size:>16,}  {path}")
        lines += [f"kept as a pickle: {path}" for path in self.pickles]
        return "\n".join(lines)


class _Bar:
    """Shows the progress of a long build in one line on stderr."""

    def __init__(self, patience_s: float) -> None:
        self.started = time.monotonic()
        self.next = self.started + patience_s
        self.shown = False

    def __call__(self, size: int) -> None:
        now = time.monotonic()
        if now < self.next:
            return
        self.next = now + _EVERY_S
        self.shown = True
        megabytes = size / 1e6
        _print(f"\rheadrace.freeze: {megabytes:,.0f} MB, {megabytes / (now - self.started):,.0f} MB/s ")

    def close(self) -> None:
        if self.shown:
            _print("\n")
        self.shown = False


def _print(text: str) -> None:
    with contextlib.suppress(Exception):  # the object that replaces stderr may be closed, or not a file
        print(text, end="", file=sys.stderr, flush=True)


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except Exception:  # the stream is not a file
        return False


def _bar(progress: Progress) -> Any:
    if callable(progress):
        return progress
    if progress is None and _is_terminal(sys.stderr):
        return _Bar(_PATIENCE_S)
    return _Bar(0.0) if progress else None


def know_arrays() -> None:
    """Makes arrays and tensors known to the extension, if their packages are imported."""
    if "numpy" in sys.modules:
        _core.use_numpy()
    if hasattr(sys.modules.get("torch"), "Tensor"):
        importlib.import_module("headrace._tensors.extension").use_torch()


def prepare(on_unknown: str, progress: Progress) -> Any:
    """Checks the option, makes arrays known to the extension, and returns the function that gets the progress."""
    if on_unknown not in ("raise", "pickle"):
        raise ValueError(f'headrace.freeze: on_unknown is "raise" or "pickle", not {on_unknown!r}')
    know_arrays()
    return _bar(progress)


def end_progress(bar: Any) -> None:
    if isinstance(bar, _Bar):
        bar.close()


@overload
def freeze(
    obj: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    on_unknown: Literal["raise", "pickle"] = "raise",
    report: Literal[False] = False,
    progress: Progress = None,
) -> Any: ...
@overload
def freeze(
    obj: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    on_unknown: Literal["raise", "pickle"] = "raise",
    report: Literal[True],
    progress: Progress = None,
) -> tuple[Any, Report]: ...
def freeze(
    obj: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    on_unknown: Literal["raise", "pickle"] = "raise",
    report: bool = False,
    progress: Progress = None,
) -> Any:
    """Returns a frozen copy of an object, in shared memory or in file `path`, which appears when it is complete.

    on_unknown: a value of a type that headrace does not know raises TypeError with its path ("raise"), or is kept as a
        pickle ("pickle").
    report: also return a Report.
    progress: True, or a function that is called with the number of bytes written; None: True if stderr is a terminal
        and two seconds have passed.
    """
    paths: dict[str, int] | None = {} if report else None
    frozen, kinds, pickles = _build(obj, path, on_unknown, progress, paths)
    root = frozen.root()
    return (root, Report(frozen.bytes, kinds, pickles, paths or {})) if report else root


def freeze_natively(obj: Any) -> tuple[Any, dict[str, tuple[int, int]]]:
    """Returns a frozen copy, and the kinds of values of the report."""
    frozen, kinds, _ = _build(obj, None, "raise", None, None)
    return frozen.root(), kinds


def _build(obj: Any, path: Any, on_unknown: str, progress: Progress, paths: dict[str, int] | None) -> Any:
    bar = prepare(on_unknown, progress)
    file = None if path is None else os.path.abspath(os.fspath(path))
    try:
        target = os.fsencode(file) if file else None
        frozen, (kinds, pickles) = _core.freeze(obj, target, on_unknown == "pickle", bar, paths)
    finally:
        end_progress(bar)
    _pickling.remember(frozen, file)
    return frozen, kinds, pickles


def open(path: str | os.PathLike[str], *, verify: bool = False, trust: bool = False) -> Any:
    """Returns what was frozen into a file. It maps the file, which takes microseconds for any size.

    verify: first compare everything with its checksums. trust: import the classes that it names, and load the pickles
    that it has; without trust, its classes must have been imported already. Raises FrozenError if the file is damaged
    or of another version.
    """
    return _pickling.open_file(os.path.abspath(os.fspath(path)), verify, trust).root()


def read_small_as_ordinary(view: Any, items: int) -> None:
    """Lets containers of up to `items` items in all be read as ordinary objects out of all views of frozen data."""
    _core.where(view)[0].small_items = items


def nbytes(view: Any) -> int:
    """Returns the bytes of the whole frozen data of a view."""
    frozen: _core.Frozen = _core.where(view)[0]
    return frozen.bytes

# SPDX-License-Identifier: Apache-2.0
"""Asks torch's loaders what they are made of, and replaces what makes their iterators. With private names of torch."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from headrace._tensors import torch_names
from headrace.torch._own import classes
from headrace.torch._own.classes import DATA, DatasetKind, MultiProcessingIterator

torchs_iterator: Any = getattr(classes.DataLoader, "_get_iterator", None)  # as it was before install() replaces it
_module: Any = vars(sys.modules[DATA])
# Another tool has wrapped it, so the wrapper has to be called.
is_wrapped: bool = getattr(torchs_iterator, "__globals__", None) is not _module
has_state = not torch_names.missing(torch_names.STATE)  # loaders on torch's own iterators have a state


def index_sampler(loader: Any) -> Any:
    """Returns what a loader draws its tasks from: the batch sampler, or the sampler if it has none."""
    if not has_state:
        return loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    return loader._index_sampler


def is_batched(loader: Any) -> bool:
    """Returns True if a loader makes batches of its samples."""
    return bool(loader._auto_collation)


def is_iterable(loader: Any) -> bool:
    """Returns True if the dataset of a loader gives no samples by index."""
    return bool(loader._dataset_kind == DatasetKind.Iterable)


def is_in_order(loader: Any) -> bool:
    """Returns True if a loader gives its batches in order. torch's loaders have the option since 2.6."""
    return bool(getattr(loader, "in_order", True))


def drop_iterator(loader: Any) -> None:
    """Ends the workers that a loader has kept, so that its next iterator starts others."""
    if loader._iterator is not None:
        loader._iterator._shutdown_workers()
        loader._iterator = None


def given_count(sampler: Any) -> int | None:
    """Returns the num_samples that a RandomSampler was made with, or None."""
    count: int | None = sampler._num_samples
    return count


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def _as_torchs(code: types.CodeType) -> types.CodeType:
    """Returns the code with the file and line where torch creates an iterator, so that warnings show them. If another
    tool has replaced torch's function, the line is that tool's or the code is not changed."""
    makes_iterator = getattr(torchs_iterator, "__code__", code)
    lines = [line for _, _, line in makes_iterator.co_lines() if line]
    return code.replace(co_filename=makes_iterator.co_filename, co_firstlineno=max(lines) - 1)


# Calls a function from torch's module and line. A warning that the function gives its caller then comes from there, as
# users and their warning filters expect it.
called_by_torch: Any = types.FunctionType(_as_torchs(_call.__code__), _module)


def torchs_new(cls: type, *_: Any, **__: Any) -> Any:
    """Does what object.__new__ does. If a class had a __new__ of its own, Python cannot restore the inherited one."""
    return object.__new__(cls)


def set_factories(factory: Any, new: Any) -> None:
    """Sets the function that creates the iterators of all torch loaders, except of subclasses with their own, and the
    __new__ of torch's iterator class for workers, for code that calls the class directly."""
    classes.DataLoader._get_iterator = factory  # type: ignore[method-assign]
    MultiProcessingIterator.__new__ = new


def is_installed(loader: Any) -> bool:
    """Returns True if the iterators of a loader are made by a function of headrace."""
    return str(getattr(type(loader)._get_iterator, "__module__", None)).startswith("headrace.")


_explained: Any = None  # the __getattr__ that explain() has set
_init: tuple[Any, Any] | None = None  # the __init__ that explain() has set, and torch's


def is_explained() -> bool:
    return _explained is not None or _init is not None


def explain(get_attribute: Any, explain_call: Callable[[Any, TypeError, dict[str, Any]], None]) -> None:
    """Sets __getattr__ of torch's loader, which explains what it lacks, if it has none, and lets explain_call(loader,
    error, keywords) add to a TypeError of its __init__, whose signature stays."""
    global _explained, _init
    if _init is None:
        torchs = classes.DataLoader.__init__

        @functools.wraps(torchs)
        def init(self: Any, *args: Any, **keywords: Any) -> None:
            try:
                torchs(self, *args, **keywords)
            except TypeError as error:
                explain_call(self, error, keywords)
                raise

        init.__signature__ = inspect.signature(torchs)  # type: ignore[attr-defined] # getfullargspec asks for it
        _init = init, torchs
        classes.DataLoader.__init__ = init  # type: ignore[method-assign]
    if "__getattr__" not in vars(classes.DataLoader):
        _explained = get_attribute
        classes.DataLoader.__getattr__ = get_attribute  # type: ignore[attr-defined]


def explain_no_more() -> None:
    """Undoes explain, unless other code has replaced a method since then."""
    global _explained, _init
    if _init is not None and classes.DataLoader.__init__ is _init[0]:
        classes.DataLoader.__init__ = _init[1]  # type: ignore[method-assign]
        _init = None
    if _explained is not None and vars(classes.DataLoader).get("__getattr__") is _explained:
        del classes.DataLoader.__getattr__  # type: ignore[attr-defined]
        _explained = None


@contextlib.contextmanager
def torchs_engine(loader: Any) -> Iterator[None]:
    """Gives a loader torch's iterator in a block, also one of headrace's, and whatever is installed."""
    before = factories()
    set_factories(torchs_iterator, torchs_new)
    loader._get_iterator = functools.partial(torchs_iterator, loader)
    try:
        yield
    finally:
        del loader._get_iterator
        set_factories(*before)


_iter: tuple[Any, Any] | None = None  # what wrap_iter has set, and what was there before


def is_iter_wrapped() -> bool:
    return _iter is not None


def wrap_iter(wrapper: Any) -> None:
    """Makes all torch loaders, except those of subclasses with an __iter__ of their own, be iterated by wrapper(loader,
    begin), where begin() does what was done before. A replacement by other code is thus kept."""
    global _iter
    if _iter is None:
        before = classes.DataLoader.__iter__
        _iter = (lambda loader: wrapper(loader, functools.partial(before, loader))), before
        classes.DataLoader.__iter__ = _iter[0]  # type: ignore[method-assign]


def unwrap_iter() -> None:
    """Undoes wrap_iter, unless other code has replaced the method since then."""
    global _iter
    if _iter is not None and classes.DataLoader.__iter__ is _iter[0]:
        classes.DataLoader.__iter__ = _iter[1]  # type: ignore[method-assign]
        _iter = None


def factories() -> tuple[Any, Any]:
    """Returns what set_factories() has set, or torch's own."""
    return classes.DataLoader._get_iterator, vars(MultiProcessingIterator).get("__new__", torchs_new)

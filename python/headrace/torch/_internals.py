# SPDX-License-Identifier: Apache-2.0
"""Every private name of torch's that headrace uses, in one place: what to look at when torch changes."""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.data
from torch._utils import ExceptionWrapper as _ExceptionWrapper
from torch.utils.data import _utils, dataloader

from headrace._errors import raising

BaseIterator: Any = dataloader._BaseDataLoaderIter
SingleProcessIterator: Any = dataloader._SingleProcessDataLoaderIter
MultiProcessingIterator: Any = dataloader._MultiProcessingDataLoaderIter
DatasetKind: Any = dataloader._DatasetKind
DataPipes: Any = (torch.utils.data.IterDataPipe, torch.utils.data.MapDataPipe)
InfiniteConstantSampler: Any = dataloader._InfiniteConstantSampler
ExceptionWrapper: Any = _ExceptionWrapper

torchs_iterator: Any = torch.utils.data.DataLoader._get_iterator  # before install() puts another in its place
# Another tool has put something around it, which is to be called.
is_wrapped: bool = getattr(torchs_iterator, "__globals__", None) is not vars(dataloader)

collate: Any = _utils.collate
worker: Any = _utils.worker
signal_handling: Any = _utils.signal_handling
pin_memory: Any = _utils.pin_memory
start_processes: Any = torch.multiprocessing.start_processes  # type: ignore[attr-defined]
set_thread_name: Any = torch.multiprocessing._set_thread_name
profiler: Any = torch.autograd.profiler


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def _as_torchs(code: types.CodeType) -> types.CodeType:
    """With its one line where torch makes an iterator; as it is if somebody has put something else there."""
    makes_iterator = getattr(torchs_iterator, "__code__", code)
    lines = [line for _, _, line in makes_iterator.co_lines() if line]
    return code.replace(co_filename=makes_iterator.co_filename, co_firstlineno=max(lines) - 1)


# Calls a function: what that warns its caller of comes from torch's module and line then, as users' filters and eyes
# expect it.
called_by_torch: Any = types.FunctionType(_as_torchs(_call.__code__), vars(dataloader))


def torchs_new(cls: type, *_: Any, **__: Any) -> Any:
    """As object's. Python has no way back to that for a class that had another."""
    return object.__new__(cls)


def set_factories(factory: Any, new: Any) -> None:
    """What makes the iterators of all of torch's loaders, subclasses that do not bring their own included; and what
    makes torch's iterator for workers where somebody calls its class."""
    torch.utils.data.DataLoader._get_iterator = factory  # type: ignore[method-assign]
    MultiProcessingIterator.__new__ = new


def factories() -> tuple[Any, Any]:
    return torch.utils.data.DataLoader._get_iterator, vars(MultiProcessingIterator).get("__new__", torchs_new)


def profiler_is_on() -> bool:
    """Does a profiler record? True where torch does not say."""
    return bool(getattr(profiler, "_is_profiler_enabled", True))


def forget_library_finalizers() -> None:
    """At the process's end torch's operators are not taken down one by one, which takes 7 ms: it ends anyway."""
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        found = finalizer.peek()
        if found is not None and getattr(found[1], "__module__", None) == "torch.library":
            finalizer.atexit = False


def collate_in_private_memory() -> None:
    """In a worker torch's default_collate, and functions written after it, make a batch of tensors in a file in
    /dev/shm, for torch's own queue. Here it would be copied out of it, and the file would have been for nothing."""
    storage: Any = torch.UntypedStorage
    in_shared_memory = storage._new_shared

    def new(cls: Any, size: int, *, device: Any = "cpu") -> Any:
        if torch.device(device).type == "cpu":
            return cls(size, device="cpu")
        return in_shared_memory(size, device=device)

    storage._new_shared = classmethod(new)


def wrap_exception(where: str) -> Any:
    """Returns the exception being handled in torch's wrapper."""
    error = sys.exc_info()[1]
    assert error is not None
    try:
        return ExceptionWrapper(where=where)
    except Exception:  # of the exception's own class, which torch cannot print
        wrapped = ExceptionWrapper((None, None, None), where)
        wrapped.exc_type, wrapped.exc_msg = type(error), raising.traceback_of(error)
        return wrapped


def text_of_wrapped(wrapped: Any) -> str:
    """Returns the message that torch gives an exception when it raises it again, or "" if this is another wrapper."""
    try:
        return f"Caught {wrapped.exc_type.__name__} {wrapped.where}.\nOriginal {wrapped.exc_msg}"
    except Exception:  # made without an exception, or a subclass that keeps something else
        return ""


def remade(wrapped: Any) -> BaseException:
    """Returns the exception that torch raises for a wrapped one, with the original text also where torch fails to."""
    return raising.remade(wrapped.reraise, getattr(wrapped, "exc_type", None), text_of_wrapped(wrapped))

# SPDX-License-Identifier: Apache-2.0
"""Does what torch does in a worker, and what it does to send an exception and to pin a batch. With private names of
torch."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import torch
import torch.utils.data

from headrace._base import raising, tracebacks
from headrace._tensors import torch_names
from headrace.torch._own.classes import UTILS, ExceptionWrapper

start_processes: Any = torch.multiprocessing.start_processes  # type: ignore[attr-defined]
ProcessContext: Any = torch.multiprocessing.ProcessContext  # type: ignore[attr-defined]


def set_thread_name(name: str) -> None:
    """Gives this thread a name that ps and top show, if torch can."""
    torch_names.find("torch.multiprocessing._set_thread_name", _do_nothing)(name)


def report_signals() -> None:
    """Makes this worker print torch's line of text when it dies of a signal, if torch has such a text."""
    torch_names.find(f"{UTILS}.signal_handling._set_worker_signal_handlers", _do_nothing)()


def _do_nothing(*_: Any) -> None:
    """Does nothing: called where torch has no function."""


def numpy_seed(base_seed: int, worker: int) -> Any:
    """Returns the seed that torch gives numpy in a worker."""
    return torch_names.find(f"{UTILS}.worker._generate_state")(base_seed, worker)


def set_worker_info(**values: Any) -> None:
    """Sets what torch.utils.data.get_worker_info() returns in this worker."""
    worker: Any = sys.modules[f"{UTILS}.worker"]
    worker._worker_info = worker.WorkerInfo(**values)


def forget_library_finalizers() -> None:
    """Saves 7 ms at the end of a worker: torch's operators are not destroyed one by one, because the process ends
    anyway."""
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        found = finalizer.peek()
        if found is not None and getattr(found[1], "__module__", None) == "torch.library":
            finalizer.atexit = False


def pin(data: Any, device: Any) -> Any:
    """Returns a batch in pinned memory."""
    return torch_names.find(f"{UTILS}.pin_memory.pin_memory")(data, device)


def pin_loop() -> Any:
    """Returns the function of torch's thread that pins batches."""
    return torch_names.find(f"{UTILS}.pin_memory._pin_memory_loop")


def wrap_exception(where: str) -> Any:
    """Returns the exception being handled in torch's wrapper."""
    error = sys.exc_info()[1]
    assert error is not None
    try:
        return ExceptionWrapper((type(error), error, tracebacks.users_part(error.__traceback__)), where)
    except Exception:  # torch cannot print an exception of this class
        wrapped = ExceptionWrapper((None, None, None), where)
        wrapped.exc_type, wrapped.exc_msg = type(error), raising.traceback_of(error)
        return wrapped


def text_of_wrapped(wrapped: Any) -> str:
    """Returns the message that torch gives an exception when it raises it again, or "" if this is another wrapper."""
    try:
        return f"Caught {wrapped.exc_type.__name__} {wrapped.where}.\nOriginal {wrapped.exc_msg}"
    except Exception:  # it was made without an exception, or is a subclass with other attributes
        return ""


def remade(wrapped: Any) -> BaseException:
    """Returns the exception that torch raises for a wrapped one, with the original text even if torch fails to make
    it."""
    return raising.remade(wrapped.reraise, getattr(wrapped, "exc_type", None), text_of_wrapped(wrapped))

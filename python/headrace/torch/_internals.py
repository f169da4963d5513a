# SPDX-License-Identifier: Apache-2.0
"""The functions of headrace.torch that use private names of torch. headrace/_tensors/torch_names.py has all the names.

The fallback imports this module too, in a torch that lacks required names: they are None here then, and it does not
call the functions that need them.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.utils.data
from torch.autograd import forward_ad

from headrace._base import raising, signals
from headrace._tensors import torch_names
from headrace.torch import _torchs

_DATA = "torch.utils.data.dataloader"
_UTILS = "torch.utils.data._utils"

BaseIterator: Any = torch_names.find(f"{_DATA}._BaseDataLoaderIter")
SingleProcessIterator: Any = torch_names.find(f"{_DATA}._SingleProcessDataLoaderIter")
MultiProcessingIterator: Any = torch_names.find(f"{_DATA}._MultiProcessingDataLoaderIter")
DatasetKind: Any = torch_names.find(f"{_DATA}._DatasetKind")
InfiniteConstantSampler: Any = torch_names.find(f"{_DATA}._InfiniteConstantSampler")
ExceptionWrapper: Any = torch_names.find("torch._utils.ExceptionWrapper")
DataPipes: Any = tuple(
    vars(torch.utils.data)[name] for name in ("IterDataPipe", "MapDataPipe") if name in vars(torch.utils.data)
)

torchs_iterator: Any = getattr(_torchs.DataLoader, "_get_iterator", None)  # as it was before install() replaces it
_module: Any = vars(sys.modules[_DATA])
# Another tool has wrapped it, so the wrapper has to be called.
is_wrapped: bool = getattr(torchs_iterator, "__globals__", None) is not _module

start_processes: Any = torch.multiprocessing.start_processes  # type: ignore[attr-defined]
ProcessContext: Any = torch.multiprocessing.ProcessContext  # type: ignore[attr-defined]
profiler: Any = torch.autograd.profiler
has_state = not torch_names.missing(torch_names.STATE)  # loaders on torch's own iterators have a state


# ---- loaders ----


def index_sampler(loader: Any) -> Any:
    """Returns what a loader draws its tasks from: the batch sampler, or the sampler if it has none."""
    if not has_state:
        return loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    return loader._index_sampler


def show_index_sampler(iterator: Any, loader: Any) -> None:
    """Gives an iterator the index sampler of a loader."""
    iterator._index_sampler = loader._index_sampler


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


# ---- the code of torch's loader that headrace calls ----


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
    _torchs.DataLoader._get_iterator = factory  # type: ignore[method-assign]
    MultiProcessingIterator.__new__ = new


_iter: tuple[Any, Any] | None = None  # what wrap_iter has set, and what was there before


def is_iter_wrapped() -> bool:
    return _iter is not None


def wrap_iter(wrapper: Any) -> None:
    """Makes all torch loaders, except those of subclasses with an __iter__ of their own, be iterated by wrapper(loader,
    begin), where begin() does what was done before. A replacement by other code is thus kept."""
    global _iter
    if _iter is None:
        before = _torchs.DataLoader.__iter__
        _iter = (lambda loader: wrapper(loader, functools.partial(before, loader))), before
        _torchs.DataLoader.__iter__ = _iter[0]  # type: ignore[method-assign]


def unwrap_iter() -> None:
    """Undoes wrap_iter, unless other code has replaced the method since then."""
    global _iter
    if _iter is not None and _torchs.DataLoader.__iter__ is _iter[0]:
        _torchs.DataLoader.__iter__ = _iter[1]  # type: ignore[method-assign]
        _iter = None


def factories() -> tuple[Any, Any]:
    """Returns what set_factories() has set, or torch's own."""
    return _torchs.DataLoader._get_iterator, vars(MultiProcessingIterator).get("__new__", torchs_new)


# ---- iterators ----


def base_seed(iterator: Any) -> int:
    """Returns the number from which an iterator seeds its workers."""
    seed: int = iterator._base_seed
    return seed


def set_base_seed(iterator: Any, seed: int) -> None:
    iterator._base_seed = seed


def yielded(iterator: Any) -> int:
    """Returns how many batches one of headrace's iterators has delivered, which it counts under torch's name."""
    count: int = iterator._num_yielded
    return count


def set_yielded(iterator: Any, count: int) -> None:
    iterator._num_yielded = count


def worker_count(iterator: Any) -> int:
    """Returns how many workers an iterator has."""
    count: int = iterator._num_workers
    return count


def iterator_of_sampler(iterator: Any) -> Any:
    """Returns the iterator of the sampler that one of torch's iterators draws from."""
    return iterator._sampler_iter


class _SeededIterator(MultiProcessingIterator or object):  # type: ignore[misc]
    """torch's iterator for workers with a base seed that is known. torch's __init__ draws another one and starts the
    workers with it, so the attribute is a property that stays as it is."""

    def __init__(self, loader: Any, seed: int) -> None:
        self._known_seed = seed
        super().__init__(loader)
        self._profile_name = f"enumerate(DataLoader)#{MultiProcessingIterator.__name__}.__next__"

    @property
    def _base_seed(self) -> int:
        return self._known_seed

    @_base_seed.setter
    def _base_seed(self, drawn: int) -> None:
        """Drops the seed that torch has drawn."""


def iterator_with_seed(loader: Any, seed: int | None) -> Any:
    """Returns torch's iterator of a loader with a base seed; None: torch draws it. If another tool has wrapped torch's
    function, that is called, and workers are started with the seed that torch draws."""
    if seed is not None and loader.num_workers > 0 and not is_wrapped:
        called_by_torch(loader.check_worker_number_rationality)
        return called_by_torch(_SeededIterator, loader, seed)
    iterator = torchs_iterator(loader)
    if seed is not None and isinstance(iterator, BaseIterator):
        set_base_seed(iterator, seed)
    return iterator


def open_tasks(iterator: Any) -> Any:
    """Returns the numbers of the tasks that torch's iterator has drawn in this epoch and not returned."""
    return getattr(iterator, "_task_info", {}).keys()  # an iterator without workers has no such attribute


def has_lost_workers(iterator: Any) -> bool:
    """Returns True if the workers of an iterator, torch's or headrace's, have been ended, or if one has died."""
    own = getattr(iterator, "has_lost_workers", None)  # of headrace's
    if own is not None:
        return bool(own)
    is_shut_down = bool(getattr(iterator, "_shutdown", False))
    return is_shut_down or any(one.exitcode not in (None, 0) for one in getattr(iterator, "_workers", ()))


def call_after_next(iterator: Any, note: Callable[[Any, Exception | None], None]) -> None:
    """Calls note(iterator, None) after each batch of one of torch's iterators, or note(iterator, error) after the
    exception in its place. The iterator must not keep itself alive, because its end stops the workers."""
    next_data, weak = type(iterator)._next_data, weakref.ref(iterator)

    def noted() -> Any:
        itself = weak()
        try:
            data = next_data(itself)
        except Exception as error:
            if not signals.is_from_signal(error):  # after a signal, the consumer does not have the batch
                note(itself, error)
            raise
        note(itself, None)
        return data

    iterator._next_data = noted


def change_each(iterator: Any, change: Callable[[Any], Any]) -> Any:
    """Makes one of torch's iterators return change(batch) for each batch. Returns the iterator, which must not keep
    itself alive."""
    weak = weakref.ref(iterator)
    before = vars(iterator).get("_next_data")  # what call_after_next has put there
    next_data = type(iterator)._next_data if before is None else lambda _: before()
    iterator._next_data = lambda: change(next_data(weak()))
    return iterator


def call_after_reset(iterator: Any, begin: Callable[[Any, Any], None]) -> None:
    """Calls begin(iterator, loader) after persistent workers of one of torch's iterators have begun another epoch."""
    reset, weak = type(iterator)._reset, weakref.ref(iterator)

    def noted(loader: Any, first_iter: bool = False) -> None:
        itself = weak()
        reset(itself, loader, first_iter)
        begin(itself, loader)

    iterator._reset = noted


def profiler_is_on() -> bool:
    """Returns True if a profiler records, or if torch does not say."""
    return bool(getattr(profiler, "_is_profiler_enabled", True))


_function_modes: Any = torch_names.find("torch._C._len_torch_function_stack")
_dispatch_modes: Any = torch_names.find("torch._C._len_torch_dispatch_stack")


def has_modes() -> bool:
    """Returns True if a mode is on that sees torch's operations, or changes them, or in which tensors have tangents
    (forward_ad.dual_level), or if torch does not say."""
    if _function_modes is None or _dispatch_modes is None:
        return True
    return bool(_function_modes() or _dispatch_modes() or getattr(forward_ad, "_current_level", 0) >= 0)


# ---- torch.distributed ----


def default_group_size() -> int:
    """Returns the number of processes of torch.distributed's default group, or 0 if there is no group, or none whose
    store torch gives."""
    distributed = sys.modules.get("torch.distributed")
    if (
        distributed is None
        or _store_function() is None
        or not distributed.is_available()
        or not distributed.is_initialized()
    ):
        return 0
    return int(distributed.get_world_size())


def count_collectives() -> int:
    """Returns how many collective operations this process has begun in all groups of torch.distributed, or 0 if torch
    does not say."""
    return _count_collectives(lambda world: world.pg_map)


def count_collectives_of_all() -> int:
    """Returns how many collective operations this process has begun in the default group, which has all ranks, or 0 if
    torch does not say."""
    return _count_collectives(lambda world: [world.default_pg])


def _count_collectives(groups_of: Callable[[Any], Iterable[Any]]) -> int:
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        return sum(group._get_sequence_number_for_group() for group in groups_of(distributed._world))  # type: ignore[union-attr]
    except (AttributeError, RuntimeError):  # another torch, no group, or a backend that does not count
        return 0


def default_store() -> Any:
    """Returns the store of torch.distributed's default group."""
    return _store_function()()


def _store_function() -> Any:
    return torch_names.find("torch.distributed.distributed_c10d._get_default_store")


# ---- workers ----


def set_thread_name(name: str) -> None:
    """Gives this thread a name that ps and top show, if torch can."""
    torch_names.find("torch.multiprocessing._set_thread_name", _do_nothing)(name)


def report_signals() -> None:
    """Makes this worker print torch's line of text when it dies of a signal, if torch has such a text."""
    torch_names.find(f"{_UTILS}.signal_handling._set_worker_signal_handlers", _do_nothing)()


def _do_nothing(*_: Any) -> None:
    """Does nothing: called where torch has no function."""


def numpy_seed(base_seed: int, worker: int) -> Any:
    """Returns the seed that torch gives numpy in a worker."""
    return torch_names.find(f"{_UTILS}.worker._generate_state")(base_seed, worker)


def set_worker_info(**values: Any) -> None:
    """Sets what torch.utils.data.get_worker_info() returns in this worker."""
    worker: Any = sys.modules[f"{_UTILS}.worker"]
    worker._worker_info = worker.WorkerInfo(**values)


def forget_library_finalizers() -> None:
    """Saves 7 ms at the end of a worker: torch's operators are not destroyed one by one, because the process ends
    anyway."""
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        found = finalizer.peek()
        if found is not None and getattr(found[1], "__module__", None) == "torch.library":
            finalizer.atexit = False


def collate_in_private_memory() -> None:
    """Makes torch's default_collate, and functions that are copied from it, use private memory in this worker.
    Otherwise they put a batch into a file in /dev/shm for torch's queue. headrace would only copy it from there."""
    storage: Any = torch.UntypedStorage
    in_shared_memory = torch_names.find("torch.UntypedStorage._new_shared")
    if in_shared_memory is None:
        return

    def new(cls: Any, size: int, *, device: Any = "cpu") -> Any:
        if torch.device(device).type == "cpu":
            return cls(size, device="cpu")
        return in_shared_memory(size, device=device)

    storage._new_shared = classmethod(new)


def pin(data: Any, device: Any) -> Any:
    """Returns a batch in pinned memory."""
    return torch_names.find(f"{_UTILS}.pin_memory.pin_memory")(data, device)


def pin_loop() -> Any:
    """Returns the function of torch's thread that pins batches."""
    return torch_names.find(f"{_UTILS}.pin_memory._pin_memory_loop")


# ---- collating ----

default_convert: Any = torch_names.find(f"{_UTILS}.collate.default_convert")
collate_module: Any = vars(sys.modules.get(f"{_UTILS}.collate", types))  # torch's own functions have these globals


def collate() -> Any:
    """Returns torch's function that collates, or what a user has put in its place; None if torch has none."""
    return torch_names.find(f"{_UTILS}.collate.collate")


def collate_functions() -> Any:
    """Returns torch's table of collating functions, by type, with what a user has added; None if torch has none."""
    return torch_names.find(f"{_UTILS}.collate.default_collate_fn_map")


# ---- exceptions ----


def wrap_exception(where: str) -> Any:
    """Returns the exception being handled in torch's wrapper."""
    error = sys.exc_info()[1]
    assert error is not None
    try:
        return ExceptionWrapper(where=where)
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

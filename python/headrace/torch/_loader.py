# SPDX-License-Identifier: Apache-2.0
"""headrace.torch.DataLoader: torch's loader on headrace's engine."""

from __future__ import annotations

import functools
import pickle
import warnings
from typing import Any, NoReturn, TypeVar

import torch
import torch.utils.data

from headrace import _core, _engine, _forkserver, _options, _unpicklable
from headrace.torch import _internals, _worker

_T_co = TypeVar("_T_co", covariant=True)
default_limit: int | None = None  # install()'s arena_limit
_PRELOAD = ["numpy.random", "headrace.torch._worker"]
# What accelerate takes away, and how to keep it.
_ENGINE_LOST = "which uses torch's engine; call headrace.torch.install() to keep headrace's"
_LIMIT_LOST = "which has no arena_limit; call headrace.torch.install(arena_limit=...) to set it for such loaders"
# In torch's words: filters that users have set keep matching.
_NOT_PICKLED = (
    "Got pickle error when attempting to start a worker Process. "
    "This might be because the worker Process arguments are not picklable. "
    "Python 3.14+ changed the multiprocessing start method in non-Mac POSIX platforms "
    "to 'forkserver', which requires the worker Process arguments to be picklable. "
    "You can also try multiprocessing.set_start_method('fork')."
)
_LONGER = (
    "Length of IterableDataset {} was reported to be {}(when accessing len(dataloader)), but {} samples have been "
    "fetched. For multiprocessing data-loading, this could be caused by not properly configuring the "
    "IterableDataset replica at each worker. Please see "
    "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
)


@functools.cache
def _warn_of_torchs(reason: str) -> None:
    """Once per process."""
    warnings.warn(f"headrace: torch's own DataLoader is used: {reason}", stacklevel=4)


@functools.cache
def _warn_of_accelerate(loss: str) -> None:
    """Once per process and loss."""
    warnings.warn(f"headrace: accelerate's prepare rebuilds the loader as its own class, {loss}", stacklevel=8)


class DataLoader(torch.utils.data.DataLoader[_T_co]):
    """torch.utils.data.DataLoader, with workers that hand batches over without copying them.

    Takes torch's arguments and gives torch's batches, in torch's order, with torch's random numbers and exceptions.
    With num_workers=0 it is torch's loader.

    Args (headrace's own, keywords):
        arena_limit: most bytes of memory that workers and held batches share; None: what install() was given, else half
            of what is to spare. A batch that does not fit raises MemoryError. No effect with num_workers=0.
            At least 64 KiB. The attribute may be set later, for the next iteration; not while persistent workers run.
    """

    arena_limit = _options.ArenaLimit()

    @_options.shown_with(torch.utils.data.DataLoader.__init__)
    def __init__(self, *args: Any, arena_limit: int | None = None, **kwargs: Any) -> None:
        self.arena_limit = arena_limit
        super().__init__(*args, **kwargs)
        if _uses_engine(self):
            _forkserver.warm_up(self.multiprocessing_context, _PRELOAD)

    def _get_iterator(self) -> Any:
        return get_iterator(self)

    @functools.cached_property  # not a property: who sets it to True, to keep accelerate away, still can
    def _is_accelerate_prepared(self) -> bool:
        """accelerate asks for it, and nobody else does, before it rebuilds a loader."""
        if _uses_engine(self) and not _engine.why_not():
            if _internals.iterator_factory() is not get_iterator:
                _warn_of_accelerate(_ENGINE_LOST)
            elif self.arena_limit is not None and default_limit is None:
                _warn_of_accelerate(_LIMIT_LOST)
        return False


def _uses_engine(loader: torch.utils.data.DataLoader[Any]) -> bool:
    return loader.num_workers > 0 and not isinstance(loader.dataset, _internals.DataPipes)


def _limit_of(loader: torch.utils.data.DataLoader[Any]) -> int:
    own = getattr(loader, "arena_limit", None)
    return _options.check_limit(default_limit if own is None else own)


def get_iterator(loader: torch.utils.data.DataLoader[Any]) -> Any:
    """The iterator of any of torch's loaders: the engine's where it can run, else torch's."""
    if not _uses_engine(loader):
        return _internals.torchs_iterator(loader)
    if reason := _engine.why_not():
        _warn_of_torchs(reason)
        return _internals.torchs_iterator(loader)
    loader.check_worker_number_rationality()
    _forkserver.warm_up(loader.multiprocessing_context, _PRELOAD)
    return _Iterator(loader)


def _reraise(wrapped: Any, note: str) -> None:
    try:
        if isinstance(wrapped, str):
            raise RuntimeError(wrapped)
        wrapped.reraise()
    except Exception as error:
        _engine.add_note(error, note)
        raise


class _Iterator(_internals.BaseIterator):  # type: ignore[misc]
    """One pass over a loader with workers, or with persistent workers several."""

    def __init__(self, loader: torch.utils.data.DataLoader[Any]) -> None:
        super().__init__(loader)
        _worker.use_torch()
        self._batch_size = loader.batch_size
        self._worker_init_fn = loader.worker_init_fn
        if loader.prefetch_factor is None or loader.prefetch_factor <= 0:
            raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
        context = loader.multiprocessing_context
        try:
            self._engine = _engine.Engine(
                workers=self._num_workers,
                prefetch_factor=loader.prefetch_factor,
                in_order=loader.in_order,
                limit_bytes=_limit_of(loader),
                context=torch.multiprocessing if context is None else context,
                job_of=self._job_of,
            )
        except _unpicklable.ERRORS as error:
            is_pickles = _unpicklable.name_argument(error, loader) or isinstance(error, pickle.PicklingError)
            if is_pickles and not isinstance(error, RuntimeError):
                warnings.warn(_NOT_PICKLED, stacklevel=2)
            raise
        self._workers = self._engine.processes
        self._reset(loader, first_iter=True)

    def _job_of(self, worker: int) -> _worker.Job:
        return _worker.Job(
            dataset_kind=self._dataset_kind,
            dataset=self._dataset,
            auto_collation=self._auto_collation,
            collate_fn=self._collate_fn,
            drop_last=self._drop_last,
            base_seed=self._base_seed,
            init_fn=self._worker_init_fn,
            worker=worker,
            num_workers=self._num_workers,
        )

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        try:
            self._engine.begin(self._next_index, None, self._timeout or None, self._persistent_workers)
        except _engine.Timeout:
            self._raise_timeout()

    def __next__(self) -> Any:
        # What torch's __next__ does, in one frame, so that warnings name the caller's line, and without opening a
        # profiler's record for each batch, which costs more than many a batch.
        if _internals.profiler_is_on():
            with _internals.profiler.record_function(self._profile_name):
                data = self._next_data()
        else:
            data = self._next_data()
        self._num_yielded += 1
        length = self._IterableDataset_len_called
        if length is not None and self._num_yielded > length:
            warnings.warn(_LONGER.format(self._dataset, length, self._num_yielded), stacklevel=2)
        return data

    def _next_data(self) -> Any:
        try:
            answer = self._engine.next(self._next_index, self._timeout or None, self._batch_size)
        except _engine.Timeout:
            self._raise_timeout()
        if answer is None:
            if not self._persistent_workers:
                self._shutdown_workers()
            raise StopIteration
        status, value = answer
        if status == _core.STATUS_ERROR:
            _reraise(*value)
        return self._deliver(value)

    def _raise_timeout(self) -> NoReturn:
        raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds") from None

    def _deliver(self, data: Any) -> Any:
        self._engine.warn_of_copies(stacklevel=5)
        if self._pin_memory:
            return _internals.pin_memory.pin_memory(data, self._pin_memory_device)
        return data

    def report(self) -> dict[str, Any]:
        """Counters of this iterator's engine: those that headrace.Loader's iterators have. After the epoch's end they
        stay as they were at that moment, unless the workers are persistent."""
        return self._engine.report()

    def _shutdown_workers(self) -> None:
        self._engine.close()

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None:
            engine.close()

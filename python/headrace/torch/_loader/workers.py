# SPDX-License-Identifier: Apache-2.0
"""The iterator of a DataLoader with workers: torch's iterator class on headrace's engine. choose.py makes it."""

from __future__ import annotations

import functools
import itertools
import pickle
import time
import warnings
from typing import Any, NoReturn

from headrace import _core
from headrace._base import exception_text, lookup, raising, signals, tracebacks
from headrace._loader.both import iterable as both_iterable
from headrace._loader.both import ranks
from headrace._loader.both.beginning import note_drawn
from headrace._loader.both.over_workers import OverWorkers
from headrace._loader.trainer import start_errors
from headrace._loader.trainer.iterable_epoch import IterableEpoch
from headrace._tensors import extension
from headrace.sampling._epoch import Epoch
from headrace.torch._batches import early_end, worker
from headrace.torch._device import memory, pinning
from headrace.torch._loader.ahead import Ahead
from headrace.torch._loader.as_any import AsAnyLoader
from headrace.torch._loader.checked import CheckedIterator
from headrace.torch._own import classes, iterators, loaders, workers
from headrace.torch._samplers import iterables
from headrace.torch._state import iterable, past_draws
from headrace.torch._state.beginning import Beginning

# In torch's words, so that users' warning filters match.
_NOT_PICKLED = (
    "Got pickle error when attempting to start a worker Process. "
    "This might be because the worker Process arguments are not picklable. "
    "Python 3.14+ changed the multiprocessing start method in non-Mac POSIX platforms "
    "to 'forkserver', which requires the worker Process arguments to be picklable. "
    "You can also try multiprocessing.set_start_method('fork')."
)
_PICKLES_ERRORS = (TypeError, AttributeError, pickle.PicklingError)  # those that torch takes for errors of pickle


def _error_of(wrapped: Any, note: str) -> BaseException:
    if isinstance(wrapped, raising.Sent):
        wrapped = wrapped.open()
    error = RuntimeError(wrapped) if isinstance(wrapped, str) else workers.remade(wrapped)
    exception_text.add_note(error, note)
    return error


@tracebacks.raises_what_was_sent
def _reraise(wrapped: Any, note: str = "") -> NoReturn:
    # Without signals, because the code of the exception's class may raise anything: the exception of a signal's handler
    # would be taken for that.
    error = signals.without_signals(functools.partial(_error_of, wrapped, note))
    try:
        raise error
    finally:
        del error  # this frame is in its traceback: a cycle would keep the iterator and its workers


def _tasks_of_iterable(index_sampler: Any, iterator: Any) -> _core.Tasks:
    """Returns the Tasks of an iterable dataset, whose indices are None without end. iterator: that of the sampler."""
    sizes = iterables.sizes_of(index_sampler)
    if sizes is None:
        return _core.Tasks(iterator)
    drop_last = sizes is not index_sampler and bool(sizes)
    return _core.Tasks(itertools.repeat(None), sizes, drop_last)


class Iterator(CheckedIterator, OverWorkers, _core.Iterator, classes.BaseIterator):  # type: ignore[misc]
    """Iterates over a loader with workers: for one epoch, or for several with persistent workers."""

    def __init__(self, loader: classes.DataLoader[Any]) -> None:
        self._began_ns = time.monotonic_ns()
        any_loader = AsAnyLoader(loader)
        self._is_iterable = any_loader.is_iterable
        beginning = None if self._is_iterable else Beginning(any_loader)
        iterable_epoch = both_iterable.begin(any_loader) if beginning is None else None
        with iterable.generators_kept(loader, iterable_epoch):
            seen = loader if beginning is None else beginning.shown()
            loaders.called_by_torch(super().__init__, seen)
        if beginning is not None:
            beginning.iterator_was_made(self)
        if iterable_epoch is not None and iterable_epoch.base_seed is not None:
            iterators.set_base_seed(self, iterable_epoch.base_seed)
        extension.use_torch()
        self._batch_size = lookup.attribute(loader, "batch_size")  # fastai's replacement of a loader has none
        self._wait_s = self._timeout if self._timeout > 0 else None  # torch also waits if it is not a number
        self._keeps_workers, self._is_batched = self._persistent_workers, self._auto_collation
        self._worker_init_fn = loader.worker_init_fn
        if loader.prefetch_factor <= 0:  # type: ignore[operator]  # None: torch compares too
            raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
        settings = any_loader.settings()
        self._dataset = self._prepare_start(any_loader, settings, settings.seed_or(self._base_seed))
        self._memory = memory.memory_of(loader, settings, self._num_workers, loader.prefetch_factor)
        self._start_workers(any_loader, iterable_epoch)
        self._workers = self._engine.processes
        self._ahead = self._new_ahead()
        self._keeper = self._engine.keeper if self._ahead is None else self._ahead.results
        self._loader = self._engine.keeper
        self._begin(any_loader, beginning, iterable_epoch, is_first=True)

    def _start_workers(self, any_loader: AsAnyLoader, iterable_epoch: IterableEpoch | None) -> None:
        """Starts the workers. If an object cannot be pickled, torch's warning comes before the exception."""
        number = any_loader.kept.position.number if iterable_epoch is None else iterable_epoch.number
        places = None if iterable_epoch is None else iterable_epoch.places
        try:
            self._open_engine(any_loader, number, places, dict if self._memory is None else self._memory.for_engine)
        except _PICKLES_ERRORS as error:
            if start_errors.is_explained(error) or isinstance(error, pickle.PicklingError):
                loaders.called_by_torch(warnings.warn, _NOT_PICKLED)
            raise

    def _new_ahead(self) -> Ahead | None:
        """Returns what works with batches before the loop asks for them, or None if nothing does."""
        if self._memory is not None:
            return Ahead(self._engine, self._show, self._memory.sender)
        return Ahead(self._engine, self._show, pinning.Pinner(self._pin_memory_device)) if self._pin_memory else None

    @property
    def dataset(self) -> Any:
        """The dataset of the workers, as this process has it."""
        return self._dataset

    def name_sampler(self) -> str:
        """Returns the argument that the indices come from, and its class, for messages."""
        sampler = self._index_sampler
        is_own = type(sampler) is not classes.BatchSampler  # torch's BatchSampler is around the user's sampler
        inner = sampler if is_own else sampler.sampler
        return start_errors.name_sampler(inner if is_own and self._auto_collation else None, inner)

    def _batch_maker_of(self, number: int) -> worker.BatchMaker:
        return worker.BatchMaker(
            dataset_kind=self._dataset_kind,
            dataset=self._dataset,
            auto_collation=self._auto_collation,
            collate_fn=self._collate_fn,
            drop_last=self._drop_last,
            base_seed=self._base_seed,
            init_fn=self._worker_init_fn,
            worker=number,
            num_workers=int(self._num_workers),
            settings=self._settings,
            seed=self._seed,
        )

    # ---- an epoch ----

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Begins another epoch. torch's loader calls it if its workers persist."""
        if self._engine.is_closed:
            # Many programs call _shutdown_workers although the workers are persistent.
            Iterator.__init__(self, loader)
            return
        self._began_ns = time.monotonic_ns()
        any_loader = AsAnyLoader(loader)
        self._begin(any_loader, None if self._is_iterable else Beginning(any_loader), None, is_first=False)

    def _begin(
        self, any_loader: AsAnyLoader, beginning: Beginning | None, iterable_epoch: IterableEpoch | None, is_first: bool
    ) -> None:
        if beginning is not None:
            beginning.sampler_will_be_iterated()
        if beginning is None or not beginning.is_continued:
            super()._reset(any_loader.loader, is_first)
        self._num_yielded = self._warned_at = 0
        if beginning is not None:
            self._begin_indices(any_loader, beginning)
        else:
            self._begin_samples(any_loader, iterable_epoch)

    def _begin_indices(self, any_loader: AsAnyLoader, beginning: Beginning) -> None:
        epoch = beginning.epoch(self)
        self.tasks = epoch.tasks
        self.watch = ranks.watch_of(any_loader, epoch)
        self._begin_engine(epoch.number, epoch)
        note_drawn(any_loader.kept.position, epoch, self.watch, past_draws.note)
        self.epoch = epoch
        beginning.has_begun(epoch)
        self._show.begin(epoch.number, self._began_ns)

    def _begin_samples(self, any_loader: AsAnyLoader, begun: IterableEpoch | None) -> None:
        """begun: the first epoch of the workers, or None."""
        if begun is None:
            begun = both_iterable.begin(any_loader)
            self._engine.use_places(begun.places)
        self.tasks = _tasks_of_iterable(self._index_sampler, self._sampler_iter)
        self._begin_engine(begun.number, None)
        engine, self.epoch = self._engine, None
        iterable.start(any_loader, self, begun, lambda: engine.is_over)
        self._show.begin(begun.number, self._began_ns)

    def _begin_engine(self, number: int, epoch: Epoch | None) -> None:
        if self._ahead is not None:
            self._answered = max(self._answered, self._ahead.begin_epoch())
        self._task_numbers = {}
        self._begin_tasks(number, None if epoch is None else epoch.count_draws)

    # ---- a batch ----

    def reraise(self, wrapped: Any, note: str) -> NoReturn:
        """Raises the exception that a worker sent, with a note."""
        _reraise(wrapped, note)

    def _next_data(self) -> Any:
        try:
            return self._next_value()
        except StopIteration as error:
            if not self._engine.is_over:
                early_end.warn_of_worker(self, error, self._engine.drawn)
            raise

    def _next_value(self) -> Any:
        self._engine.warn_of_copies(stacklevel=5)
        value = self._next_answer() if self._ahead is None else self._ahead.next(self)
        if type(value) is classes.ExceptionWrapper:  # a dataset or collate_fn returned it, or pinning failed
            self._engine.keeper.fail()
            _reraise(value)
        return value

    def _next_answer(self) -> Any:
        return self._engine.answer(self, self._wait(), self._batch_size)

    def _timeout_error(self) -> BaseException:
        return RuntimeError(f"DataLoader timed out after {self._timeout} seconds")

    def close(self) -> None:
        """Ends the workers now. Batches that the program keeps stay readable."""
        super().close()
        if self._ahead is not None:
            self._ahead.close()

    def _shutdown_workers(self) -> None:
        """Does what close does. torch's loader and other programs call it."""
        self.close()

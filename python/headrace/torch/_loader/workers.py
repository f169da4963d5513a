# SPDX-License-Identifier: Apache-2.0
"""The iterator of a DataLoader with workers: torch's iterator class on headrace's engine. choose.py makes it."""

from __future__ import annotations

import collections
import functools
import itertools
import pickle
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import torch

from headrace import _core
from headrace._base import exception_text, lookup, raising, signals
from headrace._loader.trainer import engine as _engine
from headrace._loader.trainer import restart_state, shown, start_errors
from headrace._samples import own_generators, refill
from headrace._tensors import extension
from headrace.torch._batches import early_end
from headrace.torch._batches import worker as _worker
from headrace.torch._device import memory, pinning
from headrace.torch._loader import checked, options
from headrace.torch._own import classes, iterators, loaders, table
from headrace.torch._own import workers as _workers
from headrace.torch._ranks import agree
from headrace.torch._state import beginning as _beginning
from headrace.torch._state import iterable

# In torch's words, so that users' warning filters match.
_NOT_PICKLED = (
    "Got pickle error when attempting to start a worker Process. "
    "This might be because the worker Process arguments are not picklable. "
    "Python 3.14+ changed the multiprocessing start method in non-Mac POSIX platforms "
    "to 'forkserver', which requires the worker Process arguments to be picklable. "
    "You can also try multiprocessing.set_start_method('fork')."
)
_PICKLES_ERRORS = (TypeError, AttributeError, pickle.PicklingError)  # those that torch takes for errors of pickle
_ExceptionWrapper = classes.ExceptionWrapper


def _error_of(wrapped: Any, note: str) -> BaseException:
    if isinstance(wrapped, raising.Sent):
        wrapped = wrapped.open()
    error = RuntimeError(wrapped) if isinstance(wrapped, str) else _workers.remade(wrapped)
    exception_text.add_note(error, note)
    return error


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
    is_batched = type(index_sampler) is classes.BatchSampler
    inner = index_sampler.sampler if is_batched else index_sampler
    if type(inner) is not classes.InfiniteConstantSampler:
        return _core.Tasks(iterator)
    size = index_sampler.batch_size if is_batched else 0
    return _core.Tasks(itertools.repeat(None), size, is_batched and bool(index_sampler.drop_last))


class _Ahead(NamedTuple):
    """A batch that arrived while the consumer was busy, and that the pinning thread has: its number for the thread, and
    its number for the engine."""

    number: int
    serial: int


class Iterator(checked.CheckedIterator, _core.Iterator, classes.BaseIterator):  # type: ignore[misc]
    """Iterates over a loader with workers: for one epoch, or for several with persistent workers."""

    _is_from_signal = staticmethod(signals.is_from_signal)

    def __init__(self, loader: classes.DataLoader[Any]) -> None:
        self._began_ns = time.monotonic_ns()
        self._is_iterable = loaders.is_iterable(loader)
        self._beginning = None if self._is_iterable else _beginning.Beginning(loader)
        self._iterable_epoch = iterable.begin(loader) if self._is_iterable else None
        with iterable.generators_kept(loader, self._iterable_epoch):
            seen = loader if self._beginning is None else self._beginning.shown()
            loaders.called_by_torch(super().__init__, seen)
        if self._beginning is not None:
            self._beginning.iterator_was_made(self)
        if self._iterable_epoch is not None and self._iterable_epoch.base_seed is not None:
            iterators.set_base_seed(self, self._iterable_epoch.base_seed)
        extension.use_torch()
        self._batch_size = lookup.attribute(loader, "batch_size")  # fastai's replacement of a loader has none
        self._wait_s = self._timeout if self._timeout > 0 else None  # torch also waits if it is not a number
        self._worker_init_fn = loader.worker_init_fn
        if loader.prefetch_factor <= 0:  # type: ignore[operator]  # None: torch compares too
            raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
        self._settings = table.settings_of(loader, self._is_iterable)
        self._seed = self._settings.seed_or(self._base_seed)
        self._freeze_dataset(loader)
        self._dataset = options.dataset_of(loader, self._settings)
        if self._settings.rng == "sample":
            own_generators.warn_of_unreachable(own_generators.roots_of(loader.dataset, self._collate_fn))
        self._show = options.show_of(loader)
        self._tuning = options.tuning_of(loader, self._settings)
        self._memory = memory.memory_of(loader, self._settings, self._num_workers, loader.prefetch_factor)
        self._sender = None if self._memory is None else self._memory.sender
        self._engine = self._start_engine(loader)
        self._workers = self._engine.processes
        options.engines.set(loader, self._engine)
        self._pinner: Any = self._sender
        if self._pin_memory and self._sender is None:
            self._pinner = pinning.Pinner(self._pin_memory_device)
        # Answers that arrived while the consumer was busy. The pinning thread, or the sender, has the batches.
        self._ahead: collections.deque[_Ahead] = collections.deque()
        self._keeper = self._engine.keeper if self._pinner is None else self._pinner.results
        self._loader = self._engine.keeper
        self._reset(loader, first_iter=True)

    def _freeze_dataset(self, loader: Any) -> None:
        if self._settings.freeze:
            from headrace.frozen._attributes import Freezer  # imported only if it is needed

            options.freezers.get_or_make(loader, Freezer).freeze(self._dataset)

    def _start_engine(self, loader: Any) -> _engine.Engine:
        """Starts the workers. If an object cannot be pickled, torch's warning comes before the exception."""
        self._is_repaired = False
        method = start_errors.start_method_of(loader.multiprocessing_context)
        start = functools.partial(self._start, loader)
        try:
            parts = start_errors.parts_of_loader(loader)
            return start_errors.started(start, parts, method, self._settings.repair)
        except _PICKLES_ERRORS as error:
            if start_errors.is_explained(error) or isinstance(error, pickle.PicklingError):
                loaders.called_by_torch(warnings.warn, _NOT_PICKLED)
            raise

    def _start(self, loader: Any, is_repaired: bool) -> _engine.Engine:
        self._is_repaired = is_repaired
        context, of_iterable = loader.multiprocessing_context, self._iterable_epoch
        return _engine.Engine(
            self,
            workers=self._num_workers,
            prefetch_factor=loader.prefetch_factor,
            in_order=loaders.is_in_order(loader),
            limit_bytes=self._settings.limit_bytes,
            context=torch.multiprocessing if context is None else context,
            settings=self._settings,
            restart_mode=restart_state.restart_mode_of(
                self._dataset, self._dataset_kind == classes.DatasetKind.Iterable
            ),
            seed=self._seed,
            show=self._show,
            sample_deaths=options.blames.get_or_make(loader, restart_state.SampleDeaths),
            epoch=table.position_of(loader).number if of_iterable is None else of_iterable.number,
            places=None if of_iterable is None else of_iterable.places,
            tuning=self._tuning,
            **({} if self._memory is None else self._memory.for_engine()),
        )

    @property
    def dataset(self) -> Any:
        return self._dataset

    def name_sampler(self) -> str:
        sampler = self._index_sampler
        is_own = type(sampler) is not classes.BatchSampler  # torch's BatchSampler is around the user's sampler
        inner = sampler if is_own else sampler.sampler
        return start_errors.name_sampler(inner if is_own and self._auto_collation else None, inner)

    def batch_maker_of(self, worker: int) -> _worker.BatchMaker:
        maker = self._batch_maker_of(worker)
        return start_errors.repaired_pickle(maker) if self._is_repaired else maker

    def _batch_maker_of(self, worker: int) -> _worker.BatchMaker:
        return _worker.BatchMaker(
            dataset_kind=self._dataset_kind,
            dataset=self._dataset,
            auto_collation=self._auto_collation,
            collate_fn=self._collate_fn,
            drop_last=self._drop_last,
            base_seed=self._base_seed,
            init_fn=self._worker_init_fn,
            worker=worker,
            num_workers=int(self._num_workers),
            settings=self._settings,
            seed=self._seed,
        )

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        began_ns = self._began_ns if first_iter else time.monotonic_ns()
        if not first_iter and self._engine.is_closed:
            # Many programs call _shutdown_workers although the workers are persistent.
            Iterator.__init__(self, loader)
            return
        beginning, self._beginning = self._beginning, None  # kept, it would hold the loader, which holds this iterator
        if beginning is None and not self._is_iterable:
            beginning = _beginning.Beginning(loader)
        if beginning is not None:
            beginning.sampler_will_be_iterated()
        if beginning is None or not beginning.is_continued:
            super()._reset(loader, first_iter)
        self._num_yielded = self._warned_at = 0
        begun = None
        if beginning is not None:
            begun = beginning.epoch(self)
            self.tasks, epoch = begun.tasks, begun.number
            self.watch = agree.watch_of(loader, begun)
        else:
            if self._iterable_epoch is None or not first_iter:
                self._iterable_epoch = iterable.begin(loader)
                self._engine.use_places(self._iterable_epoch.places)
            self.tasks = _tasks_of_iterable(self._index_sampler, self._sampler_iter)
            epoch = self._iterable_epoch.number
        if self._pinner is not None:
            self._answered = max(self._answered, self._pinner.drop_all())
        if self._sender is not None:
            self._sender.begin_epoch()
        self._ahead.clear()
        self._task_numbers = {}
        count_draws = None if begun is None else begun.count_draws
        self.wrap = refill.wrap_of(self._settings, self.tasks, self._auto_collation, self._seed, epoch, count_draws)
        try:
            self._engine.begin(self, epoch, self._wait_s, self._persistent_workers)
        except _engine.Timeout as timeout:
            self._raise_timeout(timeout)
        if begun is not None:
            begun.indices.was_drawn()
            _beginning.warn_of_same_order(table.position_of(loader), begun)
        if self.watch is not None:
            self.watch.begin()
        self.epoch = begun
        if beginning is not None and begun is not None:
            beginning.has_begun(begun)
        if self._iterable_epoch is not None:
            engine = self._engine
            iterable.start(loader, self, self._iterable_epoch, lambda: engine.is_over)
        self._show.begin(epoch, began_ns)

    def reraise(self, wrapped: Any, note: str) -> NoReturn:
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
        value = self._next_answer() if self._pinner is None else self._next_pinned()
        if type(value) is _ExceptionWrapper:  # a dataset or collate_fn returned it, or pinning failed
            self._engine.keeper.fail()
            _reraise(value)
        return value

    def _next_answer(self) -> Any:
        return self._engine.answer(self, self._wait(), self._batch_size)

    def _wait(self) -> int:
        try:
            status = self._engine.next(self, self._wait_s)
        except _engine.Timeout as timeout:
            self._raise_timeout(timeout)
        if status is None:
            if not self._persistent_workers:
                self._shutdown_workers()
            shown.end_epoch(self._show)
            self._has_ended()
            raise StopIteration
        return status

    def _next_pinned(self) -> Any:
        if self._sender is not None:
            self._sender.begin()
        while self._ahead and self._ahead[0].number < self._answered:
            self._ahead.popleft()  # the consumer has it
        if not self._ahead:
            self._put_ahead(self._wait())
        first = self._ahead[0]
        self._engine.submit_owed(self, keep=len(self._ahead) - 1 + self._is_behind())
        self._show.pin_begin()
        value = self._pinner.take(first.number)
        self._show.pin_end()
        self._look_ahead()
        return value

    def _is_behind(self) -> bool:
        """Returns True if the last answer is an exception, which is not among the batches ahead."""
        return self._engine.has_answer and self._ahead[-1].serial != self._engine.serial

    def _look_ahead(self) -> None:
        """Gives the batches that have arrived to the pinning thread, which works while the consumer does, or sends some
        to the device. Stops at an exception, which is raised in its turn."""
        while self._may_look_ahead() and (status := self._engine.next_if_ready()) is not None:
            try:
                self._put_ahead(status)
            except Exception as error:
                if signals.is_from_signal(error):
                    raise
                if self._sender is not None and self._sender.has_failed:
                    self._sender.stop_ahead(error)
                return

    def _may_look_ahead(self) -> bool:
        return self._sender is None or self._sender.may_send_ahead(len(self._ahead) - 1)

    def _put_ahead(self, status: int) -> None:
        """Adds the last answer to the batches that are ahead. If a signal interrupts it, the next call continues where
        this one stopped, because the answer has a number and stays until it is dropped."""
        serial = self._engine.serial
        if not self._ahead or self._ahead[-1].serial != serial:
            number = self._answered + len(self._ahead)
            batch = self._engine.answer(self, status, self._batch_size)
            if self._sender is None:
                self._pinner.put(number, batch)
            else:
                self._sender.put(number, batch, self._engine.has_others)
            self._task_numbers[number] = self._engine.task
            self._ahead.append(_Ahead(number, serial))
        self._engine.drop()

    def _raise_timeout(self, timeout: _engine.Timeout) -> NoReturn:
        error = RuntimeError(f"DataLoader timed out after {self._timeout} seconds")
        exception_text.add_note(error, f"headrace: {timeout}")
        raise error from None

    @property
    def has_lost_workers(self) -> bool:
        """True if the workers have been ended, or if one has died and was not replaced."""
        return self._engine.has_lost_workers

    def report(self) -> dict[str, Any]:
        """Returns counters: see headrace.Loader.report."""
        return self._engine.report()

    def _shutdown_workers(self) -> None:
        self._engine.close()
        if self._pinner is not None and self._sender is None:
            self._pinner.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None and not is_finalizing():  # at exit it is closed already, and modules are being cleared
            with signals.raised_later():
                engine.close()

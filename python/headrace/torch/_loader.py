# SPDX-License-Identifier: Apache-2.0
"""headrace.torch.DataLoader: torch's loader on headrace's engine."""

from __future__ import annotations

import collections
import functools
import operator
import pickle
import sys
import traceback
import warnings
import weakref
from collections.abc import Callable
from typing import Any, Generic, NoReturn, TypeVar

import torch
import torch.utils.data

from headrace import _core, _diagnosis, _engine, _forkserver, _here, _interrupt, _notes, _options, _restart
from headrace.torch import _base, _early_end, _internals, _pinning, _worker

_T_co = TypeVar("_T_co", covariant=True)
_Known = TypeVar("_Known")
installed_options: dict[str, Any] = {}  # install()'s, for loaders that have none of their own
_PRELOAD = ["numpy.random", "headrace.torch._worker"]
# What accelerate takes away, and how to keep it.
_ENGINE_LOST = "which uses torch's engine; call headrace.torch.install() to keep headrace's"
_OPTIONS_LOST = "which has no {}; call headrace.torch.install({}) to set that for such loaders"
# In torch's words: filters that users have set keep matching.
_NOT_PICKLED = (
    "Got pickle error when attempting to start a worker Process. "
    "This might be because the worker Process arguments are not picklable. "
    "Python 3.14+ changed the multiprocessing start method in non-Mac POSIX platforms "
    "to 'forkserver', which requires the worker Process arguments to be picklable. "
    "You can also try multiprocessing.set_start_method('fork')."
)
_PICKLES_ERRORS = (TypeError, AttributeError, pickle.PicklingError)  # those that torch takes for pickle's
_ExceptionWrapper = _internals.ExceptionWrapper
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


class DataLoader(_base.DataLoader[_T_co]):
    """torch.utils.data.DataLoader, with workers that hand batches over without copying them.

    Takes torch's arguments and gives torch's batches, in torch's order, with torch's random numbers and exceptions.
    With num_workers=0 it is torch's loader, and of headrace's own options only rng, seed and on_bad_sample have an
    effect.

    Args (headrace's own, keywords):
        arena_limit: most bytes of memory that workers and held batches share; None: what install() was given, else half
            of what is to spare. A batch that does not fit raises MemoryError. At least 64 KiB. The attribute may be set
            later, for the next iteration; not while persistent workers run.
        max_restarts: dead workers that are replaced in the life of an iterator, their batches made again. 0: a dead
            worker raises RuntimeError, as with torch. An iterable data set is continued by its state_dict and
            load_state_dict, or from its start if it has a true attribute `replayable`; else it raises. A forked worker
            that hangs before it could begin is always replaced, and not counted here. A worker that ends before its
            first task in the same way as the one that it replaced is not replaced again.
        rng: "worker": a worker's random numbers run on from sample to sample, as with torch; "sample": random, numpy
            and torch are seeded anew for each sample, by seed, epoch and index, so that it is the same whichever worker
            makes it. The data set's __getitem__ is called for each sample then, not its __getitems__.
        seed: of rng="sample" and of refilling; None: the seed that torch draws from `generator` for an iterator.
        on_bad_sample: what becomes of a sample that raises: "raise"; "skip": its batch is smaller; "refill": another,
            drawn by the seed, takes its place; or callable(index, exception) that gives one of these words. The number
            of batches stays the same. It concerns exceptions of class Exception: others, such as SystemExit, end the
            run, with any number of workers. Bad samples are listed at the epoch's end, and in report().
        stall_after: seconds without progress, while the loop waits, after which a worker's stacks are shown.
        on_stall: then "wait" on, "raise", or "restart" the worker. One that is stopped or in a debugger is only named
            with the first two.
        shutdown_timeout: seconds after which closing has killed every worker, whatever it does, and returns.
        freeze: replace the large containers of the data set by views of one image that all processes share, in place,
            before the workers start: see headrace.freeze_attributes.
        repair: "auto": what keeps the workers from being started because it does not pickle is made anew in them where
            it is known how (locks, loggers, views, lambdas, files that are read); a warning lists it. None: it raises.
    """

    def _warm_up(self) -> None:
        if _uses_engine(self):
            _forkserver.warm_up(self.multiprocessing_context, _PRELOAD)

    def _get_iterator(self) -> Any:
        return get_iterator(self)

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch, which rng="sample" and refilling use; else iterations are counted."""
        _epochs.set(self, operator.index(epoch))

    def report(self) -> dict[str, Any]:
        """Counters of the newest iterator: see headrace.Loader.report. RuntimeError before the first one."""
        engine = _engines.get(self)
        if engine is None:
            raise RuntimeError(_engine.NO_REPORT)
        return engine.report()

    @functools.cached_property  # not a property: who sets it to True, to keep accelerate away, still can
    def _is_accelerate_prepared(self) -> bool:
        """accelerate asks for it, and nobody else does, before it rebuilds a loader."""
        if _uses_engine(self) and not _engine.why_not():
            if _internals.factories()[0] is not get_iterator:
                _warn_of_accelerate(_ENGINE_LOST)
            elif lost := [name for name in _options.DEFAULTS if self._loses(name)]:
                _warn_of_accelerate(_OPTIONS_LOST.format(", ".join(lost), ", ".join(f"{name}=..." for name in lost)))
        return False

    def _loses(self, name: str) -> bool:
        own = _options.own(self, name, _options.DEFAULTS[name])
        return _options.is_given(name, own) and name not in installed_options


def _uses_engine(loader: torch.utils.data.DataLoader[Any]) -> bool:
    return loader.num_workers > 0 and not isinstance(loader.dataset, _internals.DataPipes)


class _OfLoaders(Generic[_Known]):
    """Something of each loader that lives, by its identity: a subclass may compare loaders, and have no hash. It does
    not stand in the loader: torch's own have iterators of headrace's too, and copies start anew."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], _Known]] = {}

    def get(self, loader: Any) -> _Known | None:
        found = self._known.get(id(loader))
        return None if found is None else found[1]

    def set(self, loader: Any, value: _Known) -> None:
        key, known = id(loader), self._known
        # A callback in Python would lose a Ctrl-C that is due as it begins.
        known[key] = (weakref.ref(loader, functools.partial(known.pop, key)), value)


_epochs: _OfLoaders[int] = _OfLoaders()  # the number of its next epoch
_engines: _OfLoaders[_engine.Engine | _here.Here] = _OfLoaders()  # its newest
_blames: _OfLoaders[_restart.Blame] = _OfLoaders()
_freezers: _OfLoaders[Any] = _OfLoaders()


def _next_epoch(loader: Any) -> int:
    epoch = _epochs.get(loader) or 0
    _epochs.set(loader, epoch + 1)
    return epoch


def _of_loader(known: _OfLoaders[_Known], loader: Any, make: Callable[[], _Known]) -> _Known:
    found = known.get(loader)
    if found is None:
        found = make()
        known.set(loader, found)
    return found


def _policy_of(loader: Any) -> _options.Policy:
    is_iterable = loader._dataset_kind == _internals.DatasetKind.Iterable
    needs_indices = ("rng", "on_bad_sample") if is_iterable else ()
    others = {name: value for name, value in installed_options.items() if name not in needs_indices}
    if not isinstance(loader, DataLoader):  # torch's: what its attributes are called is its class's business
        return _options.Policy.of(None, is_iterable, others)
    with _options.explained_as_attributes():
        return _options.Policy.of(loader, is_iterable, others)


def _limit_of(loader: torch.utils.data.DataLoader[Any]) -> int:
    own = getattr(loader, "arena_limit", None)
    return _options.check_limit(installed_options.get("arena_limit") if own is None else own)


def _seed_of(loader: Any, drawn: int) -> int:
    """Of samples' own random numbers; `drawn` is what torch drew for this iterator."""
    others = installed_options.get("seed")
    own = _options.own(loader, "seed", others) if isinstance(loader, DataLoader) else others
    with _options.explained_as_attributes():
        return drawn if own is None else _options.check_seed(own)


def _iterator_here(loader: torch.utils.data.DataLoader[Any]) -> Any:
    if not isinstance(loader.dataset, _internals.DataPipes):
        policy = _policy_of(loader)
        if policy.is_per_sample:
            return _IteratorHere(loader, policy)
    iterator = _internals.torchs_iterator(loader)
    if type(iterator) is _internals.SingleProcessIterator:
        iterator.__class__ = _PlainIteratorHere  # and not made here: another tool may have wrapped torch's method
    return iterator


class _PlainIteratorHere(_internals.SingleProcessIterator):  # type: ignore[misc]
    """torch's own for num_workers=0, with a warning if StopIteration ends an epoch early."""

    def _next_data(self) -> Any:
        try:
            return super()._next_data()
        except StopIteration as error:
            _early_end.warn_here(self, error)
            raise


class _IteratorHere(_PlainIteratorHere):
    """The same, with samples made one by one."""

    def __init__(self, loader: torch.utils.data.DataLoader[Any], policy: _options.Policy) -> None:
        super().__init__(loader)
        seed, epoch = _seed_of(loader, self._base_seed), _next_epoch(loader)
        self._here = _here.Here(self._dataset, policy, seed, epoch, self._auto_collation, self._collate_fn)
        self._dataset_fetcher = self._here
        _engines.set(loader, self._here)

    def _next_data(self) -> Any:
        try:
            return super()._next_data()
        except StopIteration:
            self._here.end_epoch()
            raise


def get_iterator(loader: torch.utils.data.DataLoader[Any]) -> Any:
    """The iterator of any of torch's loaders: the engine's where it can run, else torch's."""
    if not _uses_engine(loader):
        return _iterator_here(loader)
    if reason := _engine.why_not():
        _warn_of_torchs(reason)
        return _internals.torchs_iterator(loader)
    _internals.called_by_torch(loader.check_worker_number_rationality)
    return _iterator_of_workers(loader)


def new_iterator(cls: type, *arguments: Any, **named: Any) -> Any:
    """What torch's iterator class for workers makes while headrace is installed. A class derived from it has arguments
    of its own, and stays what it is."""
    if cls is not _internals.MultiProcessingIterator:
        return _internals.torchs_new(cls)
    return _new_iterator(*arguments, **named)


def _new_iterator(loader: torch.utils.data.DataLoader[Any]) -> Any:
    if not _uses_engine(loader) or _engine.why_not():
        return _internals.torchs_new(_internals.MultiProcessingIterator)
    return _iterator_of_workers(loader)


def _iterator_of_workers(loader: torch.utils.data.DataLoader[Any]) -> Any:
    _forkserver.warm_up(loader.multiprocessing_context, _PRELOAD)
    return _Iterator(loader)


def _reraise(wrapped: Any, note: str) -> None:
    try:
        if isinstance(wrapped, str):
            raise RuntimeError(wrapped)
        wrapped.reraise()
    except Exception as error:
        _notes.add_note(error, note)
        if error.__traceback__ is not None:  # torch's frame below holds the error: a circle, with the loop in it
            traceback.clear_frames(error.__traceback__.tb_next)
        raise


class _Iterator(_internals.BaseIterator):  # type: ignore[misc]
    """One pass over a loader with workers, or with persistent workers several."""

    def __init__(self, loader: torch.utils.data.DataLoader[Any]) -> None:
        _internals.called_by_torch(super().__init__, loader)
        _worker.use_torch()
        self._batch_size = getattr(loader, "batch_size", None)  # fastai's stand-in for a loader has none
        self._wait_s = self._timeout if self._timeout > 0 else None  # with what is not a number, too, torch waits
        self._worker_init_fn = loader.worker_init_fn
        if loader.prefetch_factor <= 0:  # type: ignore[operator]  # None: torch compares too
            raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
        self._policy = _policy_of(loader)
        self._seed = _seed_of(loader, self._base_seed)
        if self._policy.freeze:
            from headrace.store._attributes import Freezer  # only now: few ask for it

            _of_loader(_freezers, loader, Freezer).freeze(self._dataset)
        self._is_repaired = False
        method = _diagnosis.start_method_of(loader.multiprocessing_context)
        start = functools.partial(self._start, loader)
        try:
            parts = _diagnosis.parts_of_loader(loader)
            self._engine = _diagnosis.started(start, parts, method, self._policy.repair)
        except _PICKLES_ERRORS as error:
            if _diagnosis.is_explained(error) or isinstance(error, pickle.PicklingError):
                _internals.called_by_torch(warnings.warn, _NOT_PICKLED)
            raise
        self._workers = self._engine.processes
        _engines.set(loader, self._engine)
        self._pinner: Any = _pinning.Pinner(self._pin_memory_device) if self._pin_memory else None
        self._reset(loader, first_iter=True)

    def _start(self, loader: Any, is_repaired: bool) -> _engine.Engine:
        self._is_repaired = is_repaired
        context = loader.multiprocessing_context
        return _engine.Engine(
            self,
            workers=self._num_workers,
            prefetch_factor=loader.prefetch_factor,
            in_order=loader.in_order,
            limit_bytes=_limit_of(loader),
            context=torch.multiprocessing if context is None else context,
            policy=self._policy,
            way=_restart.way_of(self._dataset, self._dataset_kind == _internals.DatasetKind.Iterable),
            seed=self._seed,
            blame=_of_loader(_blames, loader, _restart.Blame),
            epoch=_epochs.get(loader) or 0,
        )

    def draw(self) -> Any:
        return self._next_index()

    def name_sampler(self) -> str:
        sampler = self._index_sampler
        is_own = type(sampler) is not torch.utils.data.BatchSampler  # torch's, around what is of interest
        inner = sampler if is_own else sampler.sampler
        return _diagnosis.name_sampler(inner if is_own and self._auto_collation else None, inner)

    def job_of(self, worker: int) -> _worker.Job:
        job = self._job_of(worker)
        return _diagnosis.parcel(job) if self._is_repaired else job

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
            policy=self._policy,
            seed=self._seed,
        )

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if not first_iter and self._engine.is_closed:  # many programs call _shutdown_workers of persistent workers
            _Iterator.__init__(self, loader)
            return
        super()._reset(loader, first_iter)
        # Answers that came while the consumer was busy; a batch's value is with the pinning thread.
        self._ahead: collections.deque[Any] = collections.deque()
        self._is_submitted = False  # the task that is due for the first of them
        if self._pinner is not None:
            self._pinner.drop_all()
        try:
            self._engine.begin(self, _next_epoch(loader), self._wait_s, self._persistent_workers)
        except _engine.Timeout:
            self._raise_timeout()

    def __next__(self) -> Any:
        # What torch's __next__ does, in one frame, so that warnings name the caller's line, and without opening a
        # profiler's record for each batch, which costs more than many a batch.
        try:
            if _internals.profiler_is_on():
                with _internals.profiler.record_function(self._profile_name):
                    data = self._next_data()
            else:
                data = self._next_data()
        except StopIteration as error:
            if not self._engine.is_over:
                _early_end.warn_of_worker(self, error, self._engine.drawn)
            raise
        self._num_yielded += 1
        length = self._IterableDataset_len_called
        if length is not None and self._num_yielded > length:
            warnings.warn(_LONGER.format(self._dataset, length, self._num_yielded), stacklevel=2)
        return data

    def _next_data(self) -> Any:
        self._engine.warn_of_copies(stacklevel=4)  # first: where warnings are errors, no batch is lost
        answer = self._next_pinned() if self._pin_memory else self._next_answer()
        status, value = answer
        if status == _core.STATUS_ERROR:
            _reraise(*value)
        if type(value) is _ExceptionWrapper:
            value.reraise()  # as torch does with one that a data set or collate_fn gives
        return value

    def _next_answer(self) -> Any:
        try:
            answer = self._engine.next(self, self._wait_s, self._batch_size)
        except _engine.Timeout:
            self._raise_timeout()
        if answer is None:
            if not self._persistent_workers:
                self._shutdown_workers()
            raise StopIteration
        return answer

    def _next_pinned(self) -> Any:
        """What a sampler or a signal's handler raises here leaves the answer to the next call, its task submitted."""
        if not self._ahead:
            self._put_ahead(self._next_answer())
        elif not self._is_submitted:
            self._is_submitted = True
            self._engine.submit_owed(self)
        self._is_submitted = True
        status, value = self._ahead[0]
        if status == _core.STATUS_BATCH:
            value = self._pinner.take()
        self._ahead.popleft()
        self._is_submitted = False
        if status is None:
            raise value
        if status == _core.STATUS_BATCH and isinstance(value, _internals.ExceptionWrapper):
            value.reraise()
        self._look_ahead()
        return status, value

    def _look_ahead(self) -> None:
        """Hands what has arrived to the pinning thread, which works while the consumer does."""
        try:
            while (answer := self._engine.next_if_ready(self._batch_size)) is not None:
                self._put_ahead(answer)
        except Exception as error:  # due when this batch's turn comes
            self._ahead.append((None, error))

    def _put_ahead(self, answer: Any) -> None:
        if answer[0] == _core.STATUS_BATCH:
            self._pinner.put(answer[1])
            answer = (_core.STATUS_BATCH, None)
        self._ahead.append(answer)

    def _raise_timeout(self) -> NoReturn:
        raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds") from None

    def report(self) -> dict[str, Any]:
        """Counters: see headrace.Loader.report."""
        return self._engine.report()

    def _shutdown_workers(self) -> None:
        self._engine.close()
        if self._pinner is not None:
            self._pinner.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None and not is_finalizing():  # at the exit it was closed, and modules are being emptied
            with _interrupt.raised_later():
                engine.close()

# SPDX-License-Identifier: Apache-2.0
"""headrace.torch.DataLoader: torch's loader on headrace's engine."""

from __future__ import annotations

import collections
import functools
import operator
import pickle
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

import torch
import torch.utils.data

from headrace import _core, _options
from headrace._engine import engine as _engine
from headrace._engine import in_process, restart_state, start_errors
from headrace._errors import exception_text, raising
from headrace._inspect import lookup, this_process
from headrace._samples import draw, refill
from headrace._start import contexts, forkserver, signals
from headrace._tensors import extension
from headrace.torch import _base, _early_end, _internals, _pinning, _tasks, _worker

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
    "fetched. "
)
_LONGER_WITH_WORKERS = (
    "For multiprocessing data-loading, this could be caused by not properly configuring the IterableDataset replica at "
    "each worker. Please see https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
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
            load_state_dict, or from its start if it has a true attribute `replayable` (in the instance or its class:
            what `__getattr__` answers does not count); else it raises. A forked worker that hangs before it could begin
            is always replaced, and not counted here. A worker that ends before its first task in the same way as the
            one that it replaced is not replaced again.
        rng: "worker": a worker's random numbers run on from sample to sample, as with torch; "sample": random, numpy
            and torch are seeded anew for each sample, by seed, epoch and index, so that it is the same whichever worker
            makes it. The data set's __getitem__ is called for each sample then, not its __getitems__.
        seed: of rng="sample" and of refilling; None: the seed that torch draws from `generator` for an iterator.
        on_bad_sample: what becomes of a sample that raises: "raise"; "skip": its batch is smaller; "refill": another
            takes its place; or callable(index, exception) that gives one of these words. The other one is a sample that
            the sampler gave before in this epoch, chosen by seed, epoch and position; if there is none yet, the next
            good one. Of an iterable dataset it is the next sample, and `index` counts the samples of the worker. The
            number of batches of a map-style dataset stays the same. It concerns exceptions of class Exception: others,
            such as SystemExit, end the run, with any number of workers. Bad samples are listed at the epoch's end, and
            in report().
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
        if _uses_engine(self) and not contexts.foreign_class(self.multiprocessing_context):
            forkserver.warm_up(self.multiprocessing_context, _PRELOAD)

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
        if _uses_engine(self) and not _why_torchs(self):
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


def _why_torchs(loader: torch.utils.data.DataLoader[Any]) -> str | None:
    """Returns why a loader with workers gets torch's engine, or None if it gets headrace's."""
    if name := contexts.foreign_class(loader.multiprocessing_context):
        return f"its multiprocessing_context starts workers as {name}, which is not a process of multiprocessing"
    return this_process.why_engine_cannot_run()


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
_engines: _OfLoaders[_engine.Engine | in_process.Here] = _OfLoaders()  # its newest
_blames: _OfLoaders[restart_state.Blame] = _OfLoaders()
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
    needs_indices = ("rng",) if is_iterable else ()
    others = {name: value for name, value in installed_options.items() if name not in needs_indices}
    if not isinstance(loader, DataLoader):  # torch's: what its attributes are called is its class's business
        return _options.Policy.of(None, is_iterable, others)
    with _options.explained_as_attributes():
        return _options.Policy.of(loader, is_iterable, others)


def _limit_of(loader: torch.utils.data.DataLoader[Any]) -> int:
    own = lookup.attribute(loader, "arena_limit")
    return _options.check_limit(installed_options.get("arena_limit") if own is None else own)


def _seed_of(loader: Any, drawn: int) -> int:
    """Of samples' own random numbers; `drawn` is what torch drew for this iterator."""
    others = installed_options.get("seed")
    own = _options.own(loader, "seed", others) if isinstance(loader, DataLoader) else others
    with _options.explained_as_attributes():
        return drawn if own is None else _options.check_seed(own)


def _iterator_here(loader: torch.utils.data.DataLoader[Any]) -> Any:
    if isinstance(loader.dataset, _internals.DataPipes):
        return _internals.torchs_iterator(loader)
    policy = _policy_of(loader)
    if _internals.is_wrapped and not policy.is_per_sample:
        return _internals.torchs_iterator(loader)
    return _IteratorHere(loader, policy)


class _Checked:
    """What torch's iterators do in __next__ around _next_data."""

    _warned_at = 0  # the number of the batch for which a warning came last

    def _prepare(self: Any) -> Any:
        # In one frame, so that warnings name the caller's line, and without opening a profiler's record for each batch,
        # which costs more than many a batch.
        if _internals.profiler_is_on():
            with _internals.profiler.record_function(self._profile_name):
                data = self._next_data()
        else:
            data = self._next_data()
        length, number = self._IterableDataset_len_called, self._num_yielded + 1
        if length is not None and number > length and number != self._warned_at:
            self._warned_at = number  # first: where warnings are errors, the next call gives the batch
            warnings.warn(
                (_LONGER + _LONGER_WITH_WORKERS * (self._num_workers > 0)).format(self._dataset, length, number),
                stacklevel=2,
            )
        return data


class _IteratorHere(_Checked, in_process.HereIterator, _internals.SingleProcessIterator):  # type: ignore[misc]
    """torch's own for num_workers=0, which loses no batch by an exception of a signal's handler, and makes samples one
    by one where the policy asks for that."""

    def __init__(self, loader: torch.utils.data.DataLoader[Any], policy: _options.Policy) -> None:
        _internals.called_by_torch(super().__init__, loader)
        self._profile_name = f"enumerate(DataLoader)#{_internals.SingleProcessIterator.__name__}.__next__"
        if self._dataset_kind == _internals.DatasetKind.Iterable:
            self._use_samples(loader, policy)
        else:
            self._use_indices(loader, policy)
        self._source = self._from.tasks
        if self._here is not None:
            _engines.set(loader, self._here)

    def _use_samples(self, loader: Any, policy: _options.Policy) -> None:
        batch_size = loader.batch_size if self._auto_collation else 0
        self._from: Any = draw.FromIterable(
            self._dataset_fetcher.dataset_iter, batch_size, bool(self._drop_last), policy, None
        )
        self._made_by = self._collate_fn
        if policy.is_per_sample:
            self._here = in_process.Here(self._from.tasks, _seed_of(loader, self._base_seed), self._from.take_bad)
            self._made_by = functools.partial(self._here.noting, self._collate_fn)

    def _use_indices(self, loader: Any, policy: _options.Policy) -> None:
        tasks = _tasks.tasks_of(self._index_sampler, self._sampler_iter)
        self._from = draw.FromSampler(tasks)
        self._made_by = self._dataset_fetcher.fetch
        if policy.is_per_sample:
            seed, epoch = _seed_of(loader, self._base_seed), _next_epoch(loader)
            samples = in_process.SamplesHere(
                self._dataset, policy, seed, epoch, self._auto_collation, self._collate_fn, tasks
            )
            self._here, self._made_by = samples.here, samples.fetch

    def _next_data(self) -> Any:
        return self._make(self._from, self._fetch)

    def _handle_stop(self, error: StopIteration, drawn: Any) -> None:
        is_iterable = self._dataset_kind == _internals.DatasetKind.Iterable
        _early_end.warn_here(self, error, None if is_iterable else drawn)

    def _fetch(self, drawn: Any) -> Any:
        data = self._made_by(drawn)
        return _internals.pin_memory.pin_memory(data, self._pin_memory_device) if self._pin_memory else data


def get_iterator(loader: torch.utils.data.DataLoader[Any]) -> Any:
    """The iterator of any of torch's loaders: the engine's where it can run, else torch's."""
    if not _uses_engine(loader):
        return _iterator_here(loader)
    if reason := _why_torchs(loader):
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
    if not _uses_engine(loader) or _why_torchs(loader):
        return _internals.torchs_new(_internals.MultiProcessingIterator)
    return _iterator_of_workers(loader)


def _iterator_of_workers(loader: torch.utils.data.DataLoader[Any]) -> Any:
    forkserver.warm_up(loader.multiprocessing_context, _PRELOAD)
    return _Iterator(loader)


def _reraise(wrapped: Any, note: str = "") -> NoReturn:
    if isinstance(wrapped, raising.Sent):
        wrapped = wrapped.open()
    error = RuntimeError(wrapped) if isinstance(wrapped, str) else _internals.remade(wrapped)
    exception_text.add_note(error, note)
    try:
        raise error
    finally:
        del error  # this frame is in its traceback: a cycle would keep the iterator and its workers


class _Ahead(NamedTuple):
    """A batch that arrived ahead of the consumer, and is with the pinning thread: its number, and the engine's."""

    number: int
    serial: int


class _Iterator(_Checked, _core.Iterator, _internals.BaseIterator):  # type: ignore[misc]
    """One pass over a loader with workers, or with persistent workers several."""

    _is_from_signal = staticmethod(signals.is_from_signal)

    def __init__(self, loader: torch.utils.data.DataLoader[Any]) -> None:
        _internals.called_by_torch(super().__init__, loader)
        extension.use_torch()
        self._batch_size = lookup.attribute(loader, "batch_size")  # fastai's stand-in for a loader has none
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
        method = start_errors.start_method_of(loader.multiprocessing_context)
        start = functools.partial(self._start, loader)
        try:
            parts = start_errors.parts_of_loader(loader)
            self._engine = start_errors.started(start, parts, method, self._policy.repair)
        except _PICKLES_ERRORS as error:
            if start_errors.is_explained(error) or isinstance(error, pickle.PicklingError):
                _internals.called_by_torch(warnings.warn, _NOT_PICKLED)
            raise
        self._workers = self._engine.processes
        _engines.set(loader, self._engine)
        self._pinner: Any = _pinning.Pinner(self._pin_memory_device) if self._pin_memory else None
        # Answers that came while the consumer was busy; a batch's value is with the pinning thread.
        self._ahead: collections.deque[_Ahead] = collections.deque()
        self._source = self._engine.source if self._pinner is None else self._pinner.results
        self._loader = self._engine.source
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
            way=restart_state.way_of(self._dataset, self._dataset_kind == _internals.DatasetKind.Iterable),
            seed=self._seed,
            blame=_of_loader(_blames, loader, restart_state.Blame),
            epoch=_epochs.get(loader) or 0,
        )

    def name_sampler(self) -> str:
        sampler = self._index_sampler
        is_own = type(sampler) is not torch.utils.data.BatchSampler  # torch's, around what is of interest
        inner = sampler if is_own else sampler.sampler
        return start_errors.name_sampler(inner if is_own and self._auto_collation else None, inner)

    def job_of(self, worker: int) -> _worker.Job:
        job = self._job_of(worker)
        return start_errors.parcel(job) if self._is_repaired else job

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
        self._warned_at = 0
        self.tasks = _tasks.tasks_of(self._index_sampler, self._sampler_iter)
        if self._pinner is not None:
            self._answered = max(self._answered, self._pinner.drop_all())
        self._ahead.clear()
        epoch = _next_epoch(loader)
        self.wrap: Callable[[Any], Any] | None = None
        if self._policy.on_bad_sample != "raise":
            self.wrap = refill.Refills(self.tasks, self._auto_collation, self._seed, epoch).wrap
        try:
            self._engine.begin(self, epoch, self._wait_s, self._persistent_workers)
        except _engine.Timeout:
            self._raise_timeout()

    def reraise(self, wrapped: Any, note: str) -> NoReturn:
        _reraise(wrapped, note)

    def _next_data(self) -> Any:
        try:
            return self._next_value()
        except StopIteration as error:
            if not self._engine.is_over:
                _early_end.warn_of_worker(self, error, self._engine.drawn)
            raise

    def _next_value(self) -> Any:
        self._engine.warn_of_copies(stacklevel=5)
        value = self._next_answer() if self._pinner is None else self._next_pinned()
        if type(value) is _ExceptionWrapper:  # that a dataset or collate_fn gives, or that pinning raised
            self._engine.source.fail()
            _reraise(value)
        return value

    def _next_answer(self) -> Any:
        return self._engine.answer(self, self._wait(), self._batch_size)

    def _wait(self) -> int:
        try:
            status = self._engine.next(self, self._wait_s)
        except _engine.Timeout:
            self._raise_timeout()
        if status is None:
            if not self._persistent_workers:
                self._shutdown_workers()
            raise StopIteration
        return status

    def _next_pinned(self) -> Any:
        while self._ahead and self._ahead[0].number < self._answered:
            self._ahead.popleft()  # handed on
        if not self._ahead:
            self._put_ahead(self._wait())
        first = self._ahead[0]
        self._engine.submit_owed(self, keep=len(self._ahead) - 1 + self._is_behind())
        value = self._pinner.take(first.number)
        self._look_ahead()
        return value

    def _is_behind(self) -> bool:
        """Returns True if an answer was waited for that is not among those ahead, as it is an exception."""
        return self._engine.is_pending and self._ahead[-1].serial != self._engine.serial

    def _look_ahead(self) -> None:
        """Hands what has arrived to the pinning thread, which works while the consumer does. An exception waits for its
        turn."""
        while (status := self._engine.next_if_ready()) is not None:
            try:
                self._put_ahead(status)
            except Exception as error:
                if signals.is_from_signal(error):
                    raise
                return

    def _put_ahead(self, status: int) -> None:
        """Moves the answer that was waited for to those that are ahead. If that is interrupted, the next call goes on
        where this one was: the answer has a number, and stays until it is dropped."""
        serial = self._engine.serial
        if not self._ahead or self._ahead[-1].serial != serial:
            number = self._answered + len(self._ahead)
            self._pinner.put(number, self._engine.answer(self, status, self._batch_size))
            self._ahead.append(_Ahead(number, serial))
        self._engine.drop()

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
            with signals.raised_later():
                engine.close()

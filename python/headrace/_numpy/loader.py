# SPDX-License-Identifier: Apache-2.0
"""headrace.Loader: the engine for people without torch."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import multiprocessing
import random
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from headrace import _core, _options
from headrace._engine import crew, in_process, restart_state, start_errors
from headrace._engine import engine as _engine
from headrace._errors import exception_text, raising
from headrace._inspect import lookup
from headrace._numpy.collate import default_collate
from headrace._samples import draw, refill
from headrace._samples.maker import DatasetJob, SampleMaker
from headrace._start import contexts, forkserver, signals
from headrace._worker import diagnostics

_PRELOAD = ["numpy.random", "headrace._numpy.loader"]


@dataclass(frozen=True)
class WorkerInfo:
    """Who a worker process is: its number `id` of `num_workers`, its `seed`, and its copy of the data set."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


_worker_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """In a worker of a Loader: who it is, for an iterable data set to take its part. Elsewhere None."""
    return _worker_info


class _Lines(str):
    """A text that a KeyError shows in lines: it shows its argument's repr."""

    def __repr__(self) -> str:
        return str(self)


@dataclass
class WorkerError:
    """An exception of a worker on its way to the trainer."""

    type: type[BaseException]
    text: str

    def remade(self, note: str) -> BaseException:
        """Returns an exception of the same type with the worker's traceback as its message, and with the note. A
        StopIteration, which would end the loop in silence, becomes a RuntimeError, as in a generator."""
        text = self.text if sys.version_info >= (3, 11) or not note else f"{self.text.rstrip()}\n{note}"
        error = raising.remade(lambda: self._make(text), self.type, text)
        exception_text.add_note(error, note)
        return error

    def _make(self, text: str) -> BaseException:
        kind = RuntimeError if issubclass(self.type, StopIteration) else self.type
        return kind(_Lines(text) if issubclass(kind, KeyError) else text)


class _Fetcher:
    """Takes the samples of given indices from a map-style dataset."""

    def __init__(self, dataset: Any, batched: bool) -> None:
        self._dataset = dataset
        self._batched = batched

    def fetch(self, indices: Any) -> Any:
        """Returns the samples of a batch, or the one sample without batches."""
        return [self._dataset[index] for index in indices] if self._batched else self._dataset[indices]


def _seed_all(seed: int, epoch: int, worker: int) -> None:
    """Seeds random and, where it is imported already, numpy: from the loader's seed, the epoch and the worker."""
    random.seed(f"{seed} {epoch} {worker}")
    if "numpy" in sys.modules:
        import numpy as np

        np.random.seed(np.random.SeedSequence([seed, epoch, worker]).generate_state(8))


@dataclass
class _Job(DatasetJob):
    """See headrace._worker.main.Job."""

    dataset: Any
    is_iterable: bool
    batched: bool
    drop_last: bool
    collate_fn: Callable[[list[Any]], Any] | None
    init_fn: Callable[[int], None] | None
    seed: int
    worker: int
    num_workers: int
    policy: _options.Policy

    flavor = _core.FLAVOR_NUMPY

    def prepare(self, port: _core.Port, beginning: restart_state.Beginning) -> None:
        global _worker_info
        diagnostics.arm(port)
        _core.use_numpy()
        crew.calm_libraries()
        _worker_info = WorkerInfo(self.worker, self.num_workers, self.seed, self.dataset)
        self._port = port
        self.notes = None
        self.collates_in_c = self.batched and self.collate_fn is None
        self._maker: SampleMaker | None = None
        if not self.is_iterable:
            self._maker = SampleMaker(port.noting, self.dataset, self.policy, beginning, self.seed, self.worker)
            self._take_bad = self._maker.take_bad
        way = restart_state.way_of(self.dataset, self.is_iterable)
        self._state_is_wanted = way == restart_state.STATE and self.policy.max_restarts > 0
        self._begin(beginning, self.init_fn)

    def begin_epoch(self, beginning: restart_state.Beginning) -> None:
        if self._maker is not None:
            self._maker.begin_epoch(beginning)
        self._begin(beginning, None)

    def _begin(self, beginning: restart_state.Beginning, init_fn: Callable[[int], None] | None) -> None:
        self._made = beginning.made
        self._state = beginning.state
        _seed_all(self.seed, beginning.epoch, self.worker)
        self._fetcher = None
        try:
            if init_fn is not None:
                init_fn(self.worker)
            if self._state is None:
                self._fetcher = self._new_fetcher()
        except Exception:
            self._note_failure()

    def leave(self) -> None:
        self._fetcher = None

    def _new_fetcher(self) -> Any:
        if not self.is_iterable:
            return _Fetcher(self.dataset, self.batched)
        fetcher = draw.IterableFetcher(self.dataset, self.batched, self.drop_last, self.policy, self.worker)
        self._take_bad = fetcher.take_bad
        return fetcher

    def fetch(self, task: Any) -> Any:
        self.notes = None
        self._made += 1
        self._raise_failure()
        if self._state is not None:
            self._load(self._state)
        samples = self._fetch_and_note(self._samples, task)
        return samples if self.collate_fn is None or not self.batched else self.collate_fn(samples)

    def _samples(self, task: Any) -> Any:
        if self._maker is None:
            return self._fetcher.fetch(task)
        indices = self._maker.receive(task)
        if self._maker.makes(indices, self.batched):
            return self._maker.make(indices) if self.batched else self._maker.make_one(indices)
        return self._fetcher.fetch(self._port.noting(indices) if self.batched else indices)

    def collate(self, samples: Any) -> Any:
        return default_collate(samples)

    def wrap_exception(self) -> raising.Sent:
        error = sys.exc_info()[1]
        assert error is not None
        origin = f"Caught {type(error).__name__} in Loader worker process {self.worker}."
        text = f"{origin}\nOriginal {raising.traceback_of(error)}"
        return raising.Sent.of(WorkerError(type(error), text), text)


class Loader:
    """Batches of numpy arrays from worker processes, handed over without a copy.

    Args:
        dataset: something with `__getitem__` and `__len__`, or an iterable (each worker iterates over its own copy: see
            headrace.get_worker_info).
        batch_size: samples per batch; None: samples as they are.
        shuffle: another order each epoch, from `seed` and the epoch. Not for an iterable.
        sampler: indices in order, instead of shuffle. batch_sampler: lists of indices, instead of batch_size too.
        num_workers: processes; 0: in this one.
        collate_fn: samples to batch; None: headrace.default_collate.
        drop_last: leave a last, smaller batch out.
        timeout: most seconds to wait for a batch; 0: no limit.
        worker_init_fn: called with the worker's number in each worker, after seeding.
        multiprocessing_context: a start method's name or a context; None: the interpreter's default.
        prefetch_factor: batches in flight per worker.
        persistent_workers: workers stay for the next epoch.
        in_order: deliver in order; else as they come.
        seed: of shuffling and of random and numpy in the workers; None: drawn once.
        arena_limit: most bytes of shared memory, at least 64 KiB; None: half of what is to spare. The attribute may be
            set later, for the next iteration; not while persistent workers run.
        max_restarts: dead workers that are replaced in the life of an iterator, their batches made again. An iterable
            data set is continued by its state_dict and load_state_dict, or from its start if it has a true attribute
            `replayable` (in the instance or its class: what `__getattr__` answers does not count); else its worker's
            death raises. A forked worker that hangs before it could begin is always replaced, and not counted here. A
            worker that ends before its first task in the same way as the one that it replaced is not replaced again.
        rng: "worker": a worker's random numbers run on from sample to sample; "sample": random and numpy are seeded
            anew for each sample, by seed, epoch and index, so that it is the same whichever worker makes it.
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

    Large arrays of a batch are views of shared memory, writable, and yours for as long as you keep them.

    Raises:
        TypeError, ValueError: for options that do not go together. While iterating: what the data set raises, with the
        worker's traceback; RuntimeError for a worker that died; TimeoutError; MemoryError for a batch over the limit.
    """

    arena_limit = _options.ArenaLimit()

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool = False,
        *,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        prefetch_factor: int = 2,
        persistent_workers: bool = False,
        in_order: bool = True,
        seed: int | None = None,
        arena_limit: int | None = None,
        max_restarts: int = 3,
        rng: str = "worker",
        on_bad_sample: str | Callable[[Any, Exception], str] = "raise",
        stall_after: float = 30.0,
        on_stall: str = "wait",
        shutdown_timeout: float = 5.0,
        freeze: bool = False,
        repair: str | None = None,
    ) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.num_workers = num_workers
        self.collate_fn = collate_fn
        self.drop_last = drop_last
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.prefetch_factor = prefetch_factor
        self.persistent_workers = persistent_workers
        self.in_order = in_order
        self.seed = secrets.randbits(63) if seed is None else _options.check_seed(seed)
        self.arena_limit = arena_limit
        self.max_restarts = max_restarts
        self.rng = rng
        self.on_bad_sample = on_bad_sample
        self.stall_after = stall_after
        self.on_stall = on_stall
        self.shutdown_timeout = shutdown_timeout
        self.freeze = freeze
        self.repair = repair
        self.epoch = 0
        self._is_iterable = _options.is_iterable_only(dataset)
        self._iterator: _WorkerIterator | None = None
        self._engine: _engine.Engine | in_process.Here | None = None  # the newest
        self._blame = restart_state.Blame()
        self._check()
        self.multiprocessing_context = _context_of(multiprocessing_context)
        if num_workers > 0:
            contexts.check_context(self.multiprocessing_context)
            forkserver.warm_up(self.multiprocessing_context, _PRELOAD)

    def _check(self) -> None:
        if not _can_be_iterated(self.dataset):
            raise TypeError(
                f"dataset should have __getitem__ or __iter__, but {type(self.dataset).__name__} has neither"
            )
        for name in ("num_workers", "prefetch_factor", "batch_size"):
            if (count := getattr(self, name)) is not None or name != "batch_size":
                setattr(self, name, _options.check_count(name, count))
        _options.check_number("timeout", self.timeout, 0)
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"batch_size should be at least 1, or None for no batches, but got {self.batch_size}")
        if self.prefetch_factor < 1:
            raise ValueError(f"prefetch_factor should be at least 1, but got {self.prefetch_factor}")
        for name in ("collate_fn", "worker_init_fn"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise TypeError(f"{name} should be callable or None, but got {getattr(self, name)!r}")
        if self._is_iterable and (self.shuffle or self.sampler is not None or self.batch_sampler is not None):
            raise ValueError("shuffle, sampler and batch_sampler need a data set with __getitem__, this is an iterable")
        _options.Policy.of(self, self._is_iterable, {})
        for name in ("sampler", "batch_sampler"):
            value = getattr(self, name)
            if value is not None and not _can_be_iterated(value):
                raise TypeError(f"{name} should be an iterable or None, but got {value!r}")
        if self.shuffle and self.sampler is not None:
            raise ValueError("sampler and shuffle exclude each other")
        if self.batch_sampler is not None and (
            self.batch_size not in (1, None) or self.shuffle or self.sampler is not None or self.drop_last
        ):
            raise ValueError("batch_sampler excludes batch_size, shuffle, sampler and drop_last")
        if self.drop_last and not self._batched:
            raise ValueError("batch_size=None makes no batches, so it excludes drop_last")

    @property
    def _batched(self) -> bool:
        return self.batch_size is not None or self.batch_sampler is not None

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch: with `seed` it decides the order and the workers' random numbers.
        TypeError, ValueError where it is none."""
        self.epoch = _options.check_count("epoch", epoch)

    def __len__(self) -> int:
        """The number of batches of an epoch. TypeError where the data set has no length."""
        if self.batch_sampler is not None:
            return len(self.batch_sampler)  # type: ignore[arg-type]
        count = len(self.dataset if self.sampler is None else self.sampler)  # type: ignore[arg-type]
        if self.batch_size is None:
            return count
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def _order(self) -> Iterable[Any]:
        if self._is_iterable:
            return itertools.repeat(None)  # without end: the workers say when they are through
        if self.sampler is not None:
            return self.sampler
        if not self.shuffle:
            return range(len(self.dataset))
        import numpy as np

        generator = np.random.default_rng([self.seed, self.epoch])
        return map(int, generator.permutation(len(self.dataset)))

    def _batch_function(self) -> Callable[[list[Any]], Any]:
        return self.collate_fn or default_collate

    def _tasks(self) -> _core.Tasks:
        """Returns the indices of one batch after the other."""
        if self.batch_sampler is not None:
            return _core.Tasks(iter(self.batch_sampler))
        order = iter(self._order())  # now: it is the order of this epoch
        return _core.Tasks(order, self.batch_size or 0, self.drop_last)

    def __iter__(self) -> Iterator[Any]:
        tasks = self._tasks()
        epoch, self.epoch = self.epoch, self.epoch + 1
        if self.num_workers == 0:
            return _IteratorHere(self, tasks, epoch)
        if self._iterator is not None and self.persistent_workers and not self._iterator.is_closed:
            self._iterator.begin(tasks, epoch)
            return self._iterator
        iterator = _WorkerIterator(self, epoch)
        iterator.begin(tasks, epoch)
        if self.persistent_workers:
            self._iterator = iterator
        return iterator

    def report(self) -> dict[str, Any]:
        """Counters of the newest iterator; after its end they stay as they were then.

        `seed` (given or drawn), `memory` (where the shared memory is: memfd, shm or tmp), `workers`, `slots`,
        `limit_bytes`, `window_bytes` (address space of a slot), `used_bytes`, `held` and `held_bytes` (batches that
        the consumer holds), `batches` and `bytes` delivered, `copied` (as private copies), `asked` (workers asked for
        more memory), `trimmed`, `waits` and `waited_s` (of the trainer), `sleeps`, `restarts` (of workers, for whatever
        reason), `skipped` (bad samples, left out or replaced, in all epochs), `bad_samples` (of this epoch: `index`,
        `error`, `worker`), `growth` (what of the data set has grown in the workers' private memory, in all of them:
        `path`, `bytes` of one copy, `grown_bytes`, `samples`, ...), `private_grown_bytes` (0 but in `headrace doctor`),
        and `per_worker`: `pid`, `is_alive`, `starts`, `batches`, seconds `waiting_s` for tasks, `fetching_s` in the
        data set, `collating_s`, `rss_bytes`.

        With num_workers=0 there is a report only where `rng` or `on_bad_sample` makes samples one by one, of `seed`,
        `workers`, `batches`, `skipped` and `bad_samples`. RuntimeError where there is none, and before the first
        iteration."""
        if self._engine is None:
            raise RuntimeError(_engine.NO_REPORT)
        return self._engine.report()

    def __getstate__(self) -> dict[str, Any]:
        anew = {"_iterator": None, "_engine": None, "_blame": restart_state.Blame()}
        return {**self.__dict__, **anew, "multiprocessing_context": self._method}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.multiprocessing_context = _context_of(state["multiprocessing_context"])

    @property
    def _method(self) -> str | None:
        context = self.multiprocessing_context
        return None if context is None else context.get_start_method()


def _can_be_iterated(value: object) -> bool:
    return lookup.has_special(value, "__iter__") or lookup.has_special(value, "__getitem__")


def _context_of(context: Any) -> Any:
    if context is None or lookup.has_attribute(context, "get_start_method"):
        return context
    methods = multiprocessing.get_all_start_methods()
    if context not in methods:
        raise ValueError(f"multiprocessing_context should be one of {methods} or a context, but got {context!r}")
    return multiprocessing.get_context(context)


class _IteratorHere(in_process.HereIterator):
    """One epoch of a Loader with num_workers=0."""

    def __init__(self, loader: Loader, tasks: _core.Tasks, epoch: int) -> None:
        policy = _options.Policy.of(loader, loader._is_iterable, {})
        self._is_batched = loader._batched
        self._collate = loader._batch_function() if self._is_batched else _as_is
        if loader._is_iterable:
            batch_size = (loader.batch_size or 0) if self._is_batched else 0
            self._from: Any = draw.FromIterable(loader.dataset, batch_size, loader.drop_last, policy, None)
            self._fetch: Any = self._collate
            if policy.is_per_sample:
                self._here = in_process.Here(self._from.tasks, loader.seed, self._from.take_bad)
                self._fetch = functools.partial(self._here.noting, self._collate)
        else:
            self._from = draw.FromSampler(tasks)
            self._fetcher = _Fetcher(loader.dataset, self._is_batched)
            self._fetch = self._fetch_and_collate
            if policy.is_per_sample:
                samples = in_process.SamplesHere(
                    loader.dataset, policy, loader.seed, epoch, self._is_batched, self._collate, tasks
                )
                self._here, self._fetch = samples.here, samples.fetch
        self._source = self._from.tasks
        if self._here is not None:
            loader._engine = self._here

    def _prepare(self) -> Any:
        return self._make(self._from, self._fetch)

    def _fetch_and_collate(self, indices: Any) -> Any:
        return self._collate(self._fetcher.fetch(indices))


def _as_is(samples: Any) -> Any:
    return samples


class _WorkerIterator(_core.Iterator):
    """Epochs of a Loader with workers."""

    _is_from_signal = staticmethod(signals.is_from_signal)

    def __init__(self, loader: Loader, epoch: int) -> None:
        self._timeout = loader.timeout or None
        self._batch_size = loader.batch_size
        self._keep_workers = loader.persistent_workers
        policy = _options.Policy.of(loader, loader._is_iterable, {})
        if policy.freeze:
            from headrace.store._attributes import Freezer  # only now: few ask for it

            loader.__dict__.setdefault("_freezer", Freezer()).freeze(loader.dataset)
        self._job = _Job(
            dataset=loader.dataset,
            is_iterable=loader._is_iterable,
            batched=loader._batched,
            drop_last=loader.drop_last,
            collate_fn=loader.collate_fn,
            init_fn=loader.worker_init_fn,
            seed=loader.seed,
            worker=-1,
            num_workers=loader.num_workers,
            policy=policy,
        )
        self._is_repaired = False
        self._samplers = loader.batch_sampler, loader.sampler
        parts = start_errors.parts_of_loader(loader)
        method = start_errors.start_method_of(loader.multiprocessing_context)
        start = functools.partial(self._start, loader, policy, epoch)
        self._engine = loader._engine = start_errors.started(start, parts, method, policy.repair)
        self._source = self._loader = self._engine.source

    def _start(self, loader: Loader, policy: _options.Policy, epoch: int, is_repaired: bool) -> _engine.Engine:
        self._is_repaired = is_repaired
        return _engine.Engine(
            self,
            workers=loader.num_workers,
            prefetch_factor=loader.prefetch_factor,
            in_order=loader.in_order,
            limit_bytes=_options.check_limit(loader.arena_limit),
            context=loader.multiprocessing_context or multiprocessing,
            policy=policy,
            way=restart_state.way_of(loader.dataset, loader._is_iterable),
            seed=loader.seed,
            blame=loader._blame,
            epoch=epoch,
        )

    def begin(self, tasks: _core.Tasks, epoch: int) -> None:
        self.tasks = tasks
        self.wrap: Callable[[Any], Any] | None = None
        if self._job.policy.on_bad_sample != "raise":
            self.wrap = refill.Refills(tasks, self._job.batched, self._job.seed, epoch).wrap
        try:
            self._engine.begin(self, epoch, self._timeout, self._keep_workers)
        except _engine.Timeout:
            self._raise_timeout()

    def _raise_timeout(self) -> NoReturn:
        raise TimeoutError(
            f"headrace: no batch came within {self._timeout} seconds; raise timeout, or give a stall_after below it, "
            "which shows where the worker is"
        ) from None

    def name_sampler(self) -> str:
        return start_errors.name_sampler(*self._samplers)

    def job_of(self, worker: int) -> _Job:
        job = dataclasses.replace(self._job, worker=worker)
        return start_errors.parcel(job) if self._is_repaired else job

    def reraise(self, wrapped: Any, note: str) -> NoReturn:
        _reraise(wrapped, note)

    def _prepare(self) -> Any:
        self._engine.warn_of_copies(stacklevel=3)
        try:
            status = self._engine.next(self, self._timeout)
        except _engine.Timeout:
            self._raise_timeout()
        if status is None:
            if not self._keep_workers:
                self._engine.close()
            raise StopIteration
        return self._engine.answer(self, status, self._batch_size)

    def report(self) -> dict[str, Any]:
        """Counters: see headrace.Loader.report."""
        return self._engine.report()

    @property
    def is_closed(self) -> bool:
        """Have the workers been ended?"""
        return self._engine.is_closed

    def close(self) -> None:
        """Ends the workers now; batches stay readable."""
        self._engine.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None and not is_finalizing():  # at the exit it was closed, and modules are being emptied
            with signals.raised_later():
                engine.close()


def _reraise(sent: raising.Sent, note: str) -> NoReturn:
    found = sent.open()
    if not isinstance(found, WorkerError):
        found = WorkerError(RuntimeError, found)
    error = found.remade(note)
    try:
        raise error
    finally:
        del error  # it has this frame: it would be held in a circle, and all that its traceback holds

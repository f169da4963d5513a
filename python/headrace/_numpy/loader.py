# SPDX-License-Identifier: Apache-2.0
"""headrace.Loader: loads batches of NumPy arrays with worker processes, without torch."""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from headrace import _core, _options
from headrace._base import lookup, tracebacks
from headrace._loader import headspace
from headrace._loader.both import iterable, passes, ranks
from headrace._loader.both import state as _state
from headrace._loader.both.beginning import Beginning, note_drawn
from headrace._loader.both.per_loader import PerLoader
from headrace._loader.forkserver import client, context
from headrace._loader.start import contexts
from headrace._loader.trainer.restart_state import goes_by_state
from headrace._loader.trainer.worker_positions import WorkerPositions
from headrace._numpy.as_any import AsAnyLoader
from headrace._numpy.in_process import InProcessIterator
from headrace._numpy.iterator import WorkerIterator
from headrace._options import Options
from headrace._ranks import callers, worker_count
from headrace._samples import shareable
from headrace.sampling._epoch import Last, core_tasks
from headrace.sampling._epoch_indices import count_batches
from headrace.sampling._mixture import Mixture
from headrace.sampling._order import Order
from headrace.sampling._plan import Plan
from headrace.sampling._windows import Windows

_PRELOAD = ["numpy.random", "headrace._numpy.batch_maker"]
_OF_WORKERS = ("dataset", "collate_fn", "worker_init_fn", "num_workers", "prefetch_factor", "_method")


@_options.documented("numpy")
class Loader(Options):
    """Loads batches of numpy arrays with worker processes, which pass them to this process without copying them.

    Args:
        dataset: an object with `__getitem__` and `__len__` (map-style), or an iterable. With an iterable, each worker
            iterates over its own copy: see headrace.get_worker_info.
        batch_size: samples per batch. None: single samples, without batches.
        shuffle: use another order in each epoch, which depends on `seed` and the epoch. Not for an iterable dataset.
        sampler: an iterable of indices, instead of shuffle. batch_sampler: an iterable of lists of indices, instead of
            sampler, shuffle, batch_size and drop_last.
        num_workers: number of worker processes. 0: the batches are made in this process. "auto": as many as make the
            loop faster, found by trying (docs/guides/workers.md); the attribute is the most that may be tried then.
        collate_fn: a function that makes a batch of a list of samples. None: headrace.default_collate.
        drop_last: leave out a last batch that is smaller than the others.
        timeout: maximum number of seconds to wait for a batch. 0: no limit.
        worker_init_fn: a function that each worker calls with its number, after seeding.
        multiprocessing_context: the name of a start method, or a context. None: the interpreter's default. "headrace"
            and "forkserver": workers are forked from a server that has imported the script once.
        prefetch_factor: batches in flight per worker.
        persistent_workers: keep the workers for the next epoch. New ones are started if the dataset, collate_fn,
            worker_init_fn, num_workers, prefetch_factor or multiprocessing_context was replaced by another object.
        in_order: deliver the batches in order. False: deliver them as they arrive.
        {options}

    Large arrays of a batch are writable views of shared memory. They stay valid for as long as you keep them.

    Raises:
        TypeError, ValueError: if an argument is bad, or if arguments do not fit together. While iterating: an exception
        of the dataset, with the worker's traceback; RuntimeError if a worker died; TimeoutError; MemoryError if a batch
        is larger than the limit.
    """

    seed: int

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool = False,
        *,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int | str = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        prefetch_factor: int = 2,
        persistent_workers: bool = False,
        in_order: bool = True,
        arena_limit: int | None = Options.arena_limit,
        max_restarts: int = 3,
        rng: str = Options.rng,
        seed: int | None = Options.seed,
        on_bad_sample: str | Callable[[Any, Exception], str] = Options.on_bad_sample,
        retries: int = Options.retries,
        stall_after: float = Options.stall_after,
        on_stall: str = Options.on_stall,
        shutdown_timeout: float = Options.shutdown_timeout,
        on_changed: str = Options.on_changed,
        held_back: int = Options.held_back,
        snapshot_every_n_steps: int = Options.snapshot_every_n_steps,
        compare_ranks: bool = Options.compare_ranks,
        steps_per_epoch: int | None = Options.steps_per_epoch,
        threads: int | str = Options.threads,
        sample_threads: int = Options.sample_threads,
        cache: int | str | bool | None = Options.cache,
        freeze: bool = Options.freeze,
        repair: str | None = Options.repair,
        device: Any = Options.device,
        device_prefetch: int = Options.device_prefetch,
        record: str | os.PathLike[str] | None = Options.record,
    ) -> None:
        if device is not None:
            raise ValueError(
                f"headrace: device should be None, because NumPy's arrays are on the CPU, but got {device!r}"
            )
        for name, value in _options.own_of(locals()).items():
            setattr(self, name, value)
        self._is_seed_given = seed is not None
        self.seed = secrets.randbits(63) if seed is None else _options.check_seed(seed)
        self.dataset = dataset
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.num_workers: Any = worker_count.by_rule() if worker_count.is_auto(num_workers) else num_workers
        self.collate_fn = collate_fn
        self.drop_last = drop_last
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.prefetch_factor = prefetch_factor
        self.persistent_workers = persistent_workers
        self.in_order = in_order
        self._is_iterable = _options.is_iterable_only(dataset)
        self._iterator: WorkerIterator | None = None  # the one with workers that persist
        self._given: tuple[Any, ...] = ()  # what they were started with
        self._kept = PerLoader(callers.line_of_caller())
        if isinstance(batch_sampler, Plan):  # its ranks are compared
            self._kept.position.made_by = callers.place_of_caller()
        self._check_values()
        self._check_combination()
        if steps_per_epoch is not None:
            steps = _options.check_steps_per_epoch(steps_per_epoch, held_back, self._is_iterable)
            self._kept.position.windows = Windows(steps)
        self.multiprocessing_context = multiprocessing_context
        if worker_count.is_auto(num_workers) and not self._is_iterable:
            is_forked = contexts.start_method_of(self.multiprocessing_context) == "fork"
            self.num_workers = worker_count.AutoWorkers(worker_count.most(is_forked))
        if self.num_workers > 0:
            contexts.check_context(self.multiprocessing_context)
            client.warm_up(self.multiprocessing_context, _PRELOAD, [dataset, collate_fn, worker_init_fn])

    @property
    def epoch(self) -> int:
        """The number of the next epoch. See set_epoch."""
        return self._kept.position.number

    @epoch.setter
    def epoch(self, number: int) -> None:
        self._kept.position.number = number

    @property
    def multiprocessing_context(self) -> Any:
        """Returns the context that starts workers, or None for the interpreter's default. It may be set to a context or
        to the name of a start method, between iterations."""
        return self._context

    @multiprocessing_context.setter
    def multiprocessing_context(self, given: Any) -> None:
        self._context = _context_of(given)

    def _check_values(self) -> None:
        """Raises TypeError or ValueError if an argument is bad."""
        if isinstance(self.dataset, (Mixture, Order, Plan)):
            kind = type(self.dataset).__name__
            argument = "batch_sampler" if isinstance(self.dataset, Plan) else "sampler"
            raise TypeError(
                f"dataset should be what has the samples, but got a {kind}, which gives indices; give "
                f"Loader(dataset, {argument}=...) the {kind} and its dataset"
            )
        if not _can_be_iterated(self.dataset):
            raise TypeError(
                f"dataset should have __getitem__ or __iter__, but {type(self.dataset).__name__} has neither"
            )
        if isinstance(self.num_workers, str):
            raise TypeError(f'num_workers should be an int or "auto", but got {self.num_workers!r}')
        for name in ("num_workers", "prefetch_factor", "batch_size"):
            if (count := getattr(self, name)) is not None or name != "batch_size":
                setattr(self, name, _options.check_count(name, count))
        _options.check_number("timeout", self.timeout, 0)
        _options.check_record("record", self.record)
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"batch_size should be at least 1, or None for no batches, but got {self.batch_size}")
        if self.prefetch_factor < 1:
            raise ValueError(f"prefetch_factor should be at least 1, but got {self.prefetch_factor}")
        for name in ("collate_fn", "worker_init_fn"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise TypeError(f"{name} should be callable or None, but got {getattr(self, name)!r}")
        for name in ("sampler", "batch_sampler"):
            value = getattr(self, name)
            if value is not None and not _can_be_iterated(value):
                raise TypeError(f"{name} should be an iterable or None, but got {value!r}")

    def _check_combination(self) -> None:
        """Raises ValueError if arguments do not fit together, and what a bad own option raises."""
        if self._is_iterable and (self.shuffle or self.sampler is not None or self.batch_sampler is not None):
            raise ValueError(
                "shuffle, sampler and batch_sampler need a map-style dataset (one with __getitem__), but this dataset "
                "is iterable"
            )
        divides_by_torch = lookup.own_class("datasets.iterable_dataset", "IterableDataset")
        if self.num_workers > 1 and divides_by_torch is not None and isinstance(self.dataset, divides_by_torch):
            raise ValueError(
                "an iterable dataset of Hugging Face divides its samples among the workers of torch's loaders only, so "
                f"each of num_workers={self.num_workers} would give all samples: use headrace.torch.DataLoader, or "
                "num_workers=1"
            )
        keeps_place = goes_by_state(self.dataset, self._is_iterable)
        _options.Settings.of(_options.own_values(self), {}, self._is_iterable, keeps_place)
        if self.shuffle and self.sampler is not None:
            raise ValueError("give sampler or shuffle=True, not both")
        if self.batch_sampler is not None and (
            self.batch_size not in (1, None) or self.shuffle or self.sampler is not None or self.drop_last
        ):
            raise ValueError("give batch_sampler, or batch_size, shuffle, sampler and drop_last, not both")
        if isinstance(self.sampler, Plan):
            raise ValueError("a Plan gives batches; pass it as batch_sampler, without batch_size and sampler")
        if isinstance(self.batch_sampler, Plan):
            self.batch_sampler.check_dataset(self.dataset)
        if self.drop_last and not self._batched:
            raise ValueError("drop_last needs batches, but batch_size=None makes none")

    @property
    def _batched(self) -> bool:
        return self.batch_size is not None or self.batch_sampler is not None

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch. The order and the workers' random numbers depend on it and on `seed`.
        Passes it on to the sampler, the batch sampler and the dataset, if they have set_epoch. Raises TypeError or
        ValueError if it is not a number of an epoch."""
        self._kept.position.set_epoch(AsAnyLoader(self), _options.check_count("epoch", epoch))

    def state_dict(self) -> dict[str, str]:
        """Returns how far this loader is: after the batches that were delivered, or at the next epoch's beginning after
        the last one. (Of an iterable dataset without a state, the last one is not known before the loop has ended.) It
        can be called at any time, and starts no worker.

        The dict has one key and a string, about 1 KiB. In order (in_order=True) it is the same on each rank."""
        return _state.state_dict(AsAnyLoader(self))

    def load_state_dict(self, state: Any) -> None:
        """Lets the next iter() of this loader continue where the state was taken, with any number of workers. With
        shuffle, without a sampler, and with a headrace.Order or a headrace.Plan, the number of ranks and the batch size
        may be others too: what is left of the epoch is divided again.

        Raises TypeError and ValueError (StateError) for a state that is damaged, newer, of another library or of
        another dataset, and then changes nothing."""
        _state.load(AsAnyLoader(self), state)

    def _end_workers(self) -> None:
        if self._iterator is not None:
            self._iterator.close()
            self._iterator = None

    def skip(self, steps: int) -> None:
        """Lets the next iter() begin `steps` batches later, without making them. Raises TypeError and ValueError."""
        self._kept.position.skip(AsAnyLoader(self), _options.check_count("steps", steps))

    @property
    def last(self) -> Last | None:
        """The batch that was delivered last, or None: `epoch`, `step` (from 0), `indices` (as the sampler gave them),
        `weights` (float32 array of shape (samples,): 1 for each sample, 0 for one that only fills up the step) and
        `global_count` (samples of this step on all ranks, without those; None if the order is not known)."""
        import numpy as np

        found = self._kept.position.last()
        return None if found is None else found._replace(weights=np.array(found.weights, np.float32))

    @property
    def steps_left(self) -> int | None:
        """How many batches the epoch has left, or None if that is not known."""
        return self._kept.position.steps_left(AsAnyLoader(self))

    def __len__(self) -> int:
        """Returns the number of batches of an epoch. If it is continued with another number of ranks or batch size:
        the batches that were done before, and those that are left. Raises TypeError if the dataset has no length."""
        position = self._kept.position
        if position.windows is not None:
            return position.windows.steps
        return position.length(AsAnyLoader(self), self._count_batches())

    def _count_batches(self) -> int:
        if self.batch_sampler is not None:
            return len(self.batch_sampler)  # type: ignore[arg-type]
        count = len(self.dataset if self.sampler is None else self.sampler)  # type: ignore[arg-type]
        return count if self.batch_size is None else count_batches(count, self.batch_size, self.drop_last)

    def __iter__(self) -> Iterator[Any]:
        windows = self._kept.position.windows
        begin: Callable[[], Iterator[Any]] = self._begin
        if windows is not None:
            begin = functools.partial(windows.begin, passes.Passes(AsAnyLoader(self), self._begin))
        if not headspace.is_asked():
            try:
                return begin()
            except Exception as error:
                tracebacks.cut(error)
                raise error
        from headrace._loader.headspace import session  # imported only if it is needed

        show = self._kept.show_of(AsAnyLoader(self).settings())
        measured: Iterator[Any] = session.iterate(self, show, begin, self._is_iterable)
        return measured

    def _begin(self) -> Any:
        """Returns an iterator over the next pass over the sampler or the dataset, which is an epoch without
        steps_per_epoch."""
        any_loader = AsAnyLoader(self)
        return self._begin_samples(any_loader) if self._is_iterable else self._begin_indices(any_loader)

    def _begin_indices(self, any_loader: AsAnyLoader) -> Any:
        if self.num_workers == 0:
            shareable.check(self.dataset, any_loader.settings())
        beginning = Beginning(any_loader)
        epoch = beginning.begin(core_tasks)
        watch = ranks.watch_of(any_loader, epoch)
        iterator: Any
        if self.num_workers == 0:
            iterator = InProcessIterator(any_loader, epoch.number, epoch, watch)
        else:
            iterator = self._over_workers(any_loader, epoch.number, None)
            iterator.begin(epoch.tasks, epoch.number, None, epoch.count_draws)
            note_drawn(self._kept.position, epoch, watch)
        iterator.epoch, iterator.watch = epoch, watch
        beginning.has_begun(epoch)
        return iterator

    def _begin_samples(self, any_loader: AsAnyLoader) -> Any:
        epoch = iterable.begin(any_loader)
        over: Any
        iterator: Any
        if self.num_workers == 0:
            iterator = over = InProcessIterator(any_loader, epoch.number, last=epoch.last_state)
            tasks, iterator.was_made = iterator._keeper, epoch.made_in_process
        else:
            endless = itertools.repeat(None)  # the workers report the end of their data
            tasks = _core.Tasks(endless, self.batch_size or 0, self.drop_last)
            iterator = self._over_workers(any_loader, epoch.number, epoch.places)
            iterator.begin(tasks, epoch.number, epoch.places, None)
            over = iterator._engine  # not the iterator, which the user's last reference has to end
        iterable.start(any_loader, iterator, epoch, tasks, functools.partial(getattr, over, "is_over"))
        return iterator

    def _over_workers(self, any_loader: AsAnyLoader, epoch: int, places: WorkerPositions | None) -> WorkerIterator:
        """Returns the iterator over workers that persist, or a new one, also if what the workers have was replaced."""
        iterator = self._iterator
        given = tuple(getattr(self, name) for name in _OF_WORKERS)
        if iterator is not None and any(one is not other for one, other in zip(given, self._given, strict=True)):
            self._end_workers()
            iterator = None
        if iterator is None or not self.persistent_workers or iterator.is_closed:
            iterator = WorkerIterator(any_loader, epoch, places)
            self._iterator, self._given = (iterator, given) if self.persistent_workers else (None, ())
        return iterator

    def report(self) -> dict[str, Any]:
        """Returns counters of the newest iterator. After its end they keep their last values.

        `seed` (given or drawn), `memory` (the kind of shared memory: memfd, shm or tmp), `workers`, `slots`,
        `limit_bytes`, `window_bytes` (address space of a slot), `used_bytes`, `held` and `held_bytes` (batches that
        the consumer keeps), `batches` and `bytes` delivered, `copied` (batches delivered as private copies), `asked`
        (how often workers asked for more memory), `trimmed`, `waits` and `waited_s` (of the trainer), `sleeps`,
        `restarts` (of workers, for any reason), `skipped` (bad samples, left out or replaced, in all epochs),
        `bad_samples` (of this epoch: `index`, `error`, `worker`), `retried` (how often a sample was made again in this
        epoch, with the option retries), `growth` (parts of the dataset that have grown in the
        workers' private memory, in all of them: `path`, `bytes` of one copy, `grown_bytes`, `samples`, ...),
        `fork_server` (None unless workers are forked from it; the newest one of this process: `pid`, `pid_of_zygote`,
        `memory_bytes`, `kept` ("all": workers import nothing; "part"; "nothing"), `hazards` (why not all), `unkept`
        (the modules that made it so, and the seconds that each took), `seconds` of the imports, `error` of the import),
        `images` (of headrace.images, in all workers: `made` in C, `read_bytes`, `left` to Pillow by reason,
        `alone`: made one by one by the place that uses them),
        With num_workers="auto": `auto`, with `workers` (that get tasks now), `most`, `changes` (of this number so far),
        `state` ("first", "more", "again", "fewer": what is tried; "rest"), `advice` (None, or a text that
        num_workers=0 would be faster), and the newest 64 `tries`, oldest first: `workers`, `why` (a state), `kept`,
        `batches_per_s`, `noise` (its standard error, as a share), `wait` (of the time, for workers), `seconds`.
        With sample_threads: `sample_threads`, with `threads`, `at_a_time` (the most samples that a worker has to make,
        or None) and `advice` ("", or what to change if that is fewer).
        `private_grown_bytes` (0 except in `headrace doctor`), and `per_worker`: `pid`, `is_alive`, `starts`, `batches`,
        seconds `waiting_s` for tasks, `fetching_s` in the dataset, `collating_s`, `rss_bytes`. With the option cache,
        `cache` has what headrace.cache_samples reports. `rows` is the class of the dataset if whole batches are
        gathered in C: a source of headrace.sources, and in headrace.torch a TensorDataset.

        If the batch sampler is a headrace.Plan for several ranks, there is also `ranks`, a text that says which rank
        this is, what says so, and how it is compared with the others.

        With num_workers=0 there is a report only with cache or rows, or if `rng`, `on_bad_sample`, `retries` or
        `sample_threads` makes samples one by one. It has `seed`, `workers`, `batches`, `skipped`, `bad_samples` and
        `retried`. Raises RuntimeError if there is no report, and before the first iteration."""
        return self._kept.report(AsAnyLoader(self))

    def __getstate__(self) -> dict[str, Any]:
        ended = {"_iterator": None, "_given": ()}
        return {**self.__dict__, **ended, "_kept": self._kept.copied(), "_context": self._method}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.multiprocessing_context = state["_context"]

    @property
    def _method(self) -> str | None:
        context = self.multiprocessing_context
        if context is None:
            return None
        return "headrace" if contexts.is_headrace(context) else context.get_start_method()


def _can_be_iterated(value: object) -> bool:
    return lookup.has_special(value, "__iter__") or lookup.has_special(value, "__getitem__")


def _context_of(given: Any) -> Any:
    if given is None or lookup.has_attribute(given, "get_start_method"):
        return given
    if given == "headrace":
        return context.called_headrace()
    methods = [*multiprocessing.get_all_start_methods(), "headrace"]
    if given not in methods:
        raise ValueError(f"multiprocessing_context should be one of {methods} or a context, but got {given!r}")
    return multiprocessing.get_context(given)

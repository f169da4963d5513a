# SPDX-License-Identifier: Apache-2.0
"""Makes samples one by one: with random numbers of their own, and with what on_bad_sample says of those that raise.

Workers use it instead of a fetcher of whole batches, and so do the iterators with num_workers=0.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace import _core
from headrace._base import exception_text
from headrace._base.help_key import help_on
from headrace._options import Settings
from headrace._samples import prepared, shareable
from headrace._samples.checks import SamplesDiffer
from headrace._samples.generator_guard import Guard
from headrace._samples.names import samples_of
from headrace._samples.own_generators import OwnGenerators, roots_of
from headrace._samples.random_numbers import key_of, seed_all, text_of
from headrace._samples.refill import TRIES, Refillable, draws_of, indices_of
from headrace._samples.retry import RetriedSample, Retrying
from headrace._samples.sample_generators import SampleInWork
from headrace._samples.start_state import StartState
from headrace._samples.threaded import threaded
from headrace._samples.threads import Batch


class SampleKilledWorker(RuntimeError):
    """Raised for a sample that has killed workers before. It is not tried again."""


@dataclass
class BadSample:
    """A sample that could not be made: its index, the exception as text, and the worker. worker: None in the
    trainer."""

    index: Any
    error: str
    worker: int | None


def decide(settings: Settings, index: object, error: Exception) -> str:
    """Returns what becomes of a sample that raised: "raise", "skip" or "refill". Raises ValueError if a callable of the
    user's returns something else."""
    if isinstance(error, SamplesDiffer):  # no bad sample: none of the cached ones can be trusted
        return "raise"
    word = settings.on_bad_sample
    if callable(word):
        word = word(index, error)
    if word not in ("raise", "skip", "refill"):
        raise ValueError(
            f'headrace: on_bad_sample should give "raise", "skip" or "refill", not {word!r}, for sample {index!r}'
        ) from error
    return str(word)


class SampleMaker:
    """Makes the samples of a map-style dataset one by one, if the settings or a ban ask for that. Otherwise a fetcher
    makes whole batches.

    port: of the worker `worker`, which is told which sample is made; both are None in the trainer. is_batched: tasks
    have the indices of a batch, and not that of one sample. collate_fn: the user's; its random number generators are
    seeded with those of the dataset.
    """

    def __init__(
        self,
        port: _core.Port | None,
        dataset: Any,
        settings: Settings,
        start: StartState,
        seed: int,
        worker: int | None,
        is_batched: bool,
        collate_fn: Callable[..., Any] | None = None,
    ) -> None:
        self._port = port
        self._noting: Callable[[Any], Iterable[Any]] = iter if port is None else port.noting
        self._dataset = dataset
        self._is_batched = is_batched
        self._settings = settings
        self._banned = start.banned
        self._epoch = start.epoch
        self._seed = seed
        self._worker = worker
        self._retrying = Retrying(settings.retries, seed, worker)
        self.take_retried = self._retrying.take
        self._bad: list[BadSample] = []
        self.own: OwnGenerators | None = None  # with rng="sample"
        if settings.rng == "sample":
            self._roots = roots_of(prepared.shown(dataset), collate_fn)
        self._task: Refillable | None = None  # the task of the batch that is being made, with its replacements
        self._draws: Sequence[int] = ()  # how often its indices were drawn before; empty: all for the first time
        self._threads = threaded(settings.sample_threads, port)
        self._guard = Guard()
        self._alone = start.alone  # tasks that are made without threads
        self._by_threads: Batch | None = None  # the samples of the batch that is being made
        self._last: tuple[Any, int] | None = None  # the sample that was tried last, and its draw

    def leave(self, seconds: float) -> None:
        """Ends the threads. Waits at most so long for samples that have begun."""
        if self._threads is not None:
            self._threads.end(seconds)

    def begin_epoch(self, start: StartState) -> None:
        self._epoch = start.epoch
        self._banned = start.banned
        self._guard.begin_epoch()
        if self.own is not None:
            self.own.begin_epoch()

    @property
    def seeding(self) -> tuple[int, int] | None:
        """See Policy.seeding."""
        return self._settings.seeding(self._seed, self._epoch)

    def receive(self, task: Any) -> Any:
        """Keeps the next task, and returns its indices."""
        self._task = task if type(task) is Refillable else None
        self._draws = draws_of(task)
        return task if self._task is None else self._task.indices

    @property
    def has_bans(self) -> bool:
        """True if samples of this epoch have killed workers."""
        return bool(self._banned)

    @property
    def is_idle(self) -> bool:
        """True if this object makes no batch of this epoch."""
        return not self._settings.is_per_sample and not self._banned

    def makes(self, indices: Any) -> bool:
        """Returns True if this object has to make the batch, or the sample."""
        if self._settings.is_per_sample or not self._banned:
            return self._settings.is_per_sample
        return any(text_of(one) in self._banned for one in ([indices, *indices] if self._is_batched else [indices]))

    def take_bad(self) -> list[BadSample]:
        """Returns the bad samples of the batch that was made last, once."""
        bad, self._bad = self._bad, []
        return bad

    def make(self, indices: Any) -> Any:
        """Returns the samples of a batch, or the sample of a loader without batches, of the task that was received."""
        self._bad = []
        if self._threads is None:
            return self._make_all(indices)
        self._guard.begin()
        try:
            if not self._alone:
                task = indices if self._task is None else self._task
                self._by_threads = self._threads.make(task, self._begin)
            made = self._make_all(indices)
        finally:
            self._alone = max(0, self._alone - 1)
            self._by_threads = None
        self._guard.check(len(indices) if self._is_batched and hasattr(indices, "__len__") else 1)
        if self._settings.rng == "sample" and self._last is not None:
            self._seed_for(*self._last)  # for collate_fn, as without threads
        return made

    def _make_all(self, indices: Any) -> Any:
        if not self._is_batched:
            return self._make_one(indices)
        ban = self._banned.get(text_of(indices))
        samples: list[Any] = []
        batch = self._by_threads
        if not self._banned and batch is None:
            prepared.prepare(self._dataset, self._noting(indices))
        for place, index in enumerate(self._noting(indices) if batch is None else batch.indices):
            samples += self._make(index, ban, place)
        if batch is not None and self._port is not None:
            self._port.note_made(len(batch.indices), None, 0)
        if not samples and self._bad:  # a batch must not be empty
            samples.append(self._refill(self._bad[0].index, 0))
        return samples

    def _make_one(self, index: Any) -> Any:
        """Returns one sample. A bad one is always refilled, because there is no smaller batch."""
        if self._port is not None and self._threads is not None and self._by_threads is None:
            self._port.note(0)  # if it kills this worker, this sample has done so
        samples = self._make(index, None, 0)
        return samples[0] if samples else self._refill(index, 0)

    def _make(self, index: Any, ban: str | None, place: int) -> list[Any]:
        try:
            if ban := ban or self._banned.get(text_of(index)):
                raise SampleKilledWorker(ban + help_on("sample-killed-worker"))
            return [self._try_first(index, place)]
        except Exception as error:
            word = decide(self._settings, index, error)
            if word == "raise":
                raise
            self._note(index, error)
        return [self._refill(index, place)] if word == "refill" else []

    def _try_first(self, index: Any, place: int) -> Any:
        draw = self._draws[place] if self._draws else 0
        batch = self._by_threads
        if batch is None:
            return self._try(index, draw)
        self._last = index, draw
        self._retrying.retried += batch.retried[place]
        if self._port is not None:
            self._port.note_made(place, index, batch.took_ns(place))
        return batch.take(place)

    def _try(self, index: Any, draw: int = 0) -> Any:
        self._last = index, draw
        return self._tried(index, draw, self._retrying.retried)

    def _tried(self, index: Any, draw: int, retried: list[RetriedSample]) -> Any:
        """Returns a sample, after further tries if the settings ask for them. Several threads call this."""
        if not self._settings.retries:
            return self._get(index, draw)
        return self._retrying.get(lambda one: self._get(one, draw), index, retried)

    def _get(self, index: Any, draw: int) -> Any:
        if not self._settings.is_keyed:
            return self._dataset[index]
        with SampleInWork(self._seed, self._epoch, index, draw):
            return self._dataset[index] if self._threads is not None else self._get_seeded(index, draw)

    def _get_seeded(self, index: Any, draw: int) -> Any:
        own = self._seed_for(index, draw)
        sample = self._dataset[index]
        if not own.has_made():
            return sample
        self._seed_for(index, draw)
        return self._dataset[index]

    def _seed_for(self, index: Any, draw: int) -> OwnGenerators:
        own = self.own or self.search()
        own.seed(seed_all(self._seed, self._epoch, index, draw))
        return own

    # ---- in threads ----

    def _begin(self, task: Any) -> Batch:
        """Returns the batch of a task, for threads that make its samples."""
        indices, draws = indices_of(task), draws_of(task)
        listed = list(indices) if self._is_batched else [indices]
        retried: list[list[RetriedSample]] = [[] for _ in listed]
        left_out = self._places_left_out(indices, listed)
        if not left_out:
            prepared.announce(self._dataset, listed)

        def make(place: int) -> Any:
            if place in left_out:
                return None
            try:
                with self._guard.watch():
                    return self._tried(listed[place], draws[place] if draws else 0, retried[place])
            except Exception as error:
                shareable.explain(error, self._settings.sample_threads)
                raise

        return Batch(make, listed, self._settings.on_bad_sample != "raise", retried)

    def _places_left_out(self, indices: Any, listed: list[Any]) -> set[int]:
        """Returns the places of samples that are not tried, because they have killed workers."""
        if not self._banned:
            return set()
        if self._is_batched and text_of(indices) in self._banned:
            return set(range(len(listed)))
        return {place for place, index in enumerate(listed) if text_of(index) in self._banned}

    def search(self) -> OwnGenerators:
        """Searches for the generators of the dataset's own. In a worker after worker_init_fn, which may set them."""
        self.own = OwnGenerators(self._roots)
        return self.own

    def _note(self, index: Any, error: Exception) -> None:
        self._bad.append(BadSample(index, exception_text.in_words(error), self._worker))

    def _refill(self, index: Any, place: int) -> Any:
        """Returns another sample in the place of the bad one at this place of its batch."""
        tried = 0
        others = self._others(place)
        most = len(others) if self._task is not None and self._task.later else TRIES
        for other in others:
            if any(text_of(other) == text_of(one.index) for one in self._bad):
                continue  # this sample was tried already
            tried += 1
            try:
                return self._try(other)
            except Exception as error:
                self._note(other, error)
            if tried == most:
                break
        raise RuntimeError(self._why_no_refill(index, tried))

    def _others(self, place: int) -> list[Any]:
        """Returns the samples that can take the place. First come those that the sampler gave before, in a random order
        that depends on the seed, the epoch and the position; then come those that it gives next."""
        if self._task is None:
            return []
        samples = samples_of(self._task.indices, self._is_batched)
        earlier = [*self._task.earlier, *samples[:place]]
        random.Random(key_of(self._seed, self._epoch, self._task.position + place)).shuffle(earlier)
        return [*earlier, *samples[place + 1 :], *self._task.later]

    def _why_no_refill(self, index: Any, tried: int) -> str:
        if not tried:
            return (
                f"headrace: sample {index!r} failed, and the sampler has given no other sample that could take its "
                f"place; its exception: {self._bad[-1].error}" + help_on("bad-samples")
            )
        return (
            f"headrace: sample {index!r} failed, and so did {tried} others of this epoch that were tried in its place; "
            f"the last: {self._bad[-1].index!r}, {self._bad[-1].error}" + help_on("bad-samples")
        )

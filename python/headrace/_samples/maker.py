# SPDX-License-Identifier: Apache-2.0
"""Makes samples one by one: with random numbers of their own, and with what on_bad_sample says of those that raise.

Workers use it instead of a fetcher of whole batches, and so do the iterators with num_workers=0.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace._base import exception_text
from headrace._base.help_key import help_on
from headrace._options import Settings
from headrace._samples import prepared
from headrace._samples.checks import SamplesDiffer
from headrace._samples.names import samples_of
from headrace._samples.own_generators import OwnGenerators, roots_of
from headrace._samples.random_numbers import key_of, seed_all, text_of
from headrace._samples.refill import TRIES, Refillable, draws_of
from headrace._samples.retry import Retrying
from headrace._samples.start_state import StartState


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

    `noting` iterates over the indices of a batch and records its position. `worker`: None in the trainer. collate_fn:
    the user's; its random number generators are seeded with those of the dataset.
    """

    def __init__(
        self,
        noting: Callable[[Any], Iterable[Any]],
        dataset: Any,
        settings: Settings,
        start: StartState,
        seed: int,
        worker: int | None,
        collate_fn: Callable[..., Any] | None = None,
    ) -> None:
        self._noting = noting
        self._dataset = dataset
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

    def begin_epoch(self, start: StartState) -> None:
        self._epoch = start.epoch
        self._banned = start.banned
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

    def makes(self, indices: Any, is_batch: bool) -> bool:
        """Returns True if this object has to make the batch, or the sample."""
        if self._settings.is_per_sample or not self._banned:
            return self._settings.is_per_sample
        return any(text_of(one) in self._banned for one in ([indices, *indices] if is_batch else [indices]))

    def take_bad(self) -> list[BadSample]:
        """Returns the bad samples of the batch that was made last, once."""
        bad, self._bad = self._bad, []
        return bad

    def make(self, indices: Any) -> list[Any]:
        """Returns the samples of a batch. If all are bad, the first is refilled, because a batch must not be empty."""
        ban = self._banned.get(text_of(indices))
        self._bad = []
        samples: list[Any] = []
        if not self._banned:
            prepared.prepare(self._dataset, self._noting(indices))
        for place, index in enumerate(self._noting(indices)):
            samples += self._make(index, ban, place, True)
        if not samples and self._bad:
            samples.append(self._refill(self._bad[0].index, 0, True))
        return samples

    def make_one(self, index: Any) -> Any:
        """Returns the sample of a loader without batches. A bad one is always refilled, because there is no smaller
        batch."""
        self._bad = []
        samples = self._make(index, None, 0, False)
        return samples[0] if samples else self._refill(index, 0, False)

    def _make(self, index: Any, ban: str | None, place: int, is_batched: bool) -> list[Any]:
        try:
            if ban := ban or self._banned.get(text_of(index)):
                raise SampleKilledWorker(ban + help_on("sample-killed-worker"))
            return [self._try(index, self._draws[place] if self._draws else 0)]
        except Exception as error:
            word = decide(self._settings, index, error)
            if word == "raise":
                raise
            self._note(index, error)
        return [self._refill(index, place, is_batched)] if word == "refill" else []

    def _try(self, index: Any, draw: int = 0) -> Any:
        if not self._settings.retries:
            return self._get(index, draw)
        return self._retrying.get(lambda one: self._get(one, draw), index)

    def _get(self, index: Any, draw: int = 0) -> Any:
        if self._settings.rng != "sample":
            return self._dataset[index]
        own = self.own or self.search()
        sample = self._get_seeded(own, index, draw)
        return self._get_seeded(own, index, draw) if own.has_made() else sample

    def _get_seeded(self, own: OwnGenerators, index: Any, draw: int) -> Any:
        own.seed(seed_all(self._seed, self._epoch, index, draw))
        return self._dataset[index]

    def search(self) -> OwnGenerators:
        """Searches for the generators of the dataset's own. In a worker after worker_init_fn, which may set them."""
        self.own = OwnGenerators(self._roots)
        return self.own

    def _note(self, index: Any, error: Exception) -> None:
        self._bad.append(BadSample(index, exception_text.in_words(error), self._worker))

    def _refill(self, index: Any, place: int, is_batched: bool) -> Any:
        """Returns another sample in the place of the bad one at this place of its batch."""
        tried = 0
        others = self._others(place, is_batched)
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

    def _others(self, place: int, is_batched: bool) -> list[Any]:
        """Returns the samples that can take the place. First come those that the sampler gave before, in a random order
        that depends on the seed, the epoch and the position; then come those that it gives next."""
        if self._task is None:
            return []
        samples = samples_of(self._task.indices, is_batched)
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

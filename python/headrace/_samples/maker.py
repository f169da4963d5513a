# SPDX-License-Identifier: Apache-2.0
"""Samples one by one: with random numbers of their own, and with a policy for those that cannot be made."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from headrace._engine import restart_state
from headrace._errors import exception_text, raising
from headrace._options import Policy
from headrace._samples.random_numbers import key_of, seed_all, text_of
from headrace._samples.refill import TRIES, Refillable, samples_of
from headrace._worker import main


class SampleKilledWorker(RuntimeError):
    """Making this sample killed its worker before: it is not tried again."""


@dataclass
class BadSample:
    """A sample that could not be made: its index, the exception as text, and the worker. None: in the trainer."""

    index: Any
    error: str
    worker: int | None


def decide(policy: Policy, index: object, error: Exception) -> str:
    """Returns what becomes of a sample that raised: "raise", "skip" or "refill". ValueError if a callable of the user's
    says something else."""
    word = policy.on_bad_sample
    if callable(word):
        word = word(index, error)
    if word not in ("raise", "skip", "refill"):
        raise ValueError(
            f'headrace: on_bad_sample should give "raise", "skip" or "refill", not {word!r}, for sample {index!r}'
        ) from error
    return str(word)


class SampleMaker:
    """Makes the samples of a map-style data set one by one, where the policy or a ban asks for that; a fetcher of whole
    batches does otherwise.

    `noting` goes through a batch's indices and notes where it is. `worker`: None in the trainer.
    """

    def __init__(
        self,
        noting: Callable[[Any], Iterable[Any]],
        dataset: Any,
        policy: Policy,
        beginning: restart_state.Beginning,
        seed: int,
        worker: int | None,
    ) -> None:
        self._noting = noting
        self._dataset = dataset
        self._policy = policy
        self._banned = beginning.banned
        self._epoch = beginning.epoch
        self._seed = seed
        self._worker = worker
        self._bad: list[BadSample] = []
        self._task: Refillable | None = None  # of the batch that is being made, with its replacements

    def begin_epoch(self, beginning: restart_state.Beginning) -> None:
        self._epoch = beginning.epoch
        self._banned = beginning.banned

    @property
    def seeding(self) -> tuple[int, int] | None:
        """See Policy.seeding."""
        return self._policy.seeding(self._seed, self._epoch)

    def receive(self, task: Any) -> Any:
        """Takes the next task, and returns its indices."""
        self._task = task if type(task) is Refillable else None
        return task if self._task is None else self._task.indices

    @property
    def is_idle(self) -> bool:
        """Is no batch of this epoch made here?"""
        return not self._policy.is_per_sample and not self._banned

    def makes(self, indices: Any, is_batch: bool) -> bool:
        """Is this batch, or this sample, to be made here?"""
        if self._policy.is_per_sample or not self._banned:
            return self._policy.is_per_sample
        return any(text_of(one) in self._banned for one in ([indices, *indices] if is_batch else [indices]))

    def take_bad(self) -> list[BadSample]:
        """What was bad in the batch that was made last, told once."""
        bad, self._bad = self._bad, []
        return bad

    def make(self, indices: Any) -> list[Any]:
        """Returns the samples of a batch. At least one is made, by refilling if need be: an empty batch is none."""
        ban = self._banned.get(text_of(indices))
        self._bad = []
        samples: list[Any] = []
        for place, index in enumerate(self._noting(indices)):
            samples += self._make(index, ban, place, True)
        if not samples and self._bad:
            samples.append(self._refill(self._bad[0].index, 0, True))
        return samples

    def make_one(self, index: Any) -> Any:
        """Returns the sample of a loader without batches: a bad one is refilled, for there is no smaller batch."""
        self._bad = []
        samples = self._make(index, None, 0, False)
        return samples[0] if samples else self._refill(index, 0, False)

    def _make(self, index: Any, ban: str | None, place: int, is_batched: bool) -> list[Any]:
        try:
            if ban := ban or self._banned.get(text_of(index)):
                raise SampleKilledWorker(ban)
            return [self._get(index)]
        except Exception as error:
            word = decide(self._policy, index, error)
            if word == "raise":
                raise
            self._note(index, error)
        return [self._refill(index, place, is_batched)] if word == "refill" else []

    def _get(self, index: Any) -> Any:
        if self._policy.rng == "sample":
            seed_all(self._seed, self._epoch, index)
        return self._dataset[index]

    def _note(self, index: Any, error: Exception) -> None:
        self._bad.append(BadSample(index, exception_text.in_words(error), self._worker))

    def _refill(self, index: Any, place: int, is_batched: bool) -> Any:
        """Returns another sample in the place of the bad one at this place of its batch."""
        tried = 0
        others = self._others(place, is_batched)
        most = len(others) if self._task is not None and self._task.later else TRIES
        for other in others:
            if any(text_of(other) == text_of(one.index) for one in self._bad):
                continue  # it was tried already
            tried += 1
            try:
                return self._get(other)
            except Exception as error:
                self._note(other, error)
            if tried == most:
                break
        raise RuntimeError(self._why_no_refill(index, tried))

    def _others(self, place: int, is_batched: bool) -> list[Any]:
        """Returns what can take the place: what the sampler gave before, in an order drawn by the seed, the epoch and
        the position; then what it gives next."""
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
                f"place; its exception: {self._bad[-1].error}"
            )
        return (
            f"headrace: sample {index!r} failed, and so did {tried} others of this epoch that were tried in its place; "
            f"the last: {self._bad[-1].index!r}, {self._bad[-1].error}"
        )


class DatasetJob:
    """What the jobs of both loaders have in common (see headrace._worker.main.Job): what they say beside a batch, and
    how they go on with an iterable data set's state."""

    dataset: Any
    worker: int
    policy: Policy
    notes: restart_state.Notes | None = None
    _maker: SampleMaker | None  # None: of an iterable data set
    _take_bad: Callable[[], list[BadSample]] = staticmethod(list)  # of the batch that was made last, once
    _made: int
    _state: bytes | None = None  # to be loaded
    _state_is_wanted: bool
    _fetcher: Any = None
    _failure: Any = None  # to begin: to be told
    _cause: Any = None  # likewise: of there being no fetcher

    def _new_fetcher(self) -> Any:
        raise NotImplementedError

    def wrap_exception(self) -> raising.Sent:
        raise NotImplementedError

    def _note_failure(self) -> None:
        """The exception being handled has kept the worker from beginning."""
        self._failure = self._cause = self.wrap_exception()

    def _raise_failure(self) -> None:
        """Such a failure is the answer to the next task, and to each one after it until there is a fetcher."""
        failure, self._failure = self._failure, None
        if failure is None and self._fetcher is None and self._state is None:
            failure = self._cause
        if failure is not None:
            raise main.Failed(failure)

    @property
    def seeding(self) -> tuple[int, int] | None:
        return None if self._maker is None else self._maker.seeding

    def _fetch_and_note(self, fetch: Callable[[Any], Any], task: Any) -> Any:
        try:
            data = fetch(task)
        except BaseException:
            self.notes = self._notes_of(None)
            raise
        self.notes = self._notes_of(pickle.dumps(self.dataset.state_dict()) if self._state_is_wanted else None)
        return data

    def _notes_of(self, state: bytes | None) -> restart_state.Notes | None:
        bad = self._take_bad()
        if state is None and not bad:
            return None
        return restart_state.Notes(self.worker, state=state, made=self._made, bad=bad)

    def sends(self, error: BaseException) -> bool:
        """See headrace._worker.main.Job. A policy for bad samples is one for exceptions of class Exception. Any other
        ends the run, as with num_workers=0: a restart would try the sample again, and skip it in the end."""
        has_policy = self.policy.on_bad_sample != "raise"
        return has_policy and not isinstance(error, KeyboardInterrupt)  # which Ctrl-C raises here too

    def _load(self, state: bytes) -> None:
        """Only once there is a task: a data set may keep what it was told for its next pass, whichever that is."""
        self.dataset.load_state_dict(pickle.loads(state))
        self._state = None
        self._fetcher = self._new_fetcher()

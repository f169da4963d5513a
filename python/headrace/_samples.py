# SPDX-License-Identifier: Apache-2.0
"""Samples one by one: with random numbers of their own, and with a policy for those that cannot be made."""

from __future__ import annotations

import contextlib
import hashlib
import operator
import pickle
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from headrace import _notes, _restart, _worker
from headrace._options import Policy

REFILLS = 10  # other samples that are tried in the place of a bad one


class SampleKilledWorker(RuntimeError):
    """Making this sample killed its worker before: it is not tried again."""


def _exactly(index: object) -> str:
    with contextlib.suppress(TypeError):
        index = operator.index(index)  # type: ignore[arg-type]
    return repr(index)


def text_of(index: object) -> str:
    """A sample by its index: 3 and numpy's 3 are the same one, and so are those that cannot be printed."""
    try:
        return _exactly(index)
    except Exception:  # of its own __repr__ or __index__
        return f"<{type(index).__name__}>"


def _key(seed: int, epoch: int, index: object, *more: object) -> int:
    text = repr((seed, epoch, _exactly(index), *more))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def seed_all(seed: int, epoch: int, index: object) -> None:
    """Seeds random and, where they are imported, numpy's and torch's default generators: a pure function of the
    arguments (BLAKE2b of them, 64 bits)."""
    key = _key(seed, epoch, index)
    random.seed(key)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed([key & 0xFFFFFFFF, key >> 32])
    if torch is not None:
        torch.default_generator.manual_seed(key)


@contextlib.contextmanager
def generators_kept() -> Iterator[None]:
    """What is done to these generators in the block is undone behind it."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    pythons = random.getstate()
    numpys = None if numpy is None else numpy.random.get_state()
    torchs = None if torch is None else torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(pythons)
        if numpy is not None:
            numpy.random.set_state(numpys)
        if torch is not None:
            torch.default_generator.set_state(torchs)


@dataclass
class BadSample:
    """A sample that could not be made: its index, the exception as text, and the worker. None: in the trainer."""

    index: Any
    error: str
    worker: int | None


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
        beginning: _restart.Beginning,
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

    def begin_epoch(self, beginning: _restart.Beginning) -> None:
        self._epoch = beginning.epoch
        self._banned = beginning.banned

    @property
    def seeding(self) -> tuple[int, int] | None:
        """See Policy.seeding."""
        return self._policy.seeding(self._seed, self._epoch)

    @property
    def has_policy(self) -> bool:
        """Returns True if bad samples may be skipped or refilled."""
        return bool(self._policy.on_bad_sample != "raise")

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
        """The samples of a batch. At least one is made, by refilling if need be: an empty batch is none."""
        ban = self._banned.get(text_of(indices))
        self._bad = []
        samples: list[Any] = []
        for index in self._noting(indices):
            samples += self._make(index, ban)
        if not samples and self._bad:
            samples.append(self._refill(self._bad[0].index))
        return samples

    def make_one(self, index: Any) -> Any:
        """The sample of a loader without batches: a bad one is refilled, for there is no smaller batch."""
        self._bad = []
        samples = self._make(index, None)
        return samples[0] if samples else self._refill(index)

    def _make(self, index: Any, ban: str | None) -> list[Any]:
        try:
            if ban := ban or self._banned.get(text_of(index)):
                raise SampleKilledWorker(ban)
            return [self._get(index)]
        except Exception as error:
            word = self._decide(index, error)
            if word == "raise":
                raise
            self._note(index, error)
        return [self._refill(index)] if word == "refill" else []

    def _get(self, index: Any) -> Any:
        if self._policy.rng == "sample":
            seed_all(self._seed, self._epoch, index)
        return self._dataset[index]

    def _decide(self, index: Any, error: Exception) -> str:
        word = self._policy.on_bad_sample
        if callable(word):
            word = word(index, error)
        if word not in ("raise", "skip", "refill"):
            raise ValueError(
                f'headrace: on_bad_sample should give "raise", "skip" or "refill", not {word!r}, for sample {index!r}'
            ) from error
        return str(word)

    def _note(self, index: Any, error: Exception) -> None:
        self._bad.append(BadSample(index, _notes.in_words(error), self._worker))

    def _refill(self, index: Any) -> Any:
        """Another sample, drawn by the seed, the epoch and the bad one's index."""
        try:
            count = len(self._dataset)
        except TypeError:
            raise TypeError(
                f"headrace: sample {index!r} is bad, and no other can take its place: the data set has no length"
            ) from None
        for attempt in range(REFILLS):
            other = random.Random(_key(self._seed, self._epoch, index, attempt)).randrange(count)
            try:
                return self._get(other)
            except Exception as error:
                self._note(other, error)
        raise RuntimeError(
            f"headrace: sample {index!r} is bad, and so are {REFILLS} others that were tried in its place; "
            f"the last: {self._bad[-1].index!r}, {self._bad[-1].error}"
        )


class DatasetJob:
    """What the jobs of both loaders have in common (see headrace._worker.Job): what they say beside a batch, and how
    they go on with an iterable data set's state."""

    dataset: Any
    worker: int
    notes: _restart.Notes | None = None
    _maker: SampleMaker | None  # None: of an iterable data set
    _made: int
    _state: bytes | None = None  # to be loaded
    _state_is_wanted: bool
    _fetcher: Any = None
    _failure: Any = None  # to begin: to be told
    _cause: Any = None  # likewise: of there being no fetcher

    def _new_fetcher(self) -> Any:
        raise NotImplementedError

    def wrap_exception(self) -> object:
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
            raise _worker.Failed(failure)

    @property
    def seeding(self) -> tuple[int, int] | None:
        return None if self._maker is None else self._maker.seeding

    def _fetch_and_note(self, fetch: Callable[[Any], Any], indices: Any) -> Any:
        try:
            data = fetch(indices)
        except BaseException:
            self.notes = self._notes_of_samples()
            raise
        self.notes = self._notes_of_state() if self._state_is_wanted else self._notes_of_samples()
        return data

    def sends(self, error: BaseException) -> bool:
        """See headrace._worker.Job. A policy for bad samples is one for exceptions of class Exception. Any other ends
        the run, as with num_workers=0: a restart would try the sample again, and skip it in the end."""
        has_policy = self._maker is not None and self._maker.has_policy
        return has_policy and not isinstance(error, KeyboardInterrupt)  # which Ctrl-C raises here too

    def _notes_of_state(self) -> _restart.Notes:
        return _restart.Notes(self.worker, state=pickle.dumps(self.dataset.state_dict()), made=self._made)

    def _notes_of_samples(self) -> _restart.Notes | None:
        bad = [] if self._maker is None else self._maker.take_bad()
        return _restart.Notes(self.worker, bad=bad) if bad else None

    def _load(self, state: bytes) -> None:
        """Only once there is a task: a data set may keep what it was told for its next pass, whichever that is."""
        self.dataset.load_state_dict(pickle.loads(state))
        self._state = None
        self._fetcher = self._new_fetcher()

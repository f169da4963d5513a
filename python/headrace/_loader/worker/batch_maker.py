# SPDX-License-Identifier: Apache-2.0
"""The batch maker of a worker: the interface that main calls, and the part that the batch makers of both loaders share.

The batch makers are in headrace.torch._batches.worker and headrace._numpy.batch_maker.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace import _core
from headrace._base import exception_text, lookup, raising
from headrace._loader.worker.repeated import Repeated
from headrace._options import Settings
from headrace._samples.maker import BadSample, SampleMaker
from headrace._samples.retry import RetriedSample
from headrace._samples.rows import Gatherer, Proof
from headrace._samples.start_state import StartState


def count_local_trainers() -> int:
    """Returns how many ranks a launcher (torchrun, accelerate) has started on this machine, or 1 without a launcher."""
    count = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(count)) if re.fullmatch("[0-9]{1,6}", count) else 1


class EndOfData(Exception):
    """Raised when an iterable dataset has come to its end in this worker."""


class Failed(Exception):
    """Raised to answer a task with an exception that occurred earlier, when the worker or the epoch started. args[0] is
    the wrapped exception."""


@dataclass
class BatchNotes:
    """The data that a worker sends to the trainer with a batch."""

    worker: int
    state: bytes | None = None  # the state_dict of an iterable dataset after the batch, pickled
    made: int = 0  # how many batches the dataset had given by then in this epoch
    bad: list[BadSample] = field(default_factory=list)
    retried: list[RetriedSample] = field(default_factory=list)  # a record of each further try
    is_end: bool = False  # an iterable dataset has come to its end in this batch
    error: str = ""  # what its state_dict raised
    digest: int = 0  # of an iterable dataset without a state: see Repeated
    warning: str = ""  # of it, for the user


class BatchMaker(Protocol):
    """The batch maker of a worker. It is sent to the worker by pickle, unless the start method is fork."""

    def prepare(self, port: _core.Port, start: StartState) -> None:
        """Runs first in the worker."""

    def begin_epoch(self, start: StartState) -> None:
        """Runs before each further epoch."""

    def fetch(self, task: Any) -> Any:
        """Returns the batch of a task (indices, or a Refillable), or with `collates_in_c` the list of its samples, or
        their rows. Raises EndOfData when this worker has no more."""

    def fetch_each(self, task: Any) -> Any:
        """Returns what `fetch` returned as rows, of which one could not be gathered, as samples made one by one."""

    def finish(self, samples: Any) -> bool:
        """Makes the deferred images in the samples. Returns True if there were any."""

    def collate(self, samples: Any) -> Any:
        """Collates the samples in Python."""

    def wrap_exception(self) -> raising.Sent:
        """Returns the exception that is being handled in a form which the trainer can raise again."""

    def sends(self, error: BaseException) -> bool:
        """Returns True if an exception that is not of class Exception goes to the trainer, instead of ending this
        worker as it does with torch."""

    def leave(self) -> None:
        """Runs when there is nothing more to make. It drops the iterator over the dataset, so that the `finally` of a
        generator runs."""

    @property
    def seeding(self) -> tuple[int, int] | None:
        """See headrace._samples.names.replay_command."""

    dataset: Any
    flavor: int | tuple[str, ...]
    worker: int
    collates_in_c: bool  # may the extension collate the samples? It leaves what it does not know to `collate`

    def still_collates_in_c(self) -> bool:
        """Returns False if the samples that `fetch` returned have to be collated in Python, although the epoch began
        with `collates_in_c`."""

    notes: BatchNotes | None  # what is sent with the batch that was fetched last


class DatasetBatchMaker:
    """The part of a BatchMaker that both loaders share: the notes that it sends with a batch, and how it continues an
    iterable dataset from a state."""

    dataset: Any
    worker: int
    settings: Settings
    notes: BatchNotes | None = None
    _port: _core.Port
    _maker: SampleMaker | None  # None for an iterable dataset
    _take_bad: Callable[[], list[BadSample]] = staticmethod(list)  # gives the bad samples of the latest batch, once
    _made: int
    _state: bytes | None = None  # is loaded when the first task arrives
    _is_ended: bool = False  # the dataset has ended in an earlier worker
    _state_is_wanted: bool
    _repeated: Repeated | None = None  # for an iterable dataset without a state
    _last_discarded = 0  # the number of the last batch that is made again and discarded
    _fetcher: Any = None
    _failure: Any = None  # the exception that kept the worker from starting; the next task is answered with it
    _gatherer: Gatherer | None = None  # gathers the rows of the dataset, if it has such
    _proof: Proof | None = None  # of the batch that is being made
    _cause: Any = None  # the same exception, kept as the reason why there is no fetcher

    def _new_fetcher(self) -> Any:
        raise NotImplementedError

    def collate(self, samples: Any) -> Any:
        raise NotImplementedError

    def finish(self, samples: Any) -> bool:
        return False

    def still_collates_in_c(self) -> bool:
        return True

    def fetch(self, task: Any) -> Any:
        raise NotImplementedError

    def leave(self) -> None:
        self._fetcher = None
        if self._maker is not None:
            self._maker.leave(self.settings.shutdown_timeout)

    def fetch_each(self, task: Any) -> Any:
        gatherer, self._gatherer = self._gatherer, None
        try:
            return self.fetch(task)
        finally:
            self._gatherer = gatherer

    def _gather(self, indices: Any) -> _core.Rows | None:
        """Returns the rows of a batch, or None if the samples have to be made one by one."""
        self._proof = None
        if self._gatherer is None:
            return None
        rows = self._gatherer.rows(indices)
        self._proof = None if rows is None else self._gatherer.proof(rows)
        if rows is None or self._proof is not None:
            return None
        self._port.note(0)
        return rows

    def _prove(self, samples: Any) -> None:
        """Compares a batch that could have been gathered with that of the samples, which were made one by one."""
        proof, self._proof = self._proof, None
        if proof is not None:
            proof.compare(self.collate(samples))

    def wrap_exception(self) -> raising.Sent:
        raise NotImplementedError

    def _note_failure(self) -> None:
        """Keeps the exception that is being handled, which has kept the worker from starting."""
        self._failure = self._cause = self.wrap_exception()

    def _raise_failure(self) -> None:
        """Raises Failed for the first task after a failed start, and for each one after it until there is a fetcher."""
        failure, self._failure = self._failure, None
        if failure is None and self._fetcher is None and self._state is None:
            failure = self._cause
        if failure is not None:
            raise Failed(failure)

    @property
    def seeding(self) -> tuple[int, int] | None:
        return None if self._maker is None else self._maker.seeding

    def _fetch(self, task: Any) -> Any:
        """Returns the samples of a task, or what the fetcher of the loader makes of them."""
        raise NotImplementedError

    def _fetch_and_note(self, task: Any) -> Any:
        """Returns what _fetch returns. `notes` are then those of this batch, also if it raises."""
        self._begin_batch()
        try:
            data = self._fetch(task)
        except BaseException:
            self.notes = self._notes_of(None)
            raise
        is_due = self._state_is_wanted and self._made % self.settings.snapshot_every_n_steps == 0
        state, error = self._take_state() if is_due else (None, "")
        digest = 0 if self._repeated is None else self._repeated.note(self._made, data)
        self.notes = self._notes_of(state, self._state_is_wanted and self._is_exhausted(), error, digest)
        return data

    def _begin_batch(self) -> None:
        """Raises Failed or EndOfData, if there are no batches. The first time it loads the state of the dataset."""
        self.notes = None
        self._made += 1
        self._raise_failure()
        if self._is_ended:
            raise EndOfData
        if self._state is not None:
            self._load(self._state)

    def _begin_repeated(self, start: StartState) -> None:
        """Begins to note the batches of an epoch of an iterable dataset without a state."""
        is_noted = self._maker is None and not self._state_is_wanted
        who = f"worker {self.worker} makes"
        self._repeated = Repeated(type(self.dataset).__name__, who, start.digest) if is_noted else None
        self._last_discarded = start.made + start.discard

    @property
    def _is_discarding(self) -> bool:
        return self._made <= self._last_discarded

    def _take_state(self) -> tuple[bytes | None, str]:
        """Returns the state of the dataset, or what kept it from being taken: that matters only if the loader's state
        is asked for, or if a worker may have to be replaced."""
        try:
            return pickle.dumps(self.dataset.state_dict()), ""
        except Exception as error:
            if self.settings.max_restarts:
                raise
            return None, exception_text.in_words(error)

    def _is_exhausted(self) -> bool:
        """Returns True if the iterable dataset came to its end while the last batch was made."""
        return bool(getattr(self._fetcher, "is_exhausted", getattr(self._fetcher, "ended", False)))

    def _notes_of(
        self, state: bytes | None, is_end: bool = False, error: str = "", digest: int = 0
    ) -> BatchNotes | None:
        bad = self._take_bad()
        retried = [] if self._maker is None else self._maker.take_retried()
        warning = "" if self._repeated is None or self._is_discarding else self._repeated.take_warning()
        if state is None and not (bad or retried or is_end or error or digest or warning):
            return None
        return BatchNotes(self.worker, state, self._made, bad, retried, is_end, error, digest, warning)

    def sends(self, error: BaseException) -> bool:
        """Does what BatchMaker.sends says. on_bad_sample covers exceptions of class Exception. Any other one
        ends the run, as with num_workers=0, because a restart would try the sample again and skip it in the end."""
        handles_bad = self.settings.on_bad_sample != "raise"
        return handles_bad and not isinstance(error, KeyboardInterrupt)  # a SIGINT of the trainer raises it

    def _load(self, state: bytes) -> None:
        """Loads a state into the dataset. It is called only once there is a task, because a dataset may keep the state
        for the next iteration over it, whichever that is. If the dataset is its own iterator, its __iter__ may put it
        at its beginning, and comes first."""
        is_iterator = lookup.has_special(self.dataset, "__next__")
        fetcher = self._new_fetcher() if is_iterator else None
        self.dataset.load_state_dict(pickle.loads(state))
        self._state = None
        self._fetcher = fetcher or self._new_fetcher()

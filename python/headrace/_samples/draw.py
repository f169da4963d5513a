# SPDX-License-Identifier: Apache-2.0
"""What a loader makes its batches of, one after the other: indices from a sampler, or samples from an iterable dataset.

Both are drawn by _core.Tasks, which keeps what was drawn until it is handed on. So an exception of a signal's handler
loses nothing, whereas it would end a generator in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace import _core
from headrace._engine import crew, reports
from headrace._errors import exception_text
from headrace._options import Policy
from headrace._samples.maker import BadSample, decide
from headrace._samples.refill import TRIES
from headrace._start import signals
from headrace._worker import main


def is_in_other_thread(error: Exception) -> bool:
    """Returns True if a generator could not be asked because it runs in another thread."""
    return isinstance(error, ValueError) and error.args == ("generator already executing",)


class FromSampler:
    """Indices, for batches that are made in this process."""

    def __init__(self, tasks: _core.Tasks) -> None:
        self.tasks = tasks
        self._error = ""  # the sampler's last exception; nothing was drawn after it
        tasks.reads_batches = True  # a batch is read again after an interruption

    def draw(self) -> Any:
        """Returns the next task's indices. StopIteration; what the sampler raises."""
        try:
            indices = self.tasks.draw()
        except StopIteration:
            self._tell_of_early_end()
            raise
        except Exception as error:
            if not self.tasks.is_held and not is_in_other_thread(error):
                self._error = exception_text.in_words(error)
                if not signals.is_from_signal(error):
                    self.tasks.end_if_batched()  # the generator of torch's BatchSampler ends, too
            raise
        self._error = ""
        return indices

    def _tell_of_early_end(self) -> None:
        error, self._error = self._error, ""
        if error and self.tasks.is_ended_by_exceptions():
            crew.tell(reports.of_ended_sampler(self.tasks.handed_count, "sampler", error))


class FromIterable:
    """Samples of an iterable dataset, with the policy for bad ones: the next sample takes the place of a bad one, or
    the batch is smaller. batch_size: 0 gives samples one by one. `worker`: None in the trainer."""

    def __init__(self, iterator: Any, batch_size: int, drop_last: bool, policy: Policy, worker: int | None) -> None:
        self.tasks = _core.Tasks(iterator, batch_size, drop_last)
        self._policy = policy
        self._worker = worker
        self._bad: list[BadSample] = []
        self._bad_count = 0  # of this epoch
        self._tries = 0  # bad samples since the last good one
        self._good_count = 0  # samples that were drawn before them

    def take_bad(self) -> list[BadSample]:
        """Returns what was bad in the batch that was drawn last, once."""
        bad, self._bad = self._bad, []
        return bad

    def draw(self) -> Any:
        """Returns the samples of the next batch, or the next sample. StopIteration; what the dataset raises."""
        while True:
            try:
                return self.tasks.draw()
            except StopIteration:
                raise
            except Exception as error:
                if self.tasks.is_held or signals.is_from_signal(error):
                    raise
                if not self._goes_on_after(error):
                    self.tasks.drop_batch()  # as torch's fetcher
                    raise

    def _goes_on_after(self, error: Exception) -> bool:
        index = self.tasks.item_count + self._bad_count  # in the order of this iterator
        word = decide(self._policy, index, error)
        if word == "raise":
            return False
        if self.tasks.is_ended_by_exceptions():
            exception_text.add_text(
                error,
                f"headrace: on_bad_sample={word!r} cannot go on: the dataset's iterator is a generator, which ends by "
                "an exception. Catch it there, or write the iterator as a class with __next__",
            )
            return False
        if self.tasks.item_count != self._good_count:
            self._good_count, self._tries = self.tasks.item_count, 0
        self._tries += 1
        self._bad_count += 1
        self._bad.append(BadSample(index, exception_text.in_words(error), self._worker))
        if word == "skip":
            self.tasks.skip_item()
        return self._tries <= TRIES


class IterableFetcher:
    """Takes the samples of a batch from an iterable dataset, in a worker. `batched`: False gives samples one by one."""

    ended = False  # as of torch's fetchers: a StopIteration out of fetch is never the end of the dataset

    def __init__(
        self,
        dataset: Any,
        batched: bool,
        drop_last: bool,
        policy: Policy,
        worker: int,
        collate_fn: Callable[[Any], Any] | None = None,
    ) -> None:
        self._iterator = iter(dataset)
        self._batched = batched
        self._drop_last = drop_last
        self._policy = policy
        self._worker = worker
        self._collate = collate_fn
        self._from: FromIterable | None = None

    def take_bad(self) -> list[BadSample]:
        """Returns what was bad in the batch that was fetched last, once."""
        return [] if self._from is None else self._from.take_bad()

    def fetch(self, indices: Any) -> Any:
        """Returns the next batch, as large as `indices` (all batches are), or the next sample. EndOfData at the end."""
        if self._from is None:
            size = len(indices) if self._batched else 0
            self._from = FromIterable(self._iterator, size, self._drop_last, self._policy, self._worker)
        try:
            samples = self._from.draw()
        except StopIteration:
            raise main.EndOfData from None
        self._from.tasks.handed_on()
        return samples if self._collate is None else self._collate(samples)

# SPDX-License-Identifier: Apache-2.0
"""Draws what batches are made of, one after the other: indices from a sampler, or samples from an iterable dataset.

Both are drawn by _core.Tasks, which keeps what was drawn until it is handed on. So nothing is lost if the handler of a
signal raises an exception, which would end a generator in Python. The iterators with num_workers=0 use both classes; a
worker uses FromIterable (headrace._loader.worker.iterable_fetcher).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from headrace import _core
from headrace._base import exception_text, signals
from headrace._base.warn import warn_user
from headrace._options import Settings
from headrace._samples.epoch_reports import describe_ended_sampler
from headrace._samples.last_state import LastState
from headrace._samples.maker import BadSample, decide
from headrace._samples.refill import TRIES
from headrace._samples.retry import Retrying


def is_in_other_thread(error: Exception) -> bool:
    """Returns True if a generator could not be asked because it runs in another thread."""
    return isinstance(error, ValueError) and error.args == ("generator already executing",)


class FromSampler:
    """Draws indices, for batches that are made in this process."""

    def __init__(
        self,
        tasks: _core.Tasks,
        was_drawn: Callable[[], None] | None = None,
        announce: Callable[[_core.Tasks], None] | None = None,
    ) -> None:
        self.tasks = tasks
        self._was_drawn = was_drawn  # is called after the first indices were drawn
        self._announce = announce  # is called after each task was drawn
        self._error = ""  # the sampler's last exception, if nothing was drawn after it
        tasks.reads_batches = True  # a batch is read again after an interruption

    def draw(self) -> Any:
        """Returns the indices of the next task. Raises StopIteration at the end, and any exception of the sampler."""
        try:
            indices = self.tasks.draw()
        except StopIteration:
            self._warn_of_early_end()
            raise
        except Exception as error:
            if not self.tasks.is_held and not is_in_other_thread(error):
                self._error = exception_text.in_words(error)
                if not signals.is_from_signal(error):
                    self.tasks.end_after_error()  # the generators of torch's samplers end, too
            raise
        self._error = ""
        if self._was_drawn is not None:
            self._was_drawn()
            self._was_drawn = None
        if self._announce is not None:
            self._announce(self.tasks)
        return indices

    def _warn_of_early_end(self) -> None:
        error, self._error = self._error, ""
        if error and self.tasks.is_ended_by_exceptions():
            warn_user(describe_ended_sampler(self.tasks.handed_count, "sampler", error))


class FromIterable:
    """Draws the samples of an iterable dataset. The settings decide about bad ones: the next sample takes the place of
    a bad one, or the batch is smaller. `batch_size`: as that of _core.Tasks. `worker`: None in the trainer. last: with
    the option retries, the last state of the dataset."""

    def __init__(
        self,
        iterator: Any,
        batch_size: Any,
        drop_last: bool,
        settings: Settings,
        worker: int | None,
        last: LastState | None = None,
    ) -> None:
        self.tasks = _core.Tasks(iterator, batch_size, drop_last, is_iterator=True)
        self._settings = settings
        self._worker = worker
        self._bad: list[BadSample] = []
        self._bad_count = 0  # bad samples of this epoch
        self._tries = 0  # bad samples since the last good one
        self._good_count = 0  # samples that were drawn before them
        self._last = last
        self._is_behind = False  # the dataset has to go back to its last state before the next sample is drawn
        self._is_in_batch = False  # a batch has begun and is not complete
        self._retrying = Retrying(settings.retries, os.getpid(), worker)  # workers wait for different times
        self._failed = -1, 0  # the position that failed last, and how often it was tried
        self.take_retried = self._retrying.take

    def take_bad(self) -> list[BadSample]:
        """Returns the bad samples of the batch that was drawn last, once."""
        bad, self._bad = self._bad, []
        return bad

    @property
    def _position(self) -> int:
        """How many samples the iterator has given, with those that failed."""
        return self.tasks.item_count + self._bad_count

    def draw(self) -> Any:
        """Returns the samples of the next batch, or the next sample. Raises StopIteration at the end, and any exception
        of the dataset."""
        while True:
            try:
                self._begin_batch()
                samples = self.tasks.draw()
                self._is_in_batch = False
                return samples
            except StopIteration:
                raise
            except Exception as error:
                if self.tasks.is_held or self.tasks.is_over or signals.is_from_signal(error):
                    raise  # of the batch size
                if self._is_tried_again(error):
                    continue
                if self._is_behind or not self._goes_on_after(error):
                    self._drop_batch()
                    raise

    def _drop_batch(self) -> None:
        """Drops a batch whose exception is raised, as torch's fetcher does. What comes next, after the sample that
        failed, is counted from a new state."""
        self.tasks.drop_batch()
        self._is_in_batch = False
        if self._last is not None and not self._is_behind:
            self._last.forget()

    def _begin_batch(self) -> None:
        if self._last is None or self.tasks.is_held:
            return
        if self._is_behind:
            self.tasks.use_iterator(self._last.go_back(self._position))
            self._is_behind = False
        if not self._is_in_batch:
            self._last.begin_batch(self._position, self.tasks)
            self._is_in_batch = True

    def _is_tried_again(self, error: Exception) -> bool:
        """Returns True, after a wait, if the dataset has to go back and give the sample again."""
        if self._last is None:
            return False
        position, (failed, tries) = self._position, self._failed
        self._failed = position, (tries if position == failed else 0) + 1
        why_not, retried = self._last.why_not(position), self._retrying.retried
        goes_on = self._retrying.goes_on(error, position, self._failed[1], retried, why_not)
        self._is_behind |= goes_on
        return goes_on

    def _goes_on_after(self, error: Exception) -> bool:
        index = self._position  # counts the samples of this iterator
        word = decide(self._settings, index, error)
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
        if self._last is not None:
            self._last.note_bad(index)
        if word == "skip":
            self.tasks.skip_item()
        return self._tries <= TRIES

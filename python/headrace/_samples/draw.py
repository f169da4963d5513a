# SPDX-License-Identifier: Apache-2.0
"""Draws what batches are made of, one after the other: indices from a sampler, or samples from an iterable dataset.

Both are drawn by _core.Tasks, which keeps what was drawn until it is handed on. So nothing is lost if the handler of a
signal raises an exception, which would end a generator in Python. The iterators with num_workers=0 use both classes; a
worker uses FromIterable (headrace._loader.worker.iterable_fetcher).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace import _core
from headrace._base import exception_text, signals
from headrace._base.warn import warn_user
from headrace._options import Settings
from headrace._samples.epoch_reports import describe_ended_sampler
from headrace._samples.maker import BadSample, decide
from headrace._samples.refill import TRIES


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
    a bad one, or the batch is smaller. `batch_size`: as that of _core.Tasks. `worker`: None in the trainer."""

    def __init__(self, iterator: Any, batch_size: Any, drop_last: bool, settings: Settings, worker: int | None) -> None:
        self.tasks = _core.Tasks(iterator, batch_size, drop_last, is_iterator=True)
        self._settings = settings
        self._worker = worker
        self._bad: list[BadSample] = []
        self._bad_count = 0  # bad samples of this epoch
        self._tries = 0  # bad samples since the last good one
        self._good_count = 0  # samples that were drawn before them

    def take_bad(self) -> list[BadSample]:
        """Returns the bad samples of the batch that was drawn last, once."""
        bad, self._bad = self._bad, []
        return bad

    def draw(self) -> Any:
        """Returns the samples of the next batch, or the next sample. Raises StopIteration at the end, and any exception
        of the dataset."""
        while True:
            try:
                return self.tasks.draw()
            except StopIteration:
                raise
            except Exception as error:
                if self.tasks.is_held or self.tasks.is_over or signals.is_from_signal(error):
                    raise  # of the batch size
                if not self._goes_on_after(error):
                    self.tasks.drop_batch()  # torch's fetcher drops it too
                    raise

    def _goes_on_after(self, error: Exception) -> bool:
        index = self.tasks.item_count + self._bad_count  # counts the samples of this iterator
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
        if word == "skip":
            self.tasks.skip_item()
        return self._tries <= TRIES

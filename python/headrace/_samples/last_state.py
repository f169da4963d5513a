# SPDX-License-Identifier: Apache-2.0
"""Continues an iterable dataset from its last state after an I/O error that may pass (the option retries).

After an exception an iterator has ended, or goes on behind the sample that failed. So the dataset gets a state that it
gave before, is iterated again, and what it gave after that state is drawn once more and dropped: no sample is lost, and
none comes twice. FromIterable (headrace._samples.draw) uses it; a batch maker or a loader without workers keeps it from
epoch to epoch.
"""

from __future__ import annotations

import pickle
from typing import Any

from headrace._base import exception_text, lookup, signals
from headrace._samples import dataset_epochs, random_numbers, shuffle_buffer


class LastState:
    """See above. every: batches from one state to the next. What the dataset gives is counted from 0 in each epoch,
    with the samples that on_bad_sample leaves out: that is a position."""

    def __init__(self, dataset: Any, every: int) -> None:
        self.dataset = dataset
        self._every = every
        self._is_iterator = lookup.has_special(dataset, "__next__")
        self._was_loaded = False  # in this epoch
        self._error = ""  # what state_dict raised last
        self._before_all = self._pickled_state()
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Begins an epoch, before the dataset is iterated. A dataset may keep a state that it was given for each
        further iteration, so it gets the one that it had before its first epoch; it stays in its epoch."""
        if self._was_loaded and self._before_all is not None:
            before = dataset_epochs.epochs_of(self.dataset)
            self.dataset.load_state_dict(pickle.loads(self._before_all))
            after = dataset_epochs.epochs_of(self.dataset)
            changed = {part: epoch for part, epoch in before.items() if after.get(part, epoch) != epoch}
            dataset_epochs.set_epochs(self.dataset, changed)
        self._was_loaded = False
        self._position = 0  # of the state
        self._batches_left = 0  # until the next state is due
        self._bad: set[int] = set()  # positions after the state of samples that were left out
        self.begin_with(None)

    def begin_with(self, state: bytes | None) -> None:
        """Notes the state, pickled, that was loaded for this epoch; None: the dataset begins at its start."""
        self._state = state
        self._generators = random_numbers.states()

    def begin_batch(self, position: int, tasks: Any) -> None:
        """Takes the state of the dataset, if it is due. Before the first sample it may be that of the epoch before: a
        generator has not begun to run. So that sample is drawn then."""
        if self._batches_left:
            self._batches_left -= 1
            return
        is_begun = bool(position) or self._is_iterator
        if is_begun or tasks.keep_item():
            self._take(position if is_begun else 1)
            self._batches_left = self._every - 1

    def _take(self, position: int) -> None:
        state = self._pickled_state()
        if state is not None:
            self._position, self._bad = position, set()
            self.begin_with(state)

    def _pickled_state(self) -> bytes | None:
        try:
            return pickle.dumps(self.dataset.state_dict())
        except Exception as error:
            if signals.is_from_signal(error):
                raise
            self._error = exception_text.in_words(error)
            return None

    def forget(self) -> None:
        """Forgets the state: the next batch begins with a new one."""
        self._state, self._batches_left = None, 0

    def note_bad(self, position: int) -> None:
        """Notes a sample that is left out."""
        self._bad.add(position)

    def why_not(self, position: int) -> str:
        """Returns why the dataset cannot be continued at this position, or ""."""
        if self._state is not None:
            return ""
        kind = type(self.dataset).__name__
        if position:
            return f"headrace: retries= cannot continue the {kind}: its state_dict raised {self._error}"
        if lookup.attribute(self.dataset, "replayable", False) or shuffle_buffer.is_of_hugging_face(self.dataset):
            return ""
        return (
            f"headrace: retries= cannot continue the {kind} before the first sample of an epoch, because it has no "
            "state there. If each iter() of it begins with the same samples, also after an error, give it an "
            "attribute `replayable` that is True: then it is iterated again. Otherwise try again where it reads"
        )

    def go_back(self, position: int) -> Any:
        """Returns an iterator that gives what is at this position next. Raises what the dataset raises."""
        random_numbers.restore(self._generators)
        try:
            iterator = self._iterated()
        except StopIteration as error:
            raise RuntimeError("headrace: the dataset raised StopIteration when its last state was loaded") from error
        for at in range(self._position, position):
            self._drop(iterator, at)
        return iterator

    def _iterated(self) -> Any:
        """Iterates over the dataset from the state. If it is its own iterator, its __iter__ may put it at its
        beginning, and comes first."""
        if self._state is None:
            return iter(self.dataset)
        iterator = iter(self.dataset) if self._is_iterator else None
        self._was_loaded = True
        self.dataset.load_state_dict(pickle.loads(self._state))
        return iter(self.dataset) if iterator is None else iterator

    def _drop(self, iterator: Any, at: int) -> None:
        try:
            next(iterator)
        except StopIteration:
            raise RuntimeError(
                f"headrace: retries= has loaded the last state of the {type(self.dataset).__name__}, and then it gave "
                "fewer samples than before: load_state_dict has to continue behind the sample after which state_dict "
                "was called"
            ) from None
        except Exception as error:
            if at not in self._bad or signals.is_from_signal(error):
                raise

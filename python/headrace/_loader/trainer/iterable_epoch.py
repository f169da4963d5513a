# SPDX-License-Identifier: Apache-2.0
"""One epoch of a loader with an iterable dataset: how far it is, and the state that continues it.

A dataset with state_dict and load_state_dict continues where it was, in each worker. Any other one is iterated from its
beginning, and so is one with a shuffle buffer that its state does not have (headrace._samples.shuffle_buffer): the
batches that the consumer had are made again and dropped, by each worker its own, so that it does not matter in which
order they come.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from headrace._base import lookup
from headrace._base.help_key import help_on
from headrace._base.warn import warn_user
from headrace._loader.trainer.worker_positions import WorkerPositions
from headrace._loader.worker.batch_maker import BatchNotes
from headrace._loader.worker.repeated import Repeated
from headrace._samples import shuffle_buffer
from headrace._samples.last_state import LastState
from headrace.sampling._epoch import Last
from headrace.sampling._iterable import order_of, segment, state_at_start
from headrace.sampling._next_start import NextStart
from headrace.sampling._state import State

_DIGEST = "digest"  # in the seeds of a state


class IterableEpoch:
    """See above.

    dataset, workers, rank: of the loader. number: of the epoch. continued: what it continues. held_back: see the
    option. The iterator starts it, sets `tasks`, which count the batches that the consumer has, and drops `to_drop`
    batches.
    """

    tasks: Any = None
    loaded: bytes | None = None  # the state that load_in_process has found
    last_state: LastState | None = None  # of the dataset of a loader without workers, with the option retries
    is_over: Callable[[], bool]

    def __init__(
        self, dataset: Any, workers: int, rank: int, number: int, continued: NextStart | None, held_back: int
    ) -> None:
        self.order = order_of(dataset, workers)
        self.number = number
        self.seeds: dict[str, Any] = {}
        self._dataset = dataset
        self._workers = workers
        self._rank = rank
        self._held_back = held_back
        state = None if continued is None else continued.state
        self._state = state if state is not None and (state.steps or "base" in state.seeds) else None
        self._dropped = 0 if continued is None else continued.skipped
        saved = [] if self._state is None else self._state.workers
        self._keeps_place = shuffle_buffer.keeps_place(dataset)
        self._has_states = any(isinstance(place, list) and place[:1] != [None] for place in saved[1:])
        has_places = workers or self._keeps_place or self._has_states
        self.places = WorkerPositions(max(workers, 1), saved) if has_places else None
        self._begun = self._state.steps if self._state is not None and saved else 0
        steps = 0 if self._state is None else self._state.steps
        self._repeated = 0 if saved and (self._keeps_place or self._has_states) else steps
        self.to_drop = self._dropped + (0 if saved else steps)
        self._noted = 0  # batches after which the dataset's state was noted
        self._digester = self._new_digester(state)
        self._digests: list[tuple[int, int]] = []  # of a dataset without a state and workers: see Repeated
        self._of_iterator: bytes | None = None  # a state that is loaded when the dataset has been iterated

    def _new_digester(self, state: State | None) -> Repeated | None:
        if self.places is not None:
            return None
        saved = [] if state is None else state.seeds.get(_DIGEST, [])
        is_sound = isinstance(saved, list) and [type(one) for one in saved] == [int, int]
        kind = type(self._dataset).__name__
        return Repeated(kind, "the loader makes", tuple(saved) if is_sound else None)

    @property
    def has_changed(self) -> bool:
        """Returns False: it cannot be divided in another way."""
        return False

    @property
    def is_continued(self) -> bool:
        """Returns True if the epoch was begun before."""
        return self._state is not None

    @property
    def base_seed(self) -> int | None:
        """Returns the seed of the workers, if the epoch was begun before."""
        return None if self._state is None else self._state.seeds.get("base")

    def load_in_process(self) -> bytes | None:
        """Loads the state into the dataset of a loader without workers, before it is iterated. Returns the dataset's
        state before that, pickled, with which its next epoch begins; None if nothing was loaded. If the dataset is its
        own iterator, load_into_iterator loads the state."""
        if self.places is None or self._state is None or not self._state.workers:
            return None
        start = self.places.starts(self.number)[0]
        self.to_drop += start.discard
        self._begun -= start.discard
        self.loaded = start.state
        if start.state is None:
            return None
        if lookup.has_special(self._dataset, "__next__"):
            self._of_iterator = start.state
            return None
        before = pickle.dumps(self._dataset.state_dict())
        self._dataset.load_state_dict(pickle.loads(start.state))
        return before

    def load_into_iterator(self) -> None:
        """Loads the state into a dataset without workers that is its own iterator: its __iter__, which has been called
        now, may have put it at its beginning."""
        if self._of_iterator is not None:
            self._dataset.load_state_dict(pickle.loads(self._of_iterator))

    def made_in_process(self, batch: Any) -> None:
        """Called after each batch of a loader without workers: notes the batch of a dataset without a state, and takes
        the dataset's state, if the consumer may have fewer batches than were made."""
        if self._digester is not None:
            number = int(self.tasks.answered_count) + 1
            if digest := self._digester.note(number, batch):
                self._digests.append((number, digest))
                if warning := self._digester.take_warning():
                    warn_user(warning)
        made = self._begun + self.tasks.answered_count + 1
        if self.places is not None and self._keeps_place and self._held_back and made != self._noted:
            state = pickle.dumps(self._dataset.state_dict())
            self.places.note(0, BatchNotes(0, state=state, made=made), self._delivered())
            self._noted = made

    def warn_of_drop(self) -> None:
        """Says what it costs to continue a dataset that has no state, or one that does not have all of its samples."""
        kind, buffered = type(self._dataset).__name__, shuffle_buffer.count_buffered(self._dataset)
        if self._repeated:
            why = (
                f"{kind} has a shuffle buffer of {buffered:,} samples, which its state_dict does not have"
                if buffered
                else f"{kind} has no state_dict and load_state_dict"
            )
            warn_user(
                f"headrace: the state has none of the dataset ({why}), so the {self._repeated} batches that were "
                "delivered before are made again and dropped" + help_on("iterable-resume")
            )
        lost = buffered or shuffle_buffer.count_inside(self._dataset)
        if self._has_states and lost:
            warn_user(
                f"headrace: the state has that of the {kind}, but not the samples that were in its shuffle buffer: in "
                f"this epoch up to {lost * max(self._workers, 1):,} samples may be lost, and some may come twice"
                + help_on("iterable-resume")
            )

    def _delivered(self) -> int:
        return max(0, int(self.tasks.answered_count) - self._held_back)

    def steps_done(self, held_back: int = 0) -> int:
        """Returns how many batches of the epoch the consumer has, those before a resume too."""
        return self._begun + max(0, int(self.tasks.answered_count) - held_back)

    def has_delivered(self) -> bool:
        """Returns True if the consumer has a batch of it from this process, or if no more come."""
        return self.tasks is not None and (self.tasks.answered_count > self.to_drop or self.is_over())

    def steps_left(self) -> int | None:
        """Returns None: an iterable dataset has no known end."""
        return None

    def last(self) -> Last | None:
        """Returns the batch that was delivered last, or None. It has no indices."""
        steps = self.steps_done()
        return None if not self.tasks.answered_count else Last(self.number, steps - 1, None, [], None)

    def state(self, held_back: int) -> State:
        """Returns the state after the batches that were delivered, without those that are held back."""
        if self.is_over() or self._is_exhausted(held_back):
            return state_at_start(self.number + 1, self.order, self._rank)
        steps = self.steps_done(held_back)
        return State(
            self.number,
            steps,
            -1,
            self.order,
            [segment(steps)],
            seeds={**self.seeds, **self._digest_of(steps)},
            rank=self._rank,
            by=self._rank,
            workers=self._saved(steps) if steps and self.places is not None else [],
        )

    def _digest_of(self, steps: int) -> dict[str, Any]:
        """Returns the digest of the batches that were delivered, as part of the seeds of a state."""
        known = [one for one in self._digests if one[0] <= steps]
        return {_DIGEST: list(known[-1])} if known else {}

    def _is_exhausted(self, held_back: int) -> bool:
        """Returns True if the consumer has the last batch, as far as that is known before the end."""
        if self.places is None or not self.steps_done(held_back):
            return False
        if self._workers:
            return self.places.are_ended(self._delivered())
        return bool(self.tasks.is_over) and not held_back

    def _saved(self, steps: int) -> list[Any]:
        assert self.places is not None
        if not self._workers and not self._keeps_place:  # that of the state which it was continued from
            assert self._state is not None
            state, made, _, is_ended, *_ = self._state.workers[1]
            return [0, [state, made, steps, is_ended]]
        if self._workers or self._held_back:
            return self.places.saved(self._delivered())
        state = BatchNotes(0, state=pickle.dumps(self._dataset.state_dict()), made=self.steps_done())
        places = WorkerPositions(1, [0, [None, 0, self.steps_done() - 1, False]])
        places.note(0, state, 1)
        return places.saved(1)

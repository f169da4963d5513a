# SPDX-License-Identifier: Apache-2.0
"""Epochs of so many steps (the option steps_per_epoch). Both loaders use it.

A pass over the sampler is what an epoch is without the option: it has a number, an order and a state of its own. The
passes follow each other in one stream, and an epoch is a window of N steps of the stream. The iterator of a pass lives
until the pass has ended. So a window that begins in the middle of a pass goes on with the batches that were made ahead,
and all that belongs to a pass (seeds, draws, ranks, weights) stays as it is.

    passes     |  0: 7 steps  |  1: 7 steps  |  2: ...
    epochs     | 0: 5    | 1: 5    | 2: 5    | ...
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn, Protocol

from headrace._base.warn import warn_user
from headrace.sampling import _next_start
from headrace.sampling._epoch import Epoch, Last, Progress
from headrace.sampling._epoch_indices import EpochIndices
from headrace.sampling._next_start import NextStart
from headrace.sampling._state import State, StateError

_ENDED = object()  # comes in place of a batch when a pass has ended
_is_batch = functools.partial(operator.is_not, _ENDED)


class Begun(NamedTuple):
    """A pass that a loader has begun. following: the number of the pass after it.
    has_lost_workers: returns True if its workers were ended by others, as Lightning does after a training, or if one
    has died."""

    iterator: Any
    progress: Progress
    following: int
    has_lost_workers: Callable[[], bool]


class Passes(Protocol):
    """The calls that a loader answers for its windows."""

    def begin(self, number: int) -> Begun:
        """Begins a pass, or continues the one that was loaded, which has this number."""

    def set_parts(self, epoch: int) -> None:
        """Sets the samplers and the dataset to the number of a pass."""

    def go_on_from_state(self) -> None:
        """Loads the state of now into the loader, as another process would."""


class _Mark:
    """Comes after the iterator of a pass in a chain: notes that this has ended."""

    is_over = False

    def end(self) -> object:
        self.is_over = True
        return _ENDED


def _marked(iterator: Any, mark: _Mark) -> Iterator[Any]:
    """Returns the batches of a pass, and then sets the mark. The parts have an __iter__ written in C: an exception of a
    signal's handler in that of a part would end the chain."""
    return itertools.chain(filter(_is_batch, iterator), iter(mark.end, _ENDED))


class _Run(NamedTuple):
    """A pass that was begun in this process. begun_with: its steps before. has_lost_workers: see Begun."""

    iterator: Iterator[Any]
    mark: _Mark
    progress: Progress
    begun_with: int
    has_lost_workers: Callable[[], bool]

    def is_untouched(self) -> bool:
        """Returns True if no index was drawn yet."""
        epoch = self.progress
        return isinstance(epoch, Epoch) and not self.begun_with and not epoch.tasks.handed_count


class _Place(NamedTuple):
    """A place in the stream, which is replaced in one assignment, because a signal may interrupt any other step.

    number: of the epoch. given: its steps that were done before this process, or left out. before: its steps before
    `run`, the newest pass of this process. first: the steps of `run` that belong to earlier epochs, or that were done
    before this process. following: the number of the pass after `run`. has_ended: the iterator of the epoch has raised
    StopIteration.
    """

    number: int = 0
    given: int = 0
    before: int = 0
    run: _Run | None = None
    first: int = 0
    following: int = 0
    has_ended: bool = False

    def done(self) -> int:
        """Returns how many steps of the epoch are done."""
        return self.before + (0 if self.run is None else self.run.progress.steps_done() - self.first)

    def is_used(self) -> bool:
        """Returns True if a batch of the epoch was delivered in this process, or if it has none left and was ended."""
        return self.has_ended or self.done() > self.given

    def next_epoch(self) -> _Place:
        """Returns the beginning of the next epoch at the same place of the stream."""
        first = 0 if self.run is None else self.run.progress.steps_done()
        return self._replace(number=self.number + 1, given=0, before=0, first=first, has_ended=False)


class Windows:
    """The epochs of a loader, of so many steps each."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._place = _Place()
        self._newest = object()  # the iterator that may take batches

    # ---- iterating ----

    def begin(self, passes: Passes) -> Window:
        """Returns an iterator over the next epoch, or over the rest of the one that was loaded."""
        self.finish_epoch()
        run = self._place.run
        if run is not None and not run.mark.is_over and run.has_lost_workers():
            passes.go_on_from_state()
        self._newest = token = object()
        if self._place.run is None:
            self._begin_pass(passes)
        return Window(self, _Iterators(self, passes, token))

    def finish_epoch(self) -> None:
        """Goes to the next epoch, at the same place of the stream, unless nothing of this one was delivered here."""
        if self._place.is_used():
            self._place = self._place.next_epoch()

    def next_iterator(self, passes: Passes, token: object) -> Iterator[Any]:
        """Returns the iterator that gives the next batch, or nothing any more if its pass has just ended. Raises
        StopIteration at the end of the epoch."""
        if token is not self._newest:
            raise RuntimeError(
                "headrace: this iterator was left, because the loader was iterated again, or went to another place of "
                "its stream: with steps_per_epoch the epochs are parts of one stream, so only the newest iterator goes "
                "on with it"
            )
        if self._place.done() >= self.steps:
            self._place = self._place._replace(has_ended=True)
            raise StopIteration
        run = self._place.run
        if run is None or run.mark.is_over:
            run = self._begin_pass(passes)
        if run.is_untouched():  # a framework may have set the samplers to another epoch since iter()
            passes.set_parts(self._place.following - 1)
        return run.iterator

    def _begin_pass(self, passes: Passes) -> _Run:
        place = self._place
        if place.run is not None and not place.run.progress.steps_done():
            raise RuntimeError(
                f"headrace: steps_per_epoch={self.steps}, but the pass after {place.done()} steps of epoch "
                f"{place.number} gives no batch: the sampler or the dataset is empty, or can be read only once"
            )
        before = place.done()
        try:
            begun = passes.begin(place.following)
        except StopIteration as error:  # it would end the epoch
            raise RuntimeError("headrace: a StopIteration was raised when a pass over the sampler began") from error
        mark, done = _Mark(), begun.progress.steps_done()
        run = _Run(_marked(begun.iterator, mark), mark, begun.progress, done, begun.has_lost_workers)
        self._place = place._replace(before=before, run=run, first=done, following=begun.following)
        return run

    # ---- the progress ----

    def steps_left(self) -> int:
        """Returns how many steps of the epoch are left."""
        return max(0, self.steps - self._place.done())

    def next_number(self) -> int:
        """Returns the number of the epoch that the next iter() begins or continues."""
        return self._place.number + self._place.is_used()

    def is_next(self, epoch: int) -> bool:
        """Returns True if the stream goes on with an epoch that the user sets. If that is the one after an epoch that
        was loaded in its middle, the latter was left there, and ends now, as in the process that left it."""
        place = self._place
        if place.given and not place.is_used() and epoch == place.number + 1:
            self._place = place.next_epoch()
        return epoch == self.next_number()

    def is_running(self) -> bool:
        """Returns True if a pass was begun in this process."""
        return self._place.run is not None

    def last(self, last: Last | None) -> Last | None:
        """Returns what a pass says of the batch that was delivered last, as part of the epoch, or None before the first
        one of it."""
        done = self._place.done()
        return None if last is None or not done else last._replace(epoch=self._place.number, step=done - 1)

    # ---- the state ----

    def held_back(self, option: int) -> int:
        """Returns how many batches of the epoch are held back."""
        return 0 if self._place.has_ended else min(option, self._place.done())

    def add_to(self, state: State, is_left: bool) -> State:
        """Adds the place in the epoch to the state of a pass. is_left: the consumer has ended the epoch itself."""
        place, order = self._place, state.order
        if place.run is None and not state.is_end and "epoch" in order:  # not what a framework has set
            order = {**order, "epoch": state.epoch}
        done = place.done() - self._held_in(state)
        is_over = is_left or done >= self.steps
        window = {"epoch": place.number + is_over, "done": 0 if is_over else done, "steps": self.steps}
        return State(**{**vars(state), "order": order, "window": window})

    def _held_in(self, state: State) -> int:
        """Returns how many steps of the newest pass a state leaves out."""
        run = self._place.run
        is_same = run is not None and state.epoch == self._place.following - 1
        return max(0, run.progress.steps_done() - state.steps) if run is not None and is_same else 0

    def load(self, window: dict[str, int], number: int) -> None:
        """Goes to the place of a state. number: that of its pass."""
        self._go_to(_Place(window["epoch"], window["done"], window["done"], following=number))

    def go_to(self, epoch: int, number: int) -> None:
        """Goes to the beginning of an epoch, in a pass that is not begun."""
        self._go_to(_Place(epoch, following=number))

    def check_skip(self, steps: int, is_iterable: bool) -> None:
        """Raises ValueError if the steps at the beginning of the next epoch, or of the rest of this one, cannot be left
        out."""
        if is_iterable:
            raise ValueError("headrace: skip() with steps_per_epoch needs a map-style dataset; load a state instead")
        place = self._place
        left = self.steps - (0 if place.is_used() else place.given)
        if steps > left:
            raise ValueError(f"headrace: skip({steps}) would leave out more than the epoch has: {left} steps are left")

    def skip(self, steps: int, number: int) -> None:
        """Leaves out steps of the epoch that is not begun here. number: of the pass in which they end."""
        place = self._place
        self._go_to(_Place(place.number, place.given + steps, place.before + steps, following=number))

    def _go_to(self, place: _Place) -> None:
        self._place, self._newest = place, object()

    @property
    def following(self) -> int:
        """The number of the pass that begins next."""
        return self._place.following

    def copied(self, start: NextStart | None) -> Windows:
        """Returns those of a copy of the loader, which begins at the stream's beginning, or where the loader will
        begin. start: what that begins with, of which nothing was delivered."""
        other, place = Windows(self.steps), self._place
        if start is not None:
            number = place.following - (place.run is not None) if start.state is None else start.state.epoch
            first = place.next_epoch() if place.is_used() else place
            other._place = _Place(first.number, first.given, first.given, following=number)
        return other


class Window(filter):  # type: ignore[type-arg]
    """An iterator over one epoch. From the iterator of a pass to the consumer, a batch goes through C code only
    (filter, map, next, chain), so that the exception of a signal's handler loses none."""

    _windows: Windows

    def __new__(cls, windows: Windows, iterators: Iterator[Any]) -> Window:
        batches = map(next, iterators, itertools.repeat(_ENDED))
        self = super().__new__(cls, _is_batch, batches)
        self._windows = windows
        return self

    def __reduce__(self) -> NoReturn:
        raise NotImplementedError(
            "headrace: an iterator over a loader cannot be copied or pickled; save loader.state_dict()"
        )

    def __len__(self) -> int:
        """Returns the number of steps of an epoch, as torch's iterators do."""
        return self._windows.steps


class _Iterators:
    """Gives for each batch the iterator that it comes from."""

    def __init__(self, windows: Windows, passes: Passes, token: object) -> None:
        self._windows, self._passes, self._token = windows, passes, token
        self._is_over = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Iterator[Any]:
        if self._is_over:
            raise StopIteration
        try:
            return self._windows.next_iterator(self._passes, self._token)
        except StopIteration:
            self._is_over = True
            raise


def check(state: State, windows: Windows | None) -> None:
    """Raises StateError if a state was taken with steps_per_epoch and the loader has none, or the other way round."""
    window = state.window
    if windows is None and window:
        raise StateError(
            f"headrace: this state was taken with steps_per_epoch={window['steps']}, and this loader has none; give it "
            "steps_per_epoch"
        )
    if windows is not None and not window:
        raise StateError(
            f"headrace: this state was taken without steps_per_epoch, and this loader has {windows.steps}; go on with "
            "the state in a loader without it"
        )
    if windows is not None and window["done"] >= windows.steps:
        raise StateError(
            f"headrace: this state was taken after {window['done']} of {window['steps']} steps of an epoch, and this "
            f"loader has steps_per_epoch={windows.steps}; give it more than {window['done']}, or take the state at an "
            "epoch's end"
        )


def pass_of(indices: EpochIndices | None, steps: int, what: str) -> tuple[int, int]:
    """Returns the pass that comes so many steps later than the beginning of another one, counted from that, and the
    steps before the place in it. Raises ValueError if a sampler's later passes are not known before they are drawn.
    indices: None for an iterable dataset."""
    count = indices.count_steps(0) if indices is not None and indices.is_numbered else None
    if not count:
        kind = "an iterable dataset" if indices is None else f"the {indices.order['kind']}"
        raise ValueError(
            f"headrace: with steps_per_epoch, {what} would go to another pass over {kind}, whose place in the stream "
            "is not known before the passes between were read; load a state, or use a sampler whose orders come from "
            "a seed and have equally many batches (headrace.Order, DistributedSampler)"
        )
    return divmod(steps, count)


def after_skip(indices: EpochIndices, start: NextStart, steps: int) -> tuple[int, int]:
    """Returns how many passes begin in the next steps, and the steps in the last of them. Raises ValueError. start:
    what the pass begins with."""
    left = _next_start.count_left(indices, start.state, start.skipped)
    if left is None or steps <= left:
        return 0, 0
    later, rest = pass_of(indices, steps - left, f"skip({steps})")
    return later + 1, rest


def warn_of_discarded(start: NextStart | None, epoch: int) -> None:
    """Warns that set_epoch discards a state."""
    window = None if start is None or start.state is None else start.state.window
    if window:
        warn_user(
            f"headrace: set_epoch({epoch}) discards the state that was loaded, of epoch {window['epoch']} after "
            f"{window['done']} steps"
        )

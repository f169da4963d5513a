# SPDX-License-Identifier: Apache-2.0
"""NextStart: the state that the next iterator of a loader continues, and the steps that it skips. Both loaders use
it."""

from __future__ import annotations

from dataclasses import dataclass

from headrace._base.help_key import help_on
from headrace._base.warn import warn_user
from headrace.sampling._epoch import Progress
from headrace.sampling._epoch_indices import EpochIndices, check_division
from headrace.sampling._state import OrderChangedError, Segment, State, StateError


@dataclass
class NextStart:
    """The state that the next iterator of a loader continues. skipped: steps to leave out after it. begun: the epoch of
    the iterator that has begun it, which the next one does again unless a batch was delivered: iter() may have been
    interrupted, or its result was not used."""

    state: State | None
    skipped: int = 0
    begun: Progress | None = None

    @property
    def is_used(self) -> bool:
        """Returns True if the consumer has a batch after the state."""
        return self.begun is not None and self.begun.has_delivered()


def skipped(state: State, steps: int, indices: EpochIndices) -> State:
    """Returns a state some steps later."""
    *earlier, last = state.segments
    if state.steps and not last.divides_as(indices.segment):
        earlier, last = state.segments, indices.segment
    last = Segment(**{**vars(last), "steps": last.steps + steps})
    samples = -1 if indices.n is None or state.samples < 0 else state.samples
    if samples >= 0:
        samples = indices.position_after([*earlier, last])
    return State(
        **{**vars(state), "steps": state.steps + steps, "segments": [*earlier, last], "last": 0, "samples": samples}
    )


def with_skip(start: NextStart, steps: int, indices: EpochIndices) -> NextStart:
    """Returns what is continued if so many more steps are skipped. Raises ValueError if the epoch has fewer."""
    left = count_left(indices, start.state, start.skipped)
    if left is not None and steps > left:
        raise ValueError(f"headrace: skip({steps}) would leave out more than the epoch has: {left} steps are left")
    return NextStart(start.state, start.skipped + steps)


def count_left(indices: EpochIndices, state: State | None, skipped: int) -> int | None:
    """Returns how many steps an epoch has left that begins with a state, or None if that is not known."""
    position = done = 0
    if state is not None and state.steps:
        *earlier, last = state.segments
        if last.divides_as(indices.segment):
            position, done = indices.position_after(earlier), last.steps - len(state.holes)
        else:
            position = indices.position_after(state.segments)
    count = indices.count_steps(position)
    return None if count is None else count - done - skipped


def discards(start: NextStart | None, epoch: int) -> bool:
    """Returns True if the state that is continued next is discarded, because the user sets the loader to another epoch.
    Then a warning says how many steps are lost."""
    state = None if start is None else start.state
    if state is None or state.epoch == epoch:
        return False
    if state.steps:
        warn_user(
            f"headrace: set_epoch({epoch}) discards the state that was loaded, of epoch {state.epoch} after "
            f"{state.steps} steps"
        )
    return True


def length_of(epoch: Progress | None, count: int) -> int:
    """Returns the number of batches of the running epoch, if it was divided in another way before; else `count`."""
    if epoch is None or not epoch.has_changed:
        return count
    left = epoch.steps_left()
    return epoch.steps_done() + left if left else count


def length_to_be(state: State, indices: EpochIndices, count: int) -> int:
    """Returns the same for an epoch that begins with a state."""
    if not state.steps or (len(state.segments) == 1 and state.segments[-1].divides_as(indices.segment)):
        return count
    left = count_left(indices, state, 0)
    return count if left is None else state.steps + left


def fitting(state: State, indices: EpochIndices, on_changed: str) -> State:
    """Returns the state, or what on_changed makes of it if the dataset has changed. Raises StateError if it does not
    fit the loader."""
    try:
        indices.check_order(state)
    except OrderChangedError:
        if on_changed != "next_epoch":
            raise
        return next_epoch(state)
    then, now = state.order["n"], indices.order["n"]
    if then != now:
        state = _changed(state, then, now, indices, on_changed)
    elif state.steps or not state.is_of_all_ranks:
        check_division(state, indices)
    if state.order["n"] == now:
        indices.was_loaded(state)
    return state


def _changed(state: State, then: int, now: int, indices: EpochIndices, word: str) -> State:
    """Returns what on_changed makes of a state that was taken with another number of samples."""
    if word == "next_epoch" or not state.steps:
        return next_epoch(state)
    message = f"headrace: this state was taken with {then:,} samples, and the dataset has {now:,}"
    if word != "finish":
        finish = '"finish" ends this epoch with the old ones, ' if _can_finish(indices, then, now) else ""
        raise StateError(f'{message}; on_changed={finish}"next_epoch" begins the next epoch' + help_on("state"))
    if now < then:
        raise StateError(
            f'{message}: on_changed="finish" needs all of the old ones; on_changed="next_epoch" begins the next epoch'
            + help_on("state")
        )
    indices = indices.with_size(then)
    check_division(state, indices)
    return state


def _can_finish(indices: EpochIndices, then: int, now: int) -> bool:
    """Returns True if an epoch that began with `then` samples can be ended now that there are other ones."""
    if now < then:
        return False
    try:
        indices.with_size(then)
    except StateError:
        return False
    return True


def next_epoch(state: State) -> State:
    """Returns the state at the beginning of the epoch after that of a state, or the same one before any step."""
    if not state.steps:
        return state
    return State(state.epoch + 1, 0, 0, dict(state.order), [state.segments[-1].at_start()])

# SPDX-License-Identifier: Apache-2.0
"""The EpochIndices of a plan: it can be continued at any step, by other ranks and with other settings. The loaders
choose it (headrace.torch._samplers.find, headrace._numpy.position)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._base.help_key import help_on
from headrace.sampling._epoch_indices import Drawn, EpochIndices, check_same_order
from headrace.sampling._mixture_algorithm import check_algorithm
from headrace.sampling._plan_settings import PlanSettings
from headrace.sampling._plan_table import Division, Rest
from headrace.sampling._state import OrderChangedError, Segment, State, StateError

if TYPE_CHECKING:
    from headrace.sampling._plan import Plan

_KEPT = 64  # positions whose segments are known


def division_of(segment: Segment) -> Division:
    """Returns a segment of a state as a division of a plan. Raises StateError if it is damaged or needs a newer
    version."""
    try:
        return Division(segment.world, PlanSettings.of_fields(segment.plan), segment.steps, segment.digest)
    except (TypeError, ValueError) as error:
        raise StateError(f"headrace: the plan in this state cannot be made: {error}") from None


class PlanIndices(EpochIndices):
    """The batches of one rank of a plan. A position is how many entries of the order were consumed."""

    is_known = True

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.order = plan.identity()
        self.n = plan.n
        self.rank = plan.place.rank
        self.segment = Segment(plan.place.world_size, 1, False, plan.settings.tail, plan=plan.settings.as_fields())
        self.seeds: dict[str, Any] = {}
        self._reached: dict[int, list[Segment]] = {0: []}  # by position, the segments that lead to it
        # What was planned is kept, because a step asks for it several times.
        self._rests: dict[int, Rest] = {}  # by position, what is left from there on
        self._begun: dict[Any, tuple[list[Segment], Rest]] = {}  # what segments have divided

    def position_after(self, segments: list[Segment]) -> int:
        if not segments:
            return 0
        position = self._rest_before(segments).position(segments[-1].steps)
        if position not in self._reached:
            if len(self._reached) == _KEPT:  # those that are used
                self._reached = {one: way for one, way in self._reached.items() if one in self._rests or one == 0}
            self._reached[position] = segments
        return position

    def _rest_before(self, segments: list[Segment]) -> Rest:
        """Returns what the last one of some segments has divided."""
        *earlier, last = segments
        # A dict of settings is known by its identity: the entry keeps it alive.
        key = (last.world, id(last.plan), *((one.world, id(one.plan), one.steps) for one in earlier))
        if key not in self._begun:
            rest = self._plan.rest(self._epoch, [division_of(one) for one in earlier], division_of(last))
            self._begun[key] = segments, rest
        return self._begun[key][1]

    @property
    def _epoch(self) -> int:
        return self.order["epoch"]  # type: ignore[no-any-return]

    def rest(self, position: int) -> Rest:
        """Returns what is left of the epoch from a position on. Raises StateError if it is not that of the state that
        is continued."""
        if position not in self._rests:
            self._rests[position] = self._rest_before([*self._reached[position], self.segment])
        return self._rests[position]

    def draw(self, position: int, steps: int, seeds: dict[str, Any] | None) -> tuple[Drawn, int]:
        return Drawn(_Batches(self, position, steps), 0, False), 0

    def begin(self, position: int, is_whole: bool) -> Rest:
        """Returns what is left when the first batch is drawn. The epoch of a plan may be set after the loader's
        iterator was made."""
        if is_whole:
            if self.order["epoch"] != self._plan.epoch:
                self.order["epoch"] = self._plan.epoch
                self._rests.clear()
                self._begun.clear()
            self._plan.begin_epoch()
        rest = self.rest(position)
        self.segment.digest = rest.table.digest
        state = self._plan.state_of_order(self._epoch)
        if state is not None:
            self.seeds["own"] = state
        return rest

    def continues(self, segment: Segment) -> None:
        self.segment.digest = segment.digest  # `rest` compares it

    def count_steps(self, position: int) -> int | None:
        return self.rest(position).count_steps()

    def weights(self, position: int, step: int, task: Any) -> list[float]:
        rest = self.rest(position)
        return rest.table.weights(rest.number(step, self.rank))

    def count_global(self, position: int, step: int) -> int | None:
        return self.rest(position).samples_in(step)

    def was_loaded(self, state: State) -> None:
        if "own" in state.seeds:
            following = state.seeds.get("next_own") if state.is_end else None
            self._plan.continue_order(state.order["epoch"], state.seeds["own"], following)

    def start_seeds(self) -> dict[str, Any]:
        state = self._plan.state_of_order(self._epoch)
        return dict(self.seeds) if state is None else {**self.seeds, "own": state}

    def end_seeds(self) -> dict[str, Any]:
        state, following = self._plan.state_of_order(self._epoch), self._plan.state_of_next_order()
        return {} if state is None else {"own": state, "next_own": following}

    def check_order(self, state: State) -> None:
        lengths = state.order.get("lengths", self.order["lengths"])
        if self._is_of_earlier_mixture(state.order.get("order")):
            check_algorithm(1)
        check_same_order(state, {**self.order, "lengths": lengths})
        n = min(state.order["n"], self.n or 0)
        if state.steps and n == state.order["n"]:
            self._check_names(lengths)
            self._check_costs(state, n)
        if state.steps and n == state.order["n"] and lengths != self._plan.digest_of(n):
            raise OrderChangedError(
                f"headrace: the lengths of the first {n:,} samples have changed since this state was taken, so "
                "the plan would have other batches; give the plan the lengths that it had, or use "
                "on_changed='next_epoch' to leave the rest of the epoch out" + help_on("order-changed")
            )

    def _is_of_earlier_mixture(self, order: Any) -> bool:
        """Returns True for the order of a headrace.Mixture from before it named its algorithm."""
        is_mixture = isinstance(order, str) and order.startswith("headrace.Mixture(")
        return is_mixture and self.order["order"] != order and "algorithm=" not in order

    def _check_names(self, lengths: Any) -> None:
        theirs, own = (sorted(one) if isinstance(one, dict) else [] for one in (lengths, self.order["lengths"]))
        if theirs != own:
            before, now = (
                f"lengths of {' and '.join(map(repr, names))}" if names else "one length" for names in (theirs, own)
            )
            raise OrderChangedError(
                f"headrace: this state was taken with a plan of {before}, and this plan has {now}; give it lengths "
                "with the same names, or use on_changed='next_epoch' to leave the rest of the epoch out"
                + help_on("order-changed")
            )

    def _check_costs(self, state: State, n: int) -> None:
        measured = {one.plan.get("cost") for one in state.segments if isinstance(one.plan.get("cost"), str)}
        if measured and measured != {self._plan.digest_of_costs(n)}:
            raise OrderChangedError(
                f"headrace: the measured costs (cost=) of the first {n:,} samples have changed since this state was "
                "taken, so the plan would have other batches; give the plan the costs that it had, or use "
                "on_changed='next_epoch' to leave the rest of the epoch out" + help_on("order-changed")
            )

    def with_size(self, n: int) -> EpochIndices:
        plan = self._plan.of_first(n)
        return super().with_size(n) if plan is None else PlanIndices(plan)


class _Batches:
    """The batches of a rank from a step on. Each iterator is an object, because an exception of a signal's handler
    would end a generator."""

    def __init__(self, indices: PlanIndices, position: int, step: int) -> None:
        self._indices, self._position, self._step = indices, position, step

    def __iter__(self) -> BatchIterator:
        rest = self._indices.begin(self._position, is_whole=not self._position and not self._step)
        return BatchIterator(rest, self._indices.rank, self._step)


class BatchIterator:
    """An iterator over the batches of a rank from a step on."""

    def __init__(self, rest: Rest, rank: int, step: int = 0) -> None:
        self._rest, self._rank, self._step, self._end = rest, rank, step, rest.count_steps()

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> list[int]:
        if self._step >= self._end:
            raise StopIteration
        batch = self._rest.table.batch(self._rest.number(self._step, self._rank))
        self._step += 1
        return batch

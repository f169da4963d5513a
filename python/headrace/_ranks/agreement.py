# SPDX-License-Identifier: Apache-2.0
"""Compares what the ranks of a job read. Each loader that takes part has an Agreement, and calls it.

Ranks of one machine meet on the board (`membership`, src/board). Ranks of several machines meet in the store of
torch.distributed, which headrace.torch gives to `use_store`. A job without either runs as it would without headrace.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Protocol

from headrace import _core
from headrace._base import signals
from headrace._base.help_key import help_on
from headrace._base.warn import warn_user
from headrace._ranks import membership
from headrace._ranks.disagreement import (
    SWITCH,
    Facts,
    RanksDisagree,
    describe,
    describe_end,
    describe_other_dataset,
    describe_remainder,
    describe_seeds,
    have_other_datasets,
)
from headrace._ranks.job import attempt, find_job
from headrace._ranks.loader_identity import LoaderIdentity
from headrace._ranks.remainder import ALLOWED, ERROR, Remainder

WAIT_S = 2.0  # for the ranks that begin an epoch later
NOTE_AFTER_S = 30.0  # a note of missing ranks comes at the first epoch after so long
_WORD = 1 << 64


class Store(Protocol):
    """The functions of torch.distributed's store that an agreement needs."""

    def process_count(self) -> int:
        """Returns the number of processes of the default group; 0: there is no group."""

    def gather(self, key: str, text: str | None, count: int, deadline: float) -> tuple[int, list[str]]:
        """Adds a text for `count` processes, and waits for those of all others until the deadline (time.monotonic).
        Returns the number of processes that have added theirs, and the texts. A text of None adds nothing."""

    def forget(self, key: str) -> None:
        """Removes the texts of an earlier epoch."""


_store: Store | None = None
_late: set[str] = set()  # the makers (see LoaderIdentity) of loaders for which ranks did not come in time
_given_up: set[str] = set()  # the makers of loaders that are not compared any more


def use_store(store: Store | None) -> None:
    """Sets the store that agreements use from now on."""
    global _store
    _store = store


class Agreement:
    """The agreement of the ranks about one loader.

    place: loaders of other processes are compared if they have the same place, world_size and settings.
    rank, world_size: those of the part that this loader reads. Several processes may have the same rank.
    settings: a text; loaders with other settings are different loaders.
    """

    def __init__(self, place: LoaderIdentity, rank: int, world_size: int, settings: str = "") -> None:
        self._place, self._settings = place, settings
        self._rank, self._world_size = rank, world_size
        self._member: membership.Membership | None = None
        self._entry: _core.BoardEntry | None = None
        self._key = 0
        self._facts: Facts | None = None
        self._number = self._ended = 0  # of the newest epoch, and of the newest one that came to its end
        self._shown = self._sent = 0  # of the newest epoch on the board, and in the store
        self._steps_before = 0
        self._begun_count = 0  # epochs that were compared until now
        self._first: tuple[int, list[int], Callable[[dict[int, list[int]]], None]] | None = None  # see show_first
        self._waits = True  # until ranks did not come in time
        self._came = True  # the others began this epoch in time
        self._are_known = True  # the others have begun any epoch
        self._missing_since: float | None = None
        self._was_noted = self._was_warned = self._was_warned_of_seeds = False
        self._remainder, self._own_seeds = Remainder(), False
        self._board_state, self._store_state = "no epoch has begun", ""

    def describe(self) -> str:
        """Returns how this rank is compared with others, or why not."""
        return "; ".join(filter(None, [self._board_state, self._store_state]))

    def begin_epoch(
        self, facts: Facts, steps_before: int = 0, remainder: Remainder | None = None, own_seeds: bool = False
    ) -> None:
        """Compares the facts with those of the other ranks. Waits for them 2 s at most, and not again for this loader
        if they do not come. Raises RanksDisagree. If a signal has interrupted it, it can be called again.

        steps_before: batches of this epoch that were taken before a resume. remainder: whether ranks may differ by the
        rest of a division; None: not at all, if that gives them other numbers of batches. own_seeds: each rank may have
        a seed of its own, so other seeds are a warning, once."""
        if self._is_left_out():
            return
        deadline = time.monotonic() + WAIT_S
        self._number_epoch(Facts(*map(_as_word, facts)))
        self._steps_before, self._remainder, self._own_seeds = steps_before, remainder or Remainder(), own_seeds
        self._join(deadline)
        if not self._waits:
            deadline = 0.0
        self._came = self._are_known = True
        peers = self._meet_on_board(deadline)
        others = self._meet_in_store(peers, deadline)
        self._note_missing()
        if self._is_left_out():
            return
        self._compare([(self._rank, self._own()), *((rank, facts) for _, rank, facts in peers), *others])
        self._begun_count += 1
        self._show_first()

    @property
    def begun_count(self) -> int:
        """The number of epochs that have begun, and were compared."""
        return self._begun_count

    def show_first(self, number: int, digests: list[int], compare: Callable[[dict[int, list[int]]], None]) -> None:
        """Shows the ranks of this machine the digests of the first indices of an epoch, without waiting. If all have
        shown theirs, it calls `compare` with those of each rank. number: begun_count before that epoch. The workers'
        first batches are drawn before it begins: then that is done when it begins."""
        self._first = number, digests, compare
        self._show_first()

    def _show_first(self) -> None:
        if self._first is None or self._entry is None or self._begun_count <= self._first[0]:
            return
        (_, digests, compare), self._first = self._first, None
        self._entry.show_first(digests)
        parts = {**dict(self._entry.first()), self._rank: digests}
        if len(parts) == self._world_size:
            compare(parts)

    def _is_left_out(self) -> bool:
        """Returns True if this loader is not compared, and notes why."""
        reason = self._why_not()
        if reason:
            self._board_state, self._store_state, self._entry = reason, "", None
        return bool(reason)

    def _why_not(self) -> str:
        """Returns why this loader is not compared, or nothing. If ranks did not come to a loader in time, they may make
        fewer loaders in these lines, and then the places of later ones do not belong together."""
        if os.environ.get(SWITCH) == "0":
            return f"{SWITCH}=0 is set"
        if self._world_size < 2:
            return "there is one rank"
        if not membership.may_take_part():
            return "this is a data worker or a forked child"
        if self._place.maker in _given_up:
            return "the ranks use other datasets in the lines that made it"
        if self._place.maker in _late and self._place.number > 0:
            return "ranks did not come in time to a loader of the lines that made it, and it is not the first one"
        return ""

    def _number_epoch(self, facts: Facts) -> None:
        """Gives the epoch a number. An epoch that begins again before its end keeps its number: then a rank that has
        looked at one batch before its training is in the same epoch as the others."""
        if facts != self._facts or self._ended == self._number:
            self._number, self._facts = self._number + 1, facts

    def _own(self) -> Facts:
        assert self._facts is not None, "an epoch has begun"
        return self._facts

    def _compare(self, found: list[tuple[int, Facts]]) -> None:
        """Raises RanksDisagree if the facts of ranks differ. If their datasets have nothing in common, the loaders are
        not the same one: each rank has made other loaders in these lines, which are not compared any more."""
        if have_other_datasets(found):
            _given_up.add(self._place.maker)
            self._is_left_out()
            warn_user(describe_other_dataset(self._place.where, found))
            return
        may_differ = ["steps", "length"] if self._remainder.accepts(facts for _, facts in found) else []
        may_differ += ["seed"] if self._own_seeds else []
        if message := describe(self._place.where, found, may_differ):
            raise RanksDisagree(message)
        if self._own_seeds and not self._was_warned_of_seeds and (message := describe_seeds(self._place.where, found)):
            self._was_warned_of_seeds = True
            warn_user(message)
        if (
            self._remainder.rule != ALLOWED
            and not self._was_warned
            and (message := describe_remainder(self._place.where, found))
        ):
            self._was_warned = True
            warn_user(message)

    @property
    def show_step(self) -> Callable[[int], tuple[int, int] | None] | None:
        """A function that _core.Iterator calls at each step, with the number of batches that were taken in this
        process. If it does not return None, check_end is called. None: nothing is compared."""
        return None if self._entry is None else self._entry.step

    def show_wait(self, inside_ns: int, elapsed_ns: int) -> None:
        """Shows the other ranks how long the loop of this one was inside next() in this epoch, of how long."""
        if self._entry is not None:
            self._entry.show_wait(inside_ns, elapsed_ns)

    def waits(self) -> list[tuple[int, int, int]]:
        """Returns (rank, inside_ns, elapsed_ns) of all ranks of this machine that have shown it; []: there are no
        others."""
        return [] if self._entry is None else self._entry.waits()

    def end(self, steps: int) -> None:
        """Shows that this rank is at its end after `steps` batches in this process. An epoch that is broken off has no
        end. Raises RanksDisagree if another rank of this machine has taken more, or is at its end with fewer."""
        self._ended = self._number
        if self._entry is not None and (ended := self._entry.end(steps)):
            self.check_end(steps, ended)

    def check_end(self, steps: int, ended: tuple[int, int]) -> None:
        """Raises RanksDisagree, unless the ranks may differ so much: this rank has taken `steps` batches in this
        process; `ended` is a result of show_step."""
        if self._remainder.accepts_end(steps, ended[1] - self._steps_before):
            return
        own = self._rank, self._steps_before + steps
        raise RanksDisagree(describe_end(self._place.where, self._own(), own, ended))

    def _join(self, deadline: float) -> None:
        """Takes an entry on the board in the first epoch."""
        if self._member is not None:
            return
        processes = _store.process_count() if _store else 0
        self._member = membership.join(find_job(max(self._world_size, processes)), _until(deadline))
        self._key = self._place.key(self._settings)
        self._waits = self._place.maker not in _late
        board, self._board_state = self._member.board, self._member.reason
        if board is None:
            return
        try:
            self._entry = board.enter(self._place.where, self._key, self._rank, self._world_size)
        except (OSError, MemoryError) as error:
            self._board_state = str(getattr(error, "strerror", None) or error)

    def _meet_on_board(self, deadline: float) -> list[tuple[int, int, Facts]]:
        """Returns page, rank and facts of the other processes of this machine."""
        member, entry = self._member, self._entry
        if member is None or member.board is None or entry is None:
            return []
        entry.count_from(self._steps_before)
        entry.allow(int(self._remainder.rule != ERROR))
        if self._shown != self._number:
            self._shown = self._number  # before publish: a signal that arrives there interrupts it at its end
            entry.publish(*self._own())
        self._came = entry.wait(member.awaited, _until(deadline))
        count = member.board.process_count()
        if not self._came and count < member.awaited:
            member.give_up_missing()
        self._are_known = entry.known() >= max(count, member.local_size)
        peers = [(page, rank, Facts(*facts)) for page, rank, facts in entry.peers()]
        self._board_state = f"compared with {len(peers)} other processes of this machine"
        return peers

    def _meet_in_store(self, peers: list[tuple[int, int, Facts]], deadline: float) -> list[tuple[int, Facts]]:
        """Returns the facts of ranks of all machines. One process of each machine adds those of all its processes."""
        processes = _store.process_count() if _store else 0
        if _store is None or processes <= len(peers) + 1:
            return []
        board = self._member.board if self._member else None
        is_first = board is None or all(board.page() < page for page, _, _ in peers)
        pairs = [(self._rank, self._own()), *((rank, facts) for _, rank, facts in peers)]
        text = json.dumps([self._waits, _group(pairs)]) if is_first and self._sent != self._number else None
        self._sent = self._number
        try:
            count, texts = _store.gather(self._store_key(self._number), text, len(pairs), deadline)
            found = [pair for text in texts for pair in self._same_epoch(text)]
            if not self._waits:
                self._are_known &= _store.gather(self._store_key(self._number - 1), None, 0, 0.0)[0] >= processes
            _store.forget(self._store_key(self._number - 2))
        except Exception as error:  # of the store: a connection that is closed, a method that it does not have
            if signals.is_from_signal(error):
                raise
            self._store_state = f"the store of torch.distributed failed: {error}"
            return []
        self._came &= count >= processes
        self._store_state = f"{count} of {processes} processes are in the store of torch.distributed"
        return found

    def _store_key(self, number: int) -> str:
        return f"headrace/{attempt()}/{self._place.where}/{self._world_size}/{self._key}/{number}"

    def _same_epoch(self, text: str) -> list[tuple[int, Facts]]:
        """Returns the ranks and facts of a text. After a rank was late, its epochs may have other numbers than those of
        the others, and only facts of the same `epoch` are compared."""
        waits, groups = json.loads(text)
        pairs = [(rank, Facts(*facts)) for ranks, facts in groups for rank in ranks]
        if waits and self._waits:
            return pairs
        return [(rank, facts) for rank, facts in pairs if facts.epoch == self._own().epoch != -1]

    def _note_missing(self) -> None:
        """Waits no more if ranks did not come in time, and gives a note once if some have not come for long."""
        if not self._came:
            self._waits = False
            _late.add(self._place.maker)
        if self._came or self._are_known:
            self._missing_since = None
            return
        now = time.monotonic()
        if self._missing_since is None:
            self._missing_since = now
        elif now - self._missing_since >= NOTE_AFTER_S and not self._was_noted:
            self._was_noted = True
            warn_user(
                f"headrace: rank {self._rank} has begun an epoch of the loader at {self._place.where}, and other ranks "
                f"have not done so for {now - self._missing_since:.0f} s ({self.describe()}). If they do not use this "
                "loader, ignore this; otherwise look where they are, for example with py-spy dump"
                + help_on("ranks-wait")
            )


def _until(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _as_word(value: int) -> int:
    """Returns an int of 64 bits with a sign: seeds and digests may be larger."""
    value %= _WORD
    return value - _WORD if value >= _WORD // 2 else value


def _group(pairs: list[tuple[int, Facts]]) -> list[tuple[list[int], Facts]]:
    """Returns ranks that have the same facts together."""
    groups: dict[Facts, list[int]] = {}
    for rank, facts in pairs:
        groups.setdefault(facts, []).append(rank)
    return [(ranks, facts) for facts, ranks in groups.items()]

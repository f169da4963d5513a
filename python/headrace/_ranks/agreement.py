# SPDX-License-Identifier: Apache-2.0
"""Compares what the ranks of a job read. Each loader that takes part has an Agreement, and calls it.

Ranks of one machine meet on the board (`membership`, src/board). Ranks of several machines meet in the store of
torch.distributed, which headrace.torch gives to `use_store`. A job without either runs as it would without headrace.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Protocol

from headrace import _core
from headrace._errors.warn import warn_user
from headrace._ranks import membership
from headrace._ranks.disagreement import Facts, RanksDisagree, describe, describe_end
from headrace._ranks.job import attempt, find_job

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
_places: Counter[str] = Counter()  # loaders that have begun, by where they were made
_late: set[str] = set()  # where the loaders were made for which ranks did not come in time


def use_store(store: Store | None) -> None:
    """Sets the store that agreements use from now on."""
    global _store
    _store = store


class Agreement:
    """The agreement of the ranks about one loader.

    where: the line that made the loader, such as "train.py:12". Loaders are compared with those of the same line and
        the same world_size in other processes. So the text must be the same in all ranks, with a file name that does
        not depend on the machine, and ranks that form several groups need the group in it.
    rank, world_size: those of the part that this loader reads. Several processes may have the same rank.
    """

    def __init__(self, where: str, rank: int, world_size: int) -> None:
        self._where = where.encode(errors="backslashreplace").decode()
        self._rank, self._world_size = rank, world_size
        self._member: membership.Membership | None = None
        self._entry: _core.BoardEntry | None = None
        self._place = self._number = 0
        self._facts = Facts(-1, -1, -1, -1, -1, -1)
        self._waits = True  # until ranks did not come in time
        self._came = True  # the others began this epoch in time
        self._are_known = True  # the others have begun any epoch
        self._missing_since: float | None = None
        self._was_noted = False
        self._board_state, self._store_state = "no epoch has begun", ""

    def __reduce__(self) -> tuple[type[Agreement], tuple[str, int, int]]:
        """Makes copies, and loaders that are sent to other processes, begin with an agreement of their own."""
        return Agreement, (self._where, self._rank, self._world_size)

    def describe(self) -> str:
        """Returns how this rank is compared with others, or why not."""
        return "; ".join(filter(None, [self._board_state, self._store_state]))

    def begin_epoch(self, facts: Facts) -> None:
        """Compares the facts with those of the other ranks. Waits for them 2 s at most, and not again for this loader
        if they do not come. Raises RanksDisagree."""
        if self._world_size < 2 or not membership.may_take_part():
            self._board_state = (
                "there is one rank" if self._world_size < 2 else "this is a data worker or a forked child"
            )
            self._entry = None
            return
        deadline = time.monotonic() + WAIT_S
        self._facts = Facts(*map(_as_word, facts))
        self._number += 1
        self._join(deadline)
        if not self._waits:
            deadline = 0.0
        self._came = self._are_known = True
        peers = self._meet_on_board(deadline)
        others = self._meet_in_store(peers, deadline)
        self._note_missing()
        found = [(self._rank, self._facts), *((rank, facts) for _, rank, facts in peers), *others]
        if message := describe(self._where, found):
            raise RanksDisagree(message)

    def step(self, steps: int) -> None:
        """Shows that `steps` batches were taken. Raises RanksDisagree if another rank of this machine is at its end
        with fewer."""
        if self._entry is not None and (ended := self._entry.step(steps)):
            self._raise_end(steps, ended)

    def end(self, steps: int) -> None:
        """Shows that this rank is at its end after `steps` batches. An epoch that is broken off has no end. Raises
        RanksDisagree if another rank of this machine has taken more, or is at its end with fewer."""
        if self._entry is not None and (ended := self._entry.end(steps)):
            self._raise_end(steps, ended)

    def _raise_end(self, steps: int, ended: tuple[int, int]) -> None:
        raise RanksDisagree(describe_end(self._where, self._facts, (self._rank, steps), ended))

    def _join(self, deadline: float) -> None:
        """Takes an entry on the board in the first epoch."""
        if self._member is not None:
            return
        processes = _store.process_count() if _store else 0
        self._member = membership.join(find_job(max(self._world_size, processes)), _until(deadline))
        self._place = _places[self._where]
        _places[self._where] += 1
        self._waits = self._where not in _late
        board, self._board_state = self._member.board, self._member.reason
        if board is None:
            return
        try:
            self._entry = board.enter(self._where, self._place, self._rank, self._world_size)
        except (OSError, MemoryError) as error:
            self._board_state = str(getattr(error, "strerror", None) or error)

    def _meet_on_board(self, deadline: float) -> list[tuple[int, int, Facts]]:
        """Returns page, rank and facts of the other processes of this machine."""
        member, entry = self._member, self._entry
        if member is None or member.board is None or entry is None:
            return []
        entry.publish(*self._facts)
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
        pairs = [(self._rank, self._facts), *((rank, facts) for _, rank, facts in peers)]
        text = json.dumps([self._waits, _group(pairs)]) if is_first else None
        try:
            count, texts = _store.gather(self._key(self._number), text, len(pairs), deadline)
            found = [pair for text in texts for pair in self._same_epoch(text)]
            if not self._waits:
                self._are_known &= _store.gather(self._key(self._number - 1), None, 0, 0.0)[0] >= processes
            _store.forget(self._key(self._number - 2))
        except Exception as error:  # of the store: a connection that is closed, a method that it does not have
            self._store_state = f"the store of torch.distributed failed: {error}"
            return []
        self._came &= count >= processes
        self._store_state = f"{count} of {processes} processes are in the store of torch.distributed"
        return found

    def _key(self, number: int) -> str:
        return f"headrace/{attempt()}/{self._where}/{self._world_size}/{self._place}/{number}"

    def _same_epoch(self, text: str) -> list[tuple[int, Facts]]:
        """Returns the ranks and facts of a text. After a rank was late, its epochs may have other numbers than those of
        the others, and only facts of the same `epoch` are compared."""
        waits, groups = json.loads(text)
        pairs = [(rank, Facts(*facts)) for ranks, facts in groups for rank in ranks]
        if waits and self._waits:
            return pairs
        return [(rank, facts) for rank, facts in pairs if facts.epoch == self._facts.epoch != -1]

    def _note_missing(self) -> None:
        """Waits no more if ranks did not come in time, and gives a note once if some have not come for long."""
        if not self._came:
            self._waits = False
            _late.add(self._where)
        if self._came or self._are_known:
            self._missing_since = None
            return
        now = time.monotonic()
        if self._missing_since is None:
            self._missing_since = now
        elif now - self._missing_since >= NOTE_AFTER_S and not self._was_noted:
            self._was_noted = True
            warn_user(
                f"headrace: rank {self._rank} has begun an epoch of the loader at {self._where}, and other ranks have "
                f"not done so for {now - self._missing_since:.0f} s ({self.describe()}). If they do not use this "
                "loader, ignore this; otherwise look where they are, for example with py-spy dump"
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

# SPDX-License-Identifier: Apache-2.0
"""Chooses the loader that is measured, as HEADRACE_HEADSPACE asks, and prints the result. Both loaders call it."""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import re
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from headrace import _core
from headrace._loader.headspace import VARIABLE, ending
from headrace._loader.headspace.kept import Kept
from headrace._loader.headspace.measure import Measure, Times
from headrace._loader.headspace.steps import Steps
from headrace._ranks import where

_DIFFER = 0.1  # the two stages with data should not differ by more
_UNITS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))
_EXAMPLE = f"{VARIABLE}=100@train.py:88"


def _asked() -> tuple[int, str]:
    """Returns the steps, and the line of the loader to be measured, or an empty text. Raises ValueError."""
    text = os.environ.get(VARIABLE, "")
    match = re.fullmatch(r"\s*([1-9]\d{0,8})\s*(?:@(.+))?", text)
    if match is None:
        raise ValueError(
            f"headrace: {VARIABLE} should be a number of steps, such as 100, or {_EXAMPLE} for the loader that is made "
            f"in that line, but is {text!r}"
        )
    return int(match[1]), (match[2] or "").strip()


def _in_words(seconds: float) -> str:
    unit, scale = next((one for one in _UNITS if seconds >= one[1]), _UNITS[-1])
    number = seconds / scale
    return f"{number:.0f} {unit}" if number >= 10 else f"{number:.1f} {unit}"


def describe(times: Times) -> str:
    """Returns the result in one line."""
    cost = round(100 * times.cost)
    costs = f"loading costs {cost} %" if cost else "loading costs nothing that can be measured"
    return f"a step takes {_in_words(times.with_data)}; with free data {_in_words(times.free)}: {costs}"


def _is_first_rank() -> bool:
    return where.rank_or_zero() == 0


def _note(text: str) -> None:
    if _is_first_rank():
        print(f"headrace: headspace: {text}", file=sys.stderr, flush=True)


@dataclass
class _Seen:
    """A loader over which this process has iterated."""

    line: str
    loader: weakref.ref[Any]
    measure: Measure


class Session:
    """The measurement of this process. It measures the first loader whose loop is warm, or the one that was named."""

    def __init__(self) -> None:
        self.steps, self._wanted = _asked()
        self._pid = os.getpid()
        self._measured: Measure | None = None
        self._is_over = False
        self._seen: list[_Seen] = []
        atexit.register(self._at_exit)

    def measure_of(self, loader: Any, show: _core.Show) -> Measure:
        """Returns the measurement of a loader. One that was made in the line of an earlier loader, which is gone, goes
        on with that one's: some scripts make a loader for each epoch."""
        line = show.name.decode(errors="replace")
        of_line = [one for one in self._seen if one.line == line]
        for seen in of_line:
            if seen.loader() is loader:
                return seen.measure
        for seen in of_line:
            if seen.loader() is None:
                seen.loader = weakref.ref(loader)
                seen.measure.show = show
                return seen.measure
        name = line if not of_line else f"{line}#{len(of_line) + 1}"
        self._seen.append(_Seen(line, weakref.ref(loader), Measure(name, self.steps, show, self)))
        return self._seen[-1].measure

    def measures(self, measure: Measure) -> bool:
        """Returns True if the steps of this loader count."""
        if self._is_over or os.getpid() != self._pid:
            return False
        if self._measured is not None:
            return self._measured is measure
        return self._wanted in ("", measure.name)

    @functools.cached_property
    def has_other_ranks(self) -> bool:
        try:
            return where.find().world_size > 1
        except (TypeError, ValueError):  # what the launcher says is wrong
            return True

    # ---- what a measurement tells ----

    def has_warmed_up(self, measure: Measure) -> None:
        self._measured = measure
        for other in self._seen:
            if other.measure is not measure:
                other.measure.kept = Kept()  # frees its batches
        if not measure.kept:
            self._is_over = True
            _note(
                f"the batches of the loader made at {measure.name} cannot be kept ({measure.kept.problem}), so they "
                "cannot be repeated; the script runs on, and nothing is measured"
            )

    def begins_free(self, measure: Measure) -> None:
        _note(
            f"the loop over the loader made at {measure.name} gets {len(measure.kept)} batches again and again from "
            f"here on, and the script ends in {measure.steps_left} steps: do not use a model that it saves from now on"
        )

    def has_ended(self, measure: Measure) -> None:
        self._is_over = True
        if _is_first_rank():
            print("\n".join(f"headrace: headspace: {line}" for line in self._lines(measure)), flush=True)
        ending.end()

    def _lines(self, measure: Measure) -> list[str]:
        times = measure.times()
        copies = " as copies, because the loop writes into them" if measure.kept.is_written else ""
        lines = [
            describe(times),
            f"that is the loop over the loader made at {measure.name}: {self.steps} steps with data "
            f"({_in_words(times.before)}), {self.steps} with {len(measure.kept)} batches again{copies}, {self.steps} "
            f"with data ({_in_words(times.after)})",
        ]
        if abs(times.before - times.after) > _DIFFER * times.with_data:
            lines.append("the two parts with data differ, so the machine or the steps change: measure more steps")
        if others := sorted({one.measure.name for one in self._seen} - {measure.name}):
            lines.append(f"other loaders: {', '.join(others)}; {VARIABLE}={self.steps}@{others[0]} measures that one")
        lines.append(
            "the script ends here, and no `finally`, `except` or later line of it runs: its model was trained on "
            "repeated batches"
        )
        return lines

    def _at_exit(self) -> None:
        if not self._is_over and os.getpid() == self._pid:
            _note(self._describe_short())

    def _describe_short(self) -> str:
        """Says why the script has ended without a result."""
        found = [one.measure for one in self._seen if self.measures(one.measure)]
        if not found:
            names = ", ".join(sorted({one.measure.name for one in self._seen}))
            return f"no loader was made at {self._wanted}, which {VARIABLE} names; there are {names}"
        most = max(found, key=lambda one: one.done)
        text = (
            f"too few steps: the loop over the loader made at {most.name} had {most.done} of the "
            f"{most.steps_needed} that are needed (the first of an epoch does not count); give it more epochs, or set "
            f"{VARIABLE} to less than {self.steps}"
        )
        return text + "; do not use its model, which was trained on repeated batches" * most.has_repeated


@functools.cache
def _session() -> Session:
    return Session()


def iterate(loader: Any, show: _core.Show, make: Callable[[], Iterator[Any]], is_iterable: bool) -> Iterator[Any]:
    """Returns an iterator over the next epoch of a loader, which `make` begins."""
    if multiprocessing.current_process().daemon:  # a worker, whose dataset has loaders of its own
        return make()
    session = _session()
    return Steps(session, session.measure_of(loader, show), loader, make, is_iterable)

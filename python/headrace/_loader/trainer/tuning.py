# SPDX-License-Identifier: Apache-2.0
"""Keeps what num_workers="auto" knows of a loader, over all its epochs and engines. The Tuner (src/loader/tuner.c)
decides; the workers that it does not want are parked: they get no tasks."""

from __future__ import annotations

from typing import Any

from headrace import _core
from headrace._base.warn import log
from headrace._loader.start import contexts
from headrace._options import Settings
from headrace._ranks import worker_count
from headrace.sampling._position import EpochPosition

_WORTH_S, _WORTH_BATCHES = 1.0, 50  # an epoch with less says nothing about num_workers=0
_GAIN = 0.03
_LONG_S, _WAITS_SHARE = 60.0, 0.1  # an epoch in which other numbers would be tried
_START_SHARE = 0.05  # of the time that the loop has waited, that the start of a worker may take


class Tuning:
    """How many workers of a loader get tasks.

    With rng="sample" the number changes at any time. With rng="worker" the random numbers of a sample depend on its
    worker, so it changes between epochs only. Workers that are forked from this process start with the epoch, all of
    them as long as numbers are tried; others one at a time, when they are wanted.
    """

    def __init__(self, most: int, prefetch_factor: int, context: Any, settings: Settings) -> None:
        first = min(most, worker_count.by_rule())
        self.tuner = _core.Tuner(first, most, prefetch_factor, *worker_count.turn())
        self.changes_within_epochs = settings.rng == "sample"
        self.is_forked = contexts.start_method_of(context) == "fork"
        self._said = False

    def continue_with(self, position: EpochPosition) -> None:
        """Begins the next epoch with the number that the loaded state has, once."""
        workers, position.continued_workers = position.continued_workers, None
        if workers is not None and not self.changes_within_epochs and workers != self.tuner.wanted:
            self.tuner.restart(min(max(1, workers), self.tuner.report()["most"]))

    def as_seeds(self, is_at_start: bool) -> dict[str, int]:
        """Returns what a state needs so that the samples of this epoch, or of the next one, get the same random numbers
        again: the number of workers, if it does not change within an epoch."""
        if self.changes_within_epochs:
            return {}
        return {"workers": self.tuner.wanted if is_at_start else self.tuner.report()["workers"]}

    @property
    def to_start(self) -> int:
        """How many workers to start with an epoch. While nothing is tried, no others are needed."""
        report = self.tuner.report()
        starts_all = self.is_forked and self.changes_within_epochs and report["state"] != "rest"
        return int(report["most"] if starts_all else self.tuner.wanted)

    @property
    def worker_bytes(self) -> int:
        """How much private memory a further worker takes, about."""
        return worker_count.FORKED_BYTES if self.is_forked else worker_count.STARTED_BYTES

    def may_start(self, waited_s: float, start_s: float) -> bool:
        """Returns True if the loop has waited so long that the start of a worker is worth its time."""
        return start_s <= _START_SHARE * waited_s

    def report(self, show: _core.Show) -> dict[str, Any]:
        """Returns what is known: see headrace.Loader.report."""
        return {**self.tuner.report(), "advice": self._advice(show)}

    def say(self, show: _core.Show) -> None:
        """Logs the advice, once."""
        if not self._said and (advice := self._advice(show)):
            self._said = True
            log.info("%s: %s", show.name.decode(errors="replace"), advice)

    def _advice(self, show: _core.Show) -> str | None:
        advice = _advise_none(show)
        has_found = self.changes_within_epochs or self.tuner.report()["state"] == "rest"
        return advice if advice or has_found else _advise_rng(show)


def _advise_rng(show: _core.Show) -> str | None:
    """Says so if the loop waits in a long epoch, whose number of workers cannot change."""
    epoch, workers = show.numbers()
    if epoch["seconds"] < _LONG_S or epoch["inside_s"] < _WAITS_SHARE * epoch["seconds"]:
        return None
    return (
        f"the loop waits {epoch['inside_s'] / epoch['seconds']:.0%} of its time with {workers['workers']} workers, and "
        'num_workers="auto" changes their number between epochs only: give rng="sample", with which it changes at '
        "any time, or a number"
    )


def _advise_none(show: _core.Show) -> str | None:
    """Says so if the training process would be faster without workers. It compares the time of a step in this epoch
    with the time of the loop without next(), and of making a batch."""
    epoch, workers = show.numbers()
    made = workers["done"]
    if epoch["seconds"] < _WORTH_S or epoch["batches"] < _WORTH_BATCHES or not made:
        return None
    step_s = epoch["seconds"] / epoch["batches"]
    make_s = (workers["fetch_s"] + workers["collate_s"]) / made
    alone_s = make_s + max(0.0, step_s - epoch["inside_s"] / epoch["batches"])
    if alone_s * (1 + _GAIN) >= step_s:
        return None
    return (
        f"num_workers=0 would be faster: a worker makes a batch in {make_s * 1e3:.2g} ms, and a step takes "
        f"{step_s * 1e3:.2g} ms, of which the loop waits {epoch['inside_s'] / epoch['batches'] * 1e3:.2g} ms"
    )

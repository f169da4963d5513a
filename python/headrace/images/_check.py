# SPDX-License-Identifier: Apache-2.0
"""`images.check`: compares a user's own samples with those of Pillow, and measures the time that is saved.

Each sample is made twice from the same random numbers: once as it is, and once with everything of headrace.images
turned off, so that Pillow and the user's own transforms make it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace._samples.checks import settled
from headrace._samples.compare import difference
from headrace._samples.random_numbers import generators_kept, seed_all
from headrace.images import _counts, _selftest

_SHOWN = 10  # indices of samples that differ


@dataclass
class Report:
    """The result of `images.check`; print it. `differ` has the indices of samples that are not equal to Pillow's, and
    `failed` those of samples that raise the same exception both times."""

    samples: int = 0
    differ: list[Any] = field(default_factory=list)
    failed: list[Any] = field(default_factory=list)
    pillow_s: float = 0.0  # CPU time of all samples with Pillow
    headrace_s: float = 0.0
    made: int = 0  # images made in C
    left: dict[str, int] = field(default_factory=dict)  # images left to Pillow, by reason

    @property
    def speedup(self) -> float:
        return self.pillow_s / self.headrace_s if self.headrace_s else 1.0

    def __str__(self) -> str:
        equal = self.samples - len(self.differ) - len(self.failed)
        per = 1e3 / max(1, self.samples)
        rows = [
            ("samples", f"{self.samples}"),
            ("equal to the last bit", f"{equal}" + (f"; not equal: {_names(self.differ)}" if self.differ else "")),
            *([("raise the same error", f"{len(self.failed)}: {_names(self.failed)}")] if self.failed else []),
            ("CPU time with Pillow", f"{self.pillow_s * per:.2f} ms per sample"),
            ("CPU time with headrace", f"{self.headrace_s * per:.2f} ms per sample: {self.speedup:.2f} times as fast"),
            ("images made in C", f"{self.made}"),
            *((f"left to Pillow: {count}", reason) for reason, count in self.left.items()),
        ]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:{width}}  {text}" for name, text in rows)


class _Raised(NamedTuple):
    """An exception that making a sample raised."""

    kind: type
    text: str


def _names(indices: list[Any]) -> str:
    return ", ".join(map(repr, indices[:_SHOWN])) + (", ..." if len(indices) > _SHOWN else "")


@contextlib.contextmanager
def turned_off() -> Iterator[None]:
    """While it is active, images.open gives Pillow's images, and native transforms are the user's."""
    before, _selftest._verdict = _selftest.verdict(), _selftest.Verdict(why="turned off")
    try:
        yield
    finally:
        _selftest._verdict = before


def check(dataset: Any, n: int = 200) -> Report:
    """Makes up to `n` samples of a map-style dataset, spread over it, with headrace.images and with Pillow alone, and
    returns a report to print: how many are equal to the last bit, the time of both, and what was left to Pillow.

    The dataset uses `images.open`, `images.load_rgb` or `images.native` already. Random numbers are the same for both
    and are restored afterwards; a sample that draws others (from its own generator) is reported as not equal. Raises
    TypeError for a dataset without a length, and ValueError if `n` is less than 1 or the dataset is empty.
    """
    if n < 1:
        raise ValueError(f"headrace.images.check: n should be at least 1, but got {n}")
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise TypeError("headrace.images.check needs a dataset with __getitem__ and __len__")
    size = len(dataset)
    if size < 1:
        raise ValueError("headrace.images.check: the dataset is empty")
    count = min(n, size)
    with generators_kept():
        return compare(dataset, [number * size // count for number in range(count)])


def compare(dataset: Any, indices: Iterable[Any]) -> Report:
    """Returns the report on these samples. It seeds the default generators."""
    report = Report()
    for index in indices:
        with turned_off():
            expected, seconds = _make(dataset, index)
            report.pillow_s += seconds
        before = _counts.report()
        found, seconds = _make(dataset, index)
        report.headrace_s += seconds
        report.samples += 1
        if isinstance(found, _Raised) and found == expected:
            report.failed.append(index)
        elif difference(found, expected) is not None:
            report.differ.append(index)
        _add_counts(report, before, _counts.report())
    return report


def _add_counts(report: Report, before: _counts.Counts, after: _counts.Counts) -> None:
    report.made += after.made - before.made
    for reason, count in after.left.items():
        if more := count - before.left.get(reason, 0):
            report.left[reason] = report.left.get(reason, 0) + more


def _make(dataset: Any, index: Any) -> tuple[Any, float]:
    """Returns a sample, or the exception that it raised, and the CPU time of this thread."""
    seed_all(0, 0, index)
    start = time.thread_time()
    try:
        sample = settled(dataset[index])
    except Exception as error:
        sample = _Raised(type(error), str(error))
    return sample, time.thread_time() - start

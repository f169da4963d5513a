# SPDX-License-Identifier: Apache-2.0
"""Counts of what headrace.images did in this process. Each worker posts its own, and the trainer adds them up.

headrace.images counts here, so that the loaders need not import it (nor Pillow).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

_MOST_REASONS = 8  # a worker's status has room for so many
_MOST_LETTERS = 100

made = 0  # images whose pixels were made in C
read_bytes = 0  # of JPEG files that were read for that
left: Counter[str] = Counter()  # images left to Pillow, by reason
alone: Counter[str] = Counter()  # images made one by one in C, by the place in the code that looks at them

_post: Callable[[Any], None] | None = None  # in a worker
_start: tuple[int, int, Counter[str], Counter[str]] = (0, 0, Counter(), Counter())  # when the worker started
_has_changed = False  # since they were posted


def add_made(count: int = 1) -> None:
    global made, _has_changed
    made += count
    _has_changed = True


def add_read(count_bytes: int) -> None:
    global read_bytes, _has_changed
    read_bytes += count_bytes
    _has_changed = True


def add_left(reason: str) -> None:
    global _has_changed
    left[reason] += 1
    _has_changed = True


def add_alone(place: str) -> None:
    global _has_changed
    alone[place] += 1
    _has_changed = True


def post_by(post_images: Callable[[Any], None]) -> None:
    """Makes this process a worker, which posts what it counts from now on. A forked one has inherited the counts of its
    trainer."""
    global _post, _start, _has_changed
    _post, _start = post_images, (made, read_bytes, left.copy(), alone.copy())
    _has_changed = False


def post() -> None:
    """In a worker: posts the counts, if they have changed."""
    global _has_changed
    if not _has_changed or _post is None:
        return
    _has_changed = False
    with contextlib.suppress(OSError):  # the dataset may have closed the file
        counts = {"made": made - _start[0], "read_bytes": read_bytes - _start[1]}
        _post({**counts, "left": _shown(left - _start[2]), "alone": _shown(alone - _start[3])})


def _shown(reasons: Counter[str]) -> dict[str, int]:
    """Returns the most frequent reasons, and the sum of the others."""
    shown: Counter[str] = Counter()
    for number, (reason, count) in enumerate(reasons.most_common()):
        shown[reason[:_MOST_LETTERS] if number < _MOST_REASONS else "others"] += count
    return dict(shown)


def sum_up(posted: Iterable[Any]) -> dict[str, Any]:
    """Adds up what workers have posted, which may be anything."""
    images, size, reasons, places = 0, 0, Counter[str](), Counter[str]()
    for counts in posted:
        try:
            more, more_bytes = int(counts["made"]), int(counts["read_bytes"])
            more_left, more_alone = (
                {str(name): int(count) for name, count in counts[key].items()} for key in ("left", "alone")
            )
        except (TypeError, ValueError, KeyError, AttributeError):
            continue
        images, size = images + more, size + more_bytes
        reasons.update(more_left)
        places.update(more_alone)
    return {"made": images, "read_bytes": size, "left": dict(reasons), "alone": dict(places)}

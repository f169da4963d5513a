# SPDX-License-Identifier: Apache-2.0
"""Names a batch or a sample in a message, and writes the command that makes the sample again in the foreground.

The worker calls it for the note of an exception, and the engine for the report on a dead or stalled worker.
"""

from __future__ import annotations

import ast
import operator
import reprlib
import shlex
from collections.abc import Sequence
from typing import Any

from headrace._base import lookup
from headrace._base.help_key import help_on


class _Short(reprlib.Repr):
    """Shortens the repr of an index. If its __repr__ raises, shows the class name."""

    def repr1(self, x: Any, level: int) -> str:
        try:
            return super().repr1(x, level)
        except Exception:
            return f"<{type(x).__name__}>"


_short = _Short()
_short.maxlist = _short.maxtuple = 8
_short.maxstring = _short.maxother = 80


def short_repr(index: Any) -> str:
    """Returns a short repr of one index, and never raises."""
    return _short.repr(index)


def shorten(indices: Any) -> str:
    """Returns the first eight indices of a batch as text, and how many there are if there are more."""
    text = _short.repr(indices)
    return f"{text}, {len(indices)} in all" if isinstance(indices, (list, tuple)) and len(indices) > 8 else text


def has_indices(indices: Any) -> bool:
    """Returns False for the tasks of an iterable dataset, whose indices are None."""
    return any(one is not None for one in indices) if isinstance(indices, (list, tuple)) else indices is not None


def samples_of(indices: Any, is_batched: bool) -> list[Any]:
    """Returns the indices of a task (a list, an array, a tensor...) as a list of samples. It is empty for a batch that
    can be read only once."""
    if not is_batched:
        return [indices]
    return list(indices) if lookup.has_special(indices, "__len__") else []


def name_sample(batch: int, indices: Any, position: int | None) -> str:
    """Names the batch by its number in the epoch and, if the dataset has indices, by them. `position` is the place of
    one sample in the batch, which is then named too. While the samples are collated it is past the last one."""
    if not has_indices(indices):
        return f"batch {batch}"
    if not isinstance(indices, (list, tuple)):
        return f"sample {_short.repr(indices)}, batch {batch}"
    if position is not None and position < len(indices):
        return f"sample {_short.repr(indices[position])} of batch {batch}, {shorten(indices)}"
    return f"batch {batch}, samples {shorten(indices)}"


def name_samples(batch: int, indices: Any, positions: list[int], in_order: bool = False) -> str:
    """Names several samples of a batch, at each of which a thread is. in_order: they were begun in their order."""
    if len(positions) == 1:
        return f"at {name_sample(batch, indices, positions[0])}"
    known = has_indices(indices) and isinstance(indices, (list, tuple)) and max(positions) < len(indices)
    if not known:
        return f"at {name_sample(batch, indices, None)}"
    names = ", ".join(short_repr(indices[position]) for position in sorted(positions))
    longest = f"; for the longest time at sample {short_repr(indices[min(positions)])}" if in_order else ""
    return f"in a thread each at samples {names} of batch {batch}, {shorten(indices)}{longest}"


def name_odd_one(indices: Any, place: int) -> str:
    """Names the first sample of a batch that does not collate."""
    if has_indices(indices):
        name = f"sample {_short.repr(indices[place])}"
    else:
        name = f"the sample at place {place} of the batch"
    return f"{name} does not collate" + (" with those before it" if place else "") + help_on("collate")


def _plain(index: Any) -> Any:
    """Returns a number as an int, so that numpy's 3 is printed as 3."""
    return operator.index(index) if lookup.has_special(index, "__index__") else index


def replay_command(
    indices: Any, position: int | None, seeding: tuple[int, int] | None, draws: Sequence[int] = ()
) -> str:
    """Returns the command that makes one sample of a batch in the foreground. Returns "" if the sample is not known, or
    if its index cannot be written on a command line. `seeding`: the seed and the epoch of each sample's own random
    numbers, with rng="sample". draws: how often each index was drawn before; empty: all for the first time."""
    if isinstance(indices, (list, tuple)):
        if position is None or position >= len(indices):
            return ""
        index = indices[position]
    else:
        index = indices
    try:
        index = tuple(map(_plain, index)) if type(index) is tuple else _plain(index)
        text = repr(index)
        is_literal = len(text) <= _short.maxstring and ast.literal_eval(text) == index
    except Exception:  # the index is not a literal, has thousands of digits, or its own method raised
        return ""
    if not is_literal or not isinstance(index, (int, str, tuple)):
        return ""
    quoted = f'"{text}"' if isinstance(index, str) and not set(text) & set('"$`\\!') else shlex.quote(text)
    draw = draws[position or 0] if draws else 0
    seeded = (
        "" if seeding is None else f" --seed {seeding[0]} --epoch {seeding[1]}" + (f" --draw {draw}" if draw else "")
    )
    return f"to make it alone: headrace replay YOUR_MODULE:MAKE_DATASET {quoted}{seeded} --pdb"

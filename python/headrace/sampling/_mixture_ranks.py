# SPDX-License-Identifier: Apache-2.0
"""Warns of ranks that would get samples of one source of a mixture only. headrace.Mixture and the doctor use it."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from headrace._base.help_key import help_on
from headrace._base.warn import warn_user
from headrace._samples.mixed import MixedDataset

if TYPE_CHECKING:
    from headrace.sampling._mixture import Mixture

_FEW = 64  # a part with fewer samples may have one source only by chance
_MOST = 1 << 20  # indices that are looked at
_warned: weakref.WeakSet[MixedDataset] = weakref.WeakSet()


def single_source(dataset: Any, indices: Iterable[int]) -> int | None:
    """Returns the number of the source that all of some indices have, or None if they have several or no source.
    dataset: what has place_of as mix.dataset has it."""
    found: int | None = None
    for index in itertools.islice(indices, _MOST):
        number = dataset.place_of(index)[0]
        if found is not None and number != found:
            return None
        found = number
    return found


def warn_of_single_source(mix: Mixture) -> None:
    """Warns once if a sequence is the part of a rank, and gets one source only, although the epoch has several."""
    positions, dataset = mix._positions, mix.dataset
    is_part = 0 <= positions.start < positions.step and positions.step > 1
    if not is_part or len(mix) < _FEW or dataset in _warned or len(dataset.names) < 2:
        return
    number = single_source(dataset, mix._iterate(positions))
    if number is None:
        return
    name = dataset.names[number]
    others = sum(one["count"] for other, one in mix.report()["sources"].items() if other != name)
    if others:
        _warned.add(dataset)
        warn_user(
            f"headrace: rank {positions.start} of {positions.step} gets samples of the source {name!r} only in epoch "
            f"{mix.epoch}, because the epoch has only {others:,} samples of all others; give these larger weights, or "
            "make the epochs longer (length=)" + help_on("mixture-ranks")
        )

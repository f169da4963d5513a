# SPDX-License-Identifier: Apache-2.0
"""UsersSampler: what both loaders do with a sampler of the user's, whose epoch is drawn again to continue it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from headrace.sampling._epoch_indices import EpochIndices, describe_other_length, hash_of, warn_of_other_epoch
from headrace.sampling._sampler_parts import SamplerParts, describe_lawless
from headrace.sampling._state import StateError


class UsersSampler(EpochIndices):
    """See above. The classes that derive from it know how the sampler is put back to the epoch's beginning."""

    _parts: SamplerParts | None = None  # at the beginning of the epoch

    def check_continuable(self) -> None:
        if lawless := SamplerParts(self._sampler).lawless:
            raise StateError(describe_lawless(self._sampler, lawless))

    def _replay_to_end(self, tasks: Iterator[Any], ended: dict[str, Any], *, compares: bool = True) -> None:
        """Draws the epoch again that the consumer had to its last batch when the state was taken, and lets the sampler
        come to its end, as the loop of the run that was never stopped did. Raises StateError if it has another length.
        compares: warns if it is another epoch, by its last batch. If `ended` counts entries, because the batches had
        several sizes, the tasks are entries."""
        last, count, expected = None, 0, ended["entries"] if "entries" in ended else ended["steps"]
        for last in itertools.islice(tasks, expected):  # noqa: B007 # the last one is used
            count += 1
        if count < expected or next(tasks, None) is not None:
            raise StateError(describe_other_length(self.order["kind"], expected))
        if count and compares and ended["last"] not in (0, hash_of(last)):
            warn_of_other_epoch(self.order["kind"])

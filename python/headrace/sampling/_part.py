# SPDX-License-Identifier: Apache-2.0
"""The parts of an epoch, each with one batch size: a program may change that of a batch sampler while a loop runs."""

from __future__ import annotations

from typing import NamedTuple

from headrace.sampling._epoch_indices import EpochIndices
from headrace.sampling._state import Segment


class Part(NamedTuple):
    """A part of an epoch.

    first: the number of its first task in this process. earlier: the segments before it. position: the entries of the
    order that they have consumed. begun: steps of its own segment before this process; holes: of these, the ones that
    were not delivered, which come first.
    """

    first: int
    indices: EpochIndices
    earlier: list[Segment]
    position: int
    begun: int = 0
    holes: list[int] = []  # noqa: RUF012

    def number_of(self, task: int) -> int:
        """Returns the number in the segment of a task of this process."""
        later = task - self.first
        return self.holes[later] if later < len(self.holes) else self.begun + later - len(self.holes)

    def segment(self, steps: int) -> Segment:
        """Returns the segment with so many steps."""
        return Segment(**{**vars(self.indices.segment), "steps": steps})

    def steps_before(self) -> int:
        """Returns the steps of the segments before."""
        return sum(one.steps for one in self.earlier)

    def followed(self, first: int, size: int) -> Part:
        """Returns the part that begins with a task, because its batch size is another one."""
        steps = self.begun + first - self.first - len(self.holes)
        earlier = [*self.earlier, self.segment(steps)] if steps > 0 else self.earlier
        indices = self.indices.with_batch_size(size)
        return Part(first, indices, earlier, self.indices.position_after(earlier))

# SPDX-License-Identifier: Apache-2.0
"""Says whether ranks may differ by the rest of a division in an epoch. Agreements use it.

Eleven samples give two ranks parts of six and five, if no sample is repeated and none is left out. In a prediction that
is right. In a training the rank with more batches waits for the other one in the collective operation of its last step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace._ranks.disagreement import Facts

ERROR, WARNING, ALLOWED = "error", "warning", "allowed"


class Remainder:
    """The rule for one epoch.

    rule: ERROR: all ranks have to make equally many batches. ALLOWED: they may differ by one, and nothing is said when
    the epoch begins. WARNING: they may, but it is said.
    count_collectives: returns how many collective operations this process has begun until now. If ranks wait for each
    other, that turns out at the end of the epoch: then there were as many collective operations as batches.
    """

    def __init__(self, rule: str = ERROR, count_collectives: Callable[[], int] = lambda: 0) -> None:
        self.rule = rule
        self._count, self._before = count_collectives, count_collectives()

    def accepts(self, found: Iterable[Facts]) -> bool:
        """Returns True if the ranks differ by a rest at most, and that is no error now."""
        facts = list(found)
        lengths, steps = {one.length for one in facts}, {one.steps for one in facts}
        if -1 in lengths or -1 in steps or max(lengths) - min(lengths) > 1 or max(steps) - min(steps) > 1:
            return False
        return len(steps) == 1 or self.rule != ERROR

    def accepts_end(self, mine: int, theirs: int) -> bool:
        """Returns True if a rank may be at its end when another one is not. mine, theirs: batches since the epoch began
        in this process."""
        if self.rule == ERROR or abs(mine - theirs) > 1:
            return False
        return self._count() - self._before < max(1, min(mine, theirs))

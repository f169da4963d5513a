# SPDX-License-Identifier: Apache-2.0
"""Says which loaders of several ranks are the same one: `agreement` compares these only. It needs no extension."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

_made: Counter[str] = Counter()  # loaders of this process, by what made them


class LoaderIdentity:
    """The place of a loader among those that the same lines have made. It is counted when this object is made, so using
    a loader on one rank only does not change the places of others.

    lines: those that made the loader, the innermost one first, such as ["train.py:12", "train.py:40"]. With the lines
        that call it, a helper function makes loaders of several places. The file names must not depend on the machine,
        and ranks that form several groups need the group in a line.
    kind: what else must be equal. It is for loaders whose lines are those that iterate over them, because nothing was
        noted when they were made.
    """

    def __init__(self, lines: Sequence[str], kind: str = "") -> None:
        texts = [text.encode(errors="backslashreplace").decode() for text in (*lines, kind)]
        self.where = texts[0] if lines else "?"  # for messages
        self.maker = "\n".join(texts)
        self.number = _made[self.maker]  # among those of the maker
        _made[self.maker] += 1

    def key(self, settings: str) -> int:
        """Returns 64 bits that are equal in all ranks. Call it when the loader begins its first epoch. They contain how
        many loaders the same lines have made by then: if a rank has made more than another one, for example one more
        in a loop, then the places of the two ranks do not belong together, and the keys differ. settings: what else
        must be equal, and is known only then."""
        text = f"{self.maker}\n{self.number} of {_made[self.maker]}\n{settings}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")

# SPDX-License-Identifier: Apache-2.0
"""Compares ranks of several machines by torch.distributed's store. headrace._ranks.agreement calls it."""

from __future__ import annotations

import contextlib
import time

from headrace._ranks import agreement
from headrace.torch._own import groups

_FIRST_SLEEP_S, _MAX_SLEEP_S = 0.0005, 0.02
_SLEEP_OF_PROCESS_S = 25e-6  # the store is one thread: all processes together ask it 40,000 times a second at most
_NOTHING = "\n"


class GroupStore:
    """The store of torch.distributed's default group, if there is one. See agreement.Store."""

    def process_count(self) -> int:
        return groups.default_group_size()

    def gather(self, key: str, text: str | None, count: int, deadline: float) -> tuple[int, list[str]]:
        """Appends the text to the value of one key, so that all texts are read by one request. A second key counts
        the processes. The texts are read by compare_set, because get() would wait if another rank has deleted them."""
        store = groups.default_store()
        if text is not None:
            store.append(_texts(key), text + "\n")
        done, sleep_s = store.add(_count(key), count if text is not None else 0), _FIRST_SLEEP_S
        while done < self.process_count() and time.monotonic() < deadline:
            time.sleep(min(sleep_s, max(0.0, deadline - time.monotonic())))
            sleep_s = min(2 * sleep_s, max(_MAX_SLEEP_S, _SLEEP_OF_PROCESS_S * self.process_count()))
            done = store.add(_count(key), 0)
        texts = store.compare_set(_texts(key), _NOTHING, _NOTHING).decode()
        return done, [line for line in texts.splitlines() if line]

    def forget(self, key: str) -> None:
        store = groups.default_store()
        with contextlib.suppress(RuntimeError):  # not every store can delete
            store.delete_key(_texts(key))
            store.delete_key(_count(key))


def _texts(key: str) -> str:
    return f"{key}/texts"


def _count(key: str) -> str:
    return f"{key}/count"


def install() -> None:
    """Makes agreements use the store."""
    agreement.use_store(GroupStore())

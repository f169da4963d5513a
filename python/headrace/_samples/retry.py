# SPDX-License-Identifier: Apache-2.0
"""Makes a sample again if an I/O error was raised that may pass: on a network file system or in a request.

SampleMaker uses it, with the option retries.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace._base import exception_text, signals
from headrace._samples.random_numbers import key_of

_FIRST_WAIT_S = 0.1
_GROWTH = 4  # each wait is so many times as long as the one before
_MOST_GROWTHS = 10
_MOST_WAIT_S = 10.0
_MOST_CAUSES = 20  # a chain of exceptions may be a cycle

# Errors of networks, and of disks and file systems that are reached by one. A missing file and a refused permission do
# not pass.
_NAMES = (
    "EIO ESTALE ETIMEDOUT ECONNRESET ECONNABORTED ECONNREFUSED EPIPE EHOSTUNREACH EHOSTDOWN ENETUNREACH ENETDOWN "
    "ENETRESET ENOTCONN ESHUTDOWN EREMOTEIO ECOMM ENOLINK EAGAIN EBUSY"
).split()
PASSING = frozenset(getattr(errno, name) for name in _NAMES if hasattr(errno, name))
_NO_NAME_SERVER = socket.EAI_AGAIN  # of socket.gaierror: a host name could not be looked up for the moment


@dataclass
class RetriedSample:
    """A sample that was made again: its index, the exception before as text, and the worker. worker: None in the
    trainer."""

    index: Any
    error: str
    worker: int | None


def _is_of_remote_object(error: BaseException) -> bool:
    """Returns True for an error of a remote object, for which the fetcher has tried again."""
    return isinstance(error, OSError) and any(str(one).startswith("remote: ") for one in error.args[-1:])


def is_passing(error: BaseException) -> bool:
    """Returns True if the exception, or one that led to it, is an I/O error that may pass."""
    one: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if one is None or _is_of_remote_object(one):
            return False
        if isinstance(one, (TimeoutError, ConnectionError)):
            return True
        if isinstance(one, OSError):
            is_address = isinstance(one, socket.gaierror)  # its numbers are other ones
            if one.errno == _NO_NAME_SERVER if is_address else one.errno in PASSING:
                return True
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return False


def wait_of(tries: int, seed: int, index: object) -> float:
    """Returns the seconds to wait after so many tries. It depends on the seed and the sample, too, so that workers that
    failed together do not try again together."""
    share = key_of(seed, tries, index, "retry") / 2**64
    wait: float = min(_MOST_WAIT_S, _FIRST_WAIT_S * _GROWTH ** min(tries - 1, _MOST_GROWTHS))
    return wait * (0.5 + share)


class Retrying:
    """Makes samples with at most `most` further tries each. `worker`: None in the trainer."""

    def __init__(self, most: int, seed: int, worker: int | None) -> None:
        self._most = most
        self._seed = seed
        self._worker = worker
        self._retried: list[RetriedSample] = []

    def take(self) -> list[RetriedSample]:
        """Returns a record of each further try of the batch that was made last, once."""
        retried, self._retried = self._retried, []
        return retried

    def get(self, make: Callable[[Any], Any], index: Any) -> Any:
        """Returns make(index). Raises the last exception if no try succeeds, and at once if it would not pass."""
        for tries in range(1, self._most + 1):
            try:
                return make(index)
            except Exception as error:
                if signals.is_from_signal(error) or not is_passing(error):
                    raise
                self._retried.append(RetriedSample(index, exception_text.in_words(error), self._worker))
            time.sleep(wait_of(tries, self._seed, index))
        try:
            return make(index)
        except Exception as error:
            if is_passing(error):
                exception_text.add_text(error, f"headrace: the sample was tried {self._most + 1} times (retries)")
            raise

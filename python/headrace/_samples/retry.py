# SPDX-License-Identifier: Apache-2.0
"""Makes a sample again if an I/O error was raised that may pass: on a network file system or in a request.

SampleMaker uses it, with the option retries.
"""

from __future__ import annotations

import contextlib
import errno
import re
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
_MOST_CAUSES = 20  # a chain of exceptions may be a cycle, and groups are nested

# Errors of networks, and of disks and file systems that are reached by one. A missing file and a refused permission do
# not pass.
_NAMES = (
    "EIO ESTALE ETIMEDOUT ECONNRESET ECONNABORTED ECONNREFUSED EPIPE EHOSTUNREACH EHOSTDOWN ENETUNREACH ENETDOWN "
    "ENETRESET ENOTCONN ESHUTDOWN EREMOTEIO ECOMM ENOLINK EAGAIN EBUSY"
).split()
PASSING = frozenset(getattr(errno, name) for name in _NAMES if hasattr(errno, name))
_NO_NAME_SERVER = socket.EAI_AGAIN  # of socket.gaierror: a host name could not be looked up for the moment

# Exceptions of clients by their package and class, so that no client is imported for them. Subclasses count too.
# A connection that was cut, or an answer that came too late or in part.
_CUT = frozenset(
    """
    aiohttp.ClientPayloadError aiohttp.ServerDisconnectedError aiohttp.ServerTimeoutError asyncio.IncompleteReadError
    asyncio.TimeoutError azure.IncompleteReadError botocore.ConnectionClosedError botocore.IncompleteReadError
    botocore.ResponseStreamingError concurrent.TimeoutError http.IncompleteRead
    httpx.RemoteProtocolError httpx.TimeoutException requests.ChunkedEncodingError requests.Timeout ssl.SSLEOFError
    ssl.SSLZeroReturnError urllib.ContentTooShortError urllib3.IncompleteRead urllib3.ProtocolError
    urllib3.ReadTimeoutError
    """.split()
)
# A connection that could not be made or was lost. It passes, unless it was led to by what does not pass: a host name
# that does not exist, a certificate that is refused.
_LOST = frozenset(
    """
    aiohttp.ClientConnectionError azure.ServiceRequestError azure.ServiceResponseError botocore.HTTPClientError
    httpx.NetworkError requests.ConnectionError urllib3.ConnectTimeoutError urllib3.NewConnectionError
    """.split()
)
# The place of the status of the answer in exceptions that a client raises for it.
_STATUS = {
    "aiohttp.ClientResponseError": "status",
    "azure.HttpResponseError": "status_code",
    "botocore.ClientError": "response.ResponseMetadata.HTTPStatusCode",
    "google.GoogleAPICallError": "code",
    "httpx.HTTPStatusError": "response.status_code",
    "requests.HTTPError": "response.status_code",
    "urllib.HTTPError": "code",
}
_TOO_MANY = re.compile(r"too many ([0-9]{3}) error responses")  # urllib3's text after its own tries
_TOO_MANY_REQUESTS = 429
_GROUPS = frozenset({"builtins.BaseExceptionGroup", "exceptiongroup.BaseExceptionGroup"})


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


def _names_of(error: BaseException) -> list[str]:
    """Returns the packages and names of the exception's class and its bases, such as "requests.HTTPError"."""
    return [f"{str(one.__module__).partition('.')[0]}.{one.__name__}" for one in type(error).__mro__]


def _status_of(error: BaseException, names: list[str]) -> int:
    """Returns the status of the answer that a client raised the exception for, or 0."""
    found: Any = None
    with contextlib.suppress(Exception):  # the exception was made without an answer
        if "urllib3.ResponseError" in names and (match := _TOO_MANY.search(str(error))):
            found = match[1]
        elif place := next((_STATUS[name] for name in names if name in _STATUS), ""):
            found = error
            for part in place.split("."):
                found = found[part] if isinstance(found, dict) else getattr(found, part)
        return int(found or 0)
    return 0


def _passes_by_itself(error: BaseException, names: list[str]) -> bool | None:
    """Returns whether an exception passes, without those that led to it. None: it does not say."""
    if (status := _status_of(error, names)) >= 400:
        return status == _TOO_MANY_REQUESTS or status >= 500
    if not _CUT.isdisjoint(names) or isinstance(error, (TimeoutError, ConnectionError)):
        return True
    if "ssl.SSLError" in names or isinstance(error, socket.gaierror):  # both have numbers of their own
        return isinstance(error, socket.gaierror) and error.errno == _NO_NAME_SERVER
    return True if isinstance(error, OSError) and error.errno in PASSING else None


def _is_passing_member(error: BaseException, depth: int) -> bool:
    return not signals.is_from_signal(error) and is_passing(error, depth + 1)


def is_passing(error: BaseException, depth: int = 0) -> bool:
    """Returns True if the exception, or one that led to it, is an I/O error that may pass. A group passes if all its
    exceptions do."""
    one: BaseException | None = error
    is_lost = False
    for _ in range(_MOST_CAUSES):
        if one is None:
            return is_lost
        if _is_of_remote_object(one):
            return False
        names = _names_of(one)
        if not _GROUPS.isdisjoint(names):
            return depth < _MOST_CAUSES and all(_is_passing_member(each, depth) for each in one.exceptions)  # type: ignore[attr-defined]
        passes = _passes_by_itself(one, names)
        if passes is not None:
            return passes
        is_lost = is_lost or not _LOST.isdisjoint(names)
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
        self.retried: list[RetriedSample] = []  # of the batch that is being made

    def take(self) -> list[RetriedSample]:
        """Returns a record of each further try of the batch that was made last, once."""
        retried, self.retried = self.retried, []
        return retried

    def get(self, make: Callable[[Any], Any], index: Any, retried: list[RetriedSample]) -> Any:
        """Returns make(index). Raises the last exception if no try succeeds, and at once if it would not pass.
        retried: gets a record of each further try. Threads may call this at the same time."""
        for tries in range(1, self._most + 1):
            try:
                return make(index)
            except Exception as error:
                if signals.is_from_signal(error) or not is_passing(error):
                    raise
                retried.append(RetriedSample(index, exception_text.in_words(error), self._worker))
            time.sleep(wait_of(tries, self._seed, index))
        try:
            return make(index)
        except Exception as error:
            if is_passing(error):
                exception_text.add_text(error, f"headrace: the sample was tried {self._most + 1} times (retries)")
            raise

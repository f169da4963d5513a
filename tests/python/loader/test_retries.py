# SPDX-License-Identifier: Apache-2.0
"""retries: samples are made again after I/O errors that may pass, in both loaders, with and without workers."""

from __future__ import annotations

import asyncio
import builtins
import errno
import functools
import http.client
import os
import random
import signal
import socket
import ssl
import types
import urllib.error
import warnings
from collections.abc import Callable
from typing import Any

import headrace
import numpy as np
import pytest
from headrace._samples import retry
from headrace.torch import DataLoader
from loaders import only_headrace

pytestmark = only_headrace
COUNT, BATCH, RETRIES = 12, 4, 3
LOADERS = [headrace.Loader, DataLoader]
ExceptionGroup: Any = getattr(builtins, "ExceptionGroup", None)  # from Python 3.11 on


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def http_error(status: int) -> Exception:
    return urllib.error.HTTPError("http://127.0.0.1", status, "status", http.client.HTTPMessage(), None)


@functools.cache
def of_client(module: str, name: str, base: type[Exception] = Exception) -> type[Exception]:
    """Returns a class with the name of an exception of a client, which need not be installed."""
    return type(name, (base,), {"__module__": module})


def with_attributes(error: Exception, **values: Any) -> Exception:
    for name, value in values.items():
        setattr(error, name, value)
    return error


class Wrapped(RuntimeError):
    """Raised by a library from an error of the system."""


def raise_from(error: Exception) -> Any:
    raise Wrapped("cannot read the sample") from error


def raise_in_handler(error: Exception) -> Any:
    try:
        raise error
    except Exception:
        raise Wrapped("cannot read the sample")  # noqa: B904


def raise_it(error: Exception) -> Any:
    raise error


class Failing:
    """Sample 5 fails `times` times in each epoch, sample 9 once. Each sample draws a random number first."""

    def __init__(self, make: Callable[[], Exception], times: int = 2, raises: Callable[[Exception], Any] = raise_it):
        self.make, self.times, self.raises = make, times, raises
        self.left = {5: times, 9: min(times, 1)}
        self.tries = 0

    def __len__(self) -> int:
        return COUNT

    def draw(self) -> float:
        return random.random()

    def __getitem__(self, index: int) -> Any:
        drawn = self.draw()
        if self.left.get(index):
            self.left[index] -= 1
            self.tries += 1
            self.raises(self.make())
        return np.array([index, drawn])


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_FIRST_WAIT_S", 1e-4)


def loader_of(loader_class: Any, dataset: Any, workers: int, **options: Any) -> Any:
    options = {"batch_size": BATCH, "seed": 3, "rng": "sample", "retries": RETRIES, **options}
    if workers:
        options["multiprocessing_context"] = "fork"
    return loader_class(dataset, num_workers=workers, **options)


def values_of(loader: Any) -> list[Any]:
    return [np.asarray(batch).tolist() for batch in loader]


def read(loader: Any) -> tuple[list[Any], list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        values = values_of(loader)
    return values, [str(one.message) for one in caught if "I/O errors that may pass" in str(one.message)]


@pytest.mark.parametrize("loader_class", LOADERS)
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_passing_errors_are_tried_again_and_counted(loader_class: Any, workers: int) -> None:
    """The samples are those that come without an error, random numbers included."""
    expected = values_of(loader_of(loader_class, Failing(TimeoutError, 0), workers))
    loader = loader_of(loader_class, Failing(lambda: os_error(errno.EIO)), workers)
    values, messages = read(loader)
    assert values == expected
    assert loader.report()["retried"] == 3
    assert loader.report()["bad_samples"] == []
    assert loader.report()["skipped"] == 0
    (message,) = messages
    assert "samples were made again in this epoch, 3 times in all" in message
    assert message.count(f"OSError: [Errno 5] {os.strerror(5)}") == 3
    assert message.count("  5") == 2


PASSING: dict[str, Callable[[], Exception]] = {
    "EIO": lambda: os_error(errno.EIO),
    "ESTALE": lambda: os_error(errno.ESTALE),
    "ETIMEDOUT": lambda: os_error(errno.ETIMEDOUT),
    "EREMOTEIO": lambda: os_error(errno.EREMOTEIO),
    "reset": lambda: ConnectionResetError("reset by peer"),
    "timeout": lambda: TimeoutError("timed out"),
    "no name server": lambda: socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
    "cut answer": lambda: http.client.IncompleteRead(b"", 9),
    "no answer": lambda: http.client.RemoteDisconnected("Remote end closed connection without response"),
    "cut download": lambda: urllib.error.ContentTooShortError("retrieval incomplete", (None, {})),  # type: ignore[arg-type]
    "cut TLS": lambda: ssl.SSLEOFError(ssl.SSL_ERROR_EOF, "EOF occurred in violation of protocol"),
    "cut stream": lambda: asyncio.IncompleteReadError(b"", 9),
    "busy": lambda: http_error(503),
    "too many": lambda: http_error(429),
    "requests": lambda: of_client("requests.exceptions", "ChunkedEncodingError")("Connection broken"),
    "requests connection": lambda: of_client("requests.exceptions", "ConnectionError")("aborted"),
    "requests 502": lambda: with_attributes(
        of_client("requests.exceptions", "HTTPError")("502"), response=types.SimpleNamespace(status_code=502)
    ),
    "a subclass of requests'": lambda: with_attributes(
        of_client("huggingface_hub.errors", "HfHubHTTPError", of_client("requests.exceptions", "HTTPError"))("500"),
        response=types.SimpleNamespace(status_code=500),
    ),
    "urllib3": lambda: of_client("urllib3.exceptions", "ProtocolError")("Connection broken"),
    "urllib3's tries": lambda: of_client("urllib3.exceptions", "ResponseError")("too many 503 error responses"),
    "aiohttp": lambda: of_client("aiohttp.client_exceptions", "ClientPayloadError")("not enough data"),
    "aiohttp disconnected": lambda: of_client("aiohttp.client_exceptions", "ServerDisconnectedError")(),
    "aiohttp 500": lambda: with_attributes(
        of_client("aiohttp.client_exceptions", "ClientResponseError")("500"), status=500
    ),
    "httpx": lambda: of_client("httpx", "ReadError", of_client("httpx", "NetworkError"))(),
    "botocore 503": lambda: with_attributes(
        of_client("botocore.exceptions", "ClientError")("SlowDown"),
        response={"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPStatusCode": 503}},
    ),
}
OTHERS: dict[str, Callable[[], Exception]] = {
    "missing": lambda: os_error(errno.ENOENT),
    "refused": lambda: os_error(errno.EACCES),
    "damaged": lambda: OSError("image file is truncated"),
    "value": lambda: ValueError("bad"),
    "unknown host": lambda: socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
    "full": lambda: os_error(errno.ENOSPC),
    "absent": lambda: http_error(404),
    "forbidden": lambda: http_error(403),
    "absent after a reset": lambda: with_attributes(http_error(404), __context__=ConnectionResetError()),
    "certificate": lambda: ssl.SSLCertVerificationError(1, "certificate verify failed"),
    "TLS failed": lambda: ssl.SSLError(5, "wrong version number"),  # SSL_ERROR_SYSCALL has the number of EIO
    "requests certificate": lambda: with_attributes(
        of_client("requests.exceptions", "SSLError", of_client("requests.exceptions", "ConnectionError"))("verify"),
        __cause__=ssl.SSLCertVerificationError(1, "certificate verify failed"),
    ),
    "requests unknown host": lambda: with_attributes(
        of_client("requests.exceptions", "ConnectionError")("resolve"),
        __cause__=socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
    ),
    "requests 401": lambda: with_attributes(
        of_client("requests.exceptions", "HTTPError")("401"), response=types.SimpleNamespace(status_code=401)
    ),
    "requests without an answer": lambda: with_attributes(
        of_client("requests.exceptions", "HTTPError")("?"), response=None
    ),
    "a namesake": lambda: of_client("mine", "ProtocolError")("bad"),
}
if ExceptionGroup is not None:
    PASSING["group"] = lambda: ExceptionGroup("", [http_error(503), ExceptionGroup("", [TimeoutError()])])
    OTHERS["group"] = lambda: ExceptionGroup("", [http_error(503), ValueError("bad")])


@pytest.mark.parametrize("name", PASSING)
@pytest.mark.parametrize("raises", [raise_it, raise_from, raise_in_handler])
def test_errors_that_may_pass_are_known(name: str, raises: Any) -> None:
    dataset = Failing(PASSING[name], 1, raises)
    assert len(values_of(loader_of(headrace.Loader, dataset, 0))) == COUNT // BATCH
    assert dataset.tries == 2


@pytest.mark.parametrize("name", OTHERS)
def test_other_errors_are_raised_at_once(name: str) -> None:
    dataset = Failing(OTHERS[name])
    with pytest.raises(type(OTHERS[name]())):
        values_of(loader_of(headrace.Loader, dataset, 0))
    assert dataset.tries == 1


def test_exception_of_a_signal_handler_in_a_group_does_not_pass() -> None:
    """A time limit that ends the tasks of asyncio raises TimeoutError, which looks like one of the system's."""

    def ring(*_: Any) -> None:
        raise TimeoutError("the time is over")

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.raise_signal(signal.SIGALRM)
    except TimeoutError as error:
        interrupted = error
    finally:
        signal.signal(signal.SIGALRM, before)
    if ExceptionGroup is not None:
        assert not retry.is_passing(ExceptionGroup("", [interrupted]))


def test_suppressed_errors_do_not_count() -> None:
    def raises(error: Exception) -> Any:
        raise Wrapped("another matter") from None

    with pytest.raises(Wrapped):
        values_of(loader_of(headrace.Loader, Failing(TimeoutError, raises=raises), 0))


@pytest.mark.parametrize("loader_class", LOADERS)
@pytest.mark.parametrize("workers", [0, 1])
def test_last_error_is_the_policys(loader_class: Any, workers: int) -> None:
    """After the first try and three more ones."""
    loader = loader_of(loader_class, Failing(lambda: os_error(errno.ESTALE), 99), workers)
    with pytest.raises(OSError) as caught:
        values_of(loader)
    text = str(caught.value) + str(getattr(caught.value, "__notes__", ""))
    assert "the sample was tried 4 times (retries)" in text
    assert loader.report()["retried"] == RETRIES
    loader = loader_of(loader_class, Failing(lambda: os_error(errno.ESTALE), 99), workers, on_bad_sample="skip")
    values, _ = read(loader)
    assert [len(batch) for batch in values] == [BATCH, BATCH - 1, BATCH]
    assert [one.index for one in loader.report()["bad_samples"]] == [5]
    assert loader.report()["retried"] == RETRIES + 1


def test_replacement_is_tried_again_too() -> None:
    class Some(Failing):
        def __getitem__(self, index: int) -> Any:
            if index == 5:
                raise ValueError("bad")
            if self.tries < 2:
                self.tries += 1
                raise TimeoutError
            return super().__getitem__(index)

    loader = loader_of(headrace.Loader, Some(TimeoutError, 0), 0, on_bad_sample="refill")
    values, _ = read(loader)
    assert sum(map(len, values)) == COUNT
    assert loader.report()["retried"] == 2


def test_exception_of_a_signal_handler_is_not_tried_again() -> None:
    """A time limit of the program's raises TimeoutError, which looks like one of the system's."""

    class Interrupted(Failing):
        def __getitem__(self, index: int) -> Any:
            if index == 5 and not self.tries:
                self.tries = 1
                signal.raise_signal(signal.SIGALRM)
            return super().__getitem__(index)

    def ring(*_: Any) -> None:
        raise TimeoutError("the time is over")

    before = signal.signal(signal.SIGALRM, ring)
    try:
        loader = loader_of(headrace.Loader, Interrupted(TimeoutError, 0), 0)
        with pytest.raises(TimeoutError, match="the time is over"):
            values_of(loader)
        assert loader.report()["retried"] == 0
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("loader_class", LOADERS)
def test_samples_without_batches_are_tried_again(loader_class: Any) -> None:
    for workers in (0, 1):
        loader = loader_of(loader_class, Failing(TimeoutError), workers, batch_size=None)
        assert len(values_of(loader)) == COUNT
        assert loader.report()["retried"] == 3


def test_waits_grow_and_differ_between_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_FIRST_WAIT_S", 0.1)
    waits = [retry.wait_of(tries, 3, 7) for tries in range(1, 9)]
    for tries, (wait, middle) in enumerate(zip(waits, [0.1, 0.4, 1.6, 6.4, 10, 10, 10, 10], strict=True)):
        assert 0.5 * middle <= wait <= 1.5 * middle, tries
    assert len({retry.wait_of(1, 3, index) for index in range(20)}) == 20
    assert retry.wait_of(2000, 3, 7) <= 15


@pytest.mark.parametrize("loader_class", LOADERS)
def test_retries_are_checked(loader_class: Any) -> None:
    for bad in (-1, 1.5, "3", True):
        with pytest.raises((TypeError, ValueError), match="retries should"):
            loader_class(range(3), retries=bad)
    assert loader_class(range(3)).retries == 0


def test_cached_samples_are_tried_again() -> None:
    """The sample that failed is made again, and kept."""
    dataset = Still(lambda: os_error(errno.EIO))
    loader = DataLoader(dataset, BATCH, cache="8M", retries=RETRIES)
    first, second = values_of(loader), values_of(loader)
    assert first == second
    assert dataset.tries == 3


class Still(Failing):
    """Draws no random numbers, so that its samples can be cached."""

    def draw(self) -> float:
        return 0.5

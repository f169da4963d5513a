# SPDX-License-Identifier: Apache-2.0
"""Reads parts of objects behind https, and checks each answer: status, range, size, version and encoding.

Connections stay open, and belong to one thread. Nothing that a server says is taken for granted: an answer that is not
exactly the part that was asked for, of the version that was opened, is an error.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import re
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

from headrace._base.help_key import help_on
from headrace._remote import addresses, failures, settings
from headrace._remote.addresses import Address
from headrace._remote.failures import Failed, Passing

HEAD_BYTES = 65536
MOST_REDIRECTS = 5
_MOST_CONNECTIONS = 8  # of a thread
_WHOLE_BYTES = 16 << 20  # of an object that is read as a whole if the server does not give parts
_READ_BYTES = 1 << 20
REDIRECTS = (301, 302, 303, 307, 308)
_PASSING = (408, 425, 429, 500, 502, 503, 504, 509, 520, 521, 522, 523, 524, 529)
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_UNSATISFIED = re.compile(r"bytes \*/(\d+)")
_LOCAL = ("localhost", "127.0.0.1", "[::1]", "::1")
_AGENT = "headrace"
_NO_CERTIFICATES = "remote: SSL_CERT_FILE names no file with certificates"
_SAFE = "/:?&=%@!$'()*+,;~#[]"

_own = threading.local()


class Found:
    """Size and version of an object, and its first bytes."""

    def __init__(self, size: int, version: str, head: bytes) -> None:
        self.size = size
        self.version = version
        self.head = head


# ---- requests ----


def check_encryption(shown: str, url: str, given: Mapping[str, Any]) -> None:
    """Raises Failed for plain http to another machine, because the bytes could be changed on their way. shown: what is
    not encrypted, for the message."""
    parts = urlsplit(url)
    if parts.scheme == "http" and not given.get("allow_http") and parts.hostname not in _LOCAL:
        raise Failed(
            errno.EPERM,
            f'remote: {shown} is not encrypted; use https, or storage={{"allow_http": True}}'
            + help_on("remote-refused"),
        )


def look(address: Address, text: str, given: Mapping[str, Any]) -> Found:
    """Asks for the first bytes of an object, and its size and version. It is a GET, because a URL that is signed for
    GET is refused for HEAD."""
    del text  # the reader of buckets finds its store by it
    check_encryption(address.shown, address.url, given)
    with _request(address, given, {"Range": f"bytes=0-{HEAD_BYTES - 1}"}) as answer:
        _check_encoding(address, answer)
        version, size = _version_in(answer, given), _size_of(address, answer)
        if answer.status != 416:
            known = _need_version(address, version)
            head = bytes(_read_exactly(answer, min(size, HEAD_BYTES)))
            if answer.status == 200 and size > len(head):
                answer.close()
            return Found(size, known, head)
    return Found(0, _need_version(address, version or _version_of_empty(address, given)), b"")


def _version_in(answer: http.client.HTTPResponse, given: Mapping[str, Any]) -> str | None:
    return addresses.version_of(answer.getheader("ETag"), answer.getheader("Last-Modified"), given.get("version"))


def _version_of_empty(address: Address, given: Mapping[str, Any]) -> str | None:
    """Asks for all of an empty object: some servers refuse a part of it without its version."""
    with _request(address, given, {}) as answer:
        if answer.read(1):
            raise failures.is_unusable(address.shown, "the server refuses a part of it as empty, and it is not empty")
        return _version_in(answer, given)


def _need_version(address: Address, version: str | None) -> str:
    if version is None:
        raise failures.is_unusable(
            address.shown,
            "the server gives it neither an ETag nor a time, so a replaced object could not be noticed. "
            'storage={"version": "size"} reads it all the same',
        )
    return version


def _size_of(address: Address, answer: http.client.HTTPResponse) -> int:
    said = answer.getheader("Content-Range", "")
    if answer.status == 416:
        empty = _UNSATISFIED.fullmatch(said)
        if empty is None or int(empty[1]) != 0:
            raise failures.is_unusable(address.shown, "the server refuses a part of it (status 416)")
        return 0
    if answer.status == 206:
        found = _RANGE.fullmatch(said)
        size = int(found[3]) if found else -1
        if found is None or int(found[1]) != 0 or int(found[2]) != min(size, HEAD_BYTES) - 1:
            raise Passing(f"another part than the first one ({_shorten(said)})")
        return size
    length = answer.getheader("Content-Length", "")
    if not length.isdigit():
        raise failures.is_unusable(address.shown, "the server does not say how large it is")
    size = int(length)
    if size > _WHOLE_BYTES:
        raise failures.is_unusable(
            address.shown, f"the server gives all of its {size:,} bytes instead of a part; use one that knows ranges"
        )
    return size


def read(
    address: Address, text: str, given: Mapping[str, Any], version: str, size: int, at: int, count: int
) -> memoryview:
    """Returns the bytes [at, at + count) of an object of this version and size, until this thread reads again. Raises
    Failed and Passing."""
    del text
    check_encryption(address.shown, address.url, given)
    headers = range_of(at, count)
    etag = addresses.strong_etag(version)
    if etag is not None:
        headers["If-Match"] = etag
    with _request(address, given, headers) as answer:
        _check_version(address, answer, version)
        return read_part(address, answer, size, at, count)


def range_of(at: int, count: int) -> dict[str, str]:
    return {"Range": f"bytes={at}-{at + count - 1}"}


def read_part(address: Address, answer: http.client.HTTPResponse, size: int, at: int, count: int) -> memoryview:
    """Returns the part of an object of this size that an answer has, if it is the one that was asked for, until this
    thread reads again."""
    _check_encoding(address, answer)
    if answer.status == 416:
        raise failures.is_replaced(address.shown, "the part that is wanted is behind its end")
    if answer.status == 200:
        return _read_of_whole(address, answer, size, at, count)
    found = _RANGE.fullmatch(answer.getheader("Content-Range", ""))
    if found is None:
        raise Passing("an answer that does not say which part it is")
    if int(found[3]) != size:
        raise failures.is_replaced(address.shown, f"it had {size:,} bytes, and now has {int(found[3]):,}")
    if int(found[1]) != at or int(found[2]) != at + count - 1:
        raise Passing(f"bytes {found[1]}-{found[2]} instead of {at}-{at + count - 1}")
    return _read_exactly(answer, count)


def _read_of_whole(address: Address, answer: http.client.HTTPResponse, size: int, at: int, count: int) -> memoryview:
    """Takes a part out of an answer that has the whole object."""
    length = answer.getheader("Content-Length", "")
    if length.isdigit() and int(length) != size:
        raise failures.is_replaced(address.shown, f"it had {size:,} bytes, and now has {int(length):,}")
    if size > _WHOLE_BYTES:
        answer.close()
        raise Passing("the whole object instead of a part")
    return _read_exactly(answer, size)[at : at + count]


def _memory_of_thread(count: int) -> memoryview:
    """Returns memory for so many bytes. A part has 1 MiB at most, if it is kept, and gets the same memory each time:
    new memory would cost as much CPU time as the copy into it."""
    if count > _READ_BYTES:
        return memoryview(bytearray(count))
    if not hasattr(_own, "memory"):
        _own.memory = memoryview(bytearray(_READ_BYTES))
    memory: memoryview = _own.memory[:count]
    return memory


def _read_exactly(answer: http.client.HTTPResponse, count: int) -> memoryview:
    """Reads the body, which has to have so many bytes, or as much of it if it is longer and was not asked for. The
    bytes are there until this thread reads again."""
    length = answer.getheader("Content-Length", "")
    if length.isdigit() and int(length) < count:
        raise Passing(f"{int(length):,} bytes instead of {count:,}")
    if length.isdigit() and answer.status == 206 and int(length) != count:
        raise Passing(f"{int(length):,} bytes instead of {count:,}")
    memory, got = _memory_of_thread(count), 0
    while got < count:
        some = answer.readinto(memory[got:])
        if not some:
            raise Passing(f"{got:,} bytes instead of {count:,}")
        got += some
    if answer.status == 206 and not length.isdigit() and answer.read(1):
        raise Passing(f"more than {count:,} bytes")
    return memory


# ---- checks ----


def _check_version(address: Address, answer: http.client.HTTPResponse, version: str) -> None:
    etag, modified = answer.getheader("ETag"), answer.getheader("Last-Modified")
    if answer.status == 412:
        raise failures.is_replaced(address.shown, "the server has another version of it (status 412)")
    if not addresses.is_same_version(version, etag, modified):
        raise failures.is_replaced(
            address.shown,
            "the server has another version of it, or does not say which one. If several mirrors answer, give "
            'storage={"version": "modified"} or "size"',
        )


def _check_encoding(address: Address, answer: http.client.HTTPResponse) -> None:
    encoding = answer.getheader("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise failures.is_unusable(
            address.shown,
            f"the server sends it compressed ({_shorten(encoding)}), so its parts are not those of the file. Store it "
            "without Content-Encoding, or switch compression off for it",
        )


def check_status(address: Address, answer: http.client.HTTPResponse, credentials: str) -> None:
    """Raises an error if an answer is one. credentials: which ones the request had, for the message."""
    status = answer.status
    if status in (200, 206, 412, 416):
        return
    if status in (404, 410):
        raise failures.is_absent(address.shown, status)
    if status in (401, 403, 407):
        raise failures.is_refused(address.shown, status, credentials)
    if status in _PASSING:
        raise Passing(f"status {status}", _wait_of(answer.getheader("Retry-After", "")))
    raise failures.is_unusable(address.shown, f"the server answered with status {status}")


def _wait_of(text: str) -> float:
    return min(float(text), 60.0) if text.strip().isdigit() else 0.0


def _describe_credentials(address: Address, given: Mapping[str, Any]) -> str:
    parts = urlsplit(address.url)
    kinds = [
        (bool(given.get("headers")), "the headers of storage="),
        ("@" in parts.netloc, "the user and password of the URL"),
        (bool(parts.query), "the query of the URL, which may have expired"),
    ]
    return " and ".join(kind for is_there, kind in kinds if is_there) or (
        "no credentials; those of a signed URL, and headers=, are in no pickle except for workers"
    )


def _shorten(text: str) -> str:
    return "".join(c for c in text if c.isprintable())[:60]


# ---- connections ----


@contextlib.contextmanager
def exchange(url: str, given: Mapping[str, Any], headers: dict[str, str]) -> Iterator[http.client.HTTPResponse]:
    """Sends a GET. The connection is kept if the whole answer was read. given: proxies, certificates and timeouts."""
    connection, key, answer = _send(url, given, headers)
    try:
        yield answer
    except (OSError, http.client.HTTPException) as error:
        raise _failure_of(error, url) from None
    finally:
        if not answer.isclosed() or answer.will_close:
            _close(key, connection)


@contextlib.contextmanager
def _request(address: Address, given: Mapping[str, Any], headers: dict[str, str]) -> Iterator[http.client.HTTPResponse]:
    """Sends a GET and follows redirects. Another host gets no credentials."""
    with follow(address, address.url, given, headers, _credentials(address.url, given)) as (_, answer):
        check_status(address, answer, _describe_credentials(address, given))
        yield answer


@contextlib.contextmanager
def follow(
    address: Address,
    url: str,
    given: Mapping[str, Any],
    headers: dict[str, str],
    credentials: dict[str, str],
    stops: bool = False,
) -> Iterator[tuple[str, http.client.HTTPResponse]]:
    """Sends a GET and follows redirects. Gives the URL that has answered, and the answer. credentials: headers that the
    first host gets only. stops: a redirect to another host is the answer, with the URL of that host."""
    first_url = url
    for _ in range(MOST_REDIRECTS + 1):
        with exchange(url, given, {**headers, **credentials}) as answer:
            if answer.status not in REDIRECTS:
                yield url, answer
                return
            url = _target_of(address, url, answer)
            answer.read(HEAD_BYTES)
            if _host_of(url) != _host_of(first_url):
                credentials = {}
                if stops:
                    yield url, answer
                    return
    raise failures.is_unusable(address.shown, f"the server redirects more than {MOST_REDIRECTS} times")


def _target_of(address: Address, url: str, answer: http.client.HTTPResponse) -> str:
    target = urljoin(url, answer.getheader("Location", ""))
    if not target.startswith(("https://", "http://")):
        raise failures.is_unusable(address.shown, "the server redirects to no address of http")
    if url.startswith("https://") and not target.startswith("https://"):
        raise failures.is_unusable(address.shown, "the server redirects from https to http, which is not encrypted")
    return target


def _host_of(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _credentials(url: str, given: Mapping[str, Any]) -> dict[str, str]:
    """Returns the headers of storage=, and what the user and the password of a URL become."""
    user = urlsplit(url).netloc.rpartition("@")[0]
    return {**given.get("headers", {}), **({"Authorization": _basic(user)} if user else {})}


def _send(
    url: str, given: Mapping[str, Any], headers: dict[str, str]
) -> tuple[http.client.HTTPConnection, Any, http.client.HTTPResponse]:
    """Sends a request on a connection that is kept, or on a new one if that was closed meanwhile."""
    parts = urlsplit(url)
    sent = {"User-Agent": _AGENT, "Accept-Encoding": "identity", **headers}
    target = quote(parts.path or "/", safe=_SAFE) + (f"?{quote(parts.query, safe=_SAFE)}" if parts.query else "")
    for is_last in (False, True):
        connection, key, is_new = _connect(parts, given)
        try:
            connection.request("GET", target, headers=sent)
            return connection, key, connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            _close(key, connection)
            is_stale = isinstance(error, (ConnectionError, http.client.BadStatusLine)) and not is_new
            if is_last or not is_stale:
                raise _failure_of(error, url) from None
        except ValueError:
            _close(key, connection)
            raise Failed(errno.EINVAL, "remote: a header of storage= cannot be sent") from None
    raise AssertionError("not reached")


def _basic(user: str) -> str:
    import base64

    return "Basic " + base64.b64encode(unquote(user).encode()).decode()


def _connect(parts: Any, given: Mapping[str, Any]) -> tuple[http.client.HTTPConnection, Any, bool]:
    environment = given.get("environment", {})
    host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    proxy = _proxy_of(parts.scheme, host, environment)
    timeout = float(given.get("timeout_s", settings.TIMEOUT_S))
    key = (parts.scheme, host, port, proxy, environment.get("SSL_CERT_FILE"), timeout)
    kept: dict[Any, http.client.HTTPConnection] = _own.__dict__.setdefault("connections", {})
    if key in kept:
        return kept[key], key, False
    while len(kept) >= _MOST_CONNECTIONS:
        kept.pop(next(iter(kept))).close()
    kept[key] = _open(key)
    return kept[key], key, True


def _open(key: Any) -> http.client.HTTPConnection:
    scheme, host, port, proxy, certificates, timeout = key
    first_host, first_port = (proxy[0], proxy[1]) if proxy else (host, port)
    connection: http.client.HTTPConnection
    if scheme == "https":
        context = _context(certificates)
        connection = http.client.HTTPSConnection(first_host, first_port, timeout=timeout, context=context)
    else:
        connection = http.client.HTTPConnection(first_host, first_port, timeout=timeout)
    if proxy:
        connection.set_tunnel(host, port, {"Proxy-Authorization": _basic(proxy[2])} if proxy[2] else {})
    return connection


_contexts: dict[str | None, ssl.SSLContext] = {}


def _context(certificates: str | None) -> ssl.SSLContext:
    if certificates not in _contexts:
        try:
            _contexts[certificates] = ssl.create_default_context(cafile=certificates)
        except OSError:
            raise Failed(errno.EINVAL, _NO_CERTIFICATES) from None
    return _contexts[certificates]


def _proxy_of(scheme: str, host: str, environment: Mapping[str, str]) -> tuple[str, int, str] | None:
    """Returns host, port and user of the proxy; None: no proxy is set, or the host is of this machine."""
    proxies = {name.lower().removesuffix("_proxy"): value for name, value in environment.items()}
    bypass = {"no": proxies["no"]} if "no" in proxies else {}
    if host in _LOCAL or scheme not in proxies:
        return None
    from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]  # this import takes long

    if proxy_bypass_environment(host, bypass):
        return None
    text = proxies[scheme]
    parts = urlsplit(text if "://" in text else f"http://{text}")
    return (parts.hostname or "", parts.port or 80, parts.netloc.rpartition("@")[0])


def proxy_options(url: str, given: Mapping[str, Any]) -> dict[str, str]:
    """Returns obstore's settings for the proxy and the certificates of the environment. url: of the store, of which the
    host may not be known yet."""
    environment = given.get("environment", {})
    parts = urlsplit(url)
    options = {}
    variables = {name.lower(): value for name, value in environment.items()}
    proxy = variables.get(f"{parts.scheme}_proxy")
    if proxy and (not parts.hostname or _proxy_of(parts.scheme, parts.hostname, environment)):
        options["proxy_url"] = proxy if "://" in proxy else f"http://{proxy}"
        options |= {"proxy_excludes": variables["no_proxy"]} if "no_proxy" in variables else {}
    if "SSL_CERT_FILE" in environment:
        try:
            with open(environment["SSL_CERT_FILE"]) as file:
                options["root_certificate"] = file.read()
        except (OSError, ValueError):
            raise Failed(errno.EINVAL, _NO_CERTIFICATES) from None
    return options


def _close(key: Any, connection: http.client.HTTPConnection) -> None:
    _own.__dict__.setdefault("connections", {}).pop(key, None)
    connection.close()


def _failure_of(error: BaseException, url: str) -> Failed | Passing:
    """Returns the error of a connection. A certificate does not become valid by another try."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return failures.is_untrusted(_place_of(url), error.verify_message)
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return failures.is_not_encrypted(_place_of(url))
    return Passing(_describe(error))


def _place_of(url: str) -> str:
    """Returns the host of a URL, with the port if it has one."""
    return urlsplit(url).netloc.rpartition("@")[2]


def _describe(error: BaseException) -> str:
    """Returns what happened, without the client's text."""
    if isinstance(error, socket.gaierror):
        return failures.UNKNOWN_HOST
    if isinstance(error, TimeoutError):
        return failures.SILENT
    if isinstance(error, http.client.IncompleteRead):
        return failures.CUT
    number = getattr(error, "errno", None)
    return f"{type(error).__name__}" + (f" ({errno.errorcode.get(number, number)})" if number else "")

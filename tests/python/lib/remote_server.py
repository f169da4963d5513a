# SPDX-License-Identifier: Apache-2.0
"""A server of files with faults, by seed: what tests of remote objects read from.

    with RemoteServer({"a.bin": data}) as server:
        server.faults = Faults(seed=1, kinds=("503", "cut"), share=0.5)
        sources.Tokens(server.url("a.bin"), length=8)

It counts the bytes that it sends, so that tests can compare them with the size of the files.
"""

from __future__ import annotations

import gzip
import hashlib
import random
import re
import socket
import ssl
import struct
import threading
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")

PASSING = ("503", "500", "429", "cut", "reset", "stall", "stall_before", "fewer", "other_range", "whole")
LYING = ("other_etag", "weak_etag", "no_etag", "other_size", "gzip", "no_range")


@dataclass
class Faults:
    """Which answers are wrong. kinds: drawn from with the seed. share: of the requests. most: so many in all.
    only_parts: the requests of an opening are answered rightly."""

    seed: int = 0
    kinds: tuple[str, ...] = ()
    share: float = 1.0
    most: int = 10**9
    only_parts: bool = False
    drawn: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._lock = threading.Lock()

    def draw(self, is_opening: bool) -> str:
        with self._lock:
            if not self.kinds or (is_opening and self.only_parts) or sum(self.drawn.values()) >= self.most:
                return ""
            kind = self._random.choice(self.kinds) if self._random.random() < self.share else ""
            self.drawn.update([kind] if kind else [])
            return kind


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise the body waits 40 ms for an answer to the headers
    wbufsize = 1 << 16
    server: Any

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.send_response(403)  # as for a URL that is signed for GET
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        owner: RemoteServer = self.server.owner
        name = self.path.partition("?")[0].lstrip("/")
        owner.note(self)
        if owner.latency_s:
            owner.stall(owner.latency_s)
        if name in owner.redirects:
            self._answer(302, b"", {"Location": owner.redirects[name]})
            return
        if owner.needs not in self.path:
            self._answer(403, b"no")
            return
        if owner.refused and (name in owner.refused or "*" in owner.refused):
            self._answer(403, b"no")
            return
        data = owner.files.get(name)
        if data is None:
            self._answer(404, b"")
            return
        self._send_file(owner, name, data)

    def _range_of(self, size: int) -> tuple[int, int]:
        found = _RANGE.fullmatch(self.headers.get("Range", ""))
        return (int(found[1]), min(int(found[2]), size - 1)) if found else (0, size - 1)

    def _send_file(self, owner: RemoteServer, name: str, data: bytes) -> None:
        first, last = self._range_of(len(data))
        etag = owner.etag_of(name)
        fault = owner.faults.draw(first == 0 and last >= min(len(data), 65536) - 1)
        if fault in ("503", "500", "429"):
            self._answer(int(fault), b"later", {"Retry-After": "0"})
            return
        if fault == "stall_before":
            owner.stall()
        if self.headers.get("If-Match") not in (None, etag) and not owner.ignores_if_match:
            self._answer(412, b"changed")
            return
        if "Range" in self.headers and first >= len(data):
            version = {} if owner.refuses_without_etag else {"ETag": etag}
            self._answer(416, b"", {"Content-Range": f"bytes */{len(data)}", **version})
            return
        self._send_part(owner, data, first, last, etag, fault)

    def _send_part(self, owner: RemoteServer, data: bytes, first: int, last: int, etag: str, fault: str) -> None:
        status, size, body = 206, len(data), data[first : last + 1]
        said_first, said_last = first, last
        headers = {"ETag": etag}
        if fault == "other_etag":
            headers["ETag"] = '"other"'
        elif fault == "weak_etag":
            headers["ETag"] = "W/" + etag
        elif fault == "no_etag":
            del headers["ETag"]
        elif fault == "other_size":
            size += 1
        elif fault == "gzip":
            body = gzip.compress(body)
            headers["Content-Encoding"] = "gzip"
        elif fault == "other_range":
            said_first, said_last = first + 1, last + 1
            body = body[1:] + b"?"
        elif fault == "fewer":
            body = body[:-1]
        if fault in ("whole", "no_range") or owner.ignores_range:
            status, body = 200, data
        else:
            headers["Content-Range"] = f"bytes {said_first}-{said_last}/{size}"
        self._answer(status, body, headers, fault)

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None, fault: str = "") -> None:
        owner: RemoteServer = self.server.owner
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        half = body[: len(body) // 2] if fault in ("cut", "reset", "stall") else body
        owner.count(len(half), status)
        self._write(half, owner)
        if fault == "stall":
            self.wfile.flush()
            owner.stall()
        if fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if fault in ("cut", "reset", "stall"):
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR) if fault == "cut" else self.connection.close()

    def _write(self, body: bytes, owner: RemoteServer) -> None:
        try:
            self.wfile.write(body)
            self.wfile.flush()
        except OSError:
            self.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    owner: Any

    def handle_error(self, *_: Any) -> None:
        pass


class RemoteServer:
    """A server on loopback. files: their contents by name; they may be changed while it runs. certificate: a file with
    a certificate and its key, for https."""

    handler: type[_Handler] = _Handler

    def __init__(self, files: dict[str, bytes], certificate: str = "") -> None:
        self.scheme = "https" if certificate else "http"
        self.files = files
        self.faults = Faults()
        self.redirects: dict[str, str] = {}
        self.refused: set[str] = set()
        self.needs = ""  # what each path has to contain
        self.latency_s = 0.0
        self.ignores_if_match = self.ignores_range = self.refuses_without_etag = False
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.statuses: Counter[int] = Counter()
        self.sent_bytes = 0
        self._etags: dict[str, tuple[bytes | None, str]] = {}
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._server = _Server(("127.0.0.1", 0), self.handler)
        self._server.owner = self
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True, kwargs={"poll_interval": 0.05}).start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def url(self, name: str, query: str = "", host: str = "127.0.0.1", user: str = "") -> str:
        return f"{self.scheme}://{user}{host}:{self.port}/{name}{query}"

    def etag_of(self, name: str) -> str:
        data, etag = self._etags.get(name, (None, ""))
        if data is not self.files[name]:
            data = self.files[name]
            etag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
            self._etags[name] = data, etag
        return etag

    def note(self, handler: _Handler) -> None:
        with self._lock:
            self.requests.append((handler.path, dict(handler.headers.items())))

    def count(self, size: int, status: int) -> None:
        with self._lock:
            self.statuses[status] += 1
            self.sent_bytes += size

    def stall(self, seconds: float = 30) -> None:
        """Waits, but not longer than the server lives."""
        self._ends.wait(seconds)

    def release(self) -> None:
        """Ends the latency, also that of requests which wait now."""
        self.latency_s = 0
        before, self._ends = self._ends, threading.Event()
        before.set()

    def close(self) -> None:
        self._ends.set()
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> RemoteServer:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

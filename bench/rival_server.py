# SPDX-License-Identifier: Apache-2.0
"""The server of bench_remote_rivals.py, in a process of its own: the files of a folder by http, as objects of a bucket
that speaks S3, and as a repository of huggingface.co for a client that knows no other hub and goes through a proxy.

`rival_server.py FOLDER` prints its port, and then answers each line of stdin with one of stdout, both in JSON:
{"latency_s", "kind", "most", "replaces"} sets what it does next, and the answer has what it did since the last line.
"""

from __future__ import annotations

import gzip
import json
import ssl
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "python" / "lib"))

from remote_server import Faults, RemoteServer, _Handler

BUCKET, REPO = "bucket", "owner/name"
FOR_RANGES = ("other_range", "whole")  # faults of answers to requests of a range
TIME = "Mon, 02 Mar 2026 10:00:00 GMT"


class _RivalHandler(_Handler):
    def do_CONNECT(self) -> None:
        """Goes on with TLS in this connection: the client takes this server for huggingface.co."""
        self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        self.wfile.flush()
        self.connection = self.request = self.server.owner.tls.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb", -1)
        self.wfile = self.connection.makefile("wb", self.wbufsize)
        self.close_connection = False

    def do_HEAD(self) -> None:
        owner: Any = self.server.owner
        name = unquote(urlsplit(self.path).path).strip("/").removeprefix(f"{BUCKET}/")
        owner.note(self)
        owner.stall(owner.latency_s)
        if name not in owner.files:
            self._answer(404, b"")
            return
        self.send_response(200)
        for field, value in (("ETag", owner.etag_of(name)), ("Last-Modified", TIME), ("Accept-Ranges", "bytes")):
            self.send_header(field, value)
        self.send_header("Content-Length", str(len(owner.files[name])))
        self.end_headers()

    def do_PUT(self) -> None:
        self._answer(403, b"")

    def do_GET(self) -> None:
        owner: Any = self.server.owner
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        name = unquote(parts.path).strip("/")
        if name.startswith("api/datasets/"):
            self._list_hub(owner, "/tree/" in name)
            return
        if name == BUCKET:
            self._list_s3(owner, query)
            return
        for begin in (f"{BUCKET}/", f"datasets/{REPO}/resolve/main/"):
            name = name.removeprefix(begin)
        owner.note(self)
        owner.stall(owner.latency_s)
        data = owner.files.get(name)
        if data is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        self._give(owner, name, data)

    def _give(self, owner: Any, name: str, data: bytes) -> None:
        is_data = not name.endswith((".hri", ".json"))
        has_range = "Range" in self.headers
        fault = ""
        if is_data:
            data = owner.replace_if_due(name)
            if has_range or not set(owner.faults.kinds) & set(FOR_RANGES):
                fault = owner.faults.draw(False)
        etag = owner.etag_of(name)
        if fault in ("503", "500", "429"):
            self._answer(int(fault), b"later", {"Retry-After": "0"})
            return
        if self.headers.get("If-Match") not in (None, etag):
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        first, last = self._range_of(len(data))
        if has_range:
            self._send_part(owner, data, first, last, etag, fault)
            return
        headers = {"ETag": etag, "Last-Modified": TIME, "Accept-Ranges": "bytes"}
        if fault == "fewer":
            data = data[: len(data) * 2 // 3]
        elif fault == "gzip":
            data = gzip.compress(data, 1)
            headers["Content-Encoding"] = "gzip"
        self._answer(200, data, headers, fault)

    def _list_s3(self, owner: Any, query: dict[str, str]) -> None:
        prefix = query.get("prefix", "")
        rows = [
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-03-02T10:00:00.000Z</LastModified>"
            f"<ETag>{escape(owner.etag_of(key))}</ETag><Size>{len(owner.files[key])}</Size></Contents>"
            for key in sorted(owner.files)
            if key.startswith(prefix)
        ]
        found = f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(rows)}</ListBucketResult>"
        self._answer(200, found.encode())

    def _list_hub(self, owner: Any, is_tree: bool) -> None:
        names = [name for name in sorted(owner.files) if "/" not in name]
        files = [{"type": "file", "path": name, "rfilename": name, "size": len(owner.files[name])} for name in names]
        answer = files if is_tree else {"id": REPO, "siblings": files}
        self._answer(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})


class RivalServer(RemoteServer):
    """newer: contents of files after they were replaced, which happens at the `replaces`-th request of data."""

    handler = _RivalHandler

    def __init__(self, files: dict[str, bytes], newer: dict[str, bytes], certificate: str) -> None:
        self.newer, self.older = newer, dict(files)
        self.replaces = 0
        self._replacing = threading.Lock()
        if certificate:
            self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.tls.load_cert_chain(certificate)
        super().__init__(files)

    def replace_if_due(self, name: str) -> bytes:
        with self._replacing:
            if self.replaces:
                self.replaces -= 1
                if not self.replaces:
                    self.files.update(self.newer)
        return self.files[name]

    def stall(self, seconds: float = 600) -> None:
        """Waits, for a fault until the driver sets the next one."""
        super().stall(seconds)

    def change(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Sets what comes next, and returns what was until now."""
        found = {"sent_bytes": self.sent_bytes, "requests": len(self.requests), "drawn": self.faults.drawn.total()}
        found["replaced"] = self.files != self.older
        self.latency_s = wanted.get("latency_s", self.latency_s)
        if "kind" in wanted:
            kinds = (wanted["kind"],) if wanted["kind"] else ()
            self.faults = Faults(kinds=kinds, most=wanted.get("most", 0))
            self.replaces = wanted.get("replaces", 0)
            self.files.update(self.older)
            self.requests.clear()
            self._ends.set()  # ends what waits
            self._ends = threading.Event()
        return found


def read(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def main() -> None:
    folder = Path(sys.argv[1])
    certificate = folder / "server.pem"
    server = RivalServer(
        read(folder / "files"), read(folder / "newer"), str(certificate) if certificate.exists() else ""
    )
    print(server.port, flush=True)
    for line in sys.stdin:
        print(json.dumps(server.change(json.loads(line))), flush=True)
    server.close()


if __name__ == "__main__":
    main()

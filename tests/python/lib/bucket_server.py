# SPDX-License-Identifier: Apache-2.0
"""A server that answers as S3, Google's and Azure's object stores do, as far as objects are read and listed.

    with BucketServer({"a.bin": data}) as server:
        sources.Tokens("gs://bucket/a.bin", length=8, storage={"endpoint": server.endpoint, "anonymous": True})

accounts says which keys and tokens may read; it does not check signatures.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from remote_server import RemoteServer, _Handler

PAGE = 5
TIME = "Mon, 02 Mar 2026 10:00:00 GMT"
_KEY = re.compile(r"Credential=([^/]+)/|Bearer (.+)|SharedKey ([^:]+):")


class _BucketHandler(_Handler):
    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        owner: Any = self.server.owner
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        owner.note(self)
        state = owner.accounts.get(self._account(query), "refused") if owner.accounts else ""
        if state:
            self._refuse(state)
        elif query.get("comp") == "list":
            self._list_azure(owner, query)
        elif query.get("list-type") == "2":
            self._list_s3(owner, query)
        elif bucket != owner.bucket or key not in owner.files:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            self._get_object(owner, key)

    def _account(self, query: dict[str, str]) -> str:
        found = _KEY.search(self.headers.get("Authorization", ""))
        if not found:
            return query.get("sig", "")
        word: str = next(word for word in found.groups() if word)
        if word.count(".") == 2:  # a token that a service account of Google has signed
            claims = word.split(".")[1]
            word = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["iss"]
        return word

    def _refuse(self, state: str) -> None:
        codes = {"expired": (400, "ExpiredToken"), "unknown": (401, "Unauthorized"), "refused": (403, "AccessDenied")}
        status, code = codes[state]
        self._answer(status, f"<Error><Code>{code}</Code></Error>".encode())

    def _get_object(self, owner: Any, key: str) -> None:
        data, etag = owner.files[key], owner.etag_of(key)
        if self.headers.get("If-Match") not in (None, etag) and not owner.ignores_if_match:
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        headers = {"ETag": etag, "Last-Modified": TIME, "x-goog-generation": str(abs(hash(etag)))}
        if "Range" not in self.headers:
            self._answer(200, data, headers)
            return
        first, last = self._range_of(len(data))
        self._answer(206, data[first : last + 1], {**headers, "Content-Range": f"bytes {first}-{last}/{len(data)}"})

    def _page(self, owner: Any, query: dict[str, str], name: str) -> tuple[list[str], str]:
        found = [key for key in sorted(owner.files) if key.startswith(query.get("prefix", ""))]
        first = int(query.get(name, "0"))
        return found[first : first + PAGE], str(first + PAGE) if first + PAGE < len(found) else ""

    def _list_s3(self, owner: Any, query: dict[str, str]) -> None:
        keys, following = self._page(owner, query, "continuation-token")
        rows = [
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-03-02T10:00:00.000Z</LastModified>"
            f"<ETag>{escape(owner.etag_of(key))}</ETag><Size>{len(owner.files[key])}</Size></Contents>"
            for key in keys
        ]
        more = f"<NextContinuationToken>{following}</NextContinuationToken>" if following else ""
        truncated = f"<IsTruncated>{'true' if following else 'false'}</IsTruncated>"
        self._answer(200, f"<ListBucketResult>{truncated}{more}{''.join(rows)}</ListBucketResult>".encode())

    def _list_azure(self, owner: Any, query: dict[str, str]) -> None:
        """Azure's list has ETags without quotes."""
        keys, following = self._page(owner, query, "marker")
        rows = [
            f"<Blob><Name>{escape(key)}</Name><Properties><Last-Modified>{TIME}</Last-Modified>"
            f"<Etag>{owner.etag_of(key).strip(chr(34))}</Etag><Content-Length>{len(owner.files[key])}</Content-Length>"
            "<Content-Type>application/octet-stream</Content-Type><BlobType>BlockBlob</BlobType></Properties></Blob>"
            for key in keys
        ]
        body = f"<Blobs>{''.join(rows)}</Blobs><NextMarker>{following}</NextMarker>"
        self._answer(200, f"<EnumerationResults>{body}</EnumerationResults>".encode())

    def _write(self, body: bytes, owner: RemoteServer) -> None:
        if self.command != "HEAD":
            super()._write(body, owner)


class BucketServer(RemoteServer):
    """accounts: "" for the key or the token of an account that may read, else how it is refused: "expired" (as S3 says
    it), "unknown" (401) or "refused"; {}: everybody may read."""

    handler = _BucketHandler

    bucket = "bucket"

    def __init__(self, files: dict[str, bytes], certificate: str = "") -> None:
        self.accounts: dict[str, str] = {}
        super().__init__(files, certificate)

    @property
    def endpoint(self) -> str:
        return self.url("", host="localhost" if self.scheme == "https" else "127.0.0.1").rstrip("/")

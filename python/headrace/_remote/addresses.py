# SPDX-License-Identifier: Apache-2.0
"""Addresses of objects: what of them may be shown, and the name under which an object is kept."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

SCHEMES = ("https", "http", "s3")
_NAME_DIGITS = 32
_MARK_DIGITS = 8
_URL = re.compile(r"(?:https?|s3)://")
_UNSAFE = re.compile(r"[\x00-\x20\x7f]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

# Parameters of signed URLs, which differ for one object: of AWS, Google, Azure and CloudFront.
_SIGNATURE = re.compile(
    r"x-amz-.*|x-goog-.*|awsaccesskeyid|googleaccessid|signature|expires|key-pair-id|policy|sig|se|sp|sv|sr|st|spr|skoid"
    r"|sktid|skt|ske|sks|skv|sip",
    re.IGNORECASE,
)


def is_remote(path: Any) -> bool:
    """Returns True for a URL of one of the schemes that headrace reads."""
    return isinstance(path, str) and _URL.match(path) is not None


@dataclass(frozen=True)
class Address:
    """The parts of a URL. shown: without user, password, query and fragment. path: the same, with a mark if there is a
    part of the query, or an endpoint, that makes it another object."""

    url: str
    scheme: str
    host: str
    shown: str
    path: str


def parse(url: str, endpoint: str = "") -> Address:
    """Returns the parts of a URL. Raises ValueError, without the URL, which may have secrets."""
    if not is_remote(url):
        raise ValueError("a URL should begin with https://, http:// or s3://")
    if _CONTROL.search(url) or (not url.startswith("s3:") and _UNSAFE.search(url)):
        raise ValueError("a URL has a space or a control character; write them as %20 and the like")
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    if not host:
        raise ValueError("a URL has no host or no bucket")
    if parts.scheme == "s3":  # a key may have any characters: nothing in it is a query
        shown = path = url
        mark = _digest(endpoint, _MARK_DIGITS) if endpoint else ""
    else:
        shown = path = f"{parts.scheme}://{host}{parts.path}"
        counts = sorted(pair for pair in parse_qsl(parts.query, True) if not _SIGNATURE.fullmatch(pair[0]))
        mark = _digest(repr(counts), _MARK_DIGITS) if counts else ""
    return Address(url, parts.scheme, host, shown, f"{path}?{mark}" if mark else path)


def _digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:digits]


def name_of(address: Address, size: int, version: str) -> str:
    """Returns the name of the file that has what is kept of an object."""
    return _digest("\n".join((address.path, str(size), version)), _NAME_DIGITS)


# ---- versions ----

ETAG, WEAK, MODIFIED, SIZE = "etag:", "weak:", "modified:", "size"


def version_of(etag: str | None, modified: str | None, wanted: str | None) -> str | None:
    """Returns the version of an object, by its ETag, else by its time; None: it has neither. wanted: "modified" or
    "size", the user's choice for mirrors whose ETags differ."""
    if wanted == "size":
        return SIZE
    if etag and wanted != "modified" and not _UNSAFE.search(etag.strip()):
        etag = etag.strip()
        return (WEAK if etag.startswith("W/") else ETAG) + etag
    return MODIFIED + modified.strip() if modified and "\t" not in modified and "\n" not in modified else None


def is_same_version(version: str, etag: str | None, modified: str | None) -> bool:
    """Compares an answer with the version that was found when the object was opened."""
    if version == SIZE:
        return True
    if version.startswith(MODIFIED):
        return modified is not None and version == MODIFIED + modified.strip()
    return etag is not None and etag.strip() == version.partition(":")[2]


def strong_etag(version: str) -> str | None:
    """Returns what a request sends as If-Match. A weak ETag would be refused for ever."""
    return version.removeprefix(ETAG) if version.startswith(ETAG) else None

# SPDX-License-Identifier: Apache-2.0
"""Addresses of objects: what of them may be shown, and the name under which an object is kept."""

from __future__ import annotations

import hashlib
import re
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

BUCKETS = ("s3", "gs", "az")  # obstore reads them
LISTED = (*BUCKETS, "hf")  # of which a pattern lists objects; no character of their URLs begins a query, or is a secret
_NAME_DIGITS = 32
_MARK_DIGITS = 8
_URL = re.compile(r"(?:https?|s3|gs|az|hf)://")
BEGINS = "https://, http://, s3://, gs://, az:// or hf://"
HUB = "huggingface.co"
_KINDS = ("datasets", "models", "spaces")
_HUB_URL = re.compile(
    r"(?P<repo>hf://(?:(?:datasets|models|spaces)/)?[^/@]+/[^/@]+)"
    r"(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?(?P<file>/.*)?",
    re.DOTALL,
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
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


def is_listed(url: str) -> bool:
    """Returns True for a URL of a bucket or of the hub, whose objects can be listed."""
    return url.partition("://")[0] in LISTED


class Address(NamedTuple):
    """The parts of a URL. shown: without user, password, query and fragment. path: the same, with a mark if there is a
    part of the query, or an endpoint, that makes it another object. kept: the path that names what is kept, which is
    the same for all revisions of a file of the hub."""

    url: str
    scheme: str
    host: str
    shown: str
    path: str
    kept: str


def parse(url: str, endpoint: str = "") -> Address:
    """Returns the parts of a URL. Raises ValueError, without the URL, which may have secrets."""
    if not is_remote(url):
        raise ValueError(f"a URL should begin with {BEGINS}")
    if _CONTROL.search(url) or (not is_listed(url) and _UNSAFE.search(url)):
        raise ValueError("a URL has a space or a control character; write them as %20 and the like")
    if is_listed(url):  # a key may have any characters: nothing in it is a query
        return _parse_listed(url, endpoint)
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    if not host:
        raise ValueError("a URL has no host")
    shown = f"{parts.scheme}://{host}{parts.path}"
    counts = sorted(pair for pair in parse_qsl(parts.query, True) if not _SIGNATURE.fullmatch(pair[0]))
    path = _with_mark(shown, repr(counts) if counts else "")
    return Address(url, parts.scheme, host, shown, path, path)


def _parse_listed(url: str, endpoint: str) -> Address:
    scheme, _, rest = url.partition("://")
    host, kept = rest.partition("/")[0], url
    if scheme == "hf":
        place = hub_place(url)
        kept = f"hf://{place.kind}/{place.repo}/{place.file}"
        host = urlsplit(endpoint).netloc or HUB
    if not host or "@" in rest.partition("/")[0]:
        raise ValueError("a URL has no bucket, or an @ in its name")
    return Address(url, scheme, host, url, _with_mark(url, endpoint), _with_mark(kept, endpoint))


_MARK = re.compile(rf"\?[0-9a-f]{{{_MARK_DIGITS}}}\Z")


def without_mark(path: str) -> str:
    """Returns the path of a file without what is not of its name: the mark of an object, or the query of a URL."""
    if not is_remote(path):
        return path
    return _MARK.sub("", path) if is_listed(path) else path.partition("?")[0]


def _with_mark(path: str, counts: str) -> str:
    return f"{path}?{_digest(counts, _MARK_DIGITS)}" if counts else path


def _digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:digits]


def name_of(address: Address, size: int, version: str) -> str:
    """Returns the name of the file that has what is kept of an object."""
    return _digest("\n".join((address.kept, str(size), version)), _NAME_DIGITS)


# ---- the hub ----


class HubPlace(NamedTuple):
    """A file of a repository of the hub. kind: "datasets", "models" or "spaces". repo: OWNER/NAME. revision: a branch,
    a tag or a commit. file: its path; "": the repository."""

    kind: str
    repo: str
    revision: str
    file: str


def hub_place(url: str) -> HubPlace:
    """Returns what an address of the hub names. Raises ValueError."""
    match = _HUB_URL.fullmatch(url)
    words = match["repo"].removeprefix("hf://").split("/") if match else []
    if match is None or len(words) < 2 or (words[0] in _KINDS and len(words) < 3):
        raise ValueError("a URL of the hub should be hf://datasets/OWNER/NAME[@REVISION]/PATH, or hf://models/...")
    kind = words[0] if len(words) == 3 else "models"
    revision = unquote(match["revision"] or "main")
    return HubPlace(kind, "/".join(words[-2:]), revision, (match["file"] or "/")[1:])


def split_hub(url: str) -> tuple[str, str]:
    """Returns the repository of an address of the hub, with its revision, and the rest."""
    match = _HUB_URL.fullmatch(url)
    head = len(url) - len(match["file"] or "") if match else len(url)
    return url[:head], url[head:]


def is_commit(revision: str) -> bool:
    return _COMMIT.fullmatch(revision) is not None


# ---- versions ----

ETAG, WEAK, MODIFIED, SIZE = "etag:", "weak:", "modified:", "size"
SHA256, GIT = "sha256:", "git:"  # of the hub: of the contents


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

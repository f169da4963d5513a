# SPDX-License-Identifier: Apache-2.0
"""Reads files of repositories of the Hugging Face hub, and lists them.

A branch or a tag becomes a commit once. The tree of that commit has the size of each file and a digest of its contents,
which is its version. A file is asked for at the hub, which redirects to another host with a signed URL. That URL is
kept, and used for further parts until the other host refuses it: so the hub's limit of requests counts files, not
parts. The token goes to the hub only.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from headrace._remote import addresses, failures, https, settings
from headrace._remote.addresses import Address, HubPlace
from headrace._remote.failures import Passing
from headrace._remote.https import Found

_PAGE_BYTES = 64 << 20
_MOST_SIGNED = 100_000
_REFUSED = (401, 403)


class _Known:
    """Keeps what is known for some seconds. The first of two threads that bring a value wins."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._values: dict[Any, tuple[float, Any]] = {}
        self._lock = threading.Lock()

    def find(self, key: Any) -> Any:
        known = self._values.get(key)
        return known[1] if known is not None and known[0] > time.monotonic() else None

    def note(self, key: Any, value: Any) -> Any:
        with self._lock:
            found = self.find(key)
            if found is not None:
                return found
            now = time.monotonic()
            self._values = {key: known for key, known in self._values.items() if known[0] > now}
            self._values[key] = (now + self._seconds, value)
            return value


_commits, _trees = _Known(60.0), _Known(600.0)
_File = tuple[str, str, str]  # the URL of a file, settings, and its version
_signed: dict[_File, str] = {}  # signed URLs
_resolving: dict[_File, threading.Lock] = {}
_direct: set[_File] = set()  # files that the hub gives itself: their parts may be asked for at the same time


# ---- requests to the hub ----


def _base(given: Mapping[str, Any]) -> str:
    base = settings.endpoint_of(given, "hf") or f"https://{addresses.HUB}"
    https.check_encryption("the hub (HF_ENDPOINT)", base, given)
    return base


def _token(given: Mapping[str, Any]) -> dict[str, str]:
    token = settings.hub_token(given)[0]
    return {"Authorization": f"Bearer {token}"} if token else {}


def _describe_credentials(given: Mapping[str, Any], code: str) -> str:
    kind = settings.hub_token(given)[1]
    if code == "GatedRepo":
        return f"{kind}; the repository is gated: accept its conditions on its page of the hub"
    return f"{kind}. The hub refuses a repository that does not exist, too"


def _check(address: Address, given: Mapping[str, Any], answer: Any) -> None:
    code = answer.getheader("X-Error-Code", "")
    if answer.status == 404 and code == "RevisionNotFound":
        raise failures.is_absent(address.shown, 404, "the repository has no such revision")
    https.check_status(address, answer, _describe_credentials(given, code))


def _get_json(address: Address, given: Mapping[str, Any], path: str) -> tuple[Any, str]:
    """Returns what the hub answers, and the path of the next page, or ""."""
    base = _base(given)
    with https.follow(address, base + path, given, {}, _token(given)) as (url, answer):
        _check(address, given, answer)
        data = answer.read(_PAGE_BYTES)
        if not answer.isclosed():
            raise failures.is_unusable(address.shown, "the hub's answer is too large")
        try:
            return json.loads(data), _next_page(url, answer.getheader("Link", ""))
        except ValueError:
            raise Passing("the hub's answer is not JSON") from None


def _next_page(url: str, link: str) -> str:
    """Returns the path and query of the next page. Its host does not count: a mirror may pass on the hub's address, and
    the token goes to the mirror only."""
    for part in link.split(","):
        target, _, rest = part.strip().partition(">")
        if target.startswith("<") and 'rel="next"' in rest:
            parts = urlsplit(urljoin(url, target[1:]))
            return f"{parts.path}?{parts.query}"
    return ""


# ---- commits and trees ----


def _commit_of(address: Address, text: str, given: Mapping[str, Any], place: HubPlace) -> str:
    if addresses.is_commit(place.revision):
        return place.revision
    key = (place.kind, place.repo, place.revision, text)
    known: str | None = _commits.find(key)
    if known is not None:
        return known
    path = f"/api/{place.kind}/{place.repo}/revision/{quote(place.revision, safe='')}?expand=sha"  # without its files
    found = _get_json(address, given, path)[0]
    commit = found.get("sha") if isinstance(found, dict) else None
    if not isinstance(commit, str) or not addresses.is_commit(commit):
        raise failures.is_unusable(address.shown, "the hub does not say which commit the revision is")
    first: str = _commits.note(key, commit)
    return first


class _Tree:
    """The files of a folder of a commit: sizes and versions. They come page by page; if a page fails, the next try goes
    on with it."""

    def __init__(self, path: str) -> None:
        self._files: dict[str, tuple[int, str]] = {}
        self._next = path
        self._lock = threading.Lock()

    def files(self, address: Address, given: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
        with self._lock:
            while self._next:
                found, following = _get_json(address, given, self._next)
                self._add(address, found)
                if following == self._next:
                    raise failures.is_unusable(address.shown, "the hub gives one page of its list again and again")
                self._next = following
        return self._files

    def _add(self, address: Address, entries: Any) -> None:
        try:
            for entry in entries:
                if entry["type"] == "file":
                    file = entry.get("lfs")
                    size, version = (file, addresses.SHA256 + file["oid"]) if file else (entry, _git(entry["oid"]))
                    self._files[str(entry["path"])] = int(size["size"]), version
        except (AttributeError, KeyError, TypeError, ValueError):
            raise failures.is_unusable(
                address.shown, "the hub's list of files has another form than it should"
            ) from None


def _git(oid: str) -> str:
    return addresses.GIT + oid


def _tree_of(
    address: Address, text: str, given: Mapping[str, Any], folder: str, is_recursive: bool
) -> tuple[str, dict[str, tuple[int, str]]]:
    """Returns the commit of an address, and the files of a folder in it."""
    place = addresses.hub_place(address.url)
    commit = _commit_of(address, text, given, place)
    path = f"/api/{place.kind}/{place.repo}/tree/{commit}" + (f"/{quote(folder)}" if folder else "")
    path += "?recursive=true" if is_recursive else ""
    tree = _trees.find((path, text)) or _trees.note((path, text), _Tree(path))
    return commit, tree.files(address, given)


# ---- objects ----


def pin(address: Address, text: str, given: Mapping[str, Any]) -> str:
    """Returns the URL of a file or of a repository with the commit instead of the branch or the tag."""
    place = addresses.hub_place(address.url)
    return f"hf://{place.kind}/{place.repo}@{_commit_of(address, text, given, place)}/{place.file}"


def look(address: Address, text: str, given: Mapping[str, Any]) -> Found:
    """Finds size and version of a file in the tree. Raises Failed and Passing."""
    place = addresses.hub_place(address.url)
    files = _tree_of(address, text, given, place.file.rpartition("/")[0], is_recursive=False)[1]
    if place.file not in files:
        raise failures.is_absent(address.shown, 404)
    return Found(*files[place.file], b"")


def list_objects(address: Address, text: str, given: Mapping[str, Any]) -> Iterator[tuple[str, Found]]:
    """Yields the URLs of the files whose paths begin with that of an address, with the commit in them."""
    place = addresses.hub_place(address.url)
    commit, files = _tree_of(address, text, given, place.file.rpartition("/")[0], is_recursive=True)
    for path, found in files.items():
        if path.startswith(place.file):
            yield f"hf://{place.kind}/{place.repo}@{commit}/{path}", Found(*found, b"")


def read(
    address: Address, text: str, given: Mapping[str, Any], version: str, size: int, at: int, count: int
) -> memoryview:
    """Returns the bytes [at, at + count) of a file of this version and size, until this thread reads again. Raises
    Failed and Passing."""
    key = (address.url, text, version)
    if key in _direct:
        part = _ask_hub(address, text, given, version, size, at, count)
        if not isinstance(part, str):
            return part
        _direct.discard(key)
        _signed[key] = part
    old = _signed.get(key)
    data = _read_signed(address, given, old, size, at, count) if old else None
    if data is not None:
        return data
    with _resolving.setdefault(key, threading.Lock()):  # one thread asks the hub for a file
        signed = _signed.get(key)
        if signed is None or signed == old:
            found = _ask_hub(address, text, given, version, size, at, count)
            if not isinstance(found, str):
                _forget_some()
                _direct.add(key)
                return found
            signed = _signed[key] = found
    data = _read_signed(address, given, signed, size, at, count)
    if data is None:
        raise failures.is_refused(address.shown, 403, "a URL that the hub has just signed")
    return data


def _forget_some() -> None:
    """Makes room for one more file."""
    if len(_resolving) > _MOST_SIGNED:
        for known in (_signed, _resolving, _direct):
            known.clear()


def _read_signed(
    address: Address, given: Mapping[str, Any], signed: str, size: int, at: int, count: int
) -> memoryview | None:
    """Reads a part from the other host. None: it refuses the URL, because the signature has expired."""
    with https.follow(address, signed, given, https.range_of(at, count), {}) as (_, answer):
        if answer.status in _REFUSED:
            answer.read(https.HEAD_BYTES)
            return None
        https.check_status(address, answer, "a URL that the hub has signed")
        return https.read_part(address, answer, size, at, count)


def _ask_hub(
    address: Address, text: str, given: Mapping[str, Any], version: str, size: int, at: int, count: int
) -> memoryview | str:
    """Asks the hub for a part of a file. Returns the part, if it gives the file itself, as it does with small ones, or
    the signed URL of another host."""
    place = addresses.hub_place(address.url)
    commit = _commit_of(address, text, given, place)
    kind = "" if place.kind == "models" else f"/{place.kind}"
    url = f"{_base(given)}{kind}/{place.repo}/resolve/{commit}/{quote(place.file)}"
    with https.follow(address, url, given, https.range_of(at, count), _token(given), stops=True) as (found, answer):
        if answer.status not in https.REDIRECTS:
            _check(address, given, answer)
        _check_version(address, answer, version, size)
        if answer.status in https.REDIRECTS:
            _forget_some()
            return found
        return https.read_part(address, answer, size, at, count)


def _check_version(address: Address, answer: Any, version: str, size: int) -> None:
    """Compares what the hub says of a file with the tree. Its redirect has the digest and the size of the file behind
    it."""
    said = answer.getheader("X-Linked-ETag") or answer.getheader("ETag") or ""
    digest = said.strip().removeprefix("W/").strip('"')
    if not digest:
        raise failures.is_unusable(address.shown, "the hub does not say which contents it gives (X-Linked-ETag)")
    linked_size = answer.getheader("X-Linked-Size", str(size))
    if digest != version.partition(":")[2] or linked_size != str(size):
        raise failures.is_replaced(address.shown, "the hub has other contents under this name")

# SPDX-License-Identifier: Apache-2.0
"""Lists the objects of a bucket or of a repository of the hub, through the fetcher."""

from __future__ import annotations

import fnmatch
import json
import os
import re

from headrace import _core
from headrace._remote import addresses, settings, waits
from headrace._remote.command import use_python

_PATTERN = re.compile(r"[*?[]")


class Listed(str):
    """The URL of an object whose size and version a listing has just given: the C library knows it."""

    __slots__ = ()


def check_scheme(url: str, name: str) -> None:
    """Raises ValueError for an address that is not valid, and ImportError for a bucket without obstore. name: of the
    source, for messages."""
    try:
        address = addresses.parse(url)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if address.scheme in addresses.BUCKETS:
        from headrace._remote.buckets import need_obstore

        try:
            need_obstore()
        except ImportError as error:
            raise ImportError(f"{name}: {error}") from None


def list_objects(url: str, storage: str, name: str) -> list[Listed]:
    """Returns the URLs of the objects that begin with the URL of a bucket or of a repository, sorted by bytes, and
    makes them known. Raises OSError, and what check_scheme raises."""
    check_scheme(url, name)
    use_python()
    with waits.told(f"sources.{name}"):
        answer = _core.remote_call(b"\n".join((b"list", storage.encode(), os.fsencode(url))))
    given = json.loads(storage)
    found = []
    for line in answer.split(b"\n"):
        if line:
            one, size, version = os.fsdecode(line).split("\t")
            address = settings.address_of(one, given)
            name_of_file = addresses.name_of(address, int(size), version)
            texts = (address.path, one, storage, name_of_file, version)
            path, whole, text, file, kind = (os.fsencode(part) for part in texts)
            _core.remote_add(path, whole, text, file, kind, int(size))
            found.append(Listed(one))
    return sorted(found, key=os.fsencode)


def pin(urls: list[str], storage: str, name: str) -> list[str]:
    """Returns URLs with the commits of their repositories, so that all of a source is of one commit, in each process
    and when it is opened again from a pickle. URLs that are not of the hub stay."""
    commits: dict[str, str] = {}
    found = []
    for url in urls:
        if url.startswith("hf:") and not isinstance(url, Listed):
            check_scheme(url, name)
            repo, file = addresses.split_hub(url)
            if repo not in commits:
                use_python()
                call = b"\n".join((b"pin", storage.encode(), os.fsencode(repo)))
                with waits.told(f"sources.{name}"):
                    commits[repo] = os.fsdecode(_core.remote_call(call)).rstrip("/")
            url = commits[repo] + file
        found.append(url)
    return found


def match_objects(pattern: str, storage: str, name: str) -> list[Listed]:
    """Returns the URLs of the objects that match a pattern, sorted by bytes. As in a folder, `*` stands for no slash,
    and `**` for any folders."""
    pattern = pin([pattern], storage, name)[0]  # the names that are listed have the commit
    first = _PATTERN.search(pattern)
    assert first is not None
    fits = re.compile(_as_expression(pattern)).fullmatch
    return [url for url in list_objects(pattern[: first.start()], storage, name) if fits(url)]


def _as_expression(pattern: str) -> str:
    """Returns a regular expression for a pattern of paths."""
    parts = []
    for part in re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", pattern):
        if part == "**/":
            parts.append("(?:.*/)?")
        elif part == "**":
            parts.append(".*")
        elif part == "*":
            parts.append("[^/]*")
        elif part == "?":
            parts.append("[^/]")
        elif part.startswith("[") and part.endswith("]"):
            parts.append(fnmatch.translate(part).removeprefix("(?s:").partition(")")[0])
        else:
            parts.append(re.escape(part))
    return "".join(parts)

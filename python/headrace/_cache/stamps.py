# SPDX-License-Identifier: Apache-2.0
"""Makes the stamp of an object: what its sources and the function that builds it were, as text. An object whose stamp
differs is built again; `changes` says what differs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

from headrace._cache import digest

Sources = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def _files(path: str) -> Iterator[str]:
    """Yields a file, or all files in a folder and below it."""
    if not os.path.isdir(path):
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            yield os.path.join(folder, name)


def _look(path: str) -> list[int]:
    try:
        info = os.stat(path)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"headrace.cache: the source {path} does not exist; give paths of files or folders"
        ) from None
    return [info.st_size, info.st_mtime_ns, info.st_ino]


def look_at_sources(sources: Sources) -> dict[str, list[int]]:
    """Returns size, time in ns and inode of each file. Raises FileNotFoundError and TypeError."""
    if isinstance(sources, (str, os.PathLike)):
        sources = (sources,)
    found = {}
    for source in sources:
        for path in _files(os.path.abspath(os.fspath(source))):
            found[path] = _look(path)
    return found


def make(build: Any, sources: Sources, has_version: bool) -> str:
    """Returns the stamp of a function and its sources."""
    seen = {} if build is None else digest.seen_by(build, has_version)
    return json.dumps({"sources": look_at_sources(sources), "function": seen}, sort_keys=True)


def changes(old: str, new: str) -> list[str]:
    """Says in words what differs between two stamps."""
    try:
        before, after = json.loads(old), json.loads(new)
        pairs = [(before.get(part, {}), after[part], part) for part in ("sources", "function")]
    except (ValueError, AttributeError, KeyError):
        return ["it was put there in another way"]
    found = []
    for was, now, part in pairs:
        for name in sorted({*was, *now}):
            if was.get(name) == now.get(name):
                continue
            what = "is new" if name not in was else "is no longer used" if name not in now else "has changed"
            found.append(f"{'the source ' if part == 'sources' else ''}{name} {what}")
    return found or ["it was put there in another way"]

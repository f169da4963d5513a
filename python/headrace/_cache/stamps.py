# SPDX-License-Identifier: Apache-2.0
"""Makes the stamp of an object: what its sources and the function that builds it were, as text. An object whose stamp
differs is built again; `changes` says what differs."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from typing import Any, NamedTuple

from headrace._cache import digest, parts

Sources = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def _look(path: str) -> list[int | str]:
    info = os.stat(path)
    return [info.st_size, info.st_mtime_ns, info.st_ino]


def _look_at_folder(path: str, known: set[tuple[int, int]], found: dict[str, list[int | str]]) -> None:
    """Looks at all files in a folder and below it, also behind links. known: the folders that were looked at, by device
    and inode, because a link may lead back to one."""
    info = os.stat(path)
    if (info.st_dev, info.st_ino) in known:
        return
    known.add((info.st_dev, info.st_ino))
    try:
        with os.scandir(path) as folder:
            entries = sorted(folder, key=lambda entry: entry.name)
    except PermissionError:
        found[path] = _look(path)  # its time changes if a file comes or goes
        return
    for entry in entries:
        with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
            link: list[int | str] = [os.readlink(entry.path)] if entry.is_symlink() else []
            is_folder = os.path.isdir(entry.path) if link else entry.is_dir()
            if link:
                found[entry.path] = link
            if is_folder:
                _look_at_folder(entry.path, known, found)
            elif not link or os.path.exists(entry.path):  # some programs keep links to nothing next to their files
                found[entry.path] = [*_look(entry.path), *link]


def look_at_sources(sources: Sources) -> dict[str, list[int | str]]:
    """Returns size, time in ns and inode of each file, and where links lead. Raises FileNotFoundError and TypeError."""
    if isinstance(sources, (str, os.PathLike)):
        sources = (sources,)
    found: dict[str, list[int | str]] = {}
    for source in sources:
        path = os.path.abspath(os.fspath(source))
        if not os.path.exists(path):
            raise FileNotFoundError(f"headrace.cache: the source {path} does not exist; give paths of files or folders")
        if os.path.isdir(path):
            _look_at_folder(path, set(), found)
        else:
            found[path] = _look(path)
    return found


class Stamp(NamedTuple):
    """A description of what an object is built from, as text. seen: the digest of its function. without_folder: the
    text without the working directory, if that is in it because of a path that exists there."""

    text: str
    seen: parts.Digest | None
    without_folder: str | None


def make(build: Any, sources: Sources, has_version: bool, arguments: Any = ()) -> Stamp:
    """Returns the stamp of a function, the code that belongs to its arguments, and its sources."""
    seen = None if build is None else digest.seen_by(build, has_version, arguments)
    looked = look_at_sources(sources)
    text = _text(looked, {} if seen is None else seen.seen)
    return Stamp(text, seen, _text(looked, seen.without_folder()) if seen is not None and seen.path else None)


def _text(looked: dict[str, list[int | str]], seen: dict[str, str]) -> str:
    return json.dumps({"sources": looked, "function": seen}, sort_keys=True)


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

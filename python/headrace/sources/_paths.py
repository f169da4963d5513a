# SPDX-License-Identifier: Apache-2.0
"""Finds the files that the paths of a source name: a path, a pattern, braces, or a list of these."""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from headrace._base.warn import warn_user
from headrace._remote.addresses import is_listed, is_remote

_MOST = 1_000_000  # files that braces may stand for
_BRACES = re.compile(r"\{([^{}]*)\}")
_NESTED = re.compile(r"\{[^{}]*\{[^{}]*\}[^{}]*\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_PATTERN = re.compile(r"[*?[]")


def find_files(paths: Any, name: str, storage: Callable[[], str] = lambda: "{}") -> list[str]:
    """Returns the paths of files in order. A path that exists is taken as it is. Otherwise braces stand for several
    names, `{000..127}` or `{a,b}`, and a pattern (`*`, `?`, `[...]`, `**` for folders) for the files that match it,
    sorted by bytes. A URL has braces, too; a pattern in the URL of a bucket or of the hub stands for the objects that
    match it.
    name: of the source, for messages. storage: returns the settings of remote objects.

    Raises TypeError, ValueError if there is no path, and FileNotFoundError for a pattern that no file matches.
    """
    found: list[str] = []
    for path in _list_paths(paths, name):
        if is_remote(path):
            found += _match_remote(path, name, storage)
        else:
            found += [path] if os.path.lexists(path) else _match(path, name)
    if not found:
        raise ValueError(f"{name}: the list of paths is empty; give a path, a pattern such as 'train-*.bin', or a list")
    return found


def _list_paths(paths: Any, name: str) -> list[str]:
    several = not isinstance(paths, (str, bytes, os.PathLike))
    if several and (not isinstance(paths, Iterable) or isinstance(paths, (set, frozenset, dict))):
        raise TypeError(f"{name}: paths should be a path, a pattern, or a list of these in order, but got {paths!r}")
    listed = [_text_of(path, name) for path in (paths if several else [paths])]
    if "" in listed:
        raise ValueError(f"{name}: a path is empty")
    return listed


def _text_of(path: Any, name: str) -> str:
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(f"{name}: a path should be a str or pathlib.Path, but got {path!r}")
    return os.fsdecode(path)


def _match(path: str, name: str) -> list[str]:
    found: list[str] = []
    for one in _expand_braces(path, name):
        if not _PATTERN.search(one):
            found.append(one)  # the source says why it cannot be opened
            continue
        matches = [match for match in glob.glob(one, recursive=True) if not os.path.isdir(match)]
        if not matches:
            raise FileNotFoundError(f"{name}: no file matches {one!r} (the working directory is {os.getcwd()!r})")
        found += sorted(matches, key=os.fsencode)
    return found


def _match_remote(url: str, name: str, storage: Callable[[], str]) -> list[str]:
    found: list[str] = []
    for one in _expand_braces(url, name):
        if not is_listed(one) or not _PATTERN.search(one):
            if "*" in one.partition("?")[0]:
                raise ValueError(f"{name}: https cannot list files; give braces, such as {{000..127}}, instead of a *")
            found.append(one)
            continue
        from headrace.sources._listing import match_objects

        matches = match_objects(one, storage(), name)
        if not matches:
            raise FileNotFoundError(f"{name}: no object matches {one!r}")
        found += matches
    return found


def _expand_braces(path: str, name: str) -> list[str]:
    """Replaces braces from the left, so that the last ones vary fastest."""
    if _NESTED.search(path):
        raise ValueError(f"{name}: {path!r} has braces within braces; give a list of paths")
    paths = [path]
    while any(_find_braces(one) for one in paths):
        paths = list(itertools.islice((expanded for one in paths for expanded in _expand_first(one)), _MOST + 1))
        if len(paths) > _MOST:
            raise ValueError(f"{name}: {path!r} stands for more than {_MOST:,} files")
    return paths


def _find_braces(path: str) -> re.Match[str] | None:
    """Finds the first braces that stand for several names; others belong to a name."""
    return next((match for match in _BRACES.finditer(path) if _RANGE.fullmatch(match[1]) or "," in match[1]), None)


def _expand_first(path: str) -> Iterator[str]:
    match = _find_braces(path)
    if match is None:
        yield path
        return
    for word in _list_words(match[1]):
        yield path[: match.start()] + word + path[match.end() :]


def _list_words(inside: str) -> Iterable[str]:
    numbers = _RANGE.fullmatch(inside)
    if numbers is None:
        return inside.split(",")
    first, last = int(numbers[1]), int(numbers[2])
    is_padded = any(len(number) > 1 and number[0] == "0" for number in numbers.groups())
    width = max(len(number) for number in numbers.groups()) if is_padded else 0
    step = 1 if first <= last else -1
    return (f"{number:0{width}d}" for number in range(first, last + step, step))


def warn_of_repeats(paths: list[str], name: str) -> None:
    """Warns of files that come twice, under the same name or another one."""
    seen: dict[tuple[int, int], str] = {}
    repeats: list[tuple[str, str]] = []
    for path in paths:
        info = os.stat(path)
        key = info.st_dev, info.st_ino
        if key in seen:
            repeats.append((path, seen[key]))
        seen.setdefault(key, path)
    if repeats:
        path, earlier = repeats[0]
        other = "" if path == earlier else f", the first time as {earlier!r}"
        more = f", and so do {len(repeats) - 1} others" if len(repeats) > 1 else ""
        warn_user(f"headrace: sources.{name}: {path!r} comes twice{other}{more}; their samples are repeated")


def name_for_cache(path: str) -> str:
    """Returns the characters of a file's name that a name in headrace.cache may have."""
    most = 64
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in os.path.basename(path))[:most]

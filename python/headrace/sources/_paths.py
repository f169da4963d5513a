# SPDX-License-Identifier: Apache-2.0
"""Finds the files that the paths of a source name: a path, a pattern, braces, or a list of these."""

from __future__ import annotations

import glob
import itertools
import math
import os
import re
from collections.abc import Callable, Iterable
from typing import Any

from headrace._base.warn import warn_user
from headrace._remote.addresses import BEGINS, is_listed, is_remote

_MOST = 10_000_000  # files that braces may stand for
_BRACES = re.compile(r"\{([^{}]*)\}")
_NESTED = re.compile(r"\{[^{}]*\{[^{}]*\}[^{}]*\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
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
        elif os.path.lexists(path):
            found.append(path)
        else:
            _refuse_unknown_scheme(path, name)
            found += _match(path, name)
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


def _refuse_unknown_scheme(path: str, name: str) -> None:
    """Raises ValueError for a URL that headrace does not read: as a path, it would be a file that does not exist."""
    scheme = _SCHEME.match(path)
    if scheme is not None:
        raise ValueError(f"{name}: {scheme[0]} cannot be read; a URL begins with {BEGINS}, in lower case")


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
    """Replaces braces that stand for several names; others belong to a name. The last ones vary fastest."""
    if _NESTED.search(path):
        raise ValueError(f"{name}: {path!r} has braces within braces; give a list of paths")
    braces = [match for match in _BRACES.finditer(path) if _RANGE.fullmatch(match[1]) or "," in match[1]]
    if math.prod(_count_words(match[1]) for match in braces) > _MOST:
        raise ValueError(f"{name}: {path!r} stands for more than {_MOST:,} files")
    parts: list[Iterable[str]] = []
    end = 0
    for match in braces:
        parts += [(path[end : match.start()],), _list_words(match[1])]
        end = match.end()
    return ["".join(words) for words in itertools.product(*parts, (path[end:],))]


def _count_words(inside: str) -> int:
    numbers = _RANGE.fullmatch(inside)
    return inside.count(",") + 1 if numbers is None else abs(int(numbers[2]) - int(numbers[1])) + 1


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

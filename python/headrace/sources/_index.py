# SPDX-License-Identifier: Apache-2.0
"""Indexes of files: makes one, keeps it in headrace.cache, and sends it to workers."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any

from headrace import _core
from headrace._base.help_key import help_on
from headrace._base.warn import warn_user
from headrace._remote import waits
from headrace._remote.addresses import is_remote
from headrace.sources._paths import name_for_cache
from headrace.sources._places import Places, RemoteObjects

_KINDS = {_core.INDEX_TAR: "tar", _core.INDEX_LINES: "lines"}
_HEAD_BYTES = 120  # of struct hr__index_head
_SLICE_S = 0.1  # between two looks for a signal
_warned = {"cache": False}


class FileIndex:
    """The index of the files of a source. Its pickle has the index itself, or if that is in headrace.cache, its head:
    the process that opens it takes it from the cache, or makes it.

    kind: _core.INDEX_TAR or _core.INDEX_LINES. places: the files, in order. name: of the source, for messages.
    keep: as for headrace.cache.

    Raises OSError if a file cannot be read, but not if it is damaged: see `damage` of file().
    """

    def __init__(self, kind: int, places: Places, name: str, keep: str = "boot") -> None:
        self.kind = kind
        self.paths = tuple(places.paths)
        self.remote = places.remote
        self._name, self._keep = name, keep
        self._open(self._obtain())

    def _obtain(self) -> Any:
        return _obtain(self.kind, self.paths, self.remote, self._name, self._keep)

    def _open(self, data: Any) -> None:
        self._data = data
        self.index = _core.Index(data, self.kind, False)

    def __getstate__(self) -> dict[str, Any]:
        """Returns all but the index, with its head instead of an index that is in the cache."""
        state = {name: value for name, value in self.__dict__.items() if name != "index"}
        if not isinstance(self._data, bytes):
            state["_data"] = None
            state["_head"] = self._head()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        head = state.pop("_head", None)
        self.__dict__.update(state)
        self._open(self._data if head is None else self._obtain())
        if head is not None and head != self._head():
            raise OSError(
                errno.ESTALE,
                f"headrace: sources.{self._name}: files were changed since this source was pickled, such as "
                f"{self.paths[0]}; open the source again, and do not write to files that are in use"
                + help_on("source-changed"),
            )

    def _head(self) -> bytes:
        """Returns the begin of the serial form, which has its checksum."""
        return bytes(memoryview(self._data)[:_HEAD_BYTES])

    def file(self, number: int) -> dict[str, Any]:
        """Returns what is known of a file (struct hr_index_file), with its path."""
        return {"path": self.paths[number], **self.index.file(number)}


def make_index(kind: int, paths: Sequence[str], uses_saved: bool) -> _core.Index:
    """Reads files and returns their index; with uses_saved, that next to a file (PATH.hri) if it is still right.
    Raises OSError and MemoryError. Ctrl-C ends it."""
    indexing = _core.Indexing(kind, tuple(os.fsencode(path) for path in paths), uses_saved)
    with waits.told("the index") if any(map(is_remote, paths)) else contextlib.nullcontext():
        while not indexing.wait(_SLICE_S):
            pass
    found = indexing.look()
    if found["unused_count"]:
        reason = os.fsdecode(found["unused"]).removeprefix("source: ").partition("\n")[0]
        warn_user(
            f"headrace: {found['unused_count']:,} saved indexes (.hri) are not used, and their files are read again. "
            f"For the first: {reason}. `headrace index` writes them again" + help_on("index-old")
        )
    return indexing.take()


def save_index(kind: int, path: str) -> _core.Index:
    """Reads a file, writes its index next to it as PATH.hri, and returns the index. Raises OSError and MemoryError."""
    index = make_index(kind, [path], uses_saved=False)
    index.save(os.fsencode(path))
    return index


def _obtain(kind: int, paths: tuple[str, ...], remote: RemoteObjects, name: str, keep: str) -> Any:
    """Returns the serial form of the index of all files: an array of the cache, or bytes if there is no cache."""
    from headrace._cache import opening

    if opening.is_disabled():
        return _make_here(kind, paths)
    failed: list[BaseException] = []
    try:
        return _cached(kind, paths, remote, keep, failed)
    except (OSError, MemoryError, RuntimeError, ImportError) as error:
        if failed:
            raise
        made = _make_here(kind, paths)  # raises if it is the files that cannot be read
        _warn_without_cache(name, error)
        return made


def _make_here(kind: int, paths: tuple[str, ...]) -> bytes:
    made: Any = make_index(kind, paths, uses_saved=True)  # a buffer
    return bytes(made)


def _cached(kind: int, paths: tuple[str, ...], remote: RemoteObjects, keep: str, failed: list[BaseException]) -> Any:
    """Returns the index as an array of the cache. An exception that is not the cache's is added to `failed`."""
    import numpy as np

    from headrace._cache.interface import cache

    def build() -> Any:
        try:
            made: Any = make_index(kind, paths, uses_saved=True)  # a buffer
        except BaseException as error:
            failed.append(error)
            raise
        return np.frombuffer(made, np.uint8)

    # The names of remote objects have their sizes and versions: a replaced one has another index.
    parts = [*paths, *(remote.names() if remote else ())]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    name = f"index-{_KINDS[kind]}-{name_for_cache(paths[0])}-{digest}"
    return cache(name, build, version=_core.INDEX_VERSION, sources=_made_from(paths), keep=keep)


def _made_from(paths: tuple[str, ...]) -> list[str]:
    """Returns the files that an index is made from, and those next to them: if a saved index comes, changes or is
    deleted, the index in the cache is made again."""
    local = [path for path in paths if not is_remote(path)]
    saved = (f"{path}.hri" for path in local)
    return sorted({*local, *(path for path in saved if os.path.exists(path))})


def _warn_without_cache(name: str, error: BaseException) -> None:
    if not _warned["cache"]:
        _warned["cache"] = True
        warn_user(
            f"headrace: sources.{name}: the index is not kept in headrace.cache ({error}), so each process that opens "
            "the files reads them again. `headrace doctor` shows the places of the cache"
        )

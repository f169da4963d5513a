# SPDX-License-Identifier: Apache-2.0
"""The files of a source, on this machine or remote: their paths, and what other processes need to read them."""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from multiprocessing import context
from typing import Any

from headrace import _core
from headrace._base.help_key import help_on
from headrace._base.units import in_units
from headrace._base.warn import warn_user
from headrace._remote import addresses, settings, waits
from headrace._remote.command import use_python
from headrace.sources._listing import Listed, check_scheme, pin
from headrace.sources._paths import find_files, warn_of_repeats

_AT_ONCE = 1000  # URLs between two looks for a signal
_CALL_BYTES = 40 << 10  # of the URLs of a call; the settings are in it, too
_ABSENT = (errno.ENOENT, errno.EACCES, errno.EINVAL)  # a bucket may refuse a key that does not exist


class RemoteObjects:
    """The remote objects of a source, which the C library knows in each process that has this object.

    A pickle has their addresses, sizes and versions. Settings with keys, signed queries and passwords are in it only if
    it is made for a process that is being started; another process takes the keys of its own environment.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        self._names = hash(tuple(self.names()))

    def __bool__(self) -> bool:
        return bool(self.paths)

    def names(self) -> list[str]:
        """Returns the names of the objects, which change with their sizes and versions."""
        return [os.fsdecode(_find(path)[3]) for path in self.paths]

    def __reduce__(self) -> Any:
        if hash(tuple(self.names())) != self._names:
            raise OSError(
                errno.ESTALE,
                f"headrace: an object of this source, such as {self.paths[0]}, was replaced and opened again since; "
                "open this source again, too" + help_on("source-changed"),
            )
        is_for_child = context.get_spawning_popen() is not None
        found = [_find(path) for path in self.paths]
        texts = sorted({one[2] for one in found})
        rows = [
            (path, url if is_for_child or _has_no_secrets(url) else None, texts.index(storage), name, version, size)
            for path, url, storage, name, version, size in found
        ]
        if not is_for_child:
            texts = [settings.without_secrets(text.decode()).encode() for text in texts]
        return _restore, (rows, texts, is_for_child)


def _find(path: str) -> tuple[bytes, bytes, bytes, bytes, bytes, int]:
    found = _core.remote_find(os.fsencode(path))
    assert found is not None, "an object that was looked at stays known"
    return found


def _has_no_secrets(url: bytes) -> bool:
    return addresses.is_listed(os.fsdecode(url))


def size_of(path: str) -> int:
    """Returns the bytes of an object that is known."""
    return _find(path)[5]


def _restore(rows: list[Any], texts: list[bytes], is_for_child: bool) -> RemoteObjects:
    """Makes the objects of a pickle known. What this process knows already stays, because it may have the keys."""
    use_python()
    if not is_for_child:
        texts = [settings.with_environment(text.decode()).encode() for text in texts]
    for path, url, number, name, version, size in rows:
        known = _core.remote_find(path)
        if known is None or known[3] != name:
            _core.remote_add(path, _without_mark(path) if url is None else url, texts[number], name, version, size)
    return RemoteObjects([os.fsdecode(row[0]) for row in rows])


def _without_mark(path: bytes) -> bytes:
    return path.partition(b"?")[0]


class Places:
    """The files of a source: `paths`, absolute ones, and remote objects as they are shown. remote: the objects among
    them."""

    def __init__(
        self,
        paths: Any,
        name: str,
        storage: Any = None,
        next_to: str = "",
        endings: tuple[str, ...] = (),
        are_kept: bool = True,
    ) -> None:
        """paths, name: see find_files. storage: settings of remote objects. next_to: the ending of files next to remote
        objects, which are looked for too; if the first object has none, the others are not asked for. endings: of
        names; (): all files are taken. are_kept: what is read of remote objects is kept."""
        is_given = storage is not None
        listed = find_files(paths, name, lambda: settings.write(storage, name))
        if endings:
            listed = [path for path in listed if without_query(path).endswith(endings)]
            if not listed:
                raise FileNotFoundError(f"{name}: no file has a name that ends with {' or '.join(endings)}")
        urls = [path for path in listed if addresses.is_remote(path)]
        if is_given and not urls:
            raise ValueError(f"{name}: storage is for URLs, but all paths are files of this machine")
        if any(path.startswith("hf:") for path in urls):
            listed = pin(listed, settings.write(storage, name), name)
            urls = [path for path in listed if addresses.is_remote(path)]
        shown = _look(urls, settings.write(storage, name), name) if urls else {}
        self.paths = [shown[path] if path in shown else os.path.abspath(path) for path in listed]
        known = [shown[url] for url in urls]
        if known and next_to:
            with waits.told(f"sources.{name}"):
                known += _look_next_to(urls, settings.write(storage, name), next_to)
        self.remote = RemoteObjects(list(dict.fromkeys(known)))
        if self.remote and are_kept:
            _warn_if_too_large(self.remote.paths, name)

    def warn_of_repeats(self, name: str, opened: list[str] | None = None) -> None:
        """Warns of files that come twice, under the same name or another one. opened: the files, if the paths stand for
        others."""
        warn_of_repeats([path for path in opened or self.paths if not addresses.is_remote(path)], name)
        remote = [path for path in self.paths if addresses.is_remote(path)]
        repeat = next((path for path, count in Counter(remote).items() if count > 1), None)
        if repeat is not None:
            warn_user(f"headrace: sources.{name}: {repeat!r} comes twice; its samples are repeated")


def without_query(path: str) -> str:
    """Returns a path without the query of a URL."""
    return path.partition("?")[0] if path.startswith("http") and addresses.is_remote(path) else path


def _look(urls: Sequence[str], storage: str, name: str) -> dict[str, str]:
    """Asks for sizes and versions. Returns the path of each URL."""
    use_python()
    for scheme in {url.partition(":")[0]: url for url in urls}.values():
        check_scheme(scheme, name)
    unique = list(dict.fromkeys(urls))
    asked = [url for url in unique if not isinstance(url, Listed)]
    for first in range(0, len(asked), _AT_ONCE):
        some = tuple(os.fsencode(url) for url in asked[first : first + _AT_ONCE])
        with waits.told(f"sources.{name}"):
            _core.remote_look(some, storage.encode())
    return {url: os.fsdecode(_find(url)[0]) for url in unique}


def _warn_if_too_large(paths: Sequence[str], name: str) -> None:
    """Warns of remote objects that the disk of this machine cannot keep, unless the user has said that nothing is
    kept."""
    quota = json.loads(_core.remote_call(b"status"))["quota_bytes"]
    total = sum(size_of(path) for path in paths)
    if total > quota > 0:
        folder = os.fsdecode(_core.remote_folder())
        warn_user(
            f"headrace: sources.{name}: the objects have {in_units(total)}, and {folder} keeps {in_units(quota)} at "
            "most: what does not fit is fetched again in each epoch; HEADRACE_REMOTE names another folder, "
            "HEADRACE_REMOTE_QUOTA another limit" + help_on("remote-folder")
        )


def _look_next_to(urls: Sequence[str], storage: str, ending: str) -> list[str]:
    """Looks for files next to objects. Returns the paths of those that exist. A listing has them, too; of other URLs,
    all are asked for only if the first one has such a file."""
    asked, found = list[str](), list[str]()
    for url in dict.fromkeys(urls):
        other = url_next_to(url, ending)
        if other is None:
            continue
        if isinstance(url, Listed) and other.startswith(url):
            known = _core.remote_find(os.fsencode(other))
            found += [os.fsdecode(known[0])] if known else []
        else:
            asked.append(other)
    first = _look_for(asked[:1], storage)
    return found + first + (_look_for(asked[1:], storage) if first else [])


def _look_for(urls: Sequence[str], storage: str) -> list[str]:
    """Asks for sizes and versions of objects, which are then known. Returns the paths of those that exist. Raises
    OSError for those that cannot be asked for."""
    found = []
    for some in _in_calls(urls):
        answer = _core.remote_call(b"\n".join((b"look", storage.encode(), *(os.fsencode(url) for url in some))))
        for url, line in zip(some, answer.split(b"\n"), strict=False):
            what, *rest = line.split(b"\t", 4)
            if what == b"ok":
                file, size, version, path = rest
                _core.remote_add(path, os.fsencode(url), storage.encode(), file, version, int(size))
                found.append(os.fsdecode(path))
            elif -int(rest[0]) not in _ABSENT:
                raise OSError(-int(rest[0]), os.fsdecode(b"\t".join(rest[1:])))
    return found


def _in_calls(urls: Sequence[str]) -> Iterator[list[str]]:
    """Divides URLs among calls of the fetcher, whose text is short."""
    some, length = list[str](), 0
    for url in urls:
        if some and length + len(os.fsencode(url)) > _CALL_BYTES:
            yield some
            some, length = [], 0
        some.append(url)
        length += len(os.fsencode(url)) + 1
    if some:
        yield some


def url_next_to(url: str, ending: str) -> str | None:
    """Returns the URL of a file next to an object: with ".hri", NAME.hri; with ".idx", NAME.idx instead of NAME.bin."""
    path, mark, query = (url, "", "") if addresses.is_listed(url) else url.partition("?")
    if ending == ".idx":
        return path.removesuffix(".bin") + ".idx" + mark + query if path.endswith(".bin") else None
    return path + ending + mark + query

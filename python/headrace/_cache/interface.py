# SPDX-License-Identifier: Apache-2.0
"""headrace.cache: named data that is built once per machine and mapped by all jobs. This is its public interface."""

from __future__ import annotations

import difflib
import json
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace import _core
from headrace._base.help_key import help_on
from headrace._base.warn import say, warn_user
from headrace._cache import attached, building, contents, digest, function, opening, stamps, writer
from headrace._cache.opening import Root

if TYPE_CHECKING:
    from headrace._cache.shared import Shared

_STATES = {
    _core.CACHE_READY: "ready",
    _core.CACHE_BUILDING: "building",
    _core.CACHE_ORPHAN: "unfinished",
    _core.CACHE_REMOVED: "removed",
    _core.CACHE_DAMAGED: "damaged",
}
_NS = 1_000_000_000
_warned = {"disabled": False}


@dataclass(frozen=True)
class Claim:
    """A process that has an object. is_visible: this process sees the same pids (they may be in different
    containers)."""

    pid: int
    command: str
    since: float  # seconds since 1970
    is_visible: bool


@dataclass(frozen=True)
class Entry:
    """An object of the cache, or a build that is not finished. Times are seconds since 1970, sizes are bytes.

    state: "ready", "building", "unfinished" (its builder died), "removed" (some processes still have it), "damaged".
    processes: how many have it. format: "shared" is an array that these processes write.
    """

    name: str
    version: str
    state: str
    bytes: int
    keep: str
    processes: int
    path: str
    place: str  # why the data is there
    built: float
    built_by: str
    attached: float  # when a process attached it last
    id: str
    format: str


@dataclass(frozen=True)
class Info(Entry):
    """Entry with all that is known of an object. stamp: what the sources and the function were when it was built."""

    claims: tuple[Claim, ...]
    stamp: str


@dataclass(frozen=True)
class Collected:
    """The result of gc: what was deleted, and the bytes of the objects that remain."""

    objects: int
    bytes: int
    bytes_left: int


def _entry(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": found["name"],
        "version": found["version"],
        "state": _STATES[found["state"]],
        "bytes": found["bytes"],
        "keep": opening.KEEP_NAMES.get(found["keep"], "?"),
        "processes": found["claims"],
        "path": found["path"],
        "place": found["place"],
        "built": found["built_ns"] / _NS,
        "built_by": found["command"],
        "attached": found["attached_ns"] / _NS,
        "id": found["id"],
        "format": found["format"],
    }


def _existing(name: Any, root: Root) -> _core.Cache:
    """Returns the cache, which is not made for a look at it. Raises KeyError."""
    if not opening.exists(root):
        raise KeyError(
            f"headrace.cache: there is no '{opening.check_name(name)}', because the cache is empty"
            + help_on("cache-unknown-name")
        )
    return opening.open_cache(root)


def _no_such(
    cache: _core.Cache, name: str, version: str, advice: str = "Give build=, or put it there first"
) -> KeyError:
    found = cache.entries()
    versions = [entry["version"] for entry in found if entry["name"] == name]
    if versions:
        return KeyError(
            f"headrace.cache: '{name}' is there in version {', '.join(sorted(versions))}, not {version}"
            + help_on("cache-unknown-name")
        )
    near = difflib.get_close_matches(name, {entry["name"] for entry in found}, 3, 0.5)
    hint = f"; similar names: {', '.join(near)}" if near else ""
    return KeyError(
        f"headrace.cache: there is no '{name}' in {cache.root}{hint}. {advice}" + help_on("cache-unknown-name")
    )


def _without_cache(name: str, build: Callable[[], Any] | None) -> Any:
    from headrace.frozen import freeze

    if build is None:
        raise KeyError(f"headrace.cache: '{name}' cannot be looked up: HEADRACE_DISABLE is set")
    if not _warned["disabled"]:
        _warned["disabled"] = True
        warn_user(
            "headrace: the cache is not used because HEADRACE_DISABLE is set; each process builds its own data"
            + help_on("disabled")
        )
    value = build()
    if contents.is_pieces(value):
        value = contents.join_pieces(value)
    return value if contents.is_plain_array(value) else freeze(value)


class NamedCache:
    """headrace.cache: one copy of data for all jobs on a machine.

        features = headrace.cache("features", load_features)

    The first process that asks for a name builds it, the others wait and then map the same memory. See docs/cache.md.
    """

    def __call__(
        self,
        name: str,
        build: Callable[[], Any] | None = None,
        *,
        version: int | str = 0,
        sources: stamps.Sources = (),
        keep: str = "boot",
        size_hint: int | str | None = None,
        timeout: float | None = None,
        root: Root = None,
    ) -> Any:
        """Returns the data of a name: an array, or a view as headrace.freeze gives.

        build: a function without arguments; its result is kept. It may be a generator of arrays (pieces of one array)
            or of records, for data of which two copies do not fit into memory. None: only data that exists is returned.
        version: an int or a str, part of the identity. sources: files and folders that the data is made from. If they
            or the code of `build` change, the data is built again.
        keep: "job" until the last process that has it ends, "boot" until the machine restarts, "disk" on a disk.
        size_hint: the size in bytes, or "40G", to see before building whether it fits.
        timeout: seconds to wait for another process that builds.
        root: another folder for the cache; all data is then in it.

        Raises KeyError if there is no such name and no build; the exception of build, in all processes that waited for
        it; headrace.CacheError if builders died or wait for each other; TimeoutError; OSError or MemoryError if there
        is not enough room.
        """
        if callable(name) and not isinstance(name, str):
            raise TypeError(
                'headrace.cache is not a decorator; write @headrace.cache.function("name") above the function'
            )
        options: dict[str, Any] = {"version": version, "sources": sources, "keep": keep, "size_hint": size_hint}
        return self._obtain(name, build, build, timeout=timeout, root=root, **options)

    def _obtain(
        self,
        name: str,
        build: Callable[[], Any] | None,
        stamped: Callable[..., Any] | None,
        arguments: Any = (),
        *,
        version: int | str,
        sources: stamps.Sources = (),
        keep: str = "boot",
        size_hint: int | str | None = None,
        timeout: float | None = None,
        root: Root = None,
    ) -> Any:
        """Does what __call__ does. stamped: the function that belongs to the stamp. arguments: their code does, too."""
        if build is not None and not callable(build):
            raise TypeError(f"headrace.cache: build is a function without arguments, not {type(build).__name__}")
        name, text = opening.check_name(name), opening.check_version(version)
        number = opening.check_keep(keep)
        hint = 0 if size_hint is None else opening.check_size(size_hint, "size_hint")
        if timeout is not None:
            timeout = opening.check_seconds(timeout, "timeout")
        if opening.is_disabled():
            return _without_cache(name, build)
        cache = opening.open_cache(root)
        if build is None:
            return self._look_up(cache, name, text)
        stamp = stamps.make(stamped, sources, version != 0, arguments)
        cached = self._attach_current(cache, name, text, stamp)
        if cached is None:

            def make(space: _core.CacheBuild) -> str:
                space.check_room(hint)
                meta = contents.write(space, build(), hint)
                made = stamp.seen and digest.note_changes(stamp.seen, stamped, arguments, name)
                return json.dumps({**json.loads(meta), "made": made}) if made else meta

            cached = building.obtain(cache, name, text, stamp.text, "value", number, make, timeout=timeout)
        building.tell_attached(cache, cached)
        return attached.value_of(cache, cached)

    def _look_up(self, cache: _core.Cache, name: str, version: str) -> Any:
        try:
            cached = attached.attach(cache, name, version)
        except FileNotFoundError:
            raise _no_such(cache, name, version) from None
        building.tell_attached(cache, cached)
        return attached.value_of(cache, cached)

    def _attach_current(self, cache: _core.Cache, name: str, version: str, stamp: stamps.Stamp) -> _core.Cached | None:
        """Attaches an object that has this stamp. If it exists and has another one, says why it is built again."""
        try:
            cached = attached.attach_stamped(cache, name, version, stamp.text)
            if cached is None and stamp.without_folder is not None and stamp.seen is not None:
                cached = attached.attach_stamped(cache, name, version, stamp.without_folder)
                if cached is not None and attached.meta_of(cached).get("made") != stamp.seen.path:
                    cached = None  # the path did not come with the object, so it may be what it is made from
            if cached is None and attached.attach(cache, name, version).info()["format"] != "shared":
                self._tell_changes(name, cache.peek(name, version)[1], stamp.text)
            return cached
        except FileNotFoundError:
            return None
        except _core.CacheError as error:
            say(f"cache {name}: it is built again, because it is damaged ({error})")
            return None

    def _tell_changes(self, name: str, old: str, new: str) -> None:
        found = stamps.changes(old, new)
        more = f", and {len(found) - 3} more" if len(found) > 3 else ""
        say(f"cache {name}: it is built again, because {'; '.join(found[:3])}{more}")

    def function(self, name: str, version: int | str = 0, **options: Any) -> Callable[[Any], Any]:
        """Returns a decorator: the result of the function is built once per machine, for each of its arguments.

        options: sources, keep, size_hint, timeout and root, as for headrace.cache. The arguments are part of the name:
        numbers and short texts as they are, others by a digest of their pickle.
        """
        if options.get("root") is not None:
            options["root"] = os.path.abspath(os.fspath(options["root"]))  # of now, and not of each call
        return function.decorate(self._obtain, name, version, options)

    def writer(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: Any,
        version: int | str = 0,
        chunk: int | None = None,
        *,
        keep: str = "boot",
        timeout: float | None = None,
        root: Root = None,
    ) -> writer.Writer:
        """Returns a Writer: an array that is filled piece by piece in a with statement, and continued after a crash.

        shape: the first dimension is that of the rows. dtype: no objects. chunk: rows per chunk; None: about 32 MiB. A
        crash loses the chunks that are not complete.
        """
        if timeout is not None:
            timeout = opening.check_seconds(timeout, "timeout")
        return writer.Writer(
            opening.open_cache(root),
            opening.check_name(name),
            shape,
            dtype,
            opening.check_version(version),
            chunk,
            opening.check_keep(keep),
            timeout,
        )

    def shared(
        self,
        name: str,
        shape: int | tuple[int, ...] | None = None,
        dtype: Any = None,
        fill: Any = 0,
        *,
        version: int | str = 0,
        keep: str | None = None,
        persist: str | None = None,
        timeout: float | None = None,
        root: Root = None,
    ) -> Shared:
        """Returns an array that several processes write, with a lock. The first process makes it, the others attach it.

        shape, dtype: those of the array that exists, or of the one to be made; without them, it has to exist.
        fill: the value of all elements of a new array.
        keep: as for headrace.cache; the default is "boot". persist: "file" keeps the array on a disk (keep="disk"), to
            which flush() writes what was changed.
        timeout: seconds to wait for another process that makes it.

        Raises ValueError if it exists with another shape, dtype or keep; KeyError if it does not exist and no shape is
        given; OSError or MemoryError if there is not enough room: all pages are committed here. See docs/cache.md.
        """
        from headrace._cache import shared  # it imports numpy

        name, text = opening.check_name(name), opening.check_version(version)
        if persist not in (None, "file") or (persist == "file" and keep not in (None, "disk")):
            raise ValueError(
                f'headrace.cache.shared: persist is {persist!r} and keep is {keep!r}; persist is "file" or None, and '
                'persist="file" is keep="disk"'
            )
        kept = opening.check_keep("disk") if persist else None if keep is None else opening.check_keep(keep)
        if timeout is not None:
            timeout = opening.check_seconds(timeout, "timeout")
        if shape is None and not opening.exists(root):
            raise KeyError(
                f"headrace.cache.shared: there is no '{name}', because the cache is empty; give shape and dtype"
            )
        cache = opening.open_cache(root)
        found = shared.obtain(cache, name, text, shape, dtype, fill, kept, timeout)
        if found is None:
            raise _no_such(cache, name, text, "Give shape= and dtype= to make it")
        return found

    def put(self, name: str, obj: Any, *, version: int | str = 0, keep: str = "boot", root: Root = None) -> Any:
        """Puts an object under a name, in place of an older one, and returns it as headrace.cache does."""
        name, text = opening.check_name(name), opening.check_version(version)
        cache = opening.open_cache(root)
        stamp = f"put {uuid.uuid4()}"  # no object has it, so it is always built
        cached = building.obtain(
            cache, name, text, stamp, "value", opening.check_keep(keep), lambda space: contents.write(space, obj, 0)
        )
        return attached.value_of(cache, cached)

    def add(
        self,
        name: str,
        path: str | os.PathLike[str],
        *,
        version: int | str = 0,
        keep: str = "boot",
        root: Root = None,
    ) -> Any:
        """Copies a file into the cache, and returns its contents: the array of a .npy file; a Mapping of arrays by file
        stem for a folder of .npy and .npz files, or for one .npz file; otherwise a read-only memoryview. If a file
        changes, the next call copies it again. Raises FileNotFoundError."""
        name, text = opening.check_name(name), opening.check_version(version)
        path = os.path.abspath(os.fspath(path))
        if os.path.isdir(path) or path.endswith(".npz"):
            return self._add_files(name, path, text, opening.check_keep(keep), opening.open_cache(root))
        stamp = stamps.make(None, path, False).text
        cache = opening.open_cache(root)
        cached = building.obtain(
            cache, name, text, stamp, "file", opening.check_keep(keep), lambda space: contents.write_file(space, path)
        )
        building.tell_attached(cache, cached)
        return attached.value_of(cache, cached)

    def _add_files(self, name: str, path: str, version: str, keep: int, cache: _core.Cache) -> Any:
        plan = _core.FilesPlan((os.fsencode(path),))

        def make(space: _core.CacheBuild) -> None:
            plan.fill(space, 0)

        cached = building.obtain(cache, name, version, plan.stamp, "files", keep, make, keeps_chunks=True)
        building.tell_attached(cache, cached)
        return attached.value_of(cache, cached)

    def progress(self, done: float, total: float) -> None:
        """Says how far the function that builds is, for processes that wait for it. Call it inside that function."""
        building.progress(done, total)

    def view_as_tensor(self, array: Any) -> Any:
        """Returns a torch tensor over an array of the cache, without a copy. A write to it changes only what this
        process sees. Raises TypeError for another kind of object."""
        if type(array).__name__ != "ndarray" or attached.find(array) is None:
            raise TypeError("headrace.cache.view_as_tensor: give an array of headrace.cache, or a slice of one")
        from headrace._tensors.frozen import tensor_over

        return tensor_over(array)

    def ls(self, *, root: Root = None) -> list[Entry]:
        """Returns all objects of the cache, and builds that are not finished."""
        return [Entry(**_entry(found)) for found in opening.open_cache(root).entries()] if opening.exists(root) else []

    def info(self, name: str, *, version: int | str = 0, root: Root = None) -> Info:
        """Returns what is known of an object, with the processes that have it. Raises KeyError."""
        cache, text = _existing(name, root), opening.check_version(version)
        for found in cache.entries():
            if (
                found["name"] == opening.check_name(name)
                and found["version"] == text
                and found["state"] != _core.CACHE_REMOVED
            ):
                claims = tuple(
                    Claim(pid, command, since / _NS, is_visible)
                    for pid, is_visible, since, command in cache.claims(found["id"])
                )
                return Info(**_entry(found), claims=claims, stamp=found["stamp"])
        raise _no_such(cache, name, text)

    def verify(self, name: str, *, version: int | str = 0, root: Root = None) -> None:
        """Reads an object and compares it with its checksums. Raises headrace.CacheError if it is damaged, KeyError if
        it does not exist."""
        cache, text = _existing(name, root), opening.check_version(version)
        try:
            cache.attach(opening.check_name(name), text, None).verify()
        except FileNotFoundError:
            raise _no_such(cache, name, text) from None

    def rm(self, name: str, force: bool = False, *, version: int | str = 0, root: Root = None) -> None:
        """Removes an object, and what is left of unfinished builds of it.

        force: also if processes have it. They keep it, the name becomes free, and the memory is freed when the last of
        them ends. Raises KeyError if it does not exist, headrace.CacheError if a process has it or builds it.
        """
        cache, text = _existing(name, root), opening.check_version(version)
        try:
            cache.remove(opening.check_name(name), text, force)
        except FileNotFoundError:
            raise _no_such(cache, name, text) from None

    def gc(self, older: float | str | None = None, quota: int | str | None = None, *, root: Root = None) -> Collected:
        """Deletes what no process has or builds: removed objects, unfinished builds, objects of jobs that have ended.

        older: seconds, or "7d": also objects that no process has attached for so long. quota: bytes, or "40G": also
        the objects that were attached longest ago, until the rest fits. What a process has is never deleted.
        """
        older_ns = -1 if older is None else int(opening.check_seconds(older, "older") * _NS)
        limit = (1 << 64) - 1 if quota is None else opening.check_size(quota, "quota")
        return Collected(*(opening.open_cache(root).collect(older_ns, limit) if opening.exists(root) else (0, 0, 0)))


cache = NamedCache()

# SPDX-License-Identifier: Apache-2.0
"""headrace.cache_samples: a map-style dataset whose samples are made once per machine.

A sample is made by the first process that needs it, and read by the others where it is. The table of samples is an
object of the cache; the library keeps it (headrace/cache_samples.h). This module checks that what is kept is right, and
runs the random steps behind it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import itertools
import json
import operator
import os
import secrets
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from headrace import _core, _options
from headrace._cache import attached, building, digest, opening, splitting, stamps
from headrace._cache.opening import Root
from headrace._errors import exception_text
from headrace._errors.units import in_units
from headrace._errors.warn import warn_user
from headrace._inspect import lookup
from headrace._samples import checks, pending
from headrace._samples.prepared import PreparedDataset
from headrace._start import pickling

_CHECK, _CHECKING, _RIGHT, _WRONG = range(4)  # enum hr_samples_check
_SUFFIX = ".samples"  # of the names of such objects, so that no other data has them
_FORMAT = "samples"
_UNFIT, _NO_ROOM = "cannot be pickled", "the budget is used up"
_told: set[str] = set()
_kept: dict[int, _core.Cached] = {}  # one for each dataset: so that keep="job" means the dataset, and not a loader
_numbers = itertools.count()
_warned = {"disabled": False}


class _Failure:
    """An exception of a sample that was prepared."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class _Ahead(threading.local):
    """The samples that prepare has made in this thread, by index."""

    def __init__(self) -> None:
        self.made: dict[int, Any] = {}


def _of_process() -> dict[str, Any]:
    """Returns the attributes that a process does not get from another one, as they are at first."""
    return {
        "note": None,
        "_table": None,
        "_ahead": _Ahead(),
        "_lock": threading.RLock(),
        "_has_begun": False,
        "_knows_numpy": False,
        "_knows_torch": False,
    }


class CachedSamples(PreparedDataset):
    """A map-style dataset whose samples are made once per machine; see headrace.cache_samples. Other attributes are
    those of the dataset."""

    dataset: Any
    transform: Callable[[Any], Any] | None
    _shown: Any
    _division: Any
    _first: Any
    _count: int
    _handle: tuple[str | None, str, str, str] | None
    _table: _core.Samples | None
    _has_begun: bool
    _knows_numpy: bool
    _knows_torch: bool

    def __init__(
        self, dataset: Any, division: splitting.Division | None, transform: Callable[[Any], Any] | None
    ) -> None:
        own = {
            "dataset": dataset,
            "transform": transform,
            "_shown": None,  # the dataset of a loader with the option cache
            "_division": division,
            "_first": None if division is None else splitting.First(division),
            "_count": len(dataset),
            "_handle": None,  # root, name, version, id; None: not cached
        }
        vars(self).update(own, **_of_process())

    def __getstate__(self) -> dict[str, Any]:
        fresh = _of_process()
        return {name: value for name, value in vars(self).items() if name not in fresh}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, **_of_process())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "dataset":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self):
            vars(self)[name] = value
        else:  # such as a file that a worker_init_fn opens
            setattr(self.dataset, name, value)

    def __repr__(self) -> str:
        name = "not cached" if self.name is None else repr(self.name)
        return f"cache_samples({type(self.dataset).__name__} of {self._count} samples, {name})"

    def __len__(self) -> int:
        return self._count

    @property
    def shown(self) -> Any:
        return self if self._shown is None else self._shown

    @property
    def name(self) -> str | None:
        """Returns the name of the samples in the cache, or None if they are not cached."""
        return None if self._handle is None else self._handle[1].removesuffix(_SUFFIX)

    # ---- samples ----

    def __getitem__(self, index: Any) -> Any:
        sample = self._base(index)
        return sample if self.transform is None else self.transform(sample)

    def __getitems__(self, indices: Iterable[Any]) -> list[Any]:
        samples = []
        for place, index in enumerate(list(self._prepared(indices))):
            if self.note is not None:
                self.note(place)
            samples.append(self[index])
        return samples

    def prepare(self, indices: Iterable[Any]) -> None:
        for _ in self._prepared(indices):
            pass

    def _prepared(self, indices: Iterable[Any]) -> Iterable[Any]:
        """Yields the indices, and takes or makes the sample of each, unless another process makes it now: that one may
        be there when it is asked for."""
        table, made = self._checked(), self._ahead.made
        made.clear()
        for index in indices:
            number = self._number_of(index)
            if table is not None and number is not None and number not in made:
                try:
                    sample = table.take(number, self._maker_of(index))
                except Exception as error:
                    sample = _Failure(error)
                if sample is not NotImplemented:
                    made[number] = sample
            yield index

    def _number_of(self, index: Any) -> int | None:
        """Returns an index from 0 to the length as an int, or None if the samples of such an index are not cached: a
        negative one may have a meaning of its own."""
        if type(index) is not int:
            if isinstance(index, (bool, str)) or not lookup.has_special(index, "__index__"):
                return None
            try:
                index = operator.index(index)
            except TypeError:
                return None
        return index if 0 <= index < self._count else None

    def _maker_of(self, index: Any) -> Callable[[int], Any]:
        return self._make if type(index) is int else lambda number: self._make(index)

    def _base(self, index: Any) -> Any:
        number = self._number_of(index)
        table = self._checked()
        if number is None or table is None:
            return self._make(index)
        ahead = self._ahead.made.pop(number, NotImplemented)
        if type(ahead) is _Failure:
            raise ahead.error
        if ahead is not NotImplemented:
            return ahead
        self._know_arrays()
        return table.get(number, self._maker_of(index))

    def _make(self, index: Any) -> Any:
        """Makes a sample as it is kept: without the steps behind the cache."""
        return self._make_whole(index) if self._division is None else self._make_first(index)

    def _make_whole(self, index: Any) -> Any:
        with pending.made_at_once():
            return checks.settled(self._get(index))

    def _make_first(self, index: Any) -> Any:
        try:
            with self._lock, splitting.doing_first(self.dataset, self._division, self._first):
                sample = self._make_whole(index)
                self._first.check(sample)
                return sample
        except (TypeError, AttributeError) as error:
            if splitting.CHANGED not in str(error):
                exception_text.add_text(error, splitting.CHANGED)
            raise

    def _get(self, index: Any) -> Any:
        try:
            return self.dataset[index]
        except NotImplementedError:
            if not hasattr(self.dataset, "__getitems__"):
                raise
        return self.dataset.__getitems__([index])[0]

    def _know_arrays(self) -> None:
        """The extension has to know numpy and torch before it keeps or makes the first array or tensor."""
        if self._knows_torch and self._knows_numpy:
            return
        if not self._knows_numpy and "numpy" in sys.modules:
            _core.use_numpy()
            self._knows_numpy = True
        if not self._knows_torch and "torch" in sys.modules:
            from headrace._tensors import extension

            extension.use_torch()
            self._knows_torch = True

    def _open(self) -> _core.Samples | None:
        if self._table is None and self._handle is not None:
            root, name, version, identity = self._handle
            cache = opening.open_cache(root)
            cached = attached.attach(cache, name, version, identity)
            if attached.meta_of(cached).get("torch"):
                importlib.import_module("torch")  # its tensors may be among the samples
            self._table = _core.Samples(cached, pickling.dump_exactly)
        if self._table is not None:
            self._know_arrays()
        return self._table

    def _checked(self) -> _core.Samples | None:
        """Returns the table. A loader that does not call begin, or a dataset around this one, has it checked here."""
        if not self._has_begun:
            self.begin(True)
        return self._table if self._table is not None else self._open()

    def view(self, index: int) -> Any:
        """Returns a sample of the cache without a copy: its numpy arrays are read-only views, its tensors copies. The
        transform is not applied. Raises KeyError if the sample is not in the cache."""
        table, number = self._checked(), self._number_of(index)
        if table is None or number is None:
            raise KeyError(f"headrace: sample {index!r} is not in the cache")
        sample = table.view(number)
        return sample if self._division is None else splitting.unmarked(sample)

    # ---- is it right? ----

    def begin(self, is_first: bool) -> None:
        table = self._open()
        if table is not None and self._handle is not None:
            name, version = str(self.name), self._handle[2]
            state = table.begin_check()
            if state == _CHECK:
                self._check(table, name)
            elif state == _WRONG:
                raise checks.SamplesDiffer(checks.say_random(name, "that was found before"))
            elif state == _RIGHT and is_first:
                checks.check_not_stale(self._make, table.view, self._count, name, version)
        self._has_begun = True

    def _check(self, table: _core.Samples, name: str) -> None:
        result = _CHECK
        try:
            checks.check_not_random(lambda index: table.get(index, self._make), self._make, self._count, name)
            if self._division is not None and self.transform is not None:
                checks.check_division(self._make_whole, self._make, self.transform, self._count)
            result = _RIGHT
        except checks.SamplesDiffer:
            result = _WRONG
            raise
        finally:
            table.end_check(result)
            if result == _WRONG:
                self.drop()  # samples that were kept meanwhile are not right

    # ---- for the user ----

    def report(self) -> dict[str, Any]:
        """Returns what the cache has, of all jobs that use it.

        samples: of the dataset. ready: of these in the cache. hits: reads of such a sample. made: samples that were
        made for the cache. made_alone: made for one process, because they are not kept, or because another process took
        long to make them. refused: how many samples are not kept, by reason. bytes, budget: used, and at most.
        expected_hit_rate: the share of reads that will find their sample, if each epoch reads all samples once. With a
        DistributedSampler over several machines, this machine fills only what its ranks have read.
        """
        table = self._open()
        if table is None:
            return {"samples": self._count, "ready": 0, "why": _why_not() or "the samples are not cached"}
        found = table.report()
        refused = {_NO_ROOM: found["no_room"], _UNFIT: found["unfit"]}
        return {
            "samples": self._count,
            "ready": found["ready"],
            "expected_hit_rate": found["ready"] / self._count if self._count else 0.0,
            "hits": found["hits"],
            "made": found["made"],
            "made_alone": found["made_alone"],
            "refused": {why: count for why, count in refused.items() if count},
            "no_memory": found["no_memory"],
            "bytes": found["used_bytes"],
            "budget": found["budget_bytes"],
        }

    def warm(self, workers: int = -1, progress: bool | None = None) -> dict[str, Any]:
        """Makes all samples, and returns report(). workers: processes; -1: one for each core; 0: this one.

        progress: show on stderr how far it is. None: if stderr is a terminal. An exception of a sample is raised."""
        from headrace._cache import warming

        warming.warm(self, workers, progress)
        return self.report()

    def fill(self, numbers: Iterable[int]) -> int:
        """Makes these samples if no other process does. Returns how many there are."""
        table, wanted = self._checked(), list(numbers)
        if table is not None:
            for number in wanted:
                table.take(number, self._make)
        return len(wanted)

    def unfinished(self) -> list[int]:
        """Returns the samples that a process has begun to make and not ended: those at work, and those at which one
        died."""
        table = self._open()
        return [] if table is None else table.unfinished()

    def drop(self) -> None:
        """Removes the samples from the cache. Processes that use them keep them until they end."""
        if self._handle is None:
            return
        root, name, version, identity = self._handle
        for number, cached in list(_kept.items()):
            if cached.id == identity:
                _kept.pop(number, None)
        try:
            opening.open_cache(root).remove(name, version, True)
        except FileNotFoundError:
            return


# ---- making one ----


def _check_dataset(dataset: Any) -> None:
    if isinstance(dataset, CachedSamples):
        raise TypeError("headrace: the dataset is one of cache_samples already; cache it once")
    for name in ("__getitem__", "__len__"):
        if not lookup.has_special(dataset, name):
            raise TypeError(
                f"headrace: the dataset is a {type(dataset).__name__} without {name}; samples are cached by their "
                "index, so the dataset has to be map-style"
            )


def _why_not() -> str | None:
    return "HEADRACE_DISABLE is set" if opening.is_disabled() else None


def _warn_not_cached(why: str) -> None:
    if not _warned["disabled"]:
        _warned["disabled"] = True
        warn_user(f"headrace.cache_samples: {why}, so each process makes its own samples")


def _stamp_of(samples: CachedSamples, sources: stamps.Sources) -> tuple[str, list[str]]:
    """Returns what the samples are made from, as text, and the attributes that cannot be compared."""
    dataset, division, seen, unknown = samples.dataset, samples._division, {}, []
    with contextlib.nullcontext() if division is None else splitting.doing_first(dataset, division, samples._first):
        for part in {id(one): one for one in (dataset, splitting.inner_of(dataset))}.values():
            more, others = digest.seen_in(part)
            seen.update(more)
            unknown += others
    looked = stamps.look_at_sources(sources)
    return json.dumps({"sources": looked, "function": seen, "samples": len(dataset)}, sort_keys=True), unknown


def _default_name(dataset: Any, stamp: str, unknown: list[str]) -> str:
    """Returns a name that jobs with the same dataset have in common. If the dataset has something that cannot be
    compared, only this process and its workers have it."""
    word = "".join(letter if letter.isalnum() else "-" for letter in type(dataset).__name__)[:60]
    if not unknown:
        return f"{word}-{hashlib.blake2b(stamp.encode(), digest_size=6).hexdigest()}"
    building.say(
        f"cache: the samples of {type(dataset).__name__} are not shared with other jobs, because {unknown[0]} cannot "
        "be compared; headrace.cache_samples(dataset, name=...) shares them"
    )
    return f"{word}-{os.getpid()}-{secrets.token_hex(4)}"


def _tell(samples: CachedSamples, cache: _core.Cache, cached: _core.Cached, rest: splitting.Rest | None) -> None:
    """One line for each object that this process uses."""
    info = cached.info()
    if info["id"] in _told or not building.is_main_process():
        return
    _told.add(info["id"])
    found = samples.report()
    name = info["name"].removesuffix(_SUFFIX)
    share = f"{100 * found['ready'] // max(1, found['samples'])} % filled"
    count = len(cache.claims(info["id"]))
    jobs = f", used by {count} processes" if count > 1 else ""
    where = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(info["path"]))))
    text = f"cache {name}: up to {in_units(found['budget'])} of {found['samples']:,} samples in {where}{jobs}, {share}"
    if rest is not None:
        text += f"; {', '.join(rest.names)} run behind the cache"
    building.say(text)


def cache_samples(
    dataset: Any,
    budget: int | str = "auto",
    *,
    transform: Callable[[Any], Any] | None = None,
    name: str | None = None,
    version: int | str = 0,
    sources: stamps.Sources = (),
    keep: str = "job",
    root: Root = None,
) -> CachedSamples:
    """Returns a map-style dataset whose samples are made once, for all workers, ranks and jobs of this machine.

    A sample is made when it is first asked for, and is kept as long as the budget has room; nothing is removed to make
    room. You get private copies of tensors, arrays, PIL images, numbers, texts and any nesting of these, of any size,
    and of anything else that can be pickled.

    Args:
        dataset: an object with `__getitem__` and `__len__`.
        budget: bytes, or a text such as "40G". "auto": four fifths of what this machine has room for now.
        transform: a function that is applied to each sample behind the cache: the random steps. Without it, a Compose
            of known steps (torchvision, MONAI, albumentations) in the attribute `transform` of the dataset is divided
            in front of its first random step.
        name: of the samples in the cache. None: made from the class and the attributes of the dataset, so that jobs
            with the same dataset share them. version: part of the name. sources: files and folders; samples are made
            again if one of them changes.
        keep: "job": until the last process that uses them ends. "boot": until the machine restarts, or they are
            removed. "disk": on a disk.
        root: a folder for the cache; see headrace.cache.

    The dataset must give the same sample each time. When a table is new, 64 samples are made twice and compared; later,
    the first worker of each loader makes two samples again. Raises TypeError, ValueError, OSError; while loading,
    headrace.SamplesDiffer if samples differ.
    """
    _check_dataset(dataset)
    if transform is not None and not callable(transform):
        raise TypeError(f"headrace.cache_samples: transform is a function, not {transform!r}")
    size, text, kept = (
        _options.check_budget("headrace.cache_samples: budget", budget),
        opening.check_version(version),
        opening.check_keep(keep),
    )
    division = splitting.division_of(dataset) if transform is None else None
    rest = None if division is None else splitting.Rest(division)
    samples = CachedSamples(dataset, division, transform if rest is None else rest)
    if why := _why_not():
        _warn_not_cached(why)
        return samples
    stamp, unknown = _stamp_of(samples, sources)
    label = opening.check_name(name) if name is not None else _default_name(dataset, stamp, unknown)
    try:
        cache = opening.open_cache(root)
    except OSError as error:
        if root is not None:
            raise
        _warn_not_cached(str(error))
        return samples
    cache.sweep()
    cached = _obtain(cache, label + _SUFFIX, text, stamp, kept, len(dataset), size)
    info = cached.info()
    _keep(dataset, cached)
    samples._handle = (None if root is None else cache.root, info["name"], text, info["id"])
    _tell(samples, cache, cached, rest)
    return samples


def _keep(dataset: Any, cached: _core.Cached) -> None:
    """Keeps an object as long as the dataset, or the process, exists. Another dataset may have the same object."""
    number = next(_numbers)
    _kept[number] = cached
    with contextlib.suppress(TypeError):  # it allows no weak references
        weakref.finalize(dataset, _kept.pop, number, None).atexit = False


def for_loader(dataset: Any, budget: int | str | bool) -> Any:
    """Returns the dataset of a loader with the option cache. The user's functions see the dataset itself."""
    found = cache_samples(dataset, budget)
    found._shown = dataset
    return found


def _obtain(
    cache: _core.Cache, name: str, version: str, stamp: str, keep: int, count: int, budget: int | None
) -> _core.Cached:
    def make(build: _core.CacheBuild) -> str:
        build.samples(count, max(cache.sample_budget(), 1 << 20) if budget is None else budget)
        return json.dumps({"kind": _FORMAT, "torch": "torch" in sys.modules})

    try:
        _, before = cache.peek(name, version)
        if before != stamp:
            changed = "; ".join(stamps.changes(before, stamp)[:3])
            building.say(f"cache {name.removesuffix(_SUFFIX)}: the samples are made again, because {changed}")
    except FileNotFoundError:
        pass
    return building.obtain(cache, name, version, stamp, _FORMAT, keep, make)

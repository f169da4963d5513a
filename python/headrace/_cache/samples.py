# SPDX-License-Identifier: Apache-2.0
"""headrace.cache_samples: a map-style dataset whose samples are made once per machine.

A sample is made by the first process that needs it, and read by the others where it is. The table of samples is an
object of the cache; the library keeps it (headrace/cache_samples.h). This module checks that what is kept is right, and
applies the function of the user that has the random steps.
"""

from __future__ import annotations

import importlib
import operator
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from headrace import _core, _options
from headrace._base import exception_text, lookup, pickling
from headrace._base.units import in_units
from headrace._base.warn import say, warn_user
from headrace._cache import attached, building, edited, opening, stamps, tables
from headrace._cache.opening import Root
from headrace._cache.tables import Handle
from headrace._samples import checks, deferred
from headrace._samples.compare import difference
from headrace._samples.mixed import is_mixed
from headrace._samples.prepared import PreparedDataset

_LOOK_S = 0.01  # between two looks whether the check of another process has ended
_UNFIT, _NO_ROOM = "cannot be pickled", "the budget is used up"
_told: set[str] = set()
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
        "_drawing": None,
        "_has_begun": False,
        "_knows_numpy": False,
        "_knows_torch": False,
        "_users_modules": (),
    }


class CachedSamples(PreparedDataset):
    """A map-style dataset whose samples are made once per machine; see headrace.cache_samples. Other attributes are
    those of the dataset."""

    dataset: Any
    transform: Callable[[Any], Any] | None
    _shown: Any
    _count: int
    _handle: Handle | None
    _table: _core.Samples | None
    _drawing: checks.Drawing | None
    _has_begun: bool
    _knows_numpy: bool
    _knows_torch: bool
    _users_modules: tuple[str, ...]  # of the user, with the code that makes the samples

    def __init__(self, dataset: Any, transform: Callable[[Any], Any] | None) -> None:
        own = {
            "dataset": dataset,
            "transform": transform,
            "_shown": None,  # the dataset of a loader with the option cache
            "_count": len(dataset),
            "_handle": None,  # None: not cached
        }
        vars(self).update(own, **_of_process())

    def __getstate__(self) -> dict[str, Any]:
        fresh = _of_process()
        state = {name: value for name, value in vars(self).items() if name not in fresh}
        if self._handle is not None and (file := edited.edited_file(self._users_modules)) is not None:
            state["_handle"] = None
            _say_edited(file)
        return state

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
        return None if self._handle is None else self._handle[1].removesuffix(tables.SUFFIX)

    # ---- samples ----

    def __getitem__(self, index: Any) -> Any:
        return self._behind(self._base(index))

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

    def announce(self, indices: Iterable[Any]) -> None:
        """Does nothing: each thread takes or makes its sample."""

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
        negative one may have a meaning of its own. In a mixture, those of later passes are samples of the first one."""
        if type(index) is not int:
            if isinstance(index, (bool, str)) or not lookup.has_special(index, "__index__"):
                return None
            try:
                index = operator.index(index)
            except TypeError:
                return None
        if index >= self._count and is_mixed(self.dataset):
            index %= self._count
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
        """Makes a sample as it is kept."""
        with deferred.made_at_once():
            return checks.settled(self._get(index))

    def _behind(self, sample: Any) -> Any:
        return sample if self.transform is None else self.transform(sample)

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
            self._table = _core.Samples(cached, _dump)
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
        return table.view(number)

    # ---- is it right? ----

    def begin(self, is_first: bool) -> None:
        table = self._open()
        if table is not None:
            state = _ended_check(table)
            if state == _core.SAMPLES_CHECK:
                self._check(table)
            elif state == _core.SAMPLES_WRONG:
                raise checks.SamplesDiffer(checks.say_random(str(self.name), "that was found before", self.dataset))
            elif is_first:
                self._compare_again(table)
        self._has_begun = True

    def _draws(self) -> checks.Drawing:
        """Returns what is known of the dataset's random numbers."""
        if self._drawing is None:
            self._drawing = checks.Drawing(self.dataset, self._count)
        return self._drawing

    def _check(self, table: _core.Samples) -> None:
        """Checks a new table."""
        result = _core.SAMPLES_CHECK
        try:
            kept = lambda index: table.get(index, self._make)  # noqa: E731
            checks.check_not_random(kept, self._make, str(self.name), self._draws())
            result = _core.SAMPLES_RIGHT
        except checks.SamplesDiffer:
            result = _core.SAMPLES_WRONG
            raise
        finally:
            table.end_check(result)
            if result == _core.SAMPLES_WRONG:
                self.drop()  # samples that were kept meanwhile are not right

    def _compare_again(self, table: _core.Samples) -> None:
        name, version = str(self.name), str(self._handle and self._handle[2])
        checks.check_not_stale(self._make, table.view, name, version, self._draws())

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
        if self._handle is not None:
            tables.remove(self._handle)


# ---- making one ----


def _ended_check(table: _core.Samples) -> int:
    """Returns the state of a table's check, after that of another process has ended."""
    while (state := table.begin_check()) == _core.SAMPLES_CHECKING:
        time.sleep(_LOOK_S)
    return state


def _dump(value: object) -> tuple[bytes, list[Any]]:
    """Pickles a sample, or raises an exception if it would come back as another one. Then it is not kept."""
    try:
        data, children = pickling.dump_exactly(value)
        where = difference(value, pickling.load(data, children))
        if where is not None:
            raise pickle.PicklingError(f"a pickle of it comes back as another one ({where})")
    except Exception as error:
        text = exception_text.in_words(error)
        if text not in _told:
            _told.add(text)
            say(f"cache: a sample is not kept, and made each time: {text}")
        raise
    return data, children


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


def _tell(samples: CachedSamples, cache: _core.Cache, cached: _core.Cached) -> None:
    """One line for each object that this process uses."""
    info = cached.info()
    if info["id"] in _told or not building.is_main_process():
        return
    _told.add(info["id"])
    found = samples.report()
    name = info["name"].removesuffix(tables.SUFFIX)
    share = f"{100 * found['ready'] // max(1, found['samples'])} % filled"
    count = len(cache.claims(info["id"]))
    jobs = f", used by {count} processes" if count > 1 else ""
    where = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(info["path"]))))
    size = in_units(found["budget"])
    say(f"cache {name}: up to {size} of {found['samples']:,} samples in {where}{jobs}, {share}")


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
        transform: a function that is applied to each sample behind the cache: the random steps, which the dataset must
            not have then. It gets a whole sample, such as an image and its label.
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
    samples = CachedSamples(dataset, transform)
    cache = _cache_or_none(root)
    if cache is None:
        return samples
    cache.sweep()
    label, stamp, samples._users_modules = tables.name_of(dataset, name, text, sources)
    cached = tables.obtain(cache, label, text, stamp, kept, len(dataset), size)
    tables.keep(dataset, cached)
    samples._handle = tables.handle_of(cache, cached, text, root)
    _tell(samples, cache, cached)
    return samples


def _say_edited(file: str) -> None:
    if file not in _told:
        _told.add(file)
        say(
            f"cache: {file} was edited after this process imported it; processes that import it again have other code, "
            "so they make their samples without the cache"
        )


def _cache_or_none(root: Root) -> _core.Cache | None:
    """Returns the cache, or None, after a warning, if samples are not cached."""
    why = _why_not()
    if why is None:
        try:
            return opening.open_cache(root)
        except OSError as error:
            if root is not None:
                raise
            why = str(error)
    _warn_not_cached(why)
    return None


def for_loader(dataset: Any, budget: int | str | bool) -> Any:
    """Returns the dataset of a loader with the option cache. The user's functions see the dataset itself."""
    found = cache_samples(dataset, budget)
    found._shown = dataset
    return found

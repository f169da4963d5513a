# SPDX-License-Identifier: Apache-2.0
"""Finds the epochs to which set_epoch has set a dataset and its parts, and sets those of the copy in a worker.

Workers that persist have copies of the dataset. Its set_epoch in the trainer does not reach them, so the trainer looks
at the start of each epoch what it has changed. The engine and the batch makers of workers call this module. It goes a
few levels deep, and by paths that lead to the same part of a worker's copy.
"""

from __future__ import annotations

import inspect
import itertools
import sys
import types
from collections.abc import Iterator
from typing import Any

from headrace._base import lookup
from headrace._base.help_key import help_on
from headrace._base.warn import warn_user

Path = tuple[str | int, ...]  # names of attributes, keys and positions, from the dataset to one of its parts
_NAMES = ("epoch", "_epoch")  # of the attribute that set_epoch sets
_LEVELS, _MOST_ITEMS, _MOST_PARTS = 8, 64, 1000  # how far parts are looked for
_PLAIN = (int, float, str, bytes, bool, type(None))
_NO_PARTS = (type, types.ModuleType, types.FunctionType, types.MethodType)


def _parts_of(dataset: Any) -> Iterator[tuple[Path, Any]]:
    """Yields a dataset and the objects in its attributes, each once, with their paths; the outermost ones first."""
    level: list[tuple[Path, Any]] = [((), dataset)]
    seen = {id(dataset)}
    for _ in range(_LEVELS):
        yield from level
        found = [((*path, name), one) for path, part in level for name, one in _inner(part)]
        level = []
        for path, part in found:
            if id(part) not in seen and len(seen) < _MOST_PARTS:
                seen.add(id(part))
                level.append((path, part))


def _container_of(part: Any) -> Any:
    """Returns list, tuple or dict for one of these. A dataset may be a subclass whose own methods do something else."""
    return next((base for base in (list, tuple, dict) if isinstance(part, base)), None)


def _inner(part: Any) -> Iterator[tuple[str | int, Any]]:
    """Yields the names and values of what a part contains, if that can contain something itself."""
    base = _container_of(part)
    if base is dict:
        items: Any = [one for one in itertools.islice(dict.items(part), _MOST_ITEMS) if type(one[0]) in (str, int)]
    elif base is not None:
        items = enumerate(itertools.islice(base.__iter__(part), _MOST_ITEMS))
    else:
        items = lookup.attribute(part, "__dict__", {}).items()
    for name, value in items:
        has_attributes = type(lookup.attribute(value, "__dict__")) is dict and not isinstance(value, _NO_PARTS)
        if _container_of(value) is not None or has_attributes:
            yield name, value


def _at(dataset: Any, path: tuple[Any, ...]) -> Any:
    for name in path:
        base = _container_of(dataset)
        dataset = lookup.attribute(dataset, name) if base is None else base.__getitem__(dataset, name)
    return dataset


def _follows_epochs(part: Any) -> bool:
    return not isinstance(part, type) and callable(lookup.attribute(part, "set_epoch"))


def _takes_an_epoch(part: Any) -> bool:
    """Returns True if set_epoch can be called with an epoch alone, as headrace calls it."""
    try:
        inspect.signature(part.set_epoch).bind(0)
    except TypeError:
        return False
    except ValueError:  # of compiled code, which does not say
        pass
    return True


def _epoch_of(part: Any) -> int | None:
    epochs = (lookup.attribute(part, name) for name in _NAMES)
    found = next((one for one in epochs if type(one) is int), None)
    return found if found is None or _takes_an_epoch(part) else None


def _parts_with_epochs(dataset: Any) -> list[tuple[Path, Any]]:
    return [(path, part) for path, part in _parts_of(dataset) if _follows_epochs(part)]


def _shown(part: Any) -> dict[str, Any]:
    """Returns the attributes of an object as values that can be compared later."""
    return {name: _as_shown(one) for name, one in vars(part).items()}


def _as_shown(value: Any) -> Any:
    """Returns a plain value, and of another one its id. Lists and arrays may be shuffled in place, so their first items
    are shown too; an array that does not own its memory may be one that the workers share."""
    if type(value) in _PLAIN:
        return value
    if type(value) is list:
        return id(value), [one if type(one) in _PLAIN else id(one) for one in value[:_MOST_ITEMS]]
    if type(value) is getattr(sys.modules.get("numpy"), "ndarray", None) and value.flags.owndata:
        return id(value), value.ravel()[:_MOST_ITEMS].tobytes()
    return id(value)


class DatasetEpochs:
    """Keeps what the workers that persist know of the epochs of their dataset."""

    def __init__(self, dataset: Any) -> None:
        parts = _parts_with_epochs(dataset)
        self._sent = self._found = self.epochs(parts)
        self._unknown = self._attributes(parts)
        self._has_warned = False

    @staticmethod
    def epochs(parts: list[tuple[Path, Any]]) -> dict[Path, int]:
        found = {path: _epoch_of(part) for path, part in parts}
        return {path: epoch for path, epoch in found.items() if epoch is not None}

    @staticmethod
    def _attributes(parts: list[tuple[Path, Any]]) -> dict[Path, dict[str, Any]]:
        """Returns the attributes of the parts whose set_epoch sets no attribute of a name that is known."""
        return {path: _shown(part) for path, part in parts if _epoch_of(part) is None and hasattr(part, "__dict__")}

    def changes(self, dataset: Any) -> dict[Path, int]:
        """Returns the epochs that have changed since the workers got them. Warns once if a dataset with
        set_epoch was changed, but where its epoch is kept is not known, or the workers do not have that part."""
        parts = _parts_with_epochs(dataset)
        found = self.epochs(parts)
        self._found = {path: found.get(path, epoch) for path, epoch in self._sent.items()}
        changed = {path: epoch for path, epoch in self._found.items() if self._sent[path] != epoch}
        if not self._has_warned and (new := [_at(dataset, path) for path in found if path not in self._sent]):
            self._has_warned = True
            warn_user(
                f"headrace: the {type(new[0]).__name__} in the dataset is new in this process, so its set_epoch does "
                "not reach the workers that persist; make it before the first epoch, or use persistent_workers=False"
                + help_on("persistent-workers")
            )
        elif not changed and not self._has_warned:
            self._warn_of_unknown(parts)
        return changed

    def were_sent(self) -> None:
        """Notes that the workers have the epochs that `changes` has returned."""
        self._sent = self._found

    def _warn_of_unknown(self, parts: list[tuple[Path, Any]]) -> None:
        now, kinds = self._attributes(parts), {path: type(part).__name__ for path, part in parts}
        for path, before in self._unknown.items():
            names = sorted(name for name, one in now.get(path, before).items() if before.get(name, self) != one)
            if names:
                self._has_warned = True
                warn_user(
                    f"headrace: {', '.join(names)} of the {kinds[path]} changed in this process, but workers that "
                    "persist keep the dataset with which they were started, as with torch. If set_epoch has changed "
                    "it, let set_epoch(epoch) set an attribute `epoch` (an int), which headrace sends to the workers, "
                    "or use persistent_workers=False" + help_on("persistent-workers")
                )
                return


def epochs_of(dataset: Any) -> dict[Path, int]:
    """Returns the epochs of a dataset and its parts, as set_epochs takes them."""
    return DatasetEpochs.epochs(_parts_with_epochs(dataset))


def set_epochs(dataset: Any, changes: dict[Path, int]) -> None:
    """Calls set_epoch of parts of a worker's dataset, unless that of a part around it has done so. Raises RuntimeError
    if a part does not have the epoch then."""
    before = {path: _epoch_of(_at(dataset, path)) for path in changes}
    for path, epoch in changes.items():
        part = _at(dataset, path)
        if before[path] == epoch or _epoch_of(part) != epoch:
            part.set_epoch(epoch)
        if _epoch_of(part) != epoch:
            raise RuntimeError(
                f"headrace: the {type(part).__name__} is in epoch {epoch} in the trainer, but set_epoch({epoch}) set a "
                f"worker that persists to {_epoch_of(part)}; use persistent_workers=False, or let set_epoch(epoch) set "
                "the attribute `epoch`" + help_on("persistent-workers")
            )

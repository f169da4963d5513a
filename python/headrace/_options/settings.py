# SPDX-License-Identifier: Apache-2.0
"""Settings: all options of one loader, as they are at the beginning of an iterator. An option is read through them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from headrace._base import exception_text
from headrace._options import checks
from headrace._options.table import DEFAULTS, TABLE, Options

_MISSING: Any = object()


def own_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns headrace's own options from the arguments (the locals) of an __init__."""
    return with_folder({name: arguments[name] for name in TABLE})


def with_folder(options: dict[str, Any]) -> dict[str, Any]:
    """Returns options with an absolute path for the recordings: a script may change its folder before it iterates."""
    folder = options.get("record")
    if isinstance(folder, (str, os.PathLike)) and os.fspath(folder):
        return {**options, "record": os.path.abspath(os.fsdecode(folder))}
    return options


def own_values(loader: Any) -> Mapping[str, Any]:
    """Returns the attributes of a loader if they may be options, and nothing for torch's own loaders. They are taken
    from its __dict__, because a subclass may have a method or property with the name of an option."""
    return vars(loader) if isinstance(loader, Options) else {}


def keys_samples(rng: str, sample_threads: int) -> bool:
    """Returns True if random numbers belong to each sample: it is seeded, or may ask for them (sample_generator)."""
    return rng == "sample" or sample_threads != 1


def is_given(name: str, value: Any) -> bool:
    """Returns True if the value of an option is not the default."""
    return type(value) is not type(DEFAULTS[name]) or value != DEFAULTS[name]


def check_own(options: Mapping[str, Any]) -> None:
    """Raises TypeError or ValueError if a name is not one of headrace's own options, or if a value is bad."""
    for name in options:
        if name not in TABLE:
            raise TypeError(f"{name} is not one of headrace's own options, which are {', '.join(TABLE)}")
    for name, value in options.items():
        TABLE[name].check(name, value)


def check_installed(options: Mapping[str, Any]) -> None:
    """Raises TypeError and ValueError for what install() does not take."""
    check_own(options)
    for name in ("steps_per_epoch", "device"):
        if options.get(name) is not None:
            raise ValueError(f"headrace: {name} is an option of one loader, and not for install()")


@contextlib.contextmanager
def explained_as_attributes() -> Iterator[None]:
    """Explains an exception for a bad option that was read from a loader's attributes: the attribute may belong to a
    subclass, and have another meaning there."""
    try:
        yield
    except (TypeError, ValueError) as error:
        exception_text.add_text(
            error,
            f"headrace: its options are attributes of the loader ({', '.join(TABLE)}). "
            "If your attribute has another meaning, rename it",
        )
        raise


def _own_value(name: str, own: Mapping[str, Any]) -> Any:
    """Returns the value that the loader itself has, or _MISSING."""
    keeps = TABLE[name].keeps
    if keeps is None:
        return own.get(name, _MISSING)
    kept = own.get(keeps.attribute)
    return _MISSING if kept is None else kept if keeps.place is None else kept[keeps.place]


class Settings(Options):
    """The options of a loader: each has the loader's own value, or else that of install(), or else the default.

    They are a copy, checked, which also goes to the workers, without the six that only the trainer reads. These six are
    checked when they are asked for, because a subclass of torch's DataLoader may use their names.
    """

    def __init__(self, **values: Any) -> None:
        if unknown := values.keys() - TABLE.keys():
            raise TypeError(f"{', '.join(sorted(unknown))} is not one of headrace's own options")
        vars(self).update(DEFAULTS | values)
        for name, row in TABLE.items():
            if row.to_workers:
                row.check(name, getattr(self, name))
        if self.cache is False:
            self.cache = None

    @classmethod
    def of(cls, own: Mapping[str, Any], installed: Mapping[str, Any], is_iterable: bool) -> Settings:
        """Returns the settings of a loader. own: its own_values. Raises TypeError and ValueError for a bad value, and
        for an own value that an iterable dataset cannot have; an installed one is left out there."""
        fitting = {name: {} if is_iterable and row.iterable else installed for name, row in TABLE.items()}
        settings = cls(**{name: cls.one(name, own, others) for name, others in fitting.items()})
        for name, row in TABLE.items():
            if is_iterable and row.iterable and is_given(name, getattr(settings, name)):
                raise ValueError(row.iterable)
        return settings

    @staticmethod
    def one(name: str, own: Mapping[str, Any], installed: Mapping[str, Any]) -> Any:
        """Returns a single option, for calls that need only one of them and are made often. It is not checked."""
        found = _own_value(name, own)
        if found is _MISSING or (found is None and name == "arena_limit"):  # None: no limit of its own
            return installed.get(name, DEFAULTS[name])
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Returns what workers get."""
        return {name: value for name, value in vars(self).items() if TABLE[name].to_workers}

    @property
    def is_per_sample(self) -> bool:
        """Returns True if headrace makes the samples one by one, instead of a fetcher that makes a whole batch."""
        return self.rng == "sample" or self.on_bad_sample != "raise" or self.retries > 0 or self.sample_threads > 1

    @property
    def is_keyed(self) -> bool:
        """Returns True if random numbers belong to each sample."""
        return keys_samples(self.rng, self.sample_threads)

    def seeding(self, seed: int, epoch: int) -> tuple[int, int] | None:
        """Returns seed and epoch if random numbers belong to each sample, else None."""
        return (seed, epoch) if self.is_keyed else None

    # ---- what only the trainer reads ----

    @property
    def limit_bytes(self) -> int:
        """The limit of shared memory in bytes, or 0 if the engine chooses it. Raises TypeError, ValueError."""
        return checks.check_limit(self.arena_limit)

    def seed_or(self, drawn: int) -> int:
        """Returns the seed of the samples' own random numbers. drawn: what it is if none is given. Raises TypeError,
        ValueError."""
        with explained_as_attributes():
            return drawn if self.seed is None else checks.check_seed(self.seed)

    @property
    def record_folder(self) -> Any:
        """The option record. Raises TypeError, ValueError."""
        with explained_as_attributes():
            return checks.check_record("record", self.record)

# SPDX-License-Identifier: Apache-2.0
"""What loaders share of their options. Needs no extension: the fallback checks them too."""

from __future__ import annotations

import contextlib
import inspect
import math
import numbers
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace._errors import exception_text
from headrace._inspect import lookup

_MIN_LIMIT = 64 << 10  # HR__COMMIT_STEP (src/arena/layout.h): what the first task takes
_Init = TypeVar("_Init", bound=Callable[..., None])


def check_limit(limit: object) -> int:
    """The arena_limit option as bytes; 0: chosen by the engine. TypeError, ValueError."""
    if limit is None:
        return 0
    if not isinstance(limit, int) or isinstance(limit, bool):
        raise TypeError(f"arena_limit should be a number of bytes (int) or None, but got {limit!r}")
    if not _MIN_LIMIT <= limit < 2**62:
        raise ValueError(f"arena_limit should be from {_MIN_LIMIT} to 2**62 - 1 bytes, or None, but got {limit}")
    return limit


def is_iterable_only(value: object) -> bool:
    """Has a data set no samples by index? torch's IterableDataset has a __getitem__, which raises."""
    torch_data = sys.modules.get("torch.utils.data")
    if isinstance(value, getattr(torch_data, "IterableDataset", ())):
        return True
    return lookup.has_special(value, "__iter__") and not lookup.has_special(value, "__getitem__")


def is_torchs_loader(value: object) -> bool:
    """Returns whether it is one, or says so: accelerate's stand for one, and have its attributes by `__getattr__`."""
    return isinstance(value, getattr(sys.modules.get("torch.utils.data"), "DataLoader", ()))


class ArenaLimit:
    """A loader's attribute arena_limit: checked when it is set, and refused where it would have no effect.

    The value stands in the loader's __dict__ under the same name: Lightning makes loaders anew from what is there.
    """

    def __get__(self, loader: Any, owner: object = None) -> int | None:
        return None if loader is None else vars(loader).get("arena_limit")

    def __set__(self, loader: Any, limit: int | None) -> None:
        check_limit(limit)
        if vars(loader).get("_iterator") is not None:
            raise ValueError("arena_limit should not be set while persistent workers run: make a new loader")
        vars(loader)["arena_limit"] = limit


def shown_with(theirs: Callable[..., None]) -> Callable[[_Init], _Init]:
    """For an __init__ that passes *args and **kwargs on to `theirs`: inspect and help show the names of both."""

    def show(ours: _Init) -> _Init:
        own = [one for one in inspect.signature(ours).parameters.values() if one.kind is one.KEYWORD_ONLY]
        both = sorted([*inspect.signature(theirs).parameters.values(), *own], key=lambda one: one.kind)
        ours.__signature__ = inspect.Signature(both)  # type: ignore[attr-defined]
        return ours

    return show


def check_number(name: str, value: Any, least: float) -> None:
    """A number option, at least `least`. TypeError, ValueError."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} should be a number, but got {value!r}")
    if not float(value) >= least:
        raise ValueError(f"{name} should be at least {least:g}, but got {value}")


def check_count(name: str, value: Any) -> int:
    """An option that counts something: an int, also numpy's. TypeError, ValueError."""
    if isinstance(value, bool) or not lookup.has_special(value, "__index__"):
        raise TypeError(f"{name} should be an int, but got {value!r}")
    count = operator.index(value)
    if count < 0:
        raise ValueError(f"{name} should not be negative, but got {value}")
    return count


def check_seed(seed: Any) -> int:
    """The seed option, where it is not None: an int, also numpy's. TypeError, ValueError."""
    return check_count("seed", seed)


def _check_word(name: str, value: object, words: tuple[str, ...]) -> None:
    if value not in words:
        raise ValueError(f"{name} should be one of {', '.join(map(repr, words))}, but got {value!r}")


def check_repair(repair: object) -> None:
    """ValueError."""
    if repair not in (None, "auto"):
        raise ValueError(f"repair should be 'auto' or None, but got {repair!r}")


@dataclass(frozen=True)
class Policy:
    """What a loader does when a worker cannot be started, dies, stalls, or cannot make a sample.

    max_restarts: dead workers that are replaced in the life of an iterator; their batches are made again.
    rng: "worker": a worker's generators run on from sample to sample; "sample": they are seeded anew for each sample,
        by seed, epoch and index, so that it does not matter which worker makes it.
    on_bad_sample: "raise"; "skip": the batch is smaller; "refill": another sample takes its place; or callable(index,
        exception) that gives one of these words.
    stall_after: seconds without progress while the trainer waits until that is reported. on_stall: "wait" on, "raise",
        or "restart": kill and replace the worker.
    shutdown_timeout: seconds after which closing has killed every worker, and returns.
    freeze: freeze_attributes for the data set, before its workers start.
    repair: "auto": what does not pickle is made anew in the workers where it is known how; None: it raises.
    """

    max_restarts: int = 0
    rng: str = "worker"
    on_bad_sample: Any = "raise"
    stall_after: float = 30.0
    on_stall: str = "wait"
    shutdown_timeout: float = 5.0
    freeze: bool = False
    repair: str | None = None

    def __post_init__(self) -> None:
        check_count("max_restarts", self.max_restarts)
        check_number("stall_after", self.stall_after, 0.001)
        check_number("shutdown_timeout", self.shutdown_timeout, 0.1)
        if not math.isfinite(self.shutdown_timeout):
            raise ValueError(f"shutdown_timeout should be a number of seconds, but got {self.shutdown_timeout}")
        if not isinstance(self.freeze, bool):
            raise TypeError(f"freeze should be True or False, but got {self.freeze!r}")
        check_repair(self.repair)
        _check_word("rng", self.rng, ("worker", "sample"))
        _check_word("on_stall", self.on_stall, ("wait", "raise", "restart"))
        if not callable(self.on_bad_sample):
            _check_word("on_bad_sample", self.on_bad_sample, ("raise", "skip", "refill"))

    def seeding(self, seed: int, epoch: int) -> tuple[int, int] | None:
        """The seed and the epoch of samples' own random numbers, where they have some."""
        return (seed, epoch) if self.rng == "sample" else None

    @classmethod
    def of(cls, loader: Any, is_iterable: bool, others: Mapping[str, Any]) -> Policy:
        """The options as they stand in a loader's attributes; what it does not have, from `others`."""
        found = {name: others.get(name, default) for name, default in vars(cls()).items()}
        policy = cls(**(found if loader is None else {name: own(loader, name, found[name]) for name in found}))
        if is_iterable and policy.rng != "worker":
            raise ValueError(
                'rng="sample" needs a map-style dataset (one with __getitem__), but this dataset is iterable'
            )
        return policy

    @property
    def is_per_sample(self) -> bool:
        """Are samples made one by one here, and not by a fetcher of all?"""
        return self.rng == "sample" or self.on_bad_sample != "raise"


DEFAULTS = {"arena_limit": None, "seed": None, **vars(Policy())}  # of headrace.torch.DataLoader's own options


def is_given(name: str, value: Any) -> bool:
    """Is it something else than the default?"""
    return type(value) is not type(DEFAULTS[name]) or value != DEFAULTS[name]


def own(loader: Any, name: str, default: Any) -> Any:
    """An option as it stands in a loader's __dict__: a subclass may have a method or property of that name."""
    return vars(loader).get(name, default)


@contextlib.contextmanager
def explained_as_attributes() -> Iterator[None]:
    """Where options are read from a loader's attributes: a bad one may be a subclass's, which means something else."""
    try:
        yield
    except (TypeError, ValueError) as error:
        exception_text.add_text(
            error,
            f"headrace: its options are attributes of the loader ({', '.join(DEFAULTS)}). "
            "If yours means something else, give it another name",
        )
        raise


def check_own(options: Mapping[str, Any]) -> None:
    """TypeError, ValueError for options that are none of headrace.torch.DataLoader's own, or bad ones."""
    for name in options:
        if name not in DEFAULTS:
            raise TypeError(f"{name} is no option of headrace's own; those are {', '.join(DEFAULTS)}")
    check_limit(options.get("arena_limit"))
    if options.get("seed") is not None:
        check_seed(options["seed"])
    Policy(**{name: value for name, value in options.items() if name not in ("arena_limit", "seed")})

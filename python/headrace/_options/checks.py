# SPDX-License-Identifier: Apache-2.0
"""Checks values of options. Each check takes the option's name and value, and raises TypeError or ValueError."""

from __future__ import annotations

import math
import numbers
import operator
import os
from collections.abc import Callable
from typing import Any

from headrace._base import lookup, units

_MIN_LIMIT = 64 << 10  # COMMIT_STEP of the extension; the first task takes this much; a test compares
AUTO = "auto"  # a value of the options threads and cache
_LEAST_CACHE = 1 << 20  # SAMPLES_LEAST_BYTES of the extension; a test compares
_MOST_SAMPLE_THREADS = 1024
_MOST_THREADS = 256  # IMAGE_MOST_THREADS of the extension; a test compares


def is_iterable_only(value: object) -> bool:
    """Returns True if a dataset gives no samples by index. torch's IterableDataset has a __getitem__, which raises."""
    if isinstance(value, lookup.own_class("torch.utils.data.dataset", "IterableDataset") or ()):
        return True
    return lookup.has_special(value, "__iter__") and not lookup.has_special(value, "__getitem__")


def is_torchs_loader(value: object) -> bool:
    """Returns True for a torch DataLoader, or for an object that claims to be one: accelerate's loaders do, and have
    its attributes by `__getattr__`."""
    return isinstance(value, lookup.own_class("torch.utils.data.dataloader", "DataLoader") or ())


def check_limit(limit: object) -> int:
    """Returns the arena_limit option in bytes, or 0 if the engine chooses the limit. Raises TypeError, ValueError."""
    if limit is None:
        return 0
    if not isinstance(limit, int) or isinstance(limit, bool):
        raise TypeError(f"arena_limit should be a number of bytes (int) or None, but got {limit!r}")
    if not _MIN_LIMIT <= limit < 2**62:
        raise ValueError(f"arena_limit should be from {_MIN_LIMIT} to 2**62 - 1 bytes, or None, but got {limit}")
    return limit


def check_number(name: str, value: Any, least: float) -> None:
    """Raises TypeError or ValueError unless an option is a number that is at least `least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} should be a number, but got {value!r}")
    if not float(value) >= least:
        raise ValueError(f"{name} should be at least {least:g}, but got {value}")


def check_count(name: str, value: Any) -> int:
    """Returns an option that counts something as an int; numpy's integers are accepted. Raises TypeError,
    ValueError."""
    if isinstance(value, bool) or not lookup.has_special(value, "__index__"):
        raise TypeError(f"{name} should be an int, but got {value!r}")
    count = operator.index(value)
    if count < 0:
        raise ValueError(f"{name} should not be negative, but got {value}")
    return count


def check_seed(seed: Any) -> int:
    """Returns a seed that is not None as an int; numpy's integers are accepted. Raises TypeError, ValueError."""
    return check_count("seed", seed)


def check_arena_limit(name: str, value: Any) -> None:
    check_limit(value)


def check_optional_seed(name: str, value: Any) -> None:
    if value is not None:
        check_seed(value)


def check_stall_after(name: str, value: Any) -> None:
    check_number(name, value, 0.001)


def check_shutdown_timeout(name: str, value: Any) -> None:
    check_number(name, value, 0.1)
    if not math.isfinite(value):
        raise ValueError(f"{name} should be a number of seconds, but got {value}")


def check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} should be True or False, but got {value!r}")


def check_repair(name: str, value: Any) -> None:
    """Raises ValueError if the option repair is neither None nor "auto"."""
    if value not in (None, "auto"):
        raise ValueError(f"{name} should be 'auto' or None, but got {value!r}")


def check_bad_sample(name: str, value: Any) -> None:
    if not callable(value):
        one_of("raise", "skip", "refill")(name, value)


def check_steps(name: str, value: Any) -> None:
    if check_count(name, value) < 1:
        raise ValueError(f"{name} should be at least 1, but got {value}")


def check_optional_steps(name: str, value: Any) -> None:
    if value is not None:
        check_steps(name, value)


def check_steps_per_epoch(steps: Any, held_back: int, is_iterable: bool) -> int:
    """Returns the option steps_per_epoch as an int. Raises TypeError, and ValueError if held_back does not fit."""
    check_steps("steps_per_epoch", steps)
    most = 0 if is_iterable else 1
    if held_back > most:
        raise ValueError(
            f"steps_per_epoch={steps} needs held_back={most} or less for this dataset, but got {held_back}; the loader "
            "has a length, by which a framework knows its last batch"
        )
    return operator.index(steps)


def check_budget(what: str, value: Any) -> int | None:
    """Returns the budget of a cache of samples in bytes; None for AUTO or True. Raises TypeError, ValueError."""
    if value is True or value == AUTO:
        return None
    size = units.size_of(value, what)
    if size < _LEAST_CACHE:
        raise ValueError(f'{what} is {value!r}; give at least 1 MiB, such as "40G", or {AUTO!r}')
    return size


def check_cache(name: str, value: Any) -> None:
    if value not in (None, False):
        check_budget(name, value)


def check_threads(name: str, value: Any) -> None:
    if isinstance(value, str) and value == AUTO:
        return
    message = f"{name} should be from 1 to {_MOST_THREADS}, or {AUTO!r}, but got {value!r}"
    if isinstance(value, bool) or not (isinstance(value, str) or lookup.has_special(value, "__index__")):
        raise TypeError(message)
    if isinstance(value, str) or not 1 <= operator.index(value) <= _MOST_THREADS:
        raise ValueError(message)


def check_sample_threads(name: str, value: Any) -> None:
    wanted = f"{name} should be an int from 1 (no threads) to {_MOST_SAMPLE_THREADS}, but got {value!r}"
    if isinstance(value, bool) or not lookup.has_special(value, "__index__"):
        raise TypeError(wanted)
    if not 1 <= operator.index(value) <= _MOST_SAMPLE_THREADS:
        raise ValueError(wanted)


def check_device(name: str, value: Any) -> None:
    is_known = value is None or isinstance(value, (str, int)) or type(value).__module__ == "torch"
    if not is_known or isinstance(value, bool):
        raise TypeError(f'{name} should be "cuda", "cuda:N", "cpu" or None, but got {value!r}')


def check_record(name: str, value: Any) -> Any:
    """Returns the option record. Raises TypeError, ValueError."""
    if value is not None and not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name} should be a folder or None, but got {value!r}")
    if value is not None and not os.fspath(value):
        raise ValueError(f"{name} should be a folder or None, but got {value!r}")
    return value


def one_of(*words: str) -> Callable[[str, Any], None]:
    def check(name: str, value: Any) -> None:
        if value not in words:
            raise ValueError(f"{name} should be one of {', '.join(map(repr, words))}, but got {value!r}")

    return check

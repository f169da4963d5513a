# SPDX-License-Identifier: Apache-2.0
"""headrace's own options: one table with a row for each, and the checks.

From the table come the attributes of both loaders, the defaults and checks of their arguments, the paragraphs of their
docstrings and docs/options.md. A new option is a row of `Options`, and a keyword in the two `__init__` functions that
type checkers read. This module needs no extension, because headrace.torch also checks the options if the engine cannot
run.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import numbers
import operator
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from headrace._base import exception_text, lookup, units

_MIN_LIMIT = 64 << 10  # HR__COMMIT_STEP (src/arena/layout.h): the first task takes this much
AUTO = "auto"  # a value of the options threads and cache
_LEAST_CACHE = 1 << 20  # SAMPLES_LEAST_BYTES of the extension; a test compares
_MOST_THREADS = 256  # IMAGE_MOST_THREADS of the extension; a test compares
_Class = TypeVar("_Class", bound=type)
_Init = TypeVar("_Init", bound=Callable[..., None])


def is_iterable_only(value: object) -> bool:
    """Returns True if a dataset gives no samples by index. torch's IterableDataset has a __getitem__, which raises."""
    if isinstance(value, lookup.own_class("torch.utils.data.dataset", "IterableDataset") or ()):
        return True
    return lookup.has_special(value, "__iter__") and not lookup.has_special(value, "__getitem__")


def is_torchs_loader(value: object) -> bool:
    """Returns True for a torch DataLoader, or for an object that claims to be one: accelerate's loaders do, and have
    its attributes by `__getattr__`."""
    return isinstance(value, lookup.own_class("torch.utils.data.dataloader", "DataLoader") or ())


# ---- checks: each takes the option's name and value, and raises TypeError or ValueError ----


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


def check_repair(repair: object) -> None:
    """Raises ValueError if repair is neither None nor "auto"."""
    if repair not in (None, "auto"):
        raise ValueError(f"repair should be 'auto' or None, but got {repair!r}")


def _check_arena_limit(name: str, value: Any) -> None:
    check_limit(value)


def _check_optional_seed(name: str, value: Any) -> None:
    if value is not None:
        check_seed(value)


def _check_stall_after(name: str, value: Any) -> None:
    check_number(name, value, 0.001)


def _check_shutdown_timeout(name: str, value: Any) -> None:
    check_number(name, value, 0.1)
    if not math.isfinite(value):
        raise ValueError(f"{name} should be a number of seconds, but got {value}")


def _check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} should be True or False, but got {value!r}")


def _check_repair(name: str, value: Any) -> None:
    check_repair(value)


def _check_bad_sample(name: str, value: Any) -> None:
    if not callable(value):
        _one_of("raise", "skip", "refill")(name, value)


def _check_steps(name: str, value: Any) -> None:
    if check_count(name, value) < 1:
        raise ValueError(f"{name} should be at least 1, but got {value}")


def _check_optional_steps(name: str, value: Any) -> None:
    if value is not None:
        _check_steps(name, value)


def check_steps_per_epoch(steps: Any, held_back: int, is_iterable: bool) -> int:
    """Returns the option steps_per_epoch as an int. Raises TypeError, and ValueError if held_back does not fit."""
    _check_steps("steps_per_epoch", steps)
    most = 0 if is_iterable else 1
    if held_back > most:
        raise ValueError(
            f"steps_per_epoch={steps} needs held_back={most} or less for this dataset, but got {held_back}; the loader "
            "has a length, by which a framework knows its last batch"
        )
    return operator.index(steps)


def check_installed(options: Mapping[str, Any]) -> None:
    """Raises TypeError and ValueError for what install() does not take."""
    check_own(options)
    for name in ("steps_per_epoch", "device"):
        if options.get(name) is not None:
            raise ValueError(f"headrace: {name} is an option of one loader, and not for install()")


def check_budget(what: str, value: Any) -> int | None:
    """Returns the budget of a cache of samples in bytes; None for AUTO or True. Raises TypeError, ValueError."""
    if value is True or value == AUTO:
        return None
    size = units.size_of(value, what)
    if size < _LEAST_CACHE:
        raise ValueError(f'{what} is {value!r}; give at least 1 MiB, such as "40G", or {AUTO!r}')
    return size


def _check_cache(name: str, value: Any) -> None:
    if value not in (None, False):
        check_budget(name, value)


def _check_threads(name: str, value: Any) -> None:
    if isinstance(value, str) and value == AUTO:
        return
    message = f"{name} should be from 1 to {_MOST_THREADS}, or {AUTO!r}, but got {value!r}"
    if isinstance(value, bool) or not (isinstance(value, str) or lookup.has_special(value, "__index__")):
        raise TypeError(message)
    if isinstance(value, str) or not 1 <= operator.index(value) <= _MOST_THREADS:
        raise ValueError(message)


def _check_device(name: str, value: Any) -> None:
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


def _one_of(*words: str) -> Callable[[str, Any], None]:
    def check(name: str, value: Any) -> None:
        if value not in words:
            raise ValueError(f"{name} should be one of {', '.join(map(repr, words))}, but got {value!r}")

    return check


# ---- the table ----


class Option(NamedTuple):
    """A row of the table. `text` describes the option for users; `torch` and `numpy` are what only one of
    headrace.torch.DataLoader and headrace.Loader needs in addition."""

    default: Any
    check: Callable[[str, Any], Any]
    text: str
    torch: str = ""
    numpy: str = ""


def _row(default: Any, check: Callable[[str, Any], Any], text: str, torch: str = "", numpy: str = "") -> Any:
    return Option(default, check, text, torch, numpy)  # typed as Any: the attribute has the type of the option's value


class Options:
    """The table of headrace's own options, a row for each. Both loaders inherit the options as attributes, with the
    defaults as values."""

    arena_limit: int | None = _row(
        None,
        _check_arena_limit,
        """maximum shared memory in bytes, 64 KiB or more, for the batches that workers make and that you keep.
        None: half of the available memory. A batch that does not fit raises MemoryError. The attribute may be set
        later and is used for the next iteration, but not while persistent workers run.""",
        torch="If it is None and headrace.torch.install() was given a limit, that limit is used.",
    )
    max_restarts: int = _row(
        0,
        check_count,
        """how many dead workers an iterator replaces. A new worker makes the lost batches again.
        An iterable dataset is continued by its state_dict and load_state_dict, or from its start if it has a true
        attribute `replayable` (in the instance or its class; an answer of `__getattr__` does not count). Otherwise the
        death of its worker raises. A forked worker that hangs before it could start is always replaced, and is not
        counted here. If a worker ends before its first task in the same way as the worker that it replaced, it is not
        replaced again.""",
        torch="With 0, the death of a worker raises RuntimeError, as with torch.",
        numpy="The default is 3.",
    )
    rng: str = _row(
        "worker",
        _one_of("worker", "sample"),
        """"worker": the random numbers of a worker continue from sample to sample. "sample": random, numpy and
        torch (if it is used), and generators that the dataset, its transforms and collate_fn have of their own, are
        seeded again for each sample, by seed, epoch, index, and how often the index was drawn before, so that a sample
        does not depend on the worker that makes it. A generator that cannot be seeded is named in a warning.""",
        torch="""With "sample" the dataset's __getitem__ is called for each sample, and its __getitems__ is not
        used.""",
    )
    seed: int | None = _row(
        None,
        _check_optional_seed,
        """seed of rng="sample" and of on_bad_sample="refill".""",
        torch="With None it is the seed that torch draws from `generator` for each iterator.",
        numpy="It is also the seed of shuffling, and of random and numpy in the workers. With None it is drawn once.",
    )
    on_bad_sample: str | Callable[[Any, Exception], str] = _row(
        "raise",
        _check_bad_sample,
        """what to do if a sample raises an exception. "raise": raise it. "skip": leave the sample out, so that
        its batch is smaller. "refill": use another sample. Or a function (index, exception) that returns one of these
        words. The other sample is one that the sampler gave earlier in this epoch, chosen by seed, epoch and position,
        out of ten. If no sample was given yet, it is the next good one, out of a hundred. In an iterable dataset it is
        the next sample, and `index` counts the samples of the worker. A map-style dataset keeps its number of batches.
        Only exceptions of class Exception are handled; others, such as SystemExit, end the run, with any number of
        workers. Bad samples are listed at the end of the epoch and in report().""",
    )
    retries: int = _row(
        0,
        check_count,
        """how often a sample of a map-style dataset is made again if an I/O error was raised that may pass:
        EIO, ESTALE, timeouts, connections that were reset or refused and the like, or an exception that one of these
        led to. Before the first further try it waits 0.1 s, before each other one four times as long, up to 10 s, and
        up to half less or more. If all fail, on_bad_sample decides. A warning at the end of the epoch lists the
        samples, and report() counts the tries as "retried". With rng="worker" a try continues with the random numbers
        of the one before; with rng="sample" it has the same.""",
        torch="The dataset's __getitem__ is called for each sample, and its __getitems__ is not used.",
    )
    stall_after: float = _row(
        30.0,
        _check_stall_after,
        """if the loop waits and no worker makes progress for this number of seconds, the stacks of the worker
        that it waits for are shown.""",
    )
    on_stall: str = _row(
        "wait",
        _one_of("wait", "raise", "restart"),
        """what to do after stall_after seconds. "wait": continue to wait. "raise": raise RuntimeError.
        "restart": kill and replace the worker. With "wait" and "raise", a worker that is stopped or in a debugger is
        only reported.""",
    )
    shutdown_timeout: float = _row(
        5.0,
        _check_shutdown_timeout,
        """closing a loader kills every worker that has not ended after this number of seconds, and returns.""",
    )
    on_changed: str = _row(
        "error",
        _one_of("error", "finish", "next_epoch"),
        """what load_state_dict does if the dataset has another number of samples than the state. "error": raise
        ValueError. "finish": end this epoch with the old samples, which are the first ones; the next epoch has
        all. "next_epoch": leave the rest of the epoch out.""",
    )
    held_back: int = _row(
        0,
        check_count,
        """how many batches a framework has taken ahead of the training: state_dict counts so many of those that
        were delivered last as not delivered. Needs in_order=True.""",
    )
    snapshot_every_n_steps: int = _row(
        1,
        _check_steps,
        """for an iterable dataset with state_dict and load_state_dict: each worker takes its state
        after so many batches. A loader that is continued begins there, and makes the batches after it again.""",
    )
    compare_ranks: bool = _row(
        True,
        _check_flag,
        """False: what this loader reads is not compared with what other ranks read. Set it in all ranks, so
        that none waits for the others.""",
    )
    steps_per_epoch: int | None = _row(
        None,
        _check_optional_steps,
        """an epoch has so many steps, and the next one goes on where it ended: the passes over the sampler,
        or over an iterable dataset, follow each other without a gap, whatever N is. Each pass is what an epoch
        is without the option, and has its own number, which rng="sample" and `set_epoch` of the sampler get.
        Set it when the loader is made; a change of the attribute has no effect. Not for install().""",
    )
    threads: int | str = _row(
        1,
        _check_threads,
        """how many threads of each worker make the images of headrace.images.native, from 1 to 256; with
        num_workers=0, of this process. "auto": the cores that this process may use, divided by the workers of all
        local ranks.""",
        numpy="It has no effect here, because images.native makes torch's tensors.",
    )
    cache: int | str | bool | None = _row(
        None,
        _check_cache,
        """keep the samples of a map-style dataset in memory that all workers, ranks and jobs of this machine
        share, up to so many bytes ("40G"; "auto": what the machine has room for), so that each is made once: see
        headrace.cache_samples. Random steps have to run behind the cache: those of a transform that headrace knows do,
        otherwise use headrace.cache_samples(dataset, transform=...). `report()` has what was kept under "cache".""",
    )
    freeze: bool = _row(
        False,
        _check_flag,
        """before the workers start, replace the large containers of the dataset, in place, by views of frozen data
        that all processes share: see headrace.freeze_attributes.""",
    )
    repair: str | None = _row(
        None,
        _check_repair,
        """"auto": if an object cannot be pickled for the workers, make it again in them where headrace knows how
        (locks, loggers, views, lambdas, files opened for reading), and list it in a warning. None: raise the
        exception.""",
    )
    device: Any = _row(
        None,
        _check_device,
        """"cuda" or "cuda:N": batches arrive on this GPU, so `.to(device)` of them does nothing, and pin_memory has
        no effect. None or "cpu": they stay on the CPU. Tensors in tuples, lists, dicts and named tuples are copied
        while the GPU computes, from memory that it reads directly; any other object with a method `to` is moved by
        that. Set it when the loader is made; a change of the attribute has no effect. Not for install(). More is in
        docs/device.md.""",
        numpy="It has to be None here: NumPy's arrays are on the CPU.",
    )
    device_prefetch: int = _row(
        1,
        check_count,
        """with `device`: how many batches are sent to the GPU before the loop asks for them. Each
        takes the memory of a batch there. 0: each batch is sent when the loop asks for it.""",
        numpy="It has no effect here.",
    )
    record: str | os.PathLike[str] | None = _row(
        None,
        check_record,
        """a folder in which another process records what this loader does, for `headrace report`; it is made if it is
        missing. HEADRACE_RECORD in the environment does it for all loaders of a script. More is in docs/seeing.md.""",
    )


class ArenaLimit:
    """The attribute arena_limit of a loader: it is checked when it is set, and refused if it would have no effect.

    The value is in the loader's __dict__ under the same name, because Lightning makes new loaders from what is there.
    """

    def __get__(self, loader: Any, owner: object = None) -> int | None:
        return None if loader is None else vars(loader).get("arena_limit")

    def __set__(self, loader: Any, limit: int | None) -> None:
        check_limit(limit)
        if vars(loader).get("_iterator") is not None:
            raise ValueError("arena_limit should not be set while persistent workers run; create a new loader")
        vars(loader)["arena_limit"] = limit


TABLE: dict[str, Option] = {name: row for name, row in vars(Options).items() if isinstance(row, Option)}
DEFAULTS = {name: row.default for name, row in TABLE.items()}
_OF_LOADER = ("arena_limit", "seed", "steps_per_epoch", "device", "device_prefetch", "record")
_POLICY = [name for name in TABLE if name not in _OF_LOADER]
for _name, _default in DEFAULTS.items():
    setattr(Options, _name, _default)
Options.arena_limit = ArenaLimit()  # type: ignore[assignment]


def documented(package: str) -> Callable[[_Class], _Class]:
    """Decorates a loader class: replaces the line `{options}` of its docstring by a paragraph for each option.
    `package`: "torch" or "numpy", which chooses the texts."""

    def document(loader: _Class) -> _Class:
        text = loader.__doc__ or ""  # python -OO drops docstrings
        for line in text.splitlines():
            if line.strip() == "{options}":  # indented as the class is written, or less: since 3.13 by the compiler
                indent = line.removesuffix("{options}")
                loader.__doc__ = text.replace(line, "\n".join(indent + one for one in _paragraphs(package)))
        return loader

    return document


def _paragraphs(package: str) -> list[str]:
    """Returns the lines of the paragraphs of a docstring; those after the first of each are indented once more."""
    texts = {name: f"{row.text}\n{getattr(row, package)}".strip().splitlines() for name, row in TABLE.items()}
    paragraphs = [f"{name}: " + "\n    ".join(map(str.strip, lines)) for name, lines in texts.items()]
    return "\n".join(paragraphs).splitlines()


def shown_with(theirs: Callable[..., None]) -> Callable[[_Init], _Init]:
    """Decorates an __init__ that passes *args and **kwargs on to `theirs`: inspect and help show the names of both."""

    def show(ours: _Init) -> _Init:
        own = [one for one in inspect.signature(ours).parameters.values() if one.kind is one.KEYWORD_ONLY]
        both = sorted([*inspect.signature(theirs).parameters.values(), *own], key=lambda one: one.kind)
        ours.__signature__ = inspect.Signature(both)  # type: ignore[attr-defined]
        return ours

    return show


# ---- the options of a loader ----


def own_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns headrace's own options from the arguments (the locals) of an __init__."""
    return {name: arguments[name] for name in TABLE}


def is_given(name: str, value: Any) -> bool:
    """Returns True if the value of an option is not the default."""
    return type(value) is not type(DEFAULTS[name]) or value != DEFAULTS[name]


def own(loader: Any, name: str, default: Any) -> Any:
    """Returns an option from a loader's __dict__, because a subclass may have a method or property of that name."""
    return vars(loader).get(name, default)


def check_own(options: Mapping[str, Any]) -> None:
    """Raises TypeError or ValueError if a name is not one of headrace's own options, or if a value is bad."""
    for name in options:
        if name not in TABLE:
            raise TypeError(f"{name} is not one of headrace's own options, which are {', '.join(TABLE)}")
    for name, value in options.items():
        TABLE[name].check(name, value)


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


class Policy(Options):
    """The options of a loader that say what to do if a worker cannot be started, dies or stalls, or if a sample fails.

    They are a copy, checked, which also goes to the workers. Not among them are arena_limit, seed, steps_per_epoch,
    device, device_prefetch and record, which a loader reads when it needs them, because a subclass of torch's
    DataLoader may have attributes of these names.
    """

    def __init__(self, **values: Any) -> None:
        vars(self).update({name: values.pop(name, DEFAULTS[name]) for name in _POLICY})
        if values:
            raise TypeError(f"{', '.join(values)} is not an option of a policy")
        for name in _POLICY:
            TABLE[name].check(name, getattr(self, name))

    def seeding(self, seed: int, epoch: int) -> tuple[int, int] | None:
        """Returns seed and epoch if each sample has its own random numbers, else None."""
        return (seed, epoch) if self.rng == "sample" else None

    @classmethod
    def of(cls, loader: Any, is_iterable: bool, others: Mapping[str, Any]) -> Policy:
        """Returns the options that a loader's attributes give, or else `others`, or else the defaults. With None for
        the loader, its attributes are not read."""
        found = {name: others.get(name, DEFAULTS[name]) for name in _POLICY}
        policy = cls(**(found if loader is None else {name: own(loader, name, found[name]) for name in found}))
        if is_iterable and policy.rng != "worker":
            raise ValueError(
                'rng="sample" needs a map-style dataset (one with __getitem__), but this dataset is iterable'
            )
        if is_iterable and policy.retries:
            raise ValueError(
                "retries= needs a map-style dataset (one with __getitem__), but this dataset is iterable: it gives "
                "another sample when it is asked again"
            )
        if policy.cache is False:
            policy.cache = None
        if is_iterable and policy.cache is not None:
            raise ValueError(
                "cache= needs a map-style dataset (one with __getitem__ and __len__), but this dataset is iterable"
            )
        return policy

    @property
    def is_per_sample(self) -> bool:
        """Returns True if headrace makes the samples one by one, instead of a fetcher that makes a whole batch."""
        return self.rng == "sample" or self.on_bad_sample != "raise" or self.retries > 0

# SPDX-License-Identifier: Apache-2.0
"""Finds the random number generators that a dataset, its transforms and a collate function have of their own, and seeds
them by sample.

Each worker has a copy of such a generator. Without seeding, all copies give the same numbers, and which sample gets
which numbers depends on the workers. A search runs no code of the objects that it looks at. It looks at the first
objects of large containers only, because reading an object writes to its reference count, which copies memory that a
forked worker shares with the trainer. It needs no torch.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import itertools
import random
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from itertools import islice
from types import BuiltinMethodType, CodeType, FunctionType, GeneratorType, MappingProxyType, MethodType, ModuleType
from typing import Any, NamedTuple
from weakref import ReferenceType

from headrace._base import code
from headrace._base.attributes import own_attributes
from headrace._base.help_key import help_on
from headrace._base.lookup import is_a, static_dict, static_mro
from headrace._base.this_process import is_first_rank
from headrace._base.warn import warn_user
from headrace._samples.generator_kinds import Kind, kinds, shared_generators, why_not

_WHOLE = 1024  # of larger containers only _SPREAD entries are looked at; this is less for containers in containers
_SPREAD = 64
_LEAST_WHOLE = 16
_MOST = 50_000  # objects in one search
_PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray, range, slice, memoryview, CodeType)
_LISTS = (list, tuple, deque, set, frozenset)
_CONTAINERS = (dict, *_LISTS)
_OPENED = (
    "collections",
    "functools",
    "types",
    "argparse",
    "random",
    "__main__",
    "__mp_main__",
)  # of the standard library
# Libraries whose objects hold data, and whose functions do not lead to a generator of the user's.
_LIBRARIES = frozenset(
    "cv2 h5py headrace jax lmdb matplotlib numpy pandas PIL polars pyarrow scipy skimage sklearn torch torchaudio "
    "torchvision zarr".split()
)
_DATA = _LIBRARIES - {"headrace", "sklearn", "skimage", "scipy", "torch", "torchaudio", "torchvision"}


_CachedFunction = type(functools.lru_cache(int))
# Classes in C that hold objects and have no attributes: what they hold is found as the garbage collector does.
_ITERATORS = {
    map, filter, zip, enumerate, reversed,
    *(type(iter(kind())) for kind in (list, tuple, dict, set)),
    *(one for one in vars(itertools).values() if isinstance(one, type)),
}  # fmt: skip
_HOLDERS = {_CachedFunction, MappingProxyType, *_ITERATORS}


class Found(NamedTuple):
    """A generator. path: an expression that begins with `dataset`, or with the name of a module."""

    path: str
    generator: Any
    kind: Kind


class Unreachable(NamedTuple):
    """A generator that cannot be seeded, or the place where a search was ended."""

    path: str
    type: str
    why: str


class Search:
    """Searches objects, level by level, so that a generator with several paths gets the shortest one. roots: each by
    the expression that names it."""

    def __init__(self, roots: dict[str, object]) -> None:
        self.found: list[Found] = []
        self.unreachable: list[Unreachable] = []
        self.stateful: list[str] = []  # paths of all generators but those of the operating system, which have no state
        self._paths: Counter[str] = Counter()
        self._kinds = kinds()
        self._classes = tuple(cls for cls, _ in self._kinds)
        self._modules: set[str] = set()  # of libraries, whose variables were looked at
        self._shared = shared_generators()  # kept, so that no other object gets one of their addresses
        self._seen = {id(one) for one in self._shared}
        self._own = {_top(type(root).__module__) for root in roots.values()}
        self._left: deque[tuple[str, Any, int]] = deque((path, root, _WHOLE) for path, root in roots.items())
        self._kept: list[Any] = []
        self._in_part: list[tuple[str, Any, str]] = []  # containers whose entries are not all known, and why
        self._run()
        self._name_parts()

    def _run(self) -> None:
        while self._left:
            path, value, whole = self._left.popleft()
            if id(value) in self._seen:
                continue
            if len(self._kept) >= _MOST:
                why = f"{_MOST:,} objects were searched before it, and no more are; keep generators near the dataset"
                self.unreachable.append(Unreachable(path, type(value).__name__, why))
                return
            self._seen.add(id(value))
            self._kept.append(value)  # a part may be made for this search, and its address is not given again
            if is_a(value, self._classes):
                self._keep(path, value)
            elif is_a(value, _CONTAINERS):
                self._add_entries(path, value, whole)
                if type(value) not in _CONTAINERS:
                    self._add(self._of_instance(path, value), whole)
            else:
                self._add(self._parts(path, value), whole)

    def _keep(self, path: str, value: Any) -> None:
        kind = next(kind for cls, kind in self._kinds if is_a(value, cls))
        if not is_a(value, random.SystemRandom):
            self.stateful.append(path)
        if why := why_not(value, kind):
            self.unreachable.append(Unreachable(path, type(value).__name__, why))
        else:
            self._paths[path] += 1  # keys of dicts, and classes, may have equal names
            self.found.append(Found(path if self._paths[path] == 1 else f"{path} {self._paths[path]}", value, kind))

    def _add(self, parts: Iterable[tuple[str, Any]], whole: int) -> None:
        self._left.extend((path, part, whole) for path, part in parts if type(part) not in _PLAIN)

    def _add_entries(self, path: str, container: Any, whole: int) -> None:
        """Adds the entries of a container, or some of a large one. Of a large dict only the first ones are looked at,
        because its entries cannot be reached without those before."""
        base: Any = next(base for base in _CONTAINERS if is_a(container, base))
        count = base.__len__(container)
        most = count if count <= whole else _SPREAD
        if base in (list, tuple):
            places = range(count) if most == count else [at * count // most for at in range(most)]
            entries: Any = ((f"{path}[{at}]", base.__getitem__(container, at)) for at in places)
        elif base is dict:
            entries = ((f"{path}[{_short(key)}]", part) for key, part in islice(dict.items(container), most))
        else:
            parts = [part for part in islice(base.__iter__(container), most) if type(part) not in _PLAIN]
            entries = ((f"{path}[{at}]", part) for at, part in enumerate(parts))
            if base is not deque and len(parts) > 1:
                self._in_part.append((path, container, "a set with generators has another order in each process"))
        if most < count:
            why = f"only some of its {count:,} entries were searched, and there are generators in them"
            self._in_part.append((path, container, why))
        self._add(entries, max(_LEAST_WHOLE, whole // max(1, most)))

    def _name_parts(self) -> None:
        """Reports containers that were not searched as a whole, and sets, if entries that were looked at have
        generators."""
        for path, container, why in self._in_part:
            if any(one.path.startswith(f"{path}[") for one in self.found):
                self.unreachable.append(Unreachable(path, type(container).__name__, why))

    # ---- the parts of an object ----

    def _parts(self, path: str, value: Any) -> Iterable[tuple[str, Any]]:
        cls = type(value)
        if cls is FunctionType:
            return self._of_function(path, value)
        if cls is MethodType:
            return [(path, value.__self__), (path, value.__func__)]
        if cls is BuiltinMethodType:  # such as random of a random.Random
            return [(path, value.__self__)]
        if cls is GeneratorType:
            return [(f"{path}.gi_frame.f_locals[{name!r}]", part) for name, part in _locals(value)]
        if cls in _HOLDERS:
            return self._of_holder(path, value)
        if cls is ReferenceType:
            return [(f"{path}()", value())]
        if cls is ContextVar:
            return [(f"{path}.get()", value.get(None))]
        if cls is threading.local:
            return [(f"{path}.{name}", part) for name, part in sorted(vars(value).items())]
        if is_a(value, type):
            return self._of_class(value)
        if is_a(value, ModuleType) or not _is_opened(cls):
            return self._of_objects(path, value)
        return self._of_instance(path, value)

    def _of_instance(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        for name, part, _ in sorted(own_attributes(value), key=lambda one: one[0]):
            yield f"{path}.{name}", part
        for cls in static_mro(type(value)):
            yield _name_of(cls), cls

    def _of_holder(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Yields what an object of Python's own C code refers to."""
        held = [part for part in gc.get_referents(value) if type(part) not in _PLAIN]
        if type(value) is _CachedFunction:
            yield from self._of_instance(path, value)
            if sum(issubclass(type(part), self._classes) for part in held) > 1:
                why = "the results that a function keeps (lru_cache) have another order in each process"
                self._in_part.append((path, value, why))
        if type(value) in _ITERATORS:
            self._in_part.append((path, value, "an iterator gives other objects in each worker"))
        yield from ((f"{path}[{at}]", part) for at, part in enumerate(held) if not is_a(part, (type, ModuleType)))

    @staticmethod
    def _of_objects(path: str, value: Any) -> Iterable[tuple[str, Any]]:
        """Returns the entries of an array of objects. Other objects of such libraries have no parts."""
        if _top(type(value).__module__) != "numpy" or not getattr(getattr(value, "dtype", None), "hasobject", False):
            return ()
        return ((f"{path}.flat[{at}]", value.flat[at]) for at in range(min(value.size, _SPREAD)))

    def _of_class(self, cls: type) -> Iterator[tuple[str, Any]]:
        """Yields what is in a class of the user's. Of a library's class, and of its module, only generators are
        yielded, because its functions lead to the whole library."""
        top, space = _top(cls.__module__), static_dict(cls)
        if type(cls) is not type:
            yield _name_of(type(cls)), type(cls)
        if top in _LIBRARIES or top in sys.stdlib_module_names:
            return
        module = sys.modules.get(cls.__module__)
        if top not in self._own and module is not None and _is_installed(vars(module)):
            yield from ((f"{_name_of(cls)}.{name}", part) for name, part in self._generators_in(space))
            if module.__name__ not in self._modules:
                self._modules.add(module.__name__)
                yield from ((f"{module.__name__}.{name}", part) for name, part in self._generators_in(vars(module)))
            return
        for name, part in space.items():
            held = getattr(part, "__func__", part) if is_a(part, (staticmethod, classmethod)) else part
            held = part.fget if is_a(part, property) else held
            if not name.startswith("__") or type(held) is FunctionType:
                yield f"{_name_of(cls)}.{name}", held

    def _generators_in(self, space: Any) -> list[tuple[str, Any]]:
        return [(name, part) for name, part in list(space.items()) if issubclass(type(part), self._classes)]

    def _of_function(self, path: str, function: Any) -> Iterator[tuple[str, Any]]:
        yield from ((f"{path}.{name}", part) for name, part in code.cells(function))
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        yield from ((f"{path}.default{at}", part) for at, part in enumerate(defaults))
        yield from ((f"{path}.{name}", part) for name, part in function.__dict__.items())
        yield from self._of_globals(function)

    def _of_globals(self, function: Any) -> Iterator[tuple[str, Any]]:
        """Yields the global variables that the code of a function names. Those of a library's function are followed
        only if they are generators, because its functions lead to the whole library."""
        space, module = function.__globals__, _module_of(function.__globals__.get("__name__"))
        if _top(module) in _LIBRARIES or _top(module) in sys.stdlib_module_names:
            return
        is_users = _top(module) in self._own or not _is_installed(space)
        names = code.names(function.__code__)
        for name in names:
            part = space.get(name)
            if is_a(part, ModuleType) and is_users and _top(part.__name__) not in _LIBRARIES:
                inner = _variables_of(part)
                yield from ((f"{_module_of(part.__name__)}.{one}", inner[one]) for one in names if one in inner)
            elif is_users or is_a(part, self._classes):
                yield f"{module}.{name}", part


def _variables_of(module: ModuleType) -> dict[str, Any]:
    """Returns the variables of a module. A lazy module is not asked for more."""
    is_users = _top(module.__name__) not in sys.stdlib_module_names
    return vars(module) if is_users else {}


def _top(module: Any) -> str:
    return str(module).partition(".")[0]


def _module_of(name: Any) -> str:
    """Returns the name of a module. The main module has another one in a worker that was started by spawn."""
    return "__main__" if name == "__mp_main__" else str(name)


def _name_of(cls: type) -> str:
    return f"{_module_of(cls.__module__)}.{cls.__qualname__}"


def _is_installed(space: dict[str, Any]) -> bool:
    file = str(space.get("__file__") or "")
    return "/site-packages/" in file or "/dist-packages/" in file


def _is_opened(cls: type) -> bool:
    """Returns False for the classes of instances that hold data or belong to the system: arrays, files, loggers."""
    top = _top(cls.__module__)
    if top in sys.stdlib_module_names:
        return top in _OPENED
    torch = sys.modules.get("torch")
    return top not in _DATA and not (torch is not None and issubclass(cls, torch.Tensor))


def _locals(generator: Any) -> list[tuple[str, Any]]:
    frame = generator.gi_frame
    return [] if frame is None else list(dict(frame.f_locals).items())


def _short(key: Any) -> str:
    return repr(key) if type(key) in (str, int, bool, type(None)) else f"<{type(key).__name__}>"


# ---- for the makers of samples ----


class OwnGenerators:
    """The generators that the roots of a search lead to. A sample is made between `seed` and `has_made`."""

    def __init__(self, roots: dict[str, object]) -> None:
        self._roots = roots
        self.found: list[Found] = []
        self._paths: set[str] = set()
        self._made = 0
        self._next_look = 0
        self._warned: set[str] = set()
        self.look()

    def look(self) -> list[Found]:
        """Searches again. Returns the generators that were not there before."""
        known = {id(one.generator) for one in self.found}
        self.found = Search(self._roots).found
        return [one for one in self.found if id(one.generator) not in known]

    def begin_epoch(self) -> None:
        self._made = self._next_look = 0
        self.look()

    def seed(self, key: int) -> None:
        """Seeds each generator with 64 bits that depend on the key and its path."""
        prefix = key.to_bytes(8, "little")
        for path, generator, kind in self.found:
            digest = hashlib.blake2b(path.encode(), key=prefix, digest_size=8).digest()
            kind.seed(generator, int.from_bytes(digest, "little"))

    def has_made(self) -> bool:
        """Counts a sample, and searches after the 1st, 2nd, 4th, 8th... of an epoch. Returns True if the sample has to
        be made again, because the dataset has made a generator only when it was asked for this sample."""
        self._made += 1
        if self._made < max(1, self._next_look):
            return False
        self._next_look = 2 * self._made
        before = {one.path for one in self.found}
        new = self.look()
        late = [one.path for one in new if one.path not in before]
        if late and self._made > 1:
            self._warn_of(late)
        return bool(late) or (bool(new) and self._made == 1)

    def _warn_of(self, paths: list[str]) -> None:
        if new := [path for path in paths if path not in self._warned]:
            self._warned.update(new)
            warn_user(
                f'headrace: rng="sample": {", ".join(new)}: this random number generator was made while samples were '
                "made, after the first one. Samples from before it was found may depend on the number of workers. "
                "Make it in __init__ of the dataset" + help_on("generators")
            )

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Restores the generators at the end of the block to what they were at its start."""
        states = [(one, one.kind.state(one.generator)) for one in self.found]
        try:
            yield
        finally:
            for one, state in states:
                one.kind.restore(one.generator, state)


_warned: set[tuple[str, str]] = set()


def warn_of_unreachable(roots: dict[str, object]) -> None:
    """Names the generators that rng="sample" cannot seed, in one warning for each process."""
    new = [one for one in Search(roots).unreachable if (one.path, one.type) not in _warned]
    if not new or not is_first_rank():
        return
    _warned.update((one.path, one.type) for one in new)
    named = "; ".join(f"{one.path} ({one.type}): {one.why}" for one in new)
    warn_user(
        f'headrace: rng="sample" cannot seed all random number generators, so samples may depend on the number of '
        f"workers and differ after a resume. {named}. Use the generators of random, numpy or torch, or a "
        "numpy.random.Generator in an attribute" + help_on("generators")
    )


def roots_of(dataset: Any, collate_fn: Callable[..., Any] | None) -> dict[str, object]:
    """Returns where a search begins: the dataset, as the user sees it, and functions of the user's."""
    return {"dataset": dataset} if collate_fn is None else {"dataset": dataset, "collate_fn": collate_fn}

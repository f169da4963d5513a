# SPDX-License-Identifier: Apache-2.0
"""Says how multiprocessing's pickler treats a class, and has rules for objects that must not be reduced.

Some reductions change the object: they move a tensor into shared memory, or duplicate a descriptor. Such objects are
leaves: the rules below say whether they can be pickled, and how large they are.
"""

from __future__ import annotations

import contextlib
import copyreg
import datetime
import pickle
import struct
import sys
import types
from collections.abc import Callable, Iterator
from multiprocessing import connection, context
from multiprocessing.reduction import ForkingPickler
from operator import methodcaller
from typing import Any

from headrace._base.lookup import static, static_dict, static_mro
from headrace._pickles.known_classes import known
from headrace._tensors import torch_names

PROTOCOL = pickle.DEFAULT_PROTOCOL
Reducer = Callable[[Any], Any]

_HOOKS = (
    "__reduce_ex__",
    "__reduce__",
    "__getstate__",
    "__getnewargs_ex__",
    "__getnewargs__",
    "__getattribute__",
    "__getattr__",  # pickle looks up some of these hooks in the instance
    "__class__",
)
_POINTER = struct.calcsize("P")
_NO_NEW = 1 << 7  # Py_TPFLAGS_DISALLOW_INSTANTIATION
_CONTENTS = (list, dict, tuple, set, frozenset, str, bytes, int, float, bytearray, type, BaseException)
# Their instances can be pickled and hold no other objects; there may be millions of them.
_SAFE = frozenset({range, type(Ellipsis), type(NotImplemented), datetime.date, datetime.timedelta})
_STRIDED = "torch.strided"
_PLAIN_KINDS = frozenset("biufcSUmM")  # kinds of numpy's dtypes whose items are plain bytes
TORCHS = "torch.multiprocessing.reductions"
_FD_RULES = frozenset(
    {"reduce_connection", "_reduce_socket"}
)  # reductions of multiprocessing that duplicate a descriptor


class NoProcess:
    """Replaces the process that is being started, which locks and queues need when they are pickled. It duplicates no
    descriptors."""

    DupFd = int

    @staticmethod
    def duplicate_for_child(fd: int) -> int:
        return fd


@contextlib.contextmanager
def as_if_starting() -> Iterator[None]:
    """Lets locks, queues and descriptors be pickled as while a process is started, without changing them."""
    before = context.get_spawning_popen()
    context.set_spawning_popen(NoProcess)  # type: ignore[arg-type]
    try:
        yield
    finally:
        context.set_spawning_popen(before)


def leaf() -> None:
    """Replaces an object that a rule covers in a pickle."""


class Weights:
    """Adds up the sizes of leaves while something is pickled. `is_noted`: something deserves a look, although
    it can be pickled."""

    def __init__(self) -> None:
        self.bytes = 0
        self.shared_bytes = 0
        self.is_noted = False
        self._storages: set[int] = set()

    def share(self, storage: Any) -> None:
        key = torch_names.storage_key(storage)
        if key not in self._storages:
            self._storages.add(key)
            self.shared_bytes += storage.nbytes()


# ---- torch ----


def _check_storage(storage: Any) -> Any:
    """Returns the untyped storage. Raises what torch.multiprocessing.reductions.reduce_storage would raise."""
    storage = torch_names.untyped(storage)
    if storage.device.type in ("cuda", "meta"):
        kind = "CUDA" if storage.device.type == "cuda" else "meta"
        raise RuntimeError(f"Cannot pickle {kind} storage; try pickling a {kind} tensor instead")
    return storage


def is_non_leaf(tensor: Any) -> bool:
    return bool(tensor.requires_grad and not tensor.is_leaf)


def is_in_parts(tensor: Any) -> bool:
    """Returns True for sparse and nested tensors, whose parts are sent as tensors."""
    return bool(tensor.is_nested) or "sparse" in str(tensor.layout)


def _torch_rule(reducer: Any, weights: Weights) -> Reducer:
    def reduce_storage(storage: Any) -> Any:
        weights.share(_check_storage(storage))
        return leaf, ()

    def reduce_tensor(tensor: Any) -> Any:
        if is_non_leaf(tensor):
            raise RuntimeError("Cowardly refusing to serialize non-leaf tensor which requires_grad")
        if not is_in_parts(tensor) and tensor.device.type != "meta":
            weights.share(
                tensor.untyped_storage()
            )  # tensors of mkldnn have none; this raises the same exception as pickling
        return leaf, ()

    if reducer.__name__ == "reduce_tensor":
        return reduce_tensor
    return (lambda event: (leaf, ())) if reducer.__name__ == "reduce_event" else reduce_storage


def _subclass_rule(cls: type, weights: Weights) -> Reducer | None:
    """Returns the rule for a subclass of torch.Tensor that uses Tensor.__reduce_ex__: its storage and attributes."""
    torch = sys.modules.get("torch")
    tensor_class = getattr(torch, "Tensor", None)
    if tensor_class is None or not issubclass(cls, tensor_class) or cls is tensor_class:
        return None
    if any(static(cls, name) is not static(tensor_class, name) for name in ("__reduce_ex__", "__reduce__")):
        return None

    def reduce(tensor: Any) -> Any:
        with contextlib.suppress(Exception):
            weights.share(tensor.untyped_storage())
        return leaf, (), dict(vars(tensor)) or None

    return reduce


# ---- numpy ----


def is_mapped(array: Any) -> bool:
    """Returns True for an array over a file."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(type(array), numpy.memmap) and array._mmap is not None


def _array_rule(cls: type, weights: Weights) -> Reducer | None:
    """Returns the rule for arrays. The size of an array of plain items is known without pickling it."""
    array_class = getattr(sys.modules.get("numpy"), "ndarray", None)
    if array_class is None or not issubclass(cls, array_class):
        return None
    if any(static(cls, name) is not static(array_class, name) for name in ("__reduce_ex__", "__reduce__")):
        return None

    def reduce(array: Any) -> Any:
        if array.dtype.kind not in _PLAIN_KINDS:
            return array.__reduce_ex__(PROTOCOL)
        weights.bytes += array.nbytes
        weights.is_noted |= is_mapped(array)
        return leaf, (array.dtype,)

    return reduce


def idle_classes() -> frozenset[type]:
    """Returns the classes whose instances are leaves: arrays and tensors, but not their subclasses."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    found = (getattr(numpy, "ndarray", None), getattr(torch, "Tensor", None))
    return frozenset(cls for cls in found if cls is not None)


def is_idle(value: Any) -> bool:
    """Returns True if an instance of one of these classes can be pickled and holds only numbers."""
    kind = getattr(value.dtype, "kind", None)  # dtypes of torch have no kind
    return kind in _PLAIN_KINDS if kind is not None else not is_non_leaf(value) and str(value.layout) == _STRIDED


# ---- the table ----


class Table(dict[Any, Any]):
    """multiprocessing's dispatch table, with the rules for leaves. It decides once for each class."""

    def __init__(self, weights: Weights, is_batch: bool = False) -> None:
        theirs = {**copyreg.dispatch_table, **ForkingPickler._extra_reducers}  # type: ignore[attr-defined]
        super().__init__()
        self._weights = weights
        for cls, reducer in theirs.items():
            module, name = getattr(reducer, "__module__", None), getattr(reducer, "__name__", None)
            if module == TORCHS:
                reducer = _torch_rule(reducer, weights)
            elif is_batch and name in _FD_RULES and module in (connection.__name__, "multiprocessing.reduction"):
                reducer = _as_leaf
            self[cls] = reducer
        self._own = frozenset(self)
        self.theirs = {cls for cls, reducer in theirs.items() if self[cls] is reducer}

    def __missing__(self, cls: type) -> Reducer:
        rule = self.rule_of(cls)
        if rule is None:
            if issubclass(cls, type):
                raise KeyError(cls)  # a class, which is pickled by its name
            rule = methodcaller("__reduce_ex__", PROTOCOL)  # the pickler would call the same, as fast
            self._weights.is_noted |= issubclass(cls, BaseException)  # it may not be possible to unpickle it
        self[cls] = rule
        return rule

    def rule_of(self, cls: type) -> Reducer | None:
        """Returns the reducer that a rule gives a class, or None."""
        if cls in self._own:
            return self[cls]  # type: ignore[no-any-return]
        return _subclass_rule(cls, self._weights) or _array_rule(cls, self._weights)

    def is_special(self, cls: type) -> bool:
        """Returns True if one of the rules of this file applies to a class."""
        return cls not in self.theirs and self.rule_of(cls) is not None


def _as_leaf(value: Any) -> Any:
    return leaf, ()


# ---- plain classes ----


def slots_of(cls: type) -> tuple[str, ...] | None:
    """Returns the names of all slots; None if a name does not lead to its slot."""
    found: list[str] = []
    for one in static_mro(cls):
        slots = static_dict(one).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            if name in ("__dict__", "__weakref__"):
                continue
            stripped = one.__name__.lstrip("_")
            if name.startswith("__") and not name.endswith("__") and stripped:
                name = f"_{stripped}{name}"
            if not isinstance(static(cls, name), types.MemberDescriptorType):
                return None
            found.append(name)
    return tuple(found)


def _has_own_state(cls: type, slots: tuple[str, ...]) -> bool:
    """Returns True if C code keeps data in the instances. object.__reduce_ex__ also decides by their size."""
    expected = object.__basicsize__ + _POINTER * (
        len(slots)
        + (cls.__dictoffset__ > 0)
        + (cls.__weakrefoffset__ > 0)  # negative offsets mean that Python manages them
    )
    return cls.__basicsize__ > expected or cls.__itemsize__ > 0 or bool(cls.__flags__ & _NO_NEW)


def _says_another(cls: type) -> bool:
    """Returns True if instances may report another class as their __class__, which pickle asks for."""
    return static(cls, "__class__") is not object.__dict__["__class__"]


def plain_slots(cls: type) -> tuple[str, ...] | None:
    """Returns the names of slots if object.__reduce_ex__ pickles instances as class, dict and slots; else None."""
    if (
        issubclass(cls, _CONTENTS)
        or _says_another(cls)
        or any(static(cls, name) is not object.__dict__.get(name) for name in _HOOKS)
    ):
        return None
    slots = slots_of(cls)
    return None if slots is None or _has_own_state(cls, slots) else slots


def kind_of(cls: type, table: Table, is_by_name: Callable[[type], bool]) -> bool | tuple[str, ...] | Reducer | None:
    """Returns how _core.Walker treats instances of a class. `is_by_name`: says if the class itself can be pickled."""
    if table.is_special(cls) or cls is types.FunctionType or issubclass(cls, type) or _says_another(cls):
        return None
    generic = getattr(sys.modules.get("numpy"), "generic", None)
    if cls in _SAFE or (generic is not None and issubclass(cls, generic) and cls.__module__ == "numpy"):
        return True if getattr(cls, "__name__", "") not in ("void", "object_") else None
    if known(cls) is not None or not is_by_name(cls):  # a well-known object is named itself, not its parts
        return None
    if issubclass(cls, BaseException):  # whether it can be unpickled is checked too
        return None
    slots = None if cls in table.theirs else plain_slots(cls)
    return table[cls] if slots is None else slots

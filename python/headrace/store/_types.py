# SPDX-License-Identifier: Apache-2.0
"""How frozen data tells of types: which classes are plain, what a Decimal is made of, a dtype as a text.

The extension calls the functions here that have no underscore (`store_hook` in _core/image.c). A value whose type has a
name is stored as that name and its parts: `_TYPES` says of each type what the parts are, `_MAKERS` makes it of them.
"""

from __future__ import annotations

import array
import collections
import copyreg
import datetime
import decimal
import enum
import fractions
import importlib
import inspect
import json
import operator
import pathlib
import pickle
import re
import sys
import types
import uuid
from collections.abc import Callable
from typing import Any

from headrace import _core
from headrace._core import StoreError

Known = tuple[Any, ...]


class _Witness:
    """A class made by a class statement: has the deallocator that all of them have."""


# ---- names of what can be imported ----


def _find(module: str, qualname: str, may_import: bool) -> Any:
    """What stands under a name, or None. Without `may_import` no code of anybody's runs."""
    here: Any = sys.modules.get(module)
    if here is None and may_import:
        try:
            here = importlib.import_module(module)
        except ImportError:
            return None
    for part in qualname.split("."):
        if here is None:
            return None
        here = getattr(here, part, None) if may_import else getattr(here, "__dict__", {}).get(part)
    return here


def _name(value: Any) -> str | None:
    """ "module:qualified.name" of a class or function, if it is what stands there."""
    module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str) or "<" in qualname:
        return None
    return f"{module}:{qualname}" if _find(module, qualname, False) is value else None


def _resolve(name: Any, trusted: bool) -> Any:
    module, colon, qualname = str(name).partition(":")
    found = _find(module, qualname, trusted) if colon else None
    if found is None and module == "__main__":
        raise StoreError(
            f"headrace: this image names {qualname!r}, which the script that froze it had defined itself; move it into "
            "a module that both can import, and freeze again"
        )
    if found is None:
        more = "" if trusted else ", or open the image with trust=True, which imports what it names"
        raise StoreError(f"headrace: this image names {name!r}, which is not here; import {module!r} first{more}")
    return found


# ---- classes ----

_REDUCERS = ("__reduce__", "__reduce_ex__", "__getstate__", "__getnewargs__", "__getnewargs_ex__")
_CUSTOM = (*_REDUCERS, "__setstate__", "__del__")
_MADE = ("dataclasses", "collections")  # frozen dataclasses with slots and named tuples have some of these as well


def _is_generated(cls: type, function: object) -> bool:
    """Does what made the class for its author say with this function what its slots hold, and no more? attrs' for a
    class that keeps its hash says more: the hash is another one in another process."""
    module = getattr(function, "__module__", "")
    has_slots = "__getstate__" in cls.__dict__ and "_attrs_cached_hash" not in cls.__dict__
    return module in _MADE or (module == "attr._make" and has_slots)


def _why_not_plain(cls: type, base: type) -> str | None:
    if not _core.is_python_class(cls, _Witness, base):
        return f"{cls.__name__} keeps its data in a way that only its own code knows"
    for here in cls.__mro__[: cls.__mro__.index(base)]:
        for name in _CUSTOM:
            found = here.__dict__.get(name)
            if found is not None and not _is_generated(here, found):
                return f"{here.__name__} has its own {name}, which says that its attributes are not all"
    if cls in copyreg.dispatch_table:
        return f"{cls.__name__} has a reduction of its own in copyreg"
    if _name(cls) is None:
        where = "a function" if "<locals>" in cls.__qualname__ else "a place that cannot be imported"
        return f"{cls.__name__} is defined in {where}; define it at its module's top"
    return None


def _slots(cls: type) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for here in reversed(cls.__mro__):
        own = here.__dict__.values()
        found += [(value.__name__, value) for value in own if isinstance(value, types.MemberDescriptorType)]
    return found


def _classify_object(cls: type) -> Known:
    why = _why_not_plain(cls, object)
    slots = [] if why else _slots(cls)
    if len({name for name, _ in slots}) < len(slots):
        why = f"{cls.__name__} has a slot of one name twice"
    hidden = [name for name, slot in slots if inspect.getattr_static(cls, name) is not slot]
    if why is None and hidden:
        why = f"{cls.__name__} has something else in the place of the slot {hidden[0]!r} of a base"
    return ("unknown", why) if why else ("object", _name(cls), tuple(part for slot in slots for part in slot))


def _classify_tuple(cls: type) -> Known:
    why = _why_not_plain(cls, tuple)
    fields = getattr(cls, "_fields", None)
    if why is None and not (isinstance(fields, tuple) and all(type(name) is str for name in fields)):
        why = f"{cls.__name__} is a tuple of its own kind"
    return ("unknown", why) if why else ("tuple", _name(cls), fields)


def _enum_parts(member: Any) -> Any:
    cls = _name(type(member))
    name = member._name_  # a class may have a `name` and a `value` of its own
    has_name = name in type(member).__members__  # else it is several flags
    return (cls, name if has_name else None, None if has_name else member._value_) if cls else None


def classify(cls: type) -> Known:
    """What a class is; freeze_class.c says how."""
    if cls in _TYPES:
        return ("typed", *_TYPES[cls])
    if issubclass(cls, enum.Enum):
        return ("typed", "enum", _enum_parts)
    if issubclass(cls, type):
        return ("typed", "name", _name)
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(cls, numpy.dtype):
        return ("typed", "numpy.dtype", dtype_text)
    if numpy is not None and cls is numpy.ndarray:
        return ("typed", "objects", _object_array_parts)
    if cls.__module__ == "torch" and cls.__name__ == "Tensor":  # the plain ones are arrays
        why = "only plain tensors on the CPU that need no gradient and have no attributes of yours can be"
        return ("unknown", f"{why}; use .detach().cpu()")
    if cls.__module__ == "torch" and cls.__name__ in _TORCH:
        return ("typed", f"torch.{cls.__name__}", _TORCH[cls.__name__])
    if issubclass(cls, tuple):
        return _classify_tuple(cls)
    if cls.__module__ in ("builtins", "_thread", "_io") and cls.__name__ in _NO_DATA:
        return ("unknown", _NO_DATA[cls.__name__])
    if cls.__flags__ & (1 << 9) or cls is object:  # Py_TPFLAGS_HEAPTYPE: a class statement makes such
        return _classify_object(cls)
    return ("unknown", f"headrace does not know {cls.__module__}.{cls.__qualname__}")


_NO_DATA = {
    "lock": "a lock is of one process",
    "RLock": "a lock is of one process",
    "generator": "a generator is code that has begun to run",
    "module": "a module is imported, not stored",
    "TextIOWrapper": "an open file is of one process",
    "BufferedReader": "an open file is of one process",
}


_MOST_FIELDS = 1024  # HR_STORE_MAX_FIELDS


_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_FOUND_BY_NAME = types.FunctionType | types.BuiltinFunctionType | type


def refusal(value: Any, why: str | None) -> str:
    """Why it cannot be frozen, of its class if that is said already, and what to do."""
    advice = ', or keep it as a pickle with on_unknown="pickle"' if _may_pickle(value) else ""
    return f"{why or _why_not(value)}. Leave it out{advice}"


def _may_pickle(value: Any) -> bool:
    """Without a try where code of the class' own would run, or all of an array (a memmap, perhaps) be copied."""
    cls = type(value)
    if cls in copyreg.dispatch_table:
        return True
    if issubclass(cls, _FOUND_BY_NAME):
        return False
    own = [name for name in _REDUCERS if isinstance(getattr(cls, name, None), types.FunctionType)]
    if "__reduce__" in own or "__reduce_ex__" in own:
        return True
    if cls.__flags__ & _HEAP_TYPE and _name(cls) is None:
        return False
    numpy: Any = sys.modules.get("numpy")
    if own or (numpy is not None and issubclass(cls, numpy.ndarray)):
        return True
    try:
        return bool(value.__reduce_ex__(2))
    except Exception:
        return False


def _why_not(value: Any) -> str:
    """Why an object of a class that can be frozen cannot."""
    cls = type(value)
    if issubclass(cls, _FOUND_BY_NAME):
        return "it cannot be imported by its name; define it at its module's top"
    if cls.__name__ == "ndarray" and value.dtype.kind == "T":
        return "numpy's StringDType keeps texts outside of the array; hold it as .tolist(), or as .astype('U')"
    count = len(_core.Walker.attributes(value) or ()) + len(_slots(cls))
    if classify(cls)[0] == "object" and count > _MOST_FIELDS:
        return f"it has {count:,} fields, of which {_MOST_FIELDS:,} is the most; hold them in a dict that it has"
    return f"this one has what {cls.__name__} as such has not"


def resolve_class(name: str, kind: str, names: tuple[str, ...], trusted: bool) -> Any:
    """The class of a shape, which must still be a plain one. Raises StoreError."""
    cls = _resolve(name, trusted)
    known = classify(cls) if isinstance(cls, type) else ("unknown", f"{name} is no class")
    if known[0] != kind:
        raise StoreError(f"headrace: this image has instances of {name}, but {known[1]}; make the image again")
    if kind == "tuple" and known[2] != names:
        raise StoreError(f"headrace: this image has {name} with the fields {names}, now it has {known[2]}")
    return cls


# ---- values that have a name ----


def _zone_parts(zone: Any) -> Any:
    return zone.key


def _factory(mapping: Any) -> Any:
    """A default factory that another process can find; what is frozen has no use for it."""
    factory = mapping.default_factory
    return factory if factory is None or _name(factory) is not None else None


def _dict_parts(mapping: Any) -> Any:
    """Of a dict that has attributes: torch's state_dict has its _metadata there."""
    return (dict(vars(mapping)) or None, dict(mapping))


def _namespace_parts(value: Any) -> Any:
    held = dict(vars(value))
    return (None, held) if all(type(name) is str for name in held) else None


def _object_array_parts(value: Any) -> Any:
    text = _any_dtype_text(value.dtype)
    return ((text, value.shape), value.ravel().tolist()) if text and value.dtype.hasobject else None


def _datetime_parts(value: datetime.datetime) -> Any:
    date = (value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond)
    return (*date, value.tzinfo, value.fold)


def _path_parts(value: pathlib.PurePath) -> Any:
    return (type(value).__name__, str(value))


_PATHS = (pathlib.PosixPath, pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.WindowsPath)

_TYPES: dict[type, tuple[str, Callable[[Any], Any]]] = {
    decimal.Decimal: ("Decimal", str),
    fractions.Fraction: ("Fraction", lambda value: (value.numerator, value.denominator)),
    datetime.datetime: ("datetime", _datetime_parts),
    datetime.date: ("date", lambda value: (value.year, value.month, value.day)),
    datetime.time: (
        "time",
        lambda value: (value.hour, value.minute, value.second, value.microsecond, value.tzinfo, value.fold),
    ),
    datetime.timedelta: ("timedelta", lambda value: (value.days, value.seconds, value.microseconds)),
    datetime.timezone: ("timezone", lambda value: value.__getinitargs__()),
    **dict.fromkeys(_PATHS, ("Path", _path_parts)),
    uuid.UUID: ("UUID", lambda value: value.bytes),
    range: ("range", lambda value: (value.start, value.stop, value.step)),
    slice: ("slice", lambda value: (value.start, value.stop, value.step)),
    type(...): ("Ellipsis", lambda value: ()),
    type(NotImplemented): ("NotImplemented", lambda value: ()),
    re.Pattern: ("Pattern", lambda value: (value.pattern, value.flags)),
    array.array: ("array", lambda value: (value.typecode, value.tobytes())),
    types.FunctionType: ("name", _name),
    types.BuiltinFunctionType: ("name", _name),
    type: ("name", _name),
    # containers: what they are made with, and what they hold
    collections.deque: ("deque", lambda value: (value.maxlen, list(value))),
    collections.defaultdict: ("defaultdict", lambda value: (_factory(value), dict(value))),
    collections.Counter: ("Counter", _dict_parts),
    collections.OrderedDict: ("OrderedDict", _dict_parts),
    types.SimpleNamespace: ("namespace", _namespace_parts),
}
_TORCH: dict[str, Callable[[Any], Any]] = {
    "dtype": lambda value: str(value).removeprefix("torch."),
    "device": str,
    "Size": tuple,
}

try:
    import zoneinfo
except ImportError:  # a build without it
    pass
else:
    _TYPES[zoneinfo.ZoneInfo] = ("ZoneInfo", _zone_parts)


def _make_zone(key: Any) -> Any:
    return importlib.import_module("zoneinfo").ZoneInfo(key)


def _make_path(parts: Any) -> Any:
    return {cls.__name__: cls for cls in _PATHS}[parts[0]](parts[1])


def _make_array(parts: Any) -> Any:
    made = array.array(parts[0])
    made.frombytes(parts[1])
    return made


def _make_torch(name: str) -> Callable[[Any], Any]:
    def make(parts: Any) -> Any:
        torch = importlib.import_module("headrace.torch._frozen").torch
        made = vars(torch)[parts] if name == "dtype" else getattr(torch, name)(parts)  # getattr would import
        if type(made).__name__ != name:
            raise StoreError(f"headrace: {parts!r} is no torch.{name}")
        return made

    return make


def _make_datetime(parts: Any) -> Any:
    return datetime.datetime(*parts[:8], fold=parts[8])


def _make_time(parts: Any) -> Any:
    return datetime.time(*parts[:5], fold=parts[5])


_MAKERS: dict[str, Callable[[Any], Any]] = {
    "Decimal": decimal.Decimal,
    "Fraction": lambda parts: fractions.Fraction(operator.index(parts[0]), parts[1]),  # "1e999999999" has no end
    "datetime": _make_datetime,
    "date": lambda parts: datetime.date(*parts),
    "time": _make_time,
    "timedelta": lambda parts: datetime.timedelta(*parts),
    "timezone": lambda parts: datetime.timezone(*parts),
    "Path": _make_path,
    "UUID": lambda parts: uuid.UUID(bytes=parts),
    "range": lambda parts: range(*parts),
    "slice": lambda parts: slice(*parts),
    "Ellipsis": lambda parts: ...,
    "NotImplemented": lambda parts: NotImplemented,
    "Pattern": lambda parts: re.compile(parts[0], parts[1] & ~re.DEBUG),  # which would print
    "array": _make_array,
    "ZoneInfo": _make_zone,
    "numpy.dtype": lambda parts: dtype_from_text(parts),
    **{f"torch.{name}": _make_torch(name) for name in _TORCH},
}


def _make_enum(parts: Any, trusted: bool) -> Any:
    name, member, value = parts
    cls = _resolve(name, trusted)
    if not (isinstance(cls, type) and issubclass(cls, enum.Enum)):
        raise StoreError(f"headrace: this image says that {name} is an Enum, which it is not")
    return cls(value) if member is None else cls[member]


def _make_named(name: Any, trusted: bool) -> Any:
    if not trusted:
        raise StoreError(
            f"headrace: this image refers to {name!r} by its name; open it with trust=True if you trust it"
        )
    return _resolve(name, trusted)


def from_parts(name: str, parts: Any, trusted: bool) -> Any:
    """The value of a name and its parts. Raises StoreError."""
    try:
        if name == "enum":
            return _make_enum(parts, trusted)
        if name == "name":
            return _make_named(parts, trusted)
        return _MAKERS[name](parts)
    except (StoreError, MemoryError, RecursionError):
        raise
    except Exception as error:
        raise StoreError(f"headrace: a {name} of this image cannot be made: {error!r}; make the image again") from error


def _make_shell(name: str, extra: Any, count: int) -> Any:
    if name == "deque":
        return collections.deque(maxlen=extra)
    if name == "defaultdict":
        return collections.defaultdict(extra)
    if name in ("Counter", "OrderedDict"):
        made: Any = collections.Counter() if name == "Counter" else collections.OrderedDict()
        vars(made).update(extra or {})
        return made
    if name == "namespace":
        return types.SimpleNamespace()
    numpy = importlib.import_module("numpy")
    text, shape = extra
    if numpy.prod(shape, dtype=object) != count:
        raise StoreError("headrace: an array of objects of this image has another size than its shape says")
    return numpy.empty(shape, _any_dtype_from_text(text))


def shell(name: str, extra: Any, count: int, trusted: bool) -> Any:
    """A container of a name, empty; `extra` is what it is made with. Raises StoreError."""
    try:
        return _make_shell(name, extra, count)
    except (StoreError, MemoryError):
        raise
    except Exception as error:
        raise StoreError(f"headrace: a {name} of this image cannot be made: {error!r}; make the image again") from error


# ---- ints, arrays, pickles ----


def int_bytes(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)


def int_from_bytes(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def _describe_plain(dtype: Any) -> str:
    """numpy's text. A long double is another format on each kind of machine, in as many bytes: its bits of mantissa
    stand behind it."""
    numpy = importlib.import_module("numpy")
    if dtype.type not in (numpy.longdouble, numpy.clongdouble):
        return str(dtype.str)
    return f"{dtype.str}/{numpy.finfo(dtype).nmant}"


def _build_plain(text: str) -> Any:
    numpy = importlib.import_module("numpy")
    name, _, mantissa = text.partition("/")
    dtype = numpy.dtype(name)
    if _describe_plain(dtype) != text and dtype.type in (numpy.longdouble, numpy.clongdouble):
        there, here = mantissa or "an unknown number of", numpy.finfo(dtype).nmant
        raise ValueError(
            f"its long doubles have {there} bits of mantissa, and this machine's have {here}; make the image here"
        )
    return dtype


def _describe_dtype(dtype: Any) -> Any:
    """A dtype as what json takes; more than dtype.descr says: offsets, alignment, dtypes in dtypes."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return {"base": _describe_dtype(base), "shape": list(shape)}
    if dtype.names is None:
        return _describe_plain(dtype)
    fields = [dtype.fields[name] for name in dtype.names]
    return {
        "names": list(dtype.names),
        "formats": [_describe_dtype(field[0]) for field in fields],
        "offsets": [int(field[1]) for field in fields],
        "titles": [field[2] if len(field) > 2 and isinstance(field[2], str) else None for field in fields],
        "itemsize": dtype.itemsize,
        "align": bool(dtype.isalignedstruct),
    }


def _build_dtype(description: Any) -> Any:
    numpy = importlib.import_module("numpy")
    if isinstance(description, str):
        return _build_plain(description)
    if "base" in description:
        return numpy.dtype((_build_dtype(description["base"]), tuple(description["shape"])))
    parts = {name: description[name] for name in ("names", "offsets", "itemsize")}
    parts["formats"] = [_build_dtype(part) for part in description["formats"]]
    if any(description["titles"]):
        parts["titles"] = description["titles"]
    return numpy.dtype(parts, align=description["align"])


def _any_dtype_text(dtype: Any) -> str | None:
    description = _describe_dtype(dtype)
    text = description if isinstance(description, str) else json.dumps(description)
    try:
        return text if _any_dtype_from_text(text) == dtype else None
    except Exception:  # a dtype of another package, whose text numpy does not know
        return None


def _any_dtype_from_text(text: str) -> Any:
    return _build_dtype(json.loads(text) if text.startswith("{") else text)


def dtype_text(dtype: Any) -> str | None:
    """A dtype as a text, or None: its values are not bytes, or nobody could read it back."""
    return None if dtype.hasobject or not dtype.itemsize else _any_dtype_text(dtype)


def dtype_from_text(text: str) -> Any:
    try:
        dtype = _any_dtype_from_text(text)
    except (MemoryError, ImportError):
        raise
    except Exception as error:
        raise StoreError(f"headrace: this image has an array of dtype {text[:80]!r}: {error!r}") from error
    if dtype.hasobject or not dtype.itemsize:
        raise StoreError(f"headrace: this image has an array of dtype {text[:80]!r}, which has no plain bytes")
    return dtype


def raw_array(value: Any) -> Any:
    """An array of a dtype without a buffer (dates), as bytes of the same size."""
    return value.view(f"V{value.dtype.itemsize}")


def scalar_array(value: Any) -> Any:
    """A numpy scalar as an array; None: it is none."""
    numpy = sys.modules["numpy"]
    if not isinstance(value, numpy.generic):
        return None
    made = numpy.asarray(value)
    return made if (made.dtype.itemsize and not made.dtype.hasobject and made[()] == value) or value != value else None


def tensor_dtype(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.")


def tensor(*arguments: Any) -> Any:
    return importlib.import_module("headrace.torch._frozen").tensor(*arguments)


def strided_tensor(*arguments: Any) -> Any:
    return importlib.import_module("headrace.torch._frozen").strided_tensor(*arguments)


def dump(value: Any, path: str) -> bytes:
    try:
        return pickle.dumps(value, 5)
    except Exception as error:
        raise TypeError(f"headrace.freeze: {path} cannot be frozen, and not pickled either: {error}") from error


def load(data: bytes) -> Any:
    return pickle.loads(data)


# ---- views ----


def know_arrays() -> None:
    """A view's arrays and tensors may be the first that this process meets."""
    from headrace.store import _freeze

    _freeze.know_arrays()


def shallow(view: Any) -> Any:
    """A deque, Counter... of a view's items, which stay views."""
    made = _core.thaw(view)
    if isinstance(made, collections.deque):
        return collections.deque(view, made.maxlen)
    if isinstance(made, dict):
        for key in made:
            made[key] = view[key]
    return made


def reduce_view(view: Any) -> Any:
    from headrace.store import _pickling

    return _pickling.reduce_plainly(view)


def column(values: list[Any]) -> Any:
    """Numbers as an array, texts (and all else) as a frozen list of their own."""
    kinds = set(map(type, values))
    if values and kinds in ({int}, {float}, {bool}):
        numpy = importlib.import_module("numpy")
        try:
            return numpy.array(values, dtype={int: "i8", float: "f8", bool: "?"}[kinds.pop()])
        except OverflowError:  # beyond 64 bits
            pass
    from headrace.store import _freeze

    return _freeze.freeze(values, on_unknown="pickle")  # what was one stays one

# SPDX-License-Identifier: Apache-2.0
"""Explains in plain words why an object cannot be pickled."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import pickle
import sys
import types
from typing import Any, NamedTuple

from headrace._base import lookup
from headrace._base.lookup import is_a, static
from headrace._pickles import main_script, source_lines
from headrace._pickles.known_classes import READ_AGAIN, is_known, known

STREAMS = ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__")
ONLY_UNPICKLING = "it can be pickled, but not unpickled: "  # how the reason of such a finding begins
FIX_OF_EXCEPTION = "pass all arguments of __init__ to super().__init__, or give it a __reduce__"
_LATE = "make it in the worker, on first use, and leave it out in __getstate__"
_BY_VALUE = "sends it by value"
_WITH_CLOUDPICKLE = ', or install cloudpickle, with which repair="auto" sends classes by value'
NO_FILE = "is defined in __main__, which a worker cannot import: it is not a file (a notebook, stdin or -c)"
_OWN_HOOKS = ("__reduce_ex__", "__reduce__", "__getstate__", "__getnewargs_ex__", "__getnewargs__", "__getattr__")


class Explanation(NamedTuple):
    """The parts of a finding that do not depend on its path. `where` "" means the line that sets the attribute."""

    reason: str
    fix: str
    where: str = ""
    repair: str = ""


def is_read_only(file: Any) -> bool:
    """Returns True for open files with a path that are only read, and for the standard streams."""
    with contextlib.suppress(Exception):  # it is closed, detached, or not a file
        if any(file is getattr(sys, name) for name in STREAMS):
            return True
        return not file.closed and file.readable() and not file.writable() and os.path.isfile(file.name)
    return False


def type_name(value: Any) -> str:
    cls = type(value)
    if cls is types.ModuleType:
        return "module"
    name: str = type.__dict__["__qualname__"].__get__(cls)
    return f"function {value.__name__}" if is_a(value, types.FunctionType) else name


# ---- functions and classes, which pickle by their names ----


def _module_of(value: Any) -> str:
    module = vars(value).get("__module__") if is_a(value, type) else getattr(value, "__module__", None)
    return module if isinstance(module, str) else ""


def found_under(module: str, name: str) -> Any:
    """Returns the object with a dotted name in a module that is loaded, or None."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        if isinstance(found, type):
            found = static(found, part)
            found = getattr(found, "__func__", found)
        else:
            found = getattr(found, "__dict__", {}).get(part)
    return found


def _where_of(value: Any) -> str:
    if is_a(value, types.FunctionType):
        return source_lines.of_code(value.__code__, value.__qualname__)
    return source_lines.of_class(value) if is_a(value, type) else ""


def _nested(kind: str, value: Any, name: str) -> Explanation:
    outer = name.rpartition(".<locals>")[0].rpartition(".<locals>.")[2]
    return Explanation(
        f"a {kind} defined inside the function {outer}: pickle sends its name, and nothing has that name in a module",
        f"define it at the top level of a module{_partial_hint(value)}",
        _where_of(value),
        _BY_VALUE if kind == "function" else "",
    )


def _partial_hint(value: Any) -> str:
    names = value.__code__.co_freevars if is_a(value, types.FunctionType) else ()
    own = [name for name in names if name != "__class__"]
    return f", and give it {', '.join(own[:3])} by functools.partial or as attributes of a class" if own else ""


def of_name(value: Any, error: BaseException | None) -> Explanation:
    """Explains a function or class that its name does not lead to."""
    module, name = _module_of(value), getattr(value, "__qualname__", getattr(value, "__name__", "?"))
    kind = "class" if is_a(value, type) else "function"
    if getattr(value, "__name__", "") == "<lambda>":
        reason = "a lambda: pickle sends functions by name, and a lambda does not have one"
        return Explanation(reason, "a named function at module level", _where_of(value), _BY_VALUE)
    if "<locals>" in name:
        return _nested(kind, value, name)
    repair = _BY_VALUE if is_a(value, types.FunctionType) else ""
    found = found_under(module, name)
    if found is not None:
        reason = f"the name {module}.{name} now means another object ({_brief(found)}); was it decorated or redefined?"
        fix = (
            "give it its own name: functools.wraps in the decorator hides it, so keep the original under another name "
            "and __qualname__"
            if kind == "function"
            else "give each class its own name"
        )
        return Explanation(reason, fix, _where_of(value), repair)
    if module and module not in sys.modules and module != "__main__":
        return Explanation(f"its module {module} cannot be imported", "define it in a module", _where_of(value), repair)
    reason = f"{module or 'no module'} has no {name}"
    return Explanation(
        reason, f"assign it to {name} at the top level of {module or 'a module'}", _where_of(value), repair
    )


def _brief(value: object) -> str:
    name = getattr(type(value), "__name__", "object")
    if type(value) is types.FunctionType:
        return f"{name} in {source_lines.place(value.__code__.co_filename, value.__code__.co_firstlineno)}"
    return name


# ---- the main module, which workers import again under another name ----


def is_mains(value: Any) -> bool:
    return _module_of(value) in ("__main__", "__mp_main__")


def can_send_classes() -> bool:
    """Returns True if cloudpickle is installed, which pickles a class by value."""
    return importlib.util.find_spec("cloudpickle") is not None


def of_main(value: Any) -> Explanation | None:
    """Returns why a worker will not find a function or class of this process's main module, or None."""
    name = getattr(value, "__qualname__", "?")
    path = main_script.path_of_main()
    if not path:
        return Explanation(
            f"{name} {NO_FILE}",
            "define it in a module that can be imported" + ("" if can_send_classes() else _WITH_CLOUDPICKLE),
            _where_of(value),
            _BY_VALUE if is_a(value, types.FunctionType) or can_send_classes() else "",
        )
    if main_script.is_guarded(path, name.partition(".")[0]):
        return Explanation(
            f'{name} is defined under `if __name__ == "__main__":`, which a worker does not run',
            "define it above, at the top level of the script",
            _where_of(value),
            _BY_VALUE if is_a(value, types.FunctionType) else "",
        )
    return None


# ---- objects that are reduced ----


def _raised_in(value: Any, error: BaseException) -> tuple[str, str]:
    """Returns which hook of the class raised, and where; two empty texts if none did."""
    codes = {}
    for name in _OWN_HOOKS:
        code = getattr(static(type(value), name), "__code__", None)
        if isinstance(code, types.CodeType):
            codes[code] = name
    hook, where = "", ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code in codes and not hook:
            hook = codes[code]
        if hook and not where:
            where = f"raised in {source_lines.place(code.co_filename, trace.tb_lineno)}"
        trace = trace.tb_next
    return hook, where


def _is_above(cls: type, hook: str) -> bool:
    """Returns True if a class defines the hook itself, above the well-known class that it is derived from."""
    for one in lookup.static_mro(cls):
        if is_known(one):
            return False
        if hook in lookup.static_dict(one):
            return True
    return False


def of_reduction(value: Any, error: BaseException) -> Explanation:
    """Explains an object whose reduction raises, or returns what pickle refuses."""
    hook, where = _raised_in(value, error)
    found = known(type(value))
    if found is not None and not (hook and _is_above(type(value), hook)):
        is_refused = found.repair == READ_AGAIN and not is_read_only(value)
        return Explanation(found.reason, found.fix, "", "" if is_refused else found.repair)
    torch = sys.modules.get("torch")
    if torch is not None and is_a(value, torch.Tensor) and value.requires_grad and not value.is_leaf:
        fix = "keep tensor.detach()"
        return Explanation("a tensor that is the result of a computation with gradients (non-leaf, requires_grad)", fix)
    if hook:
        return Explanation(f"its {hook} raises {_brief_of(error)}", f"look at {hook}", where)
    return Explanation(_sentence(error), _LATE)


def of_exception(function: Any, arguments: tuple[Any, ...]) -> Explanation | None:
    """Explains an exception that pickle makes again by calling its class with arguments that its class does not take;
    None if the class takes them. It calls nothing, and trusts classes that it cannot be sure of."""
    if not (is_a(function, type) and issubclass(function, BaseException)):
        return None
    if static(type(function), "__call__") is not type.__dict__["__call__"]:
        return None
    method = static(function, "__new__")
    method = method.__func__ if type(method) is staticmethod else static(function, "__init__")
    if type(method) is not types.FunctionType or "__signature__" in vars(method):
        return None
    try:
        inspect.signature(method, follow_wrapped=False).bind(function, *arguments)
    except TypeError as error:
        call = f"{function.__name__}(*args)"
        reason = f"{ONLY_UNPICKLING}unpickling calls {call}, a TypeError: {error}"
        return Explanation(reason, FIX_OF_EXCEPTION, _where_of(method))
    return None


def _sentence(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0]
    if text and isinstance(error, (TypeError, pickle.PicklingError)):  # their messages are about pickling
        return text
    return f"pickling it raises {_brief_of(error)}"


def _brief_of(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def of_class(cls: type, explanation: Explanation) -> Explanation:
    """Explains an instance whose class cannot be pickled."""
    found = known(cls)
    if found is not None and not source_lines.is_users(
        cls
    ):  # such as the classes that ctypes makes for each size of array
        return Explanation(found.reason, found.fix, "", found.repair)
    return explanation._replace(
        reason=f"its class is {explanation.reason}" if explanation.reason.startswith("a ") else explanation.reason
    )


__all__ = ["Explanation", "is_mains", "of_class", "of_exception", "of_main", "of_name", "of_reduction", "type_name"]

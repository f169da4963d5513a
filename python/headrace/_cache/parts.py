# SPDX-License-Identifier: Apache-2.0
"""Collects what a digest of a function or a dataset is made of: see digest.py.

It contains what runs, and not what is written in files: the code objects of the function and of the user's own
functions and classes that it names, imports or has as parts of values, behind decorators too; of each its constants,
defaults, closure values and attributes, up to 64 MiB; the versions of the packages; and the working directory, if one
of these values is a path that begins there. It does not contain files or the environment.

It has no limits but a number of bytes, because what it left out could be a stale result. fingerprint.py goes through
the values.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import hashlib
import importlib
import importlib.util
import itertools
import os
import sys
import threading
import types
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from headrace._base import code, lookup, users_code
from headrace._cache import contents, fingerprint, process_state, relative_paths, unfollowed
from headrace._samples.kept_generators import is_generator

MOST_BYTES = 64 << 20
_DEEPEST = 50
_LOCKS = (type(threading.Lock()), type(threading.RLock()))  # have no value to compare
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...))
_CODE = (types.FunctionType, type, types.ModuleType, types.MethodType, functools.partial)
# Members of a class that say nothing which its functions do not.
_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType, property, functools.cached_property)
# Attributes that Python gives a class, some of which have the lines of its text, or are in another order each time.
_PYTHONS = frozenset(
    "__module__ __qualname__ __doc__ __dict__ __weakref__ __firstlineno__ __static_attributes__ __annotations__ "
    "__annotations_cache__ __slotnames__".split()
)
_NAME_OF_FOLDER = "the working directory, where {!r} begins,"
# Names of builtins that are neither functions nor classes, and that Python or its module site has made.
_OF_BUILTINS = ("builtins", "io", "_io")
_NOT_ADDED = frozenset("Ellipsis NotImplemented copyright credits exit help license quit".split())

Key = tuple[tuple[int, ...], str]  # the ids of who has a value, and the name that it has there


class Held(NamedTuple):
    """A value that may change: who has it, what a digest has of it, and the packages that it adds."""

    holders: tuple[Any, ...]
    parts: dict[str, str]
    packages: frozenset[str]


changes: dict[Key, tuple[Held, Held]] = {}  # values that a builder has changed, before it and after: see note_changes


class _Used(NamedTuple):
    """The use of variables in code, and in the code within it: all names; those with which it does more than to read an
    attribute; and those of which it reads attributes, with these."""

    names: list[str]
    escaping: set[str]
    attributes: set[tuple[str, str]]

    @staticmethod
    def by(function: types.CodeType) -> _Used:
        return _Used(code.names(function), code.escaping(function), code.attributes_read(function))


class TooLarge(Exception):
    """Raised if a value that belongs to the function is too large for a digest. Its text is the value's name."""


class Digest:
    """Collects what belongs to a function. `seen` lists it by name, with a short digest of each part, so that a later
    one can say what changed."""

    def __init__(self, skips_large: bool, watch: Callable[[int], None] | None = None) -> None:
        self._skips_large = skips_large
        self._watch = watch  # is told how many bytes were read; then there is no limit
        self._left = MOST_BYTES if watch is None else sys.maxsize
        self._depth = 0  # of names that the code of names names
        self._later: list[tuple[Any, str]] = []  # what is deeper
        self._known: dict[int, str] = {}  # the name under which a value was added first
        self._variables: set[tuple[int, str]] = set()  # the global variables that were added
        self._counts: dict[str, int] = {}  # of values by name
        self._met: dict[int, Any] = {}  # the functions, classes and modules that are parts of the value which is added
        self._alive: list[Any] = []  # so that no id is used twice
        self._packages: set[str] = set()
        self.modules: dict[str, None] = {}  # of the user, whose code was added
        self.path = ""  # one that begins at the working directory
        self._folder = ""  # by what code uses the working directory, such as os.getcwd
        self._has_command_line = False  # whether code uses it
        self._draws: dict[str, str] = {}  # the modules from whose generator a function draws, with its name
        self._seeds: set[str] = set()  # the modules whose generator a function seeds
        self.seen: dict[str, str] = {}
        self.values: dict[Key, Held] = {}
        self.unknown: list[str] = []  # values of which only the class counts
        self.unfollowed: dict[str, None] = {}  # what leads to code that is not found

    def close(self) -> None:
        """Adds what is left, and what all parts have in common."""
        while self._later:
            self.add(*self._later.pop(0))
        for package in sorted(self._packages):
            self._note(f"the version of {package}", users_code.version_of(package).encode())
        if "torch" in self._packages:
            torch = lookup.imported("torch")
            dtype = "torch.float32" if torch is None else str(torch.get_default_dtype())
            self._note("the default dtype of torch", dtype.encode())
        if self._has_command_line:
            self._look_for_path(sys.argv[1:])
            self._note("the command line", repr(sys.argv[1:]).encode(errors="surrogatepass"))
        if self._folder:
            self._note(f"the working directory, which {self._folder} uses,", relative_paths.here().encode())
        if self.path:
            self._note(_NAME_OF_FOLDER.format(self.path), relative_paths.here().encode())

    def unseeded(self) -> list[str]:
        """Describes the generators that all code shares, from which a function draws, if no function seeds them."""
        return [
            f"the state of {module}'s global generator, from which {name} draws without seeding it,"
            for module, name in self._draws.items()
            if module not in self._seeds
        ]

    def without_folder(self) -> dict[str, str]:
        """Returns the parts without the working directory."""
        return {name: part for name, part in self.seen.items() if name != _NAME_OF_FOLDER.format(self.path)}

    def _note(self, name: str, data: bytes) -> None:
        self._put(name, hashlib.blake2b(data, digest_size=8).hexdigest())

    def _put(self, name: str, found: str) -> None:
        """Functions, classes and variables of several modules may have the same name."""
        count = self._counts[name] = self._counts.get(name, 0) + 1
        self.seen[name if count == 1 else f"{name} ({count})"] = found

    def add(self, value: Any, name: str) -> None:
        """Adds a function, a class, or a value that a function uses. Raises TooLarge."""
        if id(value) in self._known and type(value) not in (tuple, frozenset):  # of which Python may make one of two
            # Which of several values an attribute is may be what matters.
            self._note(name, f"the same as {self._known[id(value)]}".encode())
            return
        if self._depth == _DEEPEST:  # of calls here
            self._later.append((value, name))
            return
        self._depth += 1
        try:
            self._add(value, name)
        finally:
            self._depth -= 1

    def _add(self, value: Any, name: str) -> None:
        if isinstance(value, functools.partial):
            self.add(value.func, name)
            arguments = (value.args, sorted(value.keywords.items()))
            holders = (value.func, *value.args, *value.keywords.values())
            self._add_changing(holders, "arguments", arguments, f"{name}: arguments of partial")
        elif process_state.generator_of(value) and not isinstance(value, types.ModuleType):
            self._note(name, f"{value.__module__}.{value.__name__}".encode())
            self._draw(process_state.drawn_by(value), name)
            self._add_package(process_state.generator_of(value))
        elif isinstance(value, types.MethodType):
            self.add(value.__func__, name)
            self._add_changing((value.__self__,), "self", value.__self__, f"{name}: self")
        elif isinstance(value, (types.FunctionType, code.REMEMBERING)):
            self._add_function(value, name)
        elif isinstance(value, type):
            if users_code.is_users(users_code.file_of(value)):
                self._add_class(value, name)
            else:
                self._note(name, f"{value.__module__}.{value.__qualname__}".encode())
                self._add_package(value.__module__)
        elif isinstance(value, types.ModuleType):
            self._add_module(value, name)
        elif isinstance(value, types.BuiltinFunctionType):
            self._add_builtin(value, name)
        else:
            self._add_value(value, name)

    # ---- code ----

    def _remember(self, value: Any, name: str) -> None:
        self._known[id(value)] = name
        self._alive.append(value)

    def _add_builtin(self, function: Any, name: str) -> None:
        """Adds a function that is not written in Python, such as the method `get` of a dict."""
        owner = function.__self__
        self._note(name, f"{function.__module__}.{function.__qualname__}".encode())
        self._add_package(function.__module__)
        if owner is not None and not isinstance(owner, (types.ModuleType, type)) and not is_generator(owner):
            self._add_value(owner, f"{name}: self")

    def _add_package(self, module: str | None) -> None:
        """Adds the version of the package that a module belongs to, or the file of an extension of the user."""
        package = (module or "").partition(".")[0]
        if not package or package in ("builtins", "__main__") or package in self._packages:
            return
        if users_code.is_users(users_code.file_of_module(package)):
            file = users_code.file_of_module(str(module))
            if file and file.endswith(".so") and (0, file) not in self._variables:
                self._variables.add((0, file))
                self._note(f"the file {file}", _state_of_file(file))
        else:
            self._packages.add("python" if package in sys.stdlib_module_names else package)

    def _add_function(self, function: Any, name: str) -> None:
        self._remember(function, name)
        wrapped = vars(function).get("__wrapped__")
        if wrapped is not None:
            self.add(wrapped, name)
            name = f"{name}: decorator"
        if not isinstance(function, types.FunctionType):
            return
        if users_code.is_users(function.__code__.co_filename):
            self._note(name, code.described(function.__code__))
            self.modules[str(function.__module__)] = None
            self._add_names(function, name)
        else:
            self._note(name, f"{function.__module__}.{function.__qualname__}".encode())
            self._add_package(function.__module__)
            if not users_code.leads_to_users(function, set()):
                return
        self._add_held(function, name)

    def _add_held(self, function: types.FunctionType, name: str) -> None:
        """Adds the defaults, the closure and the attributes of a function."""
        if function.__defaults__ or function.__kwdefaults__:
            defaults = (function.__defaults__, function.__kwdefaults__)
            self._add_changing((function,), "defaults", defaults, f"{name}: defaults")
        count = len(self.unknown)
        for variable, value in code.cells(function):
            if isinstance(value, types.ModuleType):
                used = _Used.by(function.__code__)
                self._add_attributes(value, variable, used, variable)
                if variable in used.escaping:
                    self._add_used(value, variable)
            else:
                self._add_used(value, f"{name}: {variable}", (function, variable))
        if not users_code.is_users(function.__code__.co_filename):
            del self.unknown[count:]  # what a library has behind its decorator, such as a lock
            return
        attributes = {key: value for key, value in vars(function).items() if key != "__wrapped__"}
        if attributes:
            self._add_changing((function,), "attributes", attributes, f"{name}: attributes")

    def _add_names(self, function: types.FunctionType, name: str) -> None:
        """Adds what a function names: global variables, attributes of modules, what it imports, and what it uses of the
        state of the process."""
        used, variables = _Used.by(function.__code__), function.__globals__
        for inner in code.codes(function.__code__):
            for variable in code.globals_read(inner):
                if variable in variables or _is_added_builtin(variable):
                    space = variables if variable in variables else vars(builtins)
                    self._add_variable(space, variable, variable, used, variable in used.escaping)
            for one in code.imports(inner):
                self._add_import(one, variables, used, name)
        self._look_for_path(code.constants(function.__code__), True)
        state = process_state.used_by(function.__code__, variables, dict(code.cells(function)))
        self._has_command_line |= state.command_line
        self._folder = self._folder or state.folder
        self._draw(state.draws, name)
        self._seeds |= state.seeds
        for reached in unfollowed.reached_by(function.__code__, variables):
            if reached == unfollowed.GLOBALS:  # any of them
                self._add_variables(variables, str(variables.get("__name__")))
            else:
                self.unfollowed[f"what {reached} in {name} leads to"] = None

    def _add_variable(self, variables: dict[str, Any], variable: str, name: str, used: _Used, escapes: bool) -> None:
        value = variables[variable]
        if isinstance(value, types.ModuleType):
            self._add_attributes(value, name, used, variable)
            if not escapes:
                return
        if (id(variables), variable) not in self._variables:
            self._variables.add((id(variables), variable))
            self._add_used(value, name, (variables, variable))

    def _add_attributes(self, module: Any, name: str, used: _Used, variable: str, within: tuple[Any, ...] = ()) -> None:
        """Adds module.function, for a module of the user, or for one within it. variable: that has the module."""
        if not users_code.is_users_module(module):
            self._add_package(module.__name__)
            self._add_replaced(module, name, used, variable)
            return
        if "__getattr__" in vars(module) and any(
            attribute not in vars(module) for one, attribute in used.attributes if one == variable
        ):
            self.unfollowed[f"what __getattr__ of the module {module.__name__} gives"] = None
        for attribute in used.names:
            value = vars(module).get(attribute)
            if isinstance(value, types.ModuleType) and not any(value is one for one in (module, *within)):
                self._add_attributes(value, f"{name}.{attribute}", used, "", (module, *within))
            elif attribute in vars(module) and not isinstance(value, types.ModuleType):
                self._add_variable(vars(module), attribute, f"{name}.{attribute}", used, True)

    def _add_replaced(self, module: Any, name: str, used: _Used, variable: str) -> None:
        """Adds functions and classes of the user that a program has put into a module of a library."""
        for attribute in sorted(attribute for one, attribute in used.attributes if one == variable):
            value = vars(module).get(attribute)
            if isinstance(value, (types.FunctionType, type)) and users_code.is_followed(value):
                self._add_variable(vars(module), attribute, f"{name}.{attribute}", used, True)

    def _add_import(self, one: code.Import, variables: dict[str, Any], used: _Used, place: str) -> None:
        """Adds what code imports where it uses it. Modules of the user are imported here: it must not matter whether
        they are imported already."""
        try:
            package = variables.get("__package__") or ""
            module_name = importlib.util.resolve_name("." * one.level + one.module, package)
            if not users_code.is_users(users_code.file_of_module(module_name.partition(".")[0])):
                self._add_package(module_name)
                return
            module = importlib.import_module(module_name)
            pairs = [(name, variable, _imported(module, name)) for name, variable in one.names]
        except (Exception, SystemExit) as error:
            self.unfollowed[f"what {place} imports from {one.module or 'its package'} ({type(error).__name__})"] = None
            return
        if not pairs:
            self._add_attributes(module, module_name, used, one.variable)
            if one.variable in used.escaping:
                self._add_used(module, module_name)
        for name, variable, value in pairs:
            if isinstance(value, types.ModuleType):
                self._add_attributes(value, value.__name__, used, variable)
                if variable in used.escaping:
                    self._add_used(value, value.__name__)
            elif name in vars(module):
                self._add_variable(vars(module), name, f"{module_name}.{name}", used, True)
            else:
                self._add_used(value, f"{module_name}.{name}")

    def _add_used(self, value: Any, name: str, holder: tuple[Any, str] | None = None) -> None:
        """Adds a value that code names. Of libraries the version counts, and locks do not. holder: who has the value
        under which name, if it may change."""
        if isinstance(value, _LOCKS):
            return
        if isinstance(value, (types.FunctionType, type, types.ModuleType, code.REMEMBERING)):
            if users_code.is_followed(value):
                self.add(value, name)
            else:
                module = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
                self._add_package(module)
        elif holder is None or isinstance(value, _CODE):
            self.add(value, name)
        else:
            self._add_changing(holder[:1], holder[1], value, name)

    def _add_module(self, module: types.ModuleType, name: str) -> None:
        """Adds a module that is a value: anything in it may be used, if it is the user's."""
        self._remember(module, name)
        self._note(name, f"module {module.__name__}".encode())
        if users_code.is_users_module(module):
            self._add_variables(vars(module), module.__name__)
        else:
            self._add_package(module.__name__)

    def _add_variables(self, variables: dict[str, Any], module: str) -> None:
        for variable, value in sorted(variables.items()):
            is_inner = isinstance(value, types.ModuleType) and value.__name__ == f"{module}.{variable}"
            if not variable.startswith("__") and (is_inner or not isinstance(value, types.ModuleType)):
                self._add_variable(variables, variable, f"{module}.{variable}", _Used([], set(), set()), True)

    def _add_class(self, cls: type, name: str) -> None:
        self._remember(cls, name)
        self._note(name, code.described_class(cls, users_code.is_users))
        self.modules[str(cls.__module__)] = None
        self._add_package(cls.__module__)
        for base in (*cls.__mro__[1:], type(cls)):
            if id(base) in self._known:
                continue
            if users_code.is_users(users_code.file_of(base)):
                self.add(base, f"class {base.__qualname__}")
            else:
                self._add_package(base.__module__)
        for attribute, member in list(vars(cls).items()):
            self._add_member(cls, member, attribute, f"{name}.{attribute}")

    def _add_member(self, cls: type, member: Any, attribute: str, name: str) -> None:
        """Adds what a method refers to, whose code is in that of the class, or the value of an attribute."""
        functions = list(code.functions_of(member))
        for function in functions:
            self._remember(function, name)
            if users_code.is_users(function.__code__.co_filename):
                self._add_names(function, name)
                self._add_held(function, name)
            elif users_code.leads_to_users(function, set()):
                self._add_held(function, name)
        if functions or isinstance(member, _DESCRIPTORS) or attribute in _PYTHONS or attribute == "_abc_impl":
            return
        if not _is_special(attribute) or attribute == "__wrapped__" or _is_plain(member):
            self._add_used(member, name, (cls, attribute))

    # ---- values ----

    def _add_changing(self, holders: tuple[Any, ...], place: str, value: Any, name: str) -> None:
        """Adds a value that its holder has at a place. If a builder has changed it, and nothing since, it counts as it
        was before."""
        start, packages = len(self.seen), set(self._packages)
        self.add(value, name)
        added = list(itertools.islice(reversed(self.seen.items()), len(self.seen) - start))[::-1]
        key = (tuple(map(id, holders)), place)
        held = Held(holders, dict(added), frozenset(self._packages - packages))
        if key in changes and changes[key][1].parts == held.parts:
            for part in held.parts:
                del self.seen[part]
            held = changes[key][0]
            self.seen.update(held.parts)
            self._packages = packages | held.packages
        self.values[key] = held

    def add_root(self, function: Any) -> None:
        """Adds the function that the digest is of, or an object that is called as one."""
        name = getattr(function, "__qualname__", None) or type(function).__qualname__
        if isinstance(function, (*_CODE, types.BuiltinFunctionType, code.REMEMBERING)):
            self.add(function, name)
        else:
            self._add_changing((function,), "itself", function, name)

    def _add_value(self, value: Any, name: str) -> None:
        self._look_for_path(value)
        if type(value) in _PLAIN:
            self._note(name, f"{type(value).__name__} {value!r}".encode(errors="surrogatepass"))
            return
        self._remember(value, name)
        met: dict[int, Any] = {}
        self._met = met
        try:
            if contents.size_of(value) > self._left:
                raise fingerprint.TooLarge
            found, count = fingerprint.digest_of(value, self._left, self._code_of, self._watch, self._leave_out)
            self._left -= count
        except fingerprint.TooLarge:
            self._refuse(name, f"{getattr(value, 'dtype', '')} {getattr(value, 'shape', '')}")
            return
        except fingerprint.Unknown:  # only its class counts
            self._note(name, f"an instance of {type(value).__module__}.{type(value).__qualname__}".encode())
            wrapped = lookup.attribute(value, "__wrapped__")
            if isinstance(wrapped, types.FunctionType):  # such as a compiled function
                self.add(wrapped, name)
            else:
                self.unknown.append(name)
        else:
            self._put(name, found)
        if users_code.is_users(users_code.file_of(type(value))):
            self.add(type(value), f"class of {name}")
        else:
            self._add_package(type(value).__module__)
        self._add_met(met)

    def _add_met(self, met: dict[int, Any]) -> None:
        for one in met.values():
            kind = "class" if isinstance(one, type) else "module" if isinstance(one, types.ModuleType) else "function"
            self.add(one, f"{kind} {getattr(one, '__qualname__', one.__name__)}")

    def add_code_in(self, value: Any) -> None:
        """Adds the code that belongs to a value, without the value."""
        self._look_for_path(value)
        met: dict[int, Any] = {}
        self._met = met
        with contextlib.suppress(fingerprint.Unknown):
            fingerprint.digest_of(value, sys.maxsize, self._code_of, left_out=self._leave_out)
        self._add_met(met)

    def _code_of(self, value: Any) -> bytes | None:
        """Returns a description of a function, class or module of the user; what it refers to is added after the value.
        None: pickle names it."""
        if not users_code.is_followed(value):
            module = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
            self._add_package(module)
            return None
        self._met[id(value)] = value
        if isinstance(value, type):
            return code.described_class(value, users_code.is_users)
        if isinstance(value, types.ModuleType):
            return value.__name__.encode()
        return b"\0".join([value.__qualname__.encode(), code.described(value.__code__)])

    def _leave_out(self, cls: type, names: list[str]) -> None:
        listed = ", ".join(map(repr, names))
        self.unfollowed[f"the attributes {listed} of an object of {cls.__qualname__}, which pickle leaves out,"] = None

    def _draw(self, modules: Iterable[str], name: str) -> None:
        """Notes from which generators that all code shares a function draws."""
        for module in modules:
            self._draws.setdefault(module, name)

    def _look_for_path(self, value: Any, in_code: bool = False) -> None:
        if not self.path:
            self.path = relative_paths.first_in(value, in_code)

    def _refuse(self, name: str, description: str = "") -> None:
        if not self._skips_large:
            raise TooLarge(name)
        self._note(name, f"too large {description}".encode())


def _state_of_file(path: str) -> bytes:
    info = os.stat(path)
    return repr((info.st_size, info.st_mtime_ns)).encode()


def _imported(module: types.ModuleType, name: str) -> Any:
    """Returns what `from module import name` gives. Raises ImportError."""
    if name in vars(module):
        return vars(module)[name]
    try:
        return getattr(module, name)
    except AttributeError:
        return importlib.import_module(f"{module.__name__}.{name}")


def _is_added_builtin(name: str) -> bool:
    """Returns True for a builtin that a program has added or replaced."""
    value = vars(builtins).get(name, builtins)
    if value is builtins or name in _NOT_ADDED:
        return False
    return not isinstance(value, (type, types.BuiltinFunctionType)) or value.__module__ not in _OF_BUILTINS


def _is_special(attribute: str) -> bool:
    return attribute.startswith("__") and attribute.endswith("__")


def _is_plain(member: Any) -> bool:
    parts = member if type(member) is tuple else (member,)
    return all(type(one) in _PLAIN for one in parts)

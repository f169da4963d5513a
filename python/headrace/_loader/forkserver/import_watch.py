# SPDX-License-Identifier: Apache-2.0
"""Watches imports in the fork server: how long each module took, which of them started a thread or opened a file, and
which environment variables they read.

The server (server.py) uses it while it imports the script's main module. It replaces methods of importlib's loaders,
which no module can see, and of os.environ.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.machinery
import os
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from headrace._base import this_process
from headrace._loader.forkserver import fitness

_LOADERS = (
    (importlib.machinery.SourceFileLoader, "exec_module"),
    (importlib.machinery.SourcelessFileLoader, "exec_module"),
    (importlib.machinery.ExtensionFileLoader, "create_module"),
    (importlib.machinery.ExtensionFileLoader, "exec_module"),
)


_STANDARD_LIBRARY = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_MAPPINGS = ("os", "collections.abc", "_collections_abc", __name__)
ANY_NEW = "*"  # noted as a variable: the names of all variables were read, so that a new one would have been seen
SEARCHERS = ("tqdm.utils", "fsspec.config")  # they look for names that begin with TQDM_ and FSSPEC_ only
SCRIPT = "__main__"  # what happens outside of any module's import is attributed to the script
SETTLE_S = 0.01  # a library that has started one thread may start another one from there


def _skipped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes `warnings` skip the frames of a function, as it skips importlib's own: a module that warns of its import
    with a stacklevel means the line that imports it. `warnings` knows these frames by the name of their file."""
    function.__code__ = function.__code__.replace(co_filename="<headrace importlib _bootstrap>")
    return function


@dataclass
class ImportWatch:
    """The facts about the imports so far.

    finished: the modules, in the order in which their imports ended. seconds: how long the import of a module took,
    with the imports that it made. variables: the names of the environment variables that were read.
    """

    finished: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    variables: set[str] = field(default_factory=set)
    _needed: dict[str, set[str]] = field(default_factory=dict)  # module -> what was imported while it was imported
    _running: list[str] = field(default_factory=lambda: [SCRIPT])  # the modules that are being imported
    _starts: list[tuple[fitness.Start, str, int]] = field(default_factory=list)  # with the module, and len(finished)
    _state: fitness.State | None = field(default_factory=fitness.State.now)  # None: /proc cannot be read

    def look(self, is_last: bool = False) -> None:
        """Compares the process with the look before. What is new is attributed to the module that is being imported.
        Unless it is the last look, it compares numbers first, which is quick."""
        if self._state is None or not (is_last or self._state.may_have_changed()):
            return
        now = fitness.State.now()
        if now and now.threads - self._state.threads:
            time.sleep(SETTLE_S)
            now = fitness.State.now()
        if now:
            self._starts += [(start, self._running[-1], len(self.finished)) for start in now.since(self._state)]
        self._state = now

    @_skipped
    def run(self, name: str, method: Callable[..., Any], loader: Any, argument: Any, is_whole: bool) -> Any:
        """Calls a method of a loader, which is a part of the import of the module `name`, or with `is_whole` its last
        part."""
        self.look()
        self.note_needed(name)
        self._running.append(name)
        start = time.perf_counter()
        try:
            result = method(loader, argument)
            self.look()
        finally:
            self._running.pop()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
        if is_whole:
            self.finished.append(name)
        return result

    def note_needed(self, name: str) -> None:
        """Notes that the module which is being imported needs the module `name`."""
        self._needed.setdefault(self._running[-1], set()).add(name)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watches the imports in this block."""
        with contextlib.ExitStack() as stack:
            for loader, name in _LOADERS:
                stack.enter_context(_replaced(loader, name, self._watched(getattr(loader, name), name)))
            environ = type(os.environ)
            stack.enter_context(_replaced(environ, "__getitem__", self._noting_variables(environ.__getitem__)))
            stack.enter_context(_replaced(environ, "__iter__", self._noting_search(environ.__iter__)))
            stack.enter_context(_replaced(builtins, "__import__", self._noting_imports(builtins.__import__)))
            yield
        self.look(is_last=True)

    def _watched(self, method: Callable[..., Any], kind: str) -> Callable[..., Any]:
        @_skipped
        def watched(loader: Any, argument: Any) -> Any:  # a module, or its spec
            name = argument.name if kind == "create_module" else argument.__name__
            return self.run(name, method, loader, argument, kind == "exec_module")

        return watched

    def _noting_variables(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def read_and_note(mapping: Any, key: Any) -> Any:
            self.variables.add(os.fsdecode(key) if isinstance(key, (str, bytes)) else "")
            return read(mapping, key)

        return read_and_note

    def _noting_search(self, iterate: Callable[..., Any]) -> Callable[..., Any]:
        def iterate_and_note(mapping: Any) -> Any:
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and frame.f_globals.get("__name__") in _MAPPINGS:
                frame = frame.f_back
            if frame is not None and frame.f_globals.get("__name__") not in SEARCHERS:
                self.variables.add(ANY_NEW)
            return iterate(mapping)

        return iterate_and_note

    def _noting_imports(self, load: Callable[..., Any]) -> Callable[..., Any]:
        @_skipped
        def load_and_note(
            name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
        ) -> Any:
            loaded = load(name, globals, locals, fromlist, level)
            # With a fromlist it is the module itself, else the package at its top, which `name` begins with.
            whole = getattr(loaded, "__name__", name) if fromlist else name
            self.note_needed(whole)
            for part in fromlist or ():
                self.note_needed(f"{whole}.{part}")
            return loaded

        return load_and_note

    def judge(self) -> tuple[list[fitness.Hazard], list[list[str]]]:
        """Returns what makes this process unfit to be forked, and lists of modules. Another process may import one of
        the lists and be fit: the modules that do not need a module with a hazard, or to be sure only those that were
        imported before the first hazard."""
        judged = [(fitness.judge(start), module, count) for start, module, count in self._starts]
        hazards = [fitness.Hazard(what, module) for what, module, _ in judged if what]
        before = min((count for what, _, count in judged if what), default=len(self.finished))
        # It is not known which module did these.
        elsewhere = [fitness.Hazard(what) for what in self._hazards_of_process()]
        if elsewhere:
            return [*hazards, *elsewhere], []
        unfit = self._list_dependents({hazard.module for hazard in hazards})
        independent = [name for name in self.finished if name not in unfit]
        return hazards, [kept for kept in (self._whole(independent), self._whole(self.finished[:before])) if kept]

    def _hazards_of_process(self) -> Iterator[str]:
        if self._state is None:
            yield "/proc cannot be read, so threads and open files are not known"
        elif fitness.has_children():
            yield "a process is started when the script is imported"
        if this_process.uses_accelerator():
            yield "an accelerator is used when the script is imported"

    def _list_dependents(self, found: set[str]) -> set[str]:
        """Returns these modules, those that need them, the modules of their packages, and so on."""
        while True:
            more = {name for name, needed in self._needed.items() if name not in found and needed & found}
            more |= {name for name in self.finished if name not in found and not found.isdisjoint(_parents(name))}
            if not more:
                return found
            found = found | more

    def _whole(self, names: list[str]) -> list[str]:
        """Leaves out the modules whose packages are not imported as a whole, and those of the user's own code: another
        process does not run the statements of the script that may have changed what they do when they are imported."""
        whole = {*names, *(name for name in sys.modules if name not in self.seconds)}
        return [name for name in names if _is_installed(name) and all(one in whole for one in _parents(name))]


def _is_installed(name: str) -> bool:
    """Returns True for a module of Python or of a package that was installed."""
    origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None) or ""
    return origin.startswith(_STANDARD_LIBRARY) or not {"site-packages", "dist-packages"}.isdisjoint(origin.split("/"))


@contextlib.contextmanager
def _replaced(owner: Any, name: str, function: Any) -> Iterator[None]:
    own = vars(owner).get(name)  # None: it is inherited
    setattr(owner, name, function)
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


def _parents(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name

# SPDX-License-Identifier: Apache-2.0
"""Watches imports in the fork server: how long each module took, which of them started a thread or opened a file, and
which environment variables they read.

The server (server.py) uses it while it imports the script's main module. It replaces methods of importlib's loaders,
which no module can see, and of os.environ.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from headrace._forkserver import fitness

_LOADERS = (
    (importlib.machinery.SourceFileLoader, "exec_module"),
    (importlib.machinery.SourcelessFileLoader, "exec_module"),
    (importlib.machinery.ExtensionFileLoader, "create_module"),
    (importlib.machinery.ExtensionFileLoader, "exec_module"),
)


@dataclass
class ImportWatch:
    """The facts about the imports so far.

    finished: the modules, in the order in which their imports ended. seconds: how long the import of a module took,
    with the imports that it made. variables: the names of the environment variables that were read.
    """

    finished: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    variables: set[str] = field(default_factory=set)
    _starts: list[tuple[fitness.Start, str, int]] = field(default_factory=list)  # with the module, and len(finished)
    _state: fitness.State = field(default_factory=fitness.State.now)

    def look(self, module: str) -> None:
        """Compares the process with the look before. What is new is attributed to `module`."""
        if self._state.may_have_changed():
            now = fitness.State.now()
            self._starts += [(start, module, len(self.finished)) for start in now.since(self._state)]
            self._state = now

    def run(self, name: str, load: Callable[[], Any], is_whole: bool) -> Any:
        """Calls load(), a part of the import of the module `name`, or with `is_whole` its last part."""
        start = time.perf_counter()
        result = load()
        self.look(name)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
        if is_whole:
            self.finished.append(name)
        return result

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watches the imports in this block."""
        before = [(loader, name, loader.__dict__.get(name)) for loader, name in _LOADERS]
        for loader, name in _LOADERS:
            setattr(loader, name, self._watched(getattr(loader, name), name))
        environ = type(os.environ)
        read = environ.__getitem__

        def read_and_note(mapping: Any, key: Any) -> Any:
            if mapping is os.environ and isinstance(key, str):
                self.variables.add(key)
            return read(mapping, key)

        environ.__getitem__ = read_and_note  # type: ignore[method-assign]
        try:
            yield
        finally:
            environ.__getitem__ = read  # type: ignore[method-assign]
            for loader, name, method in before:
                if method is None:
                    delattr(loader, name)
                else:
                    setattr(loader, name, method)
        self.look("__main__")

    def _watched(self, method: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def watched(loader: Any, argument: Any) -> Any:  # a module, or its spec
            name = argument.name if kind == "create_module" else argument.__name__
            return self.run(name, lambda: method(loader, argument), kind == "exec_module")

        return watched

    def judge(self) -> tuple[list[fitness.Hazard], list[str]]:
        """Returns what makes this process unfit to be forked, and the modules to import in a process that is to stay
        fit: those that were imported as a whole before the first hazard, with all of their packages."""
        judged = [(fitness.judge(start), module, count) for start, module, count in self._starts]
        hazards = [fitness.Hazard(what, module) for what, module, _ in judged if what]
        safe = min((count for what, _, count in judged if what), default=len(self.finished))
        if fitness.uses_accelerator():
            hazards.append(fitness.Hazard("uses an accelerator"))
            safe = 0  # it is not known which module did it
        kept = self.finished[:safe]
        whole = {*kept, *(name for name in sys.modules if name not in self.seconds)}
        return hazards, [name for name in kept if all(parent in whole for parent in _parents(name))]


def _parents(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name

# SPDX-License-Identifier: Apache-2.0
"""Datasets that do not pickle, and say from the worker whether what was repaired works there."""

from __future__ import annotations

import collections
import logging
import pathlib
import sys
import threading
import types
from collections.abc import Callable
from typing import Any


class Holder:
    """One sample: what `use` makes, in the worker, of what does not pickle."""

    def __init__(self, thing: Any, use: Callable[[Any], Any]) -> None:
        self.thing = thing
        self.use = use

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return self.use(self.thing)


class Temporary:
    """Pickles a tensor that is made for that only, next to a lock, which does not pickle."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __getstate__(self) -> Any:
        import torch

        return {"tensor": torch.arange(3), "lock": self.lock}


def use_temporary(temporary: Any) -> Any:
    with temporary.lock:
        return temporary.tensor.tolist()


def use_lock(lock: Any) -> Any:
    with lock:
        return [lock.acquire(blocking=False) if isinstance(lock, type(threading.Lock())) else lock.acquire()]


def use_condition(condition: Any) -> Any:
    with condition:
        condition.notify_all()
        return [condition.wait(0.01)]


def use_event(event: Any) -> Any:
    before = event.is_set()
    event.set()
    return [before, event.wait(1)]


def use_semaphore(semaphore: Any) -> Any:
    return [semaphore.acquire(blocking=False), semaphore.acquire(blocking=False), semaphore.acquire(blocking=False)]


def use_local(local: Any) -> Any:
    local.x = 1
    return [local.x]


def use_views(views: Any) -> Any:
    return [list(view) if isinstance(view, list) else view for view in views]


def use_functions(functions: Any) -> Any:
    return [function(3) for function in functions]


def use_words(words: Any) -> Any:
    return [words["known"], words["unknown"]]


def use_file(file: Any) -> Any:
    return [file.read()]


def use_module(module: Any) -> Any:
    return [module.dumps([1])]


def use_logger(logger: Any) -> Any:
    logger.error("from the worker")
    return [logger.name]


def use_handlers(handlers: Any) -> Any:
    for handler in handlers:
        handler.handle(logging.LogRecord("n", logging.ERROR, "f", 1, "from the worker", (), None))
    return [handler.stream is sys.stderr for handler in handlers]


def functions() -> list[Callable[[int], int]]:
    base = 10

    def add(x: int) -> int:
        return base + x

    def factorial(x: int) -> int:
        return 1 if x == 0 else x * factorial(x - 1)

    def uses_module(x: int, /, y: int = 1, *, z: int = 2) -> int:
        return len(collections.Counter([x, y, z]))

    return [lambda x: x + 1, add, factorial, uses_module]


def words() -> Any:
    made: Any = collections.defaultdict(lambda: -1)
    made["known"] = 7
    return made


def views() -> Any:
    return [{"a": 1}.keys(), {"a": 1}.values(), {"a": 1}.items(), types.MappingProxyType({"a": 1})]


def opened(path: pathlib.Path, mode: str, **options: Any) -> Any:
    path.write_text("one\ntwo\nthree\n")
    file = open(path, mode, **options)  # noqa: SIM115
    file.readline()
    return file


def collate(samples: list[Any]) -> Any:
    return samples[0]


def work(number: int, thing: Any, path: str) -> None:
    """Writes the argument that the process got, for tests of spawn."""
    (pathlib.Path(path) / str(number)).write_text(repr(thing(number)))


def fails(number: int) -> None:
    raise ValueError(f"process {number} does not want to")

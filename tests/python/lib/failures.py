# SPDX-License-Identifier: Apache-2.0
"""Exceptions whose classes cannot be made again from a text, or hide it; without torch."""

from __future__ import annotations

import asyncio
import builtins
import dataclasses
import importlib
import pathlib
import sys
import tempfile
from collections.abc import Callable
from typing import Any, NoReturn

TEXT = "the original text"


class Fails:
    """A dataset whose third sample raises what `fail` raises."""

    def __init__(self, fail: Callable[[], Any]) -> None:
        self.fail = fail

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 2:
            self.fail()
        return index


class HasMessage(Exception):
    """An exception with an attribute `message` that its constructor does not take."""

    message = "a text of the class"


class MessageIsProperty(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)

    @property
    def message(self) -> str:
        return f"{self.args[0]}"


class NeedsTwo(Exception):
    message = "needs two"

    def __init__(self, text: str, place: int) -> None:
        super().__init__(text, place)


class RefusesOthers(Exception):
    """Its constructor raises something else than a TypeError for a text of several lines."""

    def __init__(self, text: str) -> None:
        if "\n" in text:
            raise SystemExit("several lines")
        super().__init__(text)


class MakesAnother(Exception):
    """Its constructor gives an object of another class."""

    def __new__(cls, text: str) -> Any:
        return Exception.__new__(cls) if text == TEXT else ValueError("another")


class MakesNone(Exception):
    """Its constructor gives no exception."""

    def __new__(cls, text: str) -> Any:
        return Exception.__new__(cls, text) if text == TEXT else 5


class Drops(Exception):
    """Forgets the text that it is made of."""

    def __init__(self, text: str) -> None:
        super().__init__("shortened" if "\n" in text else text)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("cannot be printed")


class Lookup(KeyError):
    """Shows the repr of its argument, as KeyError does."""


@dataclasses.dataclass(frozen=True)
class FrozenAndDrops(Exception):
    """Cannot be changed, so it takes no note."""

    text: str

    def __str__(self) -> str:
        return "shortened" if "\n" in self.text else self.text


class OddSyntaxError(SyntaxError):
    """The traceback module cannot print it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text: Any = 5
        self.lineno = 1


class Meta(type):
    @property
    def message(cls) -> str:
        raise LookupError("the metaclass has no message")


class OfMeta(Exception, metaclass=Meta):
    pass


def fail_in_task_group() -> None:
    async def fail() -> NoReturn:
        raise ValueError(TEXT)

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())

    asyncio.run(run())


def fail_with_group() -> None:
    group: Any = vars(builtins)["ExceptionGroup"]  # Python 3.10 has none
    raise group("a group", [ValueError(TEXT), group("inner", [KeyError("inner")])])


def fail_with_local_class() -> None:
    class Local(Exception):
        pass

    raise Local(TEXT)


def fail_with_class_of_the_workers_own() -> None:
    """Raises an exception of a module that only the worker can import."""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "only_in_worker.py").write_text("class Own(Exception):\n    pass\n")
        sys.path.insert(0, folder)
        try:
            module = importlib.import_module("only_in_worker")
        finally:
            sys.path.remove(folder)
    raise module.Own(TEXT)


def raising(kind: Callable[..., BaseException], *arguments: Any) -> Callable[[], NoReturn]:
    def fail() -> NoReturn:
        raise kind(TEXT, *arguments)

    return fail


FAILURES: dict[str, Callable[[], Any]] = {
    "message of the class": raising(HasMessage),
    "message property": raising(MessageIsProperty),
    "message and two arguments": raising(NeedsTwo, 1),
    "constructor exits": raising(RefusesOthers),
    "constructor makes another": raising(MakesAnother),
    "constructor makes no exception": raising(MakesNone),
    "drops its text": raising(Drops),
    "frozen and drops its text": raising(FrozenAndDrops),
    "KeyError subclass": raising(Lookup),
    "message raises in the metaclass": raising(OfMeta),
    "local class": fail_with_local_class,
    "class of a module of the worker's own": fail_with_class_of_the_workers_own,
}
if sys.version_info >= (3, 11):
    FAILURES |= {"task group": fail_in_task_group, "group": fail_with_group}
WITHOUT_TEXT = {"unprintable": raising(Unprintable), "odd syntax error": raising(OddSyntaxError)}

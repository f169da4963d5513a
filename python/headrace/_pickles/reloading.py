# SPDX-License-Identifier: Apache-2.0
"""Unpickles objects in a process that is started as a worker is, and lists those that fail."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import pickle
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing import connection, reduction
from typing import Any, NamedTuple

from headrace._base import lookup
from headrace._base.lookup import is_a
from headrace._pickles import reasons, rules, search, source_lines
from headrace._pickles.reports import Finding

_ATOMS = frozenset({str, bytes, int, float, bool, complex, type(None), type})
_TRY_S = 600.0  # timeout in seconds, for all objects together


class _Failure(NamedTuple):
    text: str  # "TypeError: ..."
    where: str  # the user's line that raised


class _Pickler(reduction.ForkingPickler):
    """multiprocessing's pickler, except that it pickles tensors by value, because sharing a tensor changes it."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        table = dict(self.dispatch_table)
        for cls, reducer in list(table.items()):
            if getattr(reducer, "__module__", None) == rules.TORCHS:
                del table[cls]
        self.dispatch_table = table


class _Trial:
    """An object to unpickle. It is pickled while the process is started, because descriptors can be sent only then."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        file = io.BytesIO()
        _Pickler(file).dump(self.value)
        return _Trial, (file.getvalue(),)


def _load_in_child(trials: list[_Trial], answers: connection.Connection) -> None:
    for trial in trials:
        answers.send(_load(trial.value))
    answers.close()


def _load(data: bytes) -> _Failure | None:
    try:
        pickle.loads(data)
    except BaseException as error:  # also SystemExit
        frames = traceback.extract_tb(error.__traceback__)[1:]
        where = f"raised in {source_lines.place(frames[-1].filename, frames[-1].lineno or 0)}" if frames else ""
        text = traceback.format_exception_only(type(error), error)[-1].strip()
        return _Failure(text, where)
    return None


def _try(values: Sequence[Any], method: str) -> list[_Failure | None]:
    """Unpickles all of them in one new process. If an object ends the process, it has failed, and the result is shorter
    than `values`."""
    context: Any = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_load_in_child, args=([_Trial(value) for value in values], sender))
    answers: list[_Failure | None] = []
    try:
        try:
            process.start()
        except OSError:
            raise
        except Exception:  # one of them cannot be pickled by value: try the others without it
            return [None] if len(values) == 1 else [one for value in values for one in _try([value], method)]
        sender.close()
        with contextlib.suppress(EOFError):
            while len(answers) < len(values) and receiver.poll(_TRY_S):
                answers.append(receiver.recv())
    finally:
        receiver.close()
        if process.pid is not None:
            process.join(1.0)
            if process.is_alive():
                process.kill()
                process.join()
    if len(answers) < len(values):
        answers.append(_Failure(f"the process that loads it ended with exit code {process.exitcode}", ""))
    return answers


def _children(node: search.Node, met: dict[int, Any]) -> Iterator[search.Node]:
    """Yields the direct parts of an object that are not numbers or texts, and that were not met before."""
    for child in search.Walk().children(node):
        if type(child.value) not in _ATOMS and id(child.value) not in met:
            met[id(child.value)] = child.value
            yield child


def _smallest_failures(
    nodes: Sequence[search.Node], method: str, met: dict[int, Any]
) -> Iterator[tuple[search.Node, _Failure]]:
    """Yields the smallest parts that fail. If all parts of an object can be unpickled, it is the object itself."""
    for node, failure in _failures(nodes, method):
        inner = list(_smallest_failures(list(_children(node, met)), method, met))
        yield from inner or [(node, failure)]


def _failures(nodes: Sequence[search.Node], method: str) -> Iterator[tuple[search.Node, _Failure]]:
    rest = list(nodes)
    while rest:
        answers = _try([node.value for node in rest], method)
        yield from ((node, failure) for node, failure in zip(rest, answers, strict=False) if failure is not None)
        rest = rest[len(answers) :]


def findings(parts: Sequence[tuple[str, Any]], method: str) -> tuple[Finding, ...]:
    """Returns what can be pickled, but not unpickled."""
    roots = [search.Node(value, None, (), name) for name, value in parts]
    found = []
    for node, failure in _smallest_failures(roots, method, {id(root.value): root.value for root in roots}):
        owner = next((one for one in node.owners() if source_lines.is_users(type(one[0]))), None)
        where = (
            failure.where
            or (source_lines.of_attribute(*owner) if owner else "")
            or source_lines.of_class(type(node.value))
        )
        reason = f"{reasons.ONLY_UNPICKLING}{failure.text}"
        found.append(Finding(node.path(), reasons.type_name(node.value), reason, where, _fix(node.value)))
    return tuple(found)


def _fix(value: Any) -> str:
    if is_a(value, BaseException):
        return reasons.FIX_OF_EXCEPTION
    if lookup.static(type(value), "__setstate__") is not None:
        return "look at its __setstate__: it gets what __getstate__ returned, and __init__ was not called before"
    return "give it a __reduce__ that can make it again, or import what it needs in the module of its class"

# SPDX-License-Identifier: Apache-2.0
"""Loads a pickle again, in a process that is started as a worker would be, and says what does not come back."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import pickle
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing import connection, reduction
from typing import Any, NamedTuple

from headrace._inspect import lookup
from headrace._inspect.lookup import is_a
from headrace.doctor.pickle import reasons, rules, search, source_lines
from headrace.doctor.pickle.reports import Finding

_ATOMS = frozenset({str, bytes, int, float, bool, complex, type(None), type})
_TRY_S = 600.0  # most seconds for everything to be loaded


class _Failure(NamedTuple):
    text: str  # "TypeError: ..."
    where: str  # of the user's line that raised


class _Pickler(reduction.ForkingPickler):
    """As multiprocessing's, except that tensors travel by value: to share one is to change it."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        table = dict(self.dispatch_table)
        for cls, reducer in list(table.items()):
            if getattr(reducer, "__module__", None) == rules.TORCHS:
                del table[cls]
        self.dispatch_table = table


class _Trial:
    """What is to be loaded: pickled while the process is started, for descriptors pass then only."""

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
    """Loads each in one fresh process. What comes after the end of that process has the failure that it ended."""
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
    """The parts of an object that are objects by themselves and were not met before: one level down."""
    for child in search.Walk().children(node):
        if type(child.value) not in _ATOMS and id(child.value) not in met:
            met[id(child.value)] = child.value
            yield child


def _culprits(nodes: Sequence[search.Node], method: str, met: dict[int, Any]) -> Iterator[tuple[search.Node, _Failure]]:
    """The smallest parts that do not come back: where all parts of an object do, it is the object."""
    for node, failure in _failures(nodes, method):
        inner = list(_culprits(list(_children(node, met)), method, met))
        yield from inner or [(node, failure)]


def _failures(nodes: Sequence[search.Node], method: str) -> Iterator[tuple[search.Node, _Failure]]:
    rest = list(nodes)
    while rest:
        answers = _try([node.value for node in rest], method)
        yield from ((node, failure) for node, failure in zip(rest, answers, strict=False) if failure is not None)
        rest = rest[len(answers) :]


def findings(parts: Sequence[tuple[str, Any]], method: str) -> tuple[Finding, ...]:
    """What pickles and does not load again."""
    roots = [search.Node(value, None, (), name) for name, value in parts]
    found = []
    for node, failure in _culprits(roots, method, {id(root.value): root.value for root in roots}):
        owner = next((one for one in node.owners() if source_lines.is_users(type(one[0]))), None)
        where = (
            failure.where
            or (source_lines.of_attribute(*owner) if owner else "")
            or source_lines.of_class(type(node.value))
        )
        reason = f"it pickles, and does not load again: {failure.text}"
        found.append(Finding(node.path(), reasons.type_name(node.value), reason, where, _fix(node.value)))
    return tuple(found)


def _fix(value: Any) -> str:
    if is_a(value, BaseException):
        return "hand all arguments of __init__ on to super().__init__, or give it a __reduce__"
    if lookup.static(type(value), "__setstate__") is not None:
        return "look at its __setstate__: it gets what __getstate__ returned, in an object that __init__ has not seen"
    return "give it a __reduce__ whose parts make it anew, or import what it needs where its class is defined"

# SPDX-License-Identifier: Apache-2.0
"""Explains why the workers of a loader cannot be started: lists every object that cannot be pickled.

The iterators of both loaders start their engine with `started`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable
from typing import Any, TypeVar

from headrace._base import exception_text, lookup
from headrace._base.help_key import help_on
from headrace._base.warn import warn_user
from headrace._loader.start import contexts

_ARGUMENTS = ("dataset", "collate_fn", "worker_init_fn", "on_bad_sample")
_ADVICE = "  headrace doctor YOUR_MODULE:MAKE_DATASET      shows this without starting a training run"
_Made = TypeVar("_Made")


def parts_of_loader(loader: Any) -> list[tuple[str, Any]]:
    """Returns the objects that the workers of a loader get, with the names of its arguments."""
    found = ((name, lookup.attribute(loader, name)) for name in _ARGUMENTS)
    return [(name, value) for name, value in found if value is not None]


def _and(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _report_on(parts: list[tuple[str, Any]], method: str) -> Any:
    """Returns the doctor's report, or None if the doctor finds no object that cannot be pickled."""
    from headrace._pickles import check  # imported here because a run that starts does not need it

    report = check.what_is_in_the_way(check.check_parts, parts, method, "loader")
    if report is None:
        return None
    names = [name for name, _ in parts if any(_is_below(one.path, name) for one in report.errors)]
    return check.with_subject(report, _and(names)) if names else report


def _is_below(path: str, name: str) -> bool:
    return path == name or path.startswith((f"{name}.", f"{name}[", f"list({name}"))


def explain(error: Exception, report: Any, page: str) -> None:
    """Adds the report to an exception, with advice and the name of its page: as a note, or to its message if there are
    no notes (Python 3.10), and as its attribute headrace_report."""
    attach(error, report, f"\n\n{_ADVICE}\n {page}")


def attach(error: Exception, report: Any, advice: str = "") -> None:
    """Adds a report to an exception, as explain does."""
    with contextlib.suppress(Exception):  # some exception classes refuse new attributes
        error.headrace_report = report  # type: ignore[attr-defined]
    exception_text.add_text(error, f"headrace: {report}{advice}")


def name_sampler(batch_sampler: Any, sampler: Any) -> str:
    """Names the argument that indices come from, and its class."""
    name, value = ("sampler", sampler) if batch_sampler is None else ("batch_sampler", batch_sampler)
    return f"{name}, {'an' if type(value).__name__[0] in 'aeiouAEIOU' else 'a'} {type(value).__name__}"


def is_explained(error: Exception) -> bool:
    """Returns True if an exception has a report of the doctor."""
    return exception_text.remark(error, "headrace_report") is not None


def started(start: Callable[[bool], _Made], parts: list[tuple[str, Any]], method: str, repair: str | None) -> _Made:
    """Returns what start(False) returns. If that fails because one of the parts cannot be pickled, its exception gets a
    report on every object that cannot. With `repair`, start(True) is called instead, which pickles these objects so
    that the worker can make them again (see repaired_pickle)."""
    is_without_file = method != "fork" and not contexts.main_has_file() and not _is_importing_main()
    if is_without_file and (lost := _lost_with_main(parts, method)) is not None:
        if repair is not None and all(one.repair for one in lost.errors):
            return _started_repaired(start, parts, method, lost)
        error = RuntimeError("headrace: workers cannot be started: they would not find what is defined in __main__")
        explain(error, lost, help_on("notebook-classes"))
        try:
            raise error
        finally:
            del error  # this frame is in its traceback: a cycle would keep the loader
    try:
        return start(False)
    except Exception as error:
        report = _report_on(parts, method) if method != "fork" else None
        if report is None:
            raise
        if repair is None or not any(one.repair for one in report.errors):
            explain(error, report, help_on("pickle"))
            raise
    return _started_repaired(start, parts, method, report)


def _is_importing_main() -> bool:
    """Returns True in a worker that imports a script without a main guard, which multiprocessing's own error names."""
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


def _lost_with_main(parts: list[tuple[str, Any]], method: str) -> Any:
    """Returns a report on the classes and functions of a main module without a file, which can be pickled, and which a
    worker would not find: it would end before its first task. None: there is no such object."""
    from headrace._pickles import check

    report = check.what_is_in_the_way(check.check_parts, parts, method, "loader")
    if report is None or not any(check.is_lost_with_main(one) for one in report.errors):
        return None
    names = [name for name, _ in parts if any(_is_below(one.path, name) for one in report.errors)]
    return check.with_subject(report, _and(names)) if names else report


def _started_repaired(start: Callable[[bool], _Made], parts: Any, method: str, report: Any) -> _Made:
    from headrace._pickles import check, repairs

    try:
        made = start(True)
    except Exception as error:
        explain(error, check.without(report, repairs.remedied(report)) or report, help_on("pickle"))
        raise
    warn_user(repairs.warning(repairs.remedied(report)))
    return made


def repaired_pickle(value: Any) -> Any:
    """Wraps a value so that it is pickled as repair="auto" does."""
    from headrace._pickles import repairs

    return repairs.RepairedPickle(value)


start_method_of = contexts.start_method_of

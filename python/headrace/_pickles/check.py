# SPDX-License-Identifier: Apache-2.0
"""headrace.doctor.check: searches an object for what cannot be pickled, tries to pickle it, and makes a report.

The engine calls it too, to explain why workers could not be started or a batch could not be sent.
"""

from __future__ import annotations

import dataclasses
import gc
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headrace import _core
from headrace._base import lookup, shared_files
from headrace._base.lookup import is_a
from headrace._pickles import dry_run, expressions, main_script, reasons, reloading, reports, search, source_lines
from headrace._pickles.reports import Finding, Report

METHODS = ("spawn", "forkserver", "fork")
_MAX_ALIKE = 8  # objects with the same cause that are listed one by one
_FIX_OF_INDEX = (
    "let the sampler give plain values (numbers, texts, tuples of them), and make everything else in the dataset"
)
_VIEWS = ("dict_keys", "dict_values", "dict_items")
_FIRST_LOOK = 500  # objects that are reduced one by one before the pickler, which is faster, is tried

Parts = Sequence[tuple[str, Any]]


def is_loader(value: Any) -> bool:
    """Returns True for the loaders of torch and headrace. Workers get their parts."""
    own = _core.Walker.attributes(value)
    is_iterable = not is_a(value, type) and lookup.static(type(value), "__iter__") is not None
    return is_iterable and own is not None and {"dataset", "collate_fn", "worker_init_fn"} <= own.keys()


def parts_of(value: Any, name: str) -> Parts:
    """Returns what is sent to workers, with names: the parts of a loader, or the object itself."""
    if not is_loader(value):
        return [(name, value)]
    names = ("dataset", "collate_fn", "worker_init_fn", "on_bad_sample")
    return [(f"{name}.{one}", vars(value)[one]) for one in names if vars(value).get(one) is not None]


def check(obj: Any, method: str = "spawn", name: str = "obj", *, load: bool = False) -> Report:
    """Lists everything in an object that cannot be pickled for a worker process. It does not change the object.

    Args:
        obj: any object; a loader is checked part by part: dataset, collate_fn, worker_init_fn, on_bad_sample, and the
            indices of a sampler that is a list. None are drawn.
        method: the start method, "spawn", "forkserver" or "fork". With fork nothing is pickled; a warning names each
            file, archive, database, socket and pipe that is open, because forked workers would share it.
        name: what paths start with.
        load: also load the pickle, in a process that is started by this method: runs the code that loading runs.

    Raises:
        ValueError: if there is no such method.
    """
    if method not in METHODS:
        raise ValueError(f"method should be one of {', '.join(map(repr, METHODS))}, but got {method!r}")
    report = check_parts(parts_of(obj, name), method, name, load=load)
    found = _of_samplers(obj, name) if is_loader(obj) else ()
    if method == "fork":
        found += _of_shared_files(obj, name)
    return dataclasses.replace(report, findings=(*report.findings, *found)) if found else report


def check_parts(parts: Parts, method: str, name: str, *, load: bool = False, subject: str = "") -> Report:
    """Checks several objects that are sent together, as check() does."""
    if method == "fork":
        return Report(name, method, _findings(_search(parts, inherits=True)), subject=subject)
    walk = search.Walk()
    walk.start(parts)
    is_through = walk.go_on(_FIRST_LOOK)
    if is_through and (found := _findings(walk)) and any(map(_prevents_pickling if load else _is_error, found)):
        return Report(name, method, found, subject=subject)
    tried = dry_run.attempt(parts)
    needs_look = tried.has_warnings or (tried.names_main and not main_script.is_whole())
    if not is_through and (tried.error is not None or needs_look):
        while not walk.go_on(_FIRST_LOOK):
            pass
    found = _findings(walk) if walk.problems else ()
    if tried.error is not None:
        found = (*found, *_unexplained(found, tried.error, walk, parts))
    if load and not any(map(_prevents_pickling, found)):
        known = {one.path for one in found if _is_error(one)}
        found += tuple(one for one in reloading.findings(parts, method) if one.path not in known)
    sizes = () if any(map(_is_error, found)) else tried.sizes
    return Report(name, method, found, sizes, tried.seconds if sizes else 0.0, subject)


def _is_error(finding: Finding) -> bool:
    return finding.severity == "error"


def _prevents_pickling(finding: Finding) -> bool:
    """Returns True for an error, unless only unpickling fails: then other objects can still be tried."""
    return _is_error(finding) and not finding.reason.startswith(reasons.ONLY_UNPICKLING)


def is_lost_with_main(finding: Finding) -> bool:
    """Returns True for a class or function of a main module that is not a file."""
    return finding.reason.endswith(reasons.NO_FILE)


def check_batch(batch: Any) -> Report:
    """Checks what a worker sends to the trainer. Unlike arguments of a process, it cannot contain locks and queues."""
    return _check_message(batch, reports.BATCH)


def check_indices(indices: Any) -> Report:
    """Checks what a sampler draws and the trainer sends to a worker."""
    report = _check_message(indices, reports.INDICES)
    return dataclasses.replace(report, findings=_with_fix_of_indices(report.findings))


def what_is_in_the_way(check: Callable[..., Report], *arguments: Any) -> Report | None:
    """Returns the report of a check after something has failed; None if the check finds no error."""
    try:
        report = check(*arguments)
    except Exception:  # raised by a hook of a user's class; it must not replace the exception that is explained
        return None
    return None if report.ok else report


def _with_fix_of_indices(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(dataclasses.replace(one, fix=_FIX_OF_INDEX, repair="") for one in findings)


def _of_samplers(loader: Any, name: str) -> tuple[Finding, ...]:
    """Returns problems of the samplers. It draws no indices, because that may use up an iterator or change the random
    numbers of the run. Each index is sent to a worker, whatever the start method."""
    own = _core.Walker.attributes(loader) or {}
    samplers = [(f"{name}.{one}", own.get(one)) for one in ("sampler", "batch_sampler")]
    inner = (_core.Walker.attributes(own.get("batch_sampler")) or {}).get("sampler")
    if inner is not own.get("sampler"):
        samplers.append((f"{name}.batch_sampler.sampler", inner))
    found: list[Finding] = []
    for path, sampler in samplers:
        if type(sampler) in (list, tuple):
            found += _with_fix_of_indices(_findings(_search([(path, sampler)], is_batch=True)))
        elif lookup.static(type(sampler), "__next__") is not None:
            reason = "an iterator gives its indices only once: the second epoch is empty"
            fix = "pass a list of it, or an object whose __iter__ returns a new iterator each time"
            found.append(Finding(path, reasons.type_name(sampler), reason, "", fix, "warning"))
    return tuple(found)


def _of_shared_files(obj: Any, name: str) -> tuple[Finding, ...]:
    """Returns what an object or a loader has open that forked workers would share."""
    roots, workers = {"dataset": obj}, None
    if is_loader(obj):
        roots = {path.removeprefix(f"{name}."): value for path, value in parts_of(obj, name)}
        workers = vars(obj).get("num_workers")
    found = []
    for one in shared_files.find(roots, workers):
        root = next((root for root in roots if re.match(rf"{root}\b", one.path)), None)
        path = one.path
        if root is not None:  # else it is a variable of a module
            path = f"{name}.{path}" if is_loader(obj) else f"{name}{path.removeprefix(root)}"
        kind, _, what = one.what.partition(", ")
        reason = f"forked workers share it ({what}): one that reads there moves the position of all, so samples may be "
        fix = shared_files.how_to_open(one)
        found.append(Finding(path, kind, f"{reason}wrong without an error", "", fix, "warning"))
    return tuple(found)


def _check_message(value: Any, kind: str) -> Report:
    found = _findings(_search([(kind, value)], is_batch=True))
    return Report(kind, kind, tuple(dataclasses.replace(one, fix=_fix_in_batch(one.fix), repair="") for one in found))


def _fix_in_batch(fix: str) -> str:
    return fix if "detach" in fix else "leave it out, or send the part that is needed as plain values"


def _search(parts: Parts, **options: bool) -> search.Walk:
    walk = search.Walk(**options)
    walk.start(parts)
    while not walk.go_on(_FIRST_LOOK):
        pass
    return walk


def _findings(walk: search.Walk) -> tuple[Finding, ...]:
    """Returns findings in the order of their paths. Of many with the same cause it lists the first only. It leaves out
    objects that can be pickled by themselves."""
    causes: dict[Any, list[search.Problem]] = {}
    for one in walk.problems:
        causes.setdefault(_cause_of(one), []).append(one)
    more = {id(some[0]): len(some) - 1 for some in causes.values() if len(some) > _MAX_ALIKE}
    dropped = {id(one) for some in causes.values() if len(some) > _MAX_ALIKE for one in some[1:]}
    listed = (one for one in walk.problems if id(one) not in dropped)
    return tuple(_finding(one, more.get(id(one), 0)) for one in listed if walk.confirms(one))


def _cause_of(one: search.Problem) -> Any:
    return one.node.name, one.severity, expressions.shape(one.node.way()), type(one.node.value), one.explanation


def _finding(one: search.Problem, more: int) -> Finding:
    node, explanation = one.node, one.explanation
    where = explanation.where or _where_set(node)
    kind = reasons.type_name(node.value)
    reason = explanation.reason.replace("a dict", _dict_of(node), 1) if kind in _VIEWS else explanation.reason
    return Finding(node.path(), kind, reason, where, explanation.fix, one.severity, more, explanation.repair)


def _dict_of(view: search.Node) -> str:
    """Returns the path of the dict of a view, if that dict is another attribute of the same object; else "a dict"."""
    owner, name = next(view.owners(), (None, ""))
    inside, path = gc.get_referents(view.value), view.path()
    for other, value in (_core.Walker.attributes(owner) or {}).items() if path.endswith(f".{name}") else ():
        if any(value is one for one in inside):
            return f"{path.removesuffix(name)}{other}"
    return "a dict"


def _where_set(node: search.Node) -> str:
    """Returns the line that assigns the last attribute on the path whose class is not one of Python's own."""
    owner = next((one for one in node.owners() if source_lines.is_users(type(one[0]))), None)
    return source_lines.of_attribute(*owner) if owner else ""


def _unexplained(found: Iterable[Finding], error: Exception, walk: search.Walk, parts: Parts) -> Iterable[Finding]:
    """Yields a finding if the pickler fails but the search has found no reason."""
    if any(map(_is_error, found)):
        return
    if isinstance(error, RecursionError) and (deep := walk.too_deep()):
        yield _finding(deep, 0)
        return
    name, value = next(((name, value) for name, value in parts if dry_run.error_of(value)), parts[0])
    explanation = reasons.of_reduction(value, error)
    yield Finding(name, reasons.type_name(value), explanation.reason, explanation.where, explanation.fix)


def with_subject(report: Report, subject: str) -> Report:
    """Returns the report with other words for what is sent."""
    return dataclasses.replace(report, subject=subject)


def without(report: Report, findings: Iterable[Finding]) -> Report | None:
    """Returns the report without these findings; None if no error is left."""
    left = tuple(one for one in report.findings if one not in findings)
    rest = dataclasses.replace(report, findings=left)
    return None if rest.ok else rest

# SPDX-License-Identifier: Apache-2.0
"""Puts the search and the try together into a report."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headrace import _core
from headrace._inspect import lookup
from headrace._inspect.lookup import is_a
from headrace.doctor.pickle import dry_run, expressions, main_script, reasons, reloading, reports, search, source_lines
from headrace.doctor.pickle.reports import Finding, Report

METHODS = ("spawn", "forkserver", "fork")
_MOST_ALIKE = 8  # with the same cause that are told one by one
_FIX_OF_INDEX = "let the sampler give plain values (numbers, texts, tuples of them), and make the rest in the data set"
_VIEWS = ("dict_keys", "dict_values", "dict_items")
_FIRST_LOOK = 500  # objects to reduce one by one before the pickler, which is faster, is asked whether it matters

Parts = Sequence[tuple[str, Any]]


def is_loader(value: Any) -> bool:
    """Torch's or headrace's, whose parts are what workers get."""
    own = _core.Walker.attributes(value)
    is_iterable = not is_a(value, type) and lookup.static(type(value), "__iter__") is not None
    return is_iterable and own is not None and {"dataset", "collate_fn", "worker_init_fn"} <= own.keys()


def parts_of(value: Any, name: str) -> Parts:
    """What is sent to workers of it, by name: of a loader what its workers get, else the object itself."""
    if not is_loader(value):
        return [(name, value)]
    names = ("dataset", "collate_fn", "worker_init_fn", "on_bad_sample")
    return [(f"{name}.{one}", vars(value)[one]) for one in names if vars(value).get(one) is not None]


def check(obj: Any, method: str = "spawn", name: str = "obj", *, load: bool = False) -> Report:
    """Looks for everything that keeps an object from being sent to a worker process. The object is not changed.

    Args:
        obj: any object; a loader is checked part by part: data set, collate_fn, worker_init_fn, on_bad_sample, and the
            indices of a sampler that is a list. None are drawn.
        method: the start method, "spawn", "forkserver" or "fork". With fork nothing is pickled.
        name: what paths start with.
        load: also load the pickle, in a process that is started by this method: runs the code that loading runs.

    Raises:
        ValueError: for a method that there is none of.
    """
    if method not in METHODS:
        raise ValueError(f"method should be one of {', '.join(map(repr, METHODS))}, but got {method!r}")
    report = check_parts(parts_of(obj, name), method, name, load=load)
    if not is_loader(obj) or not (found := _of_samplers(obj, name)):
        return report
    return dataclasses.replace(report, findings=(*report.findings, *found))


def check_parts(parts: Parts, method: str, name: str, *, load: bool = False, subject: str = "") -> Report:
    """As check, for several objects that are sent together."""
    if method == "fork":
        return Report(name, method, _findings(_search(parts, inherits=True)), subject=subject)
    walk = search.Walk()
    walk.start(parts)
    is_through = walk.go_on(_FIRST_LOOK)
    if is_through and (found := _findings(walk)) and any(one.severity == "error" for one in found):
        return Report(name, method, found, subject=subject)
    tried = dry_run.attempt(parts)
    needs_look = tried.has_warnings or (tried.names_main and not main_script.is_whole())
    if not is_through and (tried.error is not None or needs_look):
        while not walk.go_on(_FIRST_LOOK):
            pass
    found = _findings(walk) if walk.culprits else ()
    if tried.error is not None:
        found = (*found, *_unexplained(found, tried.error, walk, parts))
    if load and not any(one.severity == "error" for one in found):
        found += reloading.findings(parts, method)
    sizes = () if any(one.severity == "error" for one in found) else tried.sizes
    return Report(name, method, found, sizes, tried.seconds if sizes else 0.0, subject)


def check_batch(batch: Any) -> Report:
    """As check, for what a worker sends to the trainer: locks and queues do not pass there."""
    return _check_message(batch, reports.BATCH)


def check_indices(indices: Any) -> Report:
    """As check, for what a sampler draws and the trainer sends to a worker."""
    report = _check_message(indices, reports.INDICES)
    return dataclasses.replace(report, findings=_with_fix_of_indices(report.findings))


def what_is_in_the_way(check: Callable[..., Report], *arguments: Any) -> Report | None:
    """What a check reports of something that has failed; None where it finds nothing."""
    try:
        report = check(*arguments)
    except Exception:  # the hooks of users' classes run: what they do must not hide what failed
        return None
    return None if report.ok else report


def _with_fix_of_indices(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(dataclasses.replace(one, fix=_FIX_OF_INDEX, repair="") for one in findings)


def _of_samplers(loader: Any, name: str) -> tuple[Finding, ...]:
    """What goes wrong with the indices, as far as can be seen without drawing any: that may use up an iterator, or the
    random numbers of the run. Each index is sent to a worker, whatever the start method."""
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
            reason = "an iterator gives its indices once: the second epoch is empty"
            fix = "pass a list of it, or an object whose __iter__ begins anew each time"
            found.append(Finding(path, reasons.type_name(sampler), reason, "", fix, "warning"))
    return tuple(found)


def _check_message(value: Any, kind: str) -> Report:
    found = _findings(_search([(kind, value)], is_batch=True))
    return Report(kind, kind, tuple(dataclasses.replace(one, fix=_fix_in_batch(one.fix), repair="") for one in found))


def _fix_in_batch(fix: str) -> str:
    return fix if "detach" in fix else "leave it out, or send what is needed of it as plain values"


def _search(parts: Parts, **options: bool) -> search.Walk:
    walk = search.Walk(**options)
    walk.start(parts)
    while not walk.go_on(_FIRST_LOOK):
        pass
    return walk


def _findings(walk: search.Walk) -> tuple[Finding, ...]:
    """In the order of places; of many with the same cause the first. Culprits that pickle after all are left out."""
    causes: dict[Any, list[search.Culprit]] = {}
    for one in walk.culprits:
        causes.setdefault(_cause_of(one), []).append(one)
    more = {id(some[0]): len(some) - 1 for some in causes.values() if len(some) > _MOST_ALIKE}
    dropped = {id(one) for some in causes.values() if len(some) > _MOST_ALIKE for one in some[1:]}
    told = (one for one in walk.culprits if id(one) not in dropped)
    return tuple(_finding(one, more.get(id(one), 0)) for one in told if walk.confirms(one))


def _cause_of(one: search.Culprit) -> Any:
    return one.node.name, one.severity, expressions.shape(one.node.way()), type(one.node.value), one.verdict


def _finding(one: search.Culprit, more: int) -> Finding:
    node, verdict = one.node, one.verdict
    where = verdict.where or _where_set(node)
    kind = reasons.type_name(node.value)
    reason = verdict.reason.replace("a dict", _dict_of(node), 1) if kind in _VIEWS else verdict.reason
    return Finding(node.path(), kind, reason, where, verdict.fix, one.severity, more, verdict.repair)


def _dict_of(view: search.Node) -> str:
    """The path of the dict that a view is of, if it is another attribute of the same object."""
    owner, name = next(view.owners(), (None, ""))
    inside, path = gc.get_referents(view.value), view.path()
    for other, value in (_core.Walker.attributes(owner) or {}).items() if path.endswith(f".{name}") else ():
        if any(value is one for one in inside):
            return f"{path.removesuffix(name)}{other}"
    return "a dict"


def _where_set(node: search.Node) -> str:
    """Where the last attribute on the way is assigned, of those that are no business of Python's own classes."""
    owner = next((one for one in node.owners() if source_lines.is_users(type(one[0]))), None)
    return source_lines.of_attribute(*owner) if owner else ""


def _unexplained(found: Iterable[Finding], error: Exception, walk: search.Walk, parts: Parts) -> Iterable[Finding]:
    """The pickler fails, and the search does not say by what."""
    if any(one.severity == "error" for one in found):
        return
    if isinstance(error, RecursionError) and (deep := walk.too_deep()):
        yield _finding(deep, 0)
        return
    name, value = next(((name, value) for name, value in parts if dry_run.error_of(value)), parts[0])
    verdict = reasons.of_reduction(value, error)
    yield Finding(name, reasons.type_name(value), verdict.reason, verdict.where, verdict.fix)


def with_subject(report: Report, subject: str) -> Report:
    """The report, whose text names what is sent by these words."""
    return dataclasses.replace(report, subject=subject)


def without(report: Report, findings: Iterable[Finding]) -> Report | None:
    """The report without these; None where no error is left."""
    left = tuple(one for one in report.findings if one not in findings)
    rest = dataclasses.replace(report, findings=left)
    return None if rest.ok else rest

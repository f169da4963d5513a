# SPDX-License-Identifier: Apache-2.0
"""Walks through an object as pickle does, and continues after each object that cannot be pickled, to find all of them.

_core.Walker walks through containers, plain instances and reductions in C, with its own stack. It passes the rest to
this file: functions and classes, well-known classes, leaves, and reductions that pickle refuses. The walks of
_base/growth.py and frozen/_search.py are different: they do not call reductions, and stop at a few levels.
"""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from headrace import _core
from headrace._base import lookup
from headrace._base.lookup import is_a
from headrace._base.units import in_units
from headrace._pickles import dry_run, expressions, known_classes, reasons, reductions, rules
from headrace._pickles.expressions import Steps

_MAX_DEEP = 8
_LOOKS_OF_A_PAUSE = 100  # the walker's work between two pauses takes as long as this many looks
_END: Any = object()
DEEP = 300  # levels of nesting; at more, pickle may reach the recursion limit
_MAPPED_FIX = "keep its path, and map it in the worker; or use headrace.freeze(numpy.asarray(it)), one copy for all"


class Node:
    """An object, and the steps to it from the object called `name`. `outcome`: its reduction, or the exception that its
    reduction raised, if that was tried."""

    __slots__ = ("depth", "name", "outcome", "parent", "steps", "value")

    def __init__(self, value: Any, parent: Node | None, steps: Steps, name: str = "", outcome: Any = None) -> None:
        self.value = value
        self.parent = parent
        self.steps = steps
        self.outcome = outcome
        self.name: str = parent.name if parent else name
        self.depth: int = (parent.depth if parent else 0) + len(steps)

    def line(self) -> list[Node]:
        """Returns the nodes from the root to this one."""
        nodes = []
        node: Node | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def way(self) -> Steps:
        return tuple(itertools.chain.from_iterable(node.steps for node in self.line()))

    def path(self) -> str:
        path = self.name
        for node in self.line()[1:]:
            assert node.parent is not None
            path = expressions.expression(path, node.steps, node.parent.value)
        return path

    def owners(self) -> Iterator[tuple[Any, str]]:
        """Yields (object, attribute) for the attributes on the path, the last one first."""
        for node in reversed(self.line()[1:]):
            assert node.parent is not None
            yield from reversed(expressions.owners(node.parent.value, node.steps))


class Problem(NamedTuple):
    """An object that cannot be pickled. `is_sure`: this is certain and does not have to be tried."""

    node: Node
    explanation: reasons.Explanation
    severity: str = "error"
    is_sure: bool = False


class _Names:
    """Says which functions and classes can be pickled by their names. It tries each one once."""

    def __init__(self, is_batch: bool) -> None:
        self._is_batch = is_batch
        self._errors: dict[
            int, tuple[Any, BaseException | None]
        ] = {}  # holds the object too, so that its address is not used again

    def error_of(self, named: Any) -> BaseException | None:
        if id(named) not in self._errors:
            error = dry_run.error_of(named, self._is_batch)
            if error is not None:
                error.__traceback__ = error.__context__ = None  # their frames refer to this table
            self._errors[id(named)] = (named, error)
        return self._errors[id(named)][1]

    def is_mains(self, value: Any) -> bool:
        return not self._is_batch and reasons.is_mains(value)

    def explain(self, named: Any) -> reasons.Explanation | None:
        """Returns why a worker does not find it by its name; None if it does."""
        if (error := self.error_of(named)) is not None:
            return reasons.of_name(named, error)
        return reasons.of_main(named) if self.is_mains(named) else None

    def finds(self, named: Any) -> bool:
        return self.explain(named) is None


class Walk:
    """One search. No part of it refers to the walk itself, so that what it holds is freed without a garbage collection.
    `is_batch`: the object is sent from a worker to the trainer. `inherits`: workers are forked; nothing is pickled."""

    def __init__(self, is_batch: bool = False, inherits: bool = False) -> None:
        self.problems: list[Problem] = []
        self._is_batch = is_batch
        self._inherits = inherits
        self._table = rules.Table(rules.Weights(), is_batch)
        self._names = _Names(is_batch)
        if inherits:
            self._kind_of: Callable[[type], Any] = functools.partial(_inherited_kind, table=self._table)
        else:
            self._kind_of = functools.partial(rules.kind_of, table=self._table, is_by_name=self._names.finds)
        self._walker = _core.Walker(self._kind_of, DEEP)
        self._kept: list[Any] = []  # keeps results of reductions alive, so that an address is not used twice
        self._stack: list[Iterator[Node | None]] = []  # what is left of each level
        self._parts_of_last: tuple[Any, reductions.Parts] = (None, reductions.Parts(None))
        self._deep: list[list[Node]] = []
        self._deep_met = 0
        self._reported: set[int] = set()
        self._idle_classes = frozenset() if inherits else rules.idle_classes()

    # ---- the search ----

    def start(self, parts: Iterable[tuple[str, Any]]) -> None:
        found = [self._expand(Node(value, None, (), name)) for name, value in parts]
        self._stack = [itertools.chain.from_iterable(found)]

    def go_on(self, most: int) -> bool:
        """Looks at up to `most` objects. Returns False if there are more."""
        with dry_run.setting(self._is_batch):
            while self._stack and most > 0:
                node = next(self._stack[-1], _END)
                if node is _END:
                    self._stack.pop()
                elif node is None:
                    most -= _LOOKS_OF_A_PAUSE
                else:
                    self._stack.append(self._look(node))
                    most -= 1
        return not self._stack

    def _expand(self, parent: Node, *reduction: Any) -> Iterator[Node | None]:
        """Yields the parts of an object or its reduction that need a look; there may be millions. Yields None after the
        walker has reduced many objects."""
        deep = self._walker.deep
        for found in itertools.chain(self._walker.expand(parent.value, parent.depth, *reduction), [None]):
            for steps, objects in deep[self._deep_met :]:
                own = [self._node(parent, steps[:number], objects, one) for number, one in enumerate(objects)]
                self._deep.append([*parent.line(), *own])
            self._deep_met = len(deep)
            if found is None:
                yield None
            elif not self._is_idle(found[1]):
                steps, value, outcome, objects_on_way = found
                yield self._node(parent, steps, objects_on_way or (), value, outcome)

    def _node(self, parent: Node, steps: Steps, objects: tuple[Any, ...], value: Any, outcome: Any = None) -> Node:
        """Returns the node of what the walker found, with nodes for the objects that it reduced on the way."""
        on_way = (*objects[: len(steps)], value)
        taken: list[expressions.Step] = []
        at = 0
        while at < len(steps):
            if steps[at][0] != expressions.PART:
                taken.append(steps[at])
                at += 1
                continue
            owner = on_way[at]
            if owner is not parent.value or taken:
                parent = Node(owner, parent, tuple(taken))
            named, count = self._parts_for(owner).named(steps[at:], on_way[at + 1 :])
            taken = list(named)
            at += count
        return Node(value, parent, tuple(taken), outcome=outcome)

    def _parts_for(self, owner: Any) -> reductions.Parts:
        if self._parts_of_last[0] is not owner:
            self._parts_of_last = owner, reductions.Parts(owner)
        return self._parts_of_last[1]

    def _is_idle(self, value: Any) -> bool:
        """Returns True for leaves that need no look; there may be many of them."""
        return type(value) in self._idle_classes and rules.is_idle(value)

    def _look(self, node: Node) -> Iterator[Node | None]:
        value = node.value
        cls = type(value)
        if node.parent and node.parent.depth < DEEP <= node.depth and len(self._deep) < _MAX_DEEP:
            self._deep.append(node.line())
        if self._inherits:
            return self._look_inherited(node)
        if cls is types.FunctionType or cls is type or (issubclass(cls, type) and cls not in self._table):
            self._report_name(node, value)
            return iter(())
        if rules.is_mapped(value):
            self._warn_of_mapped(node)
        try:
            return self._parts(node, self._reduction_of(node))
        except Exception as error:
            self._report(node, reasons.of_reduction(value, error))
            return iter(())

    def _reduction_of(self, node: Node) -> Any:
        if isinstance(node.outcome, Exception):
            raise node.outcome
        return self._table[type(node.value)](node.value) if node.outcome is None else node.outcome

    # ---- names ----

    def _report_name(self, node: Node, named: Any) -> bool:
        """Reports a function or class (the node, or the class of its value) that a worker does not find by its name."""
        explanation = self._names.explain(named)
        if explanation is None:
            return False
        if named is not node.value:
            explanation = reasons.of_class(named, explanation)
        self._report(node, explanation, is_sure=self._names.error_of(named) is None)
        return True

    def _look_at_text(self, node: Node) -> None:
        """Handles a reduction that is a string: the object is pickled by that name."""
        error = dry_run.error_of(node.value, self._is_batch)
        explanation = None
        if error is not None:
            explanation = reasons.of_name(node.value, error)
        elif self._names.is_mains(node.value):
            explanation = reasons.of_main(node.value)
        if explanation:
            self._report(node, explanation, is_sure=True)

    # ---- the parts of a reduction ----

    def _parts(self, node: Node, reduction: Any) -> Iterator[Node | None]:
        if isinstance(reduction, str):
            self._look_at_text(node)
            return iter(())
        reductions.check(node.value, reduction)
        function, arguments, *others = reduction
        self._kept.append(reduction)
        cls = type(node.value)
        if function is cls or any(one is cls for one in arguments):
            if self._report_name(node, cls):
                return iter(())
        explanation = reasons.of_exception(function, arguments)
        if explanation is not None:
            self._report(node, explanation, is_sure=True)
        return self._expand(node, (function, tuple(arguments), *others))

    # ---- what is found ----

    def _report(self, node: Node, explanation: reasons.Explanation, is_sure: bool = False) -> None:
        whole = next((above for above in node.line()[:-1] if known_classes.is_whole(type(above.value))), node)
        if whole is not node:
            found = known_classes.known(type(whole.value))
            assert found is not None
            explanation = reasons.Explanation(found.reason, found.fix, "", found.repair)
        if id(whole.value) not in self._reported:
            self._reported.add(id(whole.value))
            self.problems.append(Problem(whole, explanation, is_sure=is_sure))

    def confirms(self, problem: Problem) -> bool:
        """Returns True if the object alone cannot be pickled. So no object is reported that can be."""
        if problem.is_sure or problem.severity != "error":
            return True
        return dry_run.error_of(problem.node.value, self._is_batch) is not None

    def _warn_of_mapped(self, node: Node) -> None:
        size = in_units(node.value.nbytes)
        reason = f"pickling an array over a file copies it: each worker receives {size}"
        self.problems.append(Problem(node, reasons.Explanation(reason, _MAPPED_FIX), "warning"))

    def _look_inherited(self, node: Node) -> Iterator[Node | None]:
        """Looks for what a forked process cannot use."""
        value = node.value
        if _is_cudas(value):
            reason = "a CUDA object: a forked process cannot use CUDA after this process has initialised it"
            fix = 'make it in the worker, or use multiprocessing_context="spawn"'
            self.problems.append(Problem(node, reasons.Explanation(reason, fix), is_sure=True))
        elif is_a(value, (dict, list, tuple)):
            parts = list(reductions.Parts(value).of_contents())
            return itertools.chain.from_iterable([self._expand(Node(child, node, steps)) for steps, child in parts])
        return iter(())

    def children(self, node: Node) -> list[Node]:
        """Returns the direct parts of a container, an instance or a reduction."""
        value = node.value
        with dry_run.setting(self._is_batch):
            if _is_gone_through(self._kind_of, type(value)):
                return [Node(child, node, (step,)) for step, child in expressions.inside(value)]
            if is_a(value, (type, types.FunctionType)):
                return []
            reduction = self._table[type(value)](value)
            if isinstance(reduction, str):
                return []
            parts = reductions.Parts(value).all(*reduction)
            return [Node(child, node, steps) for steps, child in parts if child is not type(value)]

    # ---- nesting ----

    def too_deep(self) -> Problem | None:
        """Returns the first object that is nested too deep for pickle, or None."""
        for line in self._deep:
            kind = type(line[-1].value)
            for node in line:
                if type(node.value) is kind and isinstance(dry_run.error_of(node.value), RecursionError):
                    reason = f"nested deeper than pickle can follow ({kind.__name__} in {kind.__name__})"
                    fix = "keep the parts in one list and refer to them by index, or flatten them in __getstate__"
                    return Problem(node, reasons.Explanation(reason, fix), is_sure=True)
        return None


_CONTAINERS = (list, tuple, dict, set, frozenset)


def _is_gone_through(kind_of: Callable[[type], Any], cls: type) -> bool:
    """Returns True if instances are containers or plain, so that their reduction is not needed."""
    return cls in _CONTAINERS or type(kind_of(cls)) is tuple


def _inherited_kind(cls: type, table: rules.Table) -> Any:
    if table.rule_of(cls) is not None or "cuda" in str(getattr(cls, "__module__", "")):
        return None
    if issubclass(cls, (dict, list, tuple)):
        return None
    slots = rules.slots_of(cls)
    return True if slots is None or issubclass(cls, type) else slots


def _is_cudas(value: Any) -> bool:
    if type(value).__module__.startswith("torch.cuda"):
        return type(value).__name__ in ("Stream", "Event", "ExternalStream", "CUDAGraph")
    device = lookup.attribute(value, "device") if lookup.has_special(value, "untyped_storage") else None
    return getattr(device, "type", "") == "cuda"

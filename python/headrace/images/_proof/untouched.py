# SPDX-License-Identifier: Apache-2.0
"""Decides whether the result of a native transform may be a deferred tensor: only if nothing looks at it before the
loader has the sample.

All functions between the loader and the transform are on the stack then. Each of them has to be headrace's, or one that
only passes the result on (headrace.images._proof.passed_on), or a Compose whose last step gives the result.
"""

from __future__ import annotations

import os
import sys
from types import FrameType, FunctionType
from typing import Any

from headrace._base import lookup
from headrace._samples import deferred
from headrace._tensors import torch_names
from headrace.images._proof import passed_on

_READ = deferred.read.__code__
# Packages whose functions pass samples on, or ask for the values of those in them first.
_TRUSTED = (
    "headrace.images.",
    "headrace._samples.",
    "headrace._loader.worker.",
    "headrace._loader.trainer.",
    "headrace._loader.both.",
    deferred.DATASETS,
    "headrace.torch.",
)
_V1, _V2 = "torchvision.transforms.transforms.", "torchvision.transforms.v2._container."
COMPOSES = frozenset({_V1 + "Compose", _V2 + "Compose"})
APPLIES = frozenset({_V1 + "RandomApply", _V2 + "RandomApply"})
SEQUENTIAL = frozenset({"torch.nn.modules.container.Sequential"})
_CONTAINERS = COMPOSES | APPLIES | SEQUENTIAL
# Steps after the tail that do with a deferred tensor only what it answers as an ordinary one does.
_ERASING = frozenset({_V1 + "RandomErasing", "timm.data.random_erasing.RandomErasing"})


def class_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def is_as_written(cls: type) -> bool:  # shortcut: late-images
    """Returns False for a class that only has the name of the one in its module, and for one whose methods were
    exchanged."""
    if lookup.own_class(cls.__module__, cls.__qualname__) is not cls:
        return False
    space = vars(sys.modules[cls.__module__])
    return all(one.__globals__ is space for one in vars(cls).values() if type(one) is FunctionType)


def is_one_of(value: object, names: frozenset[str]) -> bool:
    """Returns True for an instance of one of these classes as its module has it. Subclasses do not count."""
    return class_name(value) in names and is_as_written(type(value))


def is_plain(value: object, names: frozenset[str]) -> bool:
    """Returns True for an instance of one of these classes that has no hooks, and no methods of its own."""
    if not is_one_of(value, names):
        return False
    has_hooks = torch_names.may_have_hooks(value)
    return not has_hooks and not any(callable(lookup.static(type(value), name)) for name in vars(value))


def touched_at() -> str:
    """Returns "" if every function between this call and the loader's reading of a batch passes the result on, else the
    place in the first one that may do more."""
    below, frame = None, sys._getframe(1)
    while frame is not None:
        if frame.f_code is _READ:
            return ""
        if not (_is_trusted(frame) or passed_on.is_passed_on(frame, below) or _is_at_its_end(frame, below)):
            place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} ({frame.f_code.co_name})"
            major, minor = passed_on.VERSION
            return (
                place if passed_on.is_known() else f"CPython {major}.{minor} is not known, so {place} counts as if it"
            )
        below, frame = frame, frame.f_back  # type: ignore[assignment]
    return "code outside a loader"


def _is_trusted(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and (name.startswith(_TRUSTED) or name == torch_names.FETCHERS)


def _is_at_its_end(frame: FrameType, below: FrameType | None) -> bool:
    """Returns True for a container of steps that is running the last of them, whose frame is the one below."""
    container = _first_argument(frame)
    if below is None or not is_one_of(container, _CONTAINERS) or not _is_method(frame, container):
        return False
    steps = list(container) if is_one_of(container, SEQUENTIAL) else list(container.transforms)
    step = _first_argument(below)
    while steps and steps[-1] is not step and is_plain(steps[-1], _ERASING):
        steps.pop()
    return bool(steps) and sum(one is step for one in steps) == 1 and steps[-1] is step


def _first_argument(frame: FrameType) -> Any:
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None


def _is_method(frame: FrameType, container: Any) -> bool:
    """Returns True if the frame is that of the function in the container's class which calls its steps."""
    functions = (vars(type(container)).get(name) for name in ("__call__", "forward"))
    return any(getattr(function, "__code__", None) is frame.f_code for function in functions)

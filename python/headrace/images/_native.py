# SPDX-License-Identifier: Apache-2.0
"""`images.native`: the transforms of torchvision and timm, with their last steps in C.

The user's own transforms run, on lazy images, so that they draw the same random numbers in the same order. Only the
tail, from ToTensor or ToImage on, is replaced by a NativeTail, and the transforms that reach into the pixels for what
can be noted (ColorJitter, Grayscale) by subclasses that note it.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image

from headrace._base.warn import warn_user
from headrace._tensors import torch_names
from headrace.images import _counts, _deferred, _jitter, _tables
from headrace.images._lazy import note_of
from headrace.images._note import Note
from headrace.images._proof import untouched

# Only containers of exactly these classes are entered: others may choose among their steps or count them. The steps of
# RandomApply are replaced one by one, and not merged.
_ENTERED = untouched.COMPOSES | untouched.APPLIES
_flatten = torch_names.find("torch.utils._pytree.tree_flatten")
_unflatten = torch_names.find("torch.utils._pytree.tree_unflatten")
_can_set_modules = torch_names.has("torch.nn.modules.module.Module._modules")
_can_nest = None not in (_flatten, _unflatten)


class NativeTail:
    """Some transforms at the end of a pipeline, done in C for images from `images.open`, and as they are for others."""

    def __init__(self, steps: Sequence[Any]) -> None:
        self.steps = list(steps)
        self._built: dict[Any, _tables.Table | None] = {}

    def __call__(self, *inputs: Any) -> Any:
        if len(inputs) == 1:
            note = note_of(inputs[0])
            table = self._table(note) if note is not None else None
            if note is not None and table is not None:
                return _deferred.result_of(note, table, self.steps, may_defer=True)
        if _can_nest and any(note_of(leaf) is not None for leaf in _flatten(inputs)[0]):
            return self._call_nested(inputs)
        return self._call_steps(inputs)

    def _call_steps(self, inputs: tuple[Any, ...]) -> Any:
        """Calls the steps as Compose does."""
        many = len(inputs) > 1
        for step in self.steps:
            outputs = step(*inputs)
            inputs = outputs if many else (outputs,)
        return inputs if many else inputs[0]

    def _call_nested(self, inputs: tuple[Any, ...]) -> Any:
        """Calls the steps on images among other things (boxes, masks, labels): the images are replaced by images of one
        pixel, whose results are replaced in turn."""
        leaves, form = _flatten(inputs)
        lazy = {number: note for number, leaf in enumerate(leaves) if (note := note_of(leaf)) is not None}
        tables = {number: self._table(note) for number, note in lazy.items()}
        if None in tables.values():
            return self._call_steps(inputs)
        small = [Image.new(lazy[number].mode, (1, 1)) if number in lazy else leaf for number, leaf in enumerate(leaves)]
        outputs = self._call_steps(_unflatten(small, form))
        results, form = _flatten(outputs)
        if len(results) != len(leaves) or not all(isinstance(results[number], torch.Tensor) for number in lazy):
            return self._call_steps(inputs)
        for number, note in lazy.items():
            table = tables[number]
            assert table is not None
            results[number] = _deferred.result_of(note, table, self.steps, may_defer=_is_plain(outputs))
        return _unflatten(results, form)

    def _table(self, note: Note) -> _tables.Table | None:
        key = _tables.key_of(self.steps, note.mode)
        if key not in self._built:
            self._built[key] = _tables.build(self.steps, note.mode)
        table = self._built[key]
        if table is None:
            _counts.leave(f"{self!r} cannot be a table")
        elif not table.fits(note):
            _counts.leave("it has one row or one column of pixels")
            return None
        return table

    def __repr__(self) -> str:
        return f"NativeTail({', '.join(map(repr, self.steps))})"


def _is_plain(value: Any) -> bool:
    """Returns False if the results are in other containers than tuples, lists and dicts."""
    if type(value) in (tuple, list):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(map(_is_plain, value.values()))
    leaves = _flatten(value)[0]
    return len(leaves) == 1 and leaves[0] is value


class NativeModule(torch.nn.Module):
    """A NativeTail in a container that holds modules only."""

    def __init__(self, tail: NativeTail) -> None:
        super().__init__()
        self.tail = tail

    def forward(self, *inputs: Any) -> Any:
        return self.tail(*inputs)

    def __repr__(self) -> str:
        return repr(self.tail)


def native(transform: Any) -> Any:
    """Returns a copy of a transform of torchvision (v1 or v2) or timm whose last steps are done in C, with the same
    results to the last bit; `print` shows which steps they are.

    Use it with images from `images.open` or `images.load_rgb`; other images go through the user's steps. A Compose
    stays a Compose, also inside another or a RandomApply, a Sequential stays one, and a tuple of transforms (timm's
    `separate=True`) a tuple. A transform in which there is nothing to replace is returned as it is, with a warning.

    Raises TypeError if it is not callable.
    """
    replaced = native_or_same(transform)
    parts = replaced if isinstance(transform, tuple) else (replaced,)
    given = transform if isinstance(transform, tuple) else (transform,)
    if all(map(operator.is_, parts, given)):
        names = ", ".join(map(untouched.class_name, given))
        warn_user(
            f"headrace.images.native: in {names} there is no step of torchvision or timm that can be done in C, so it "
            "stays as it is; give the Compose that has them"
        )
    return replaced


def native_or_same(transform: Any) -> Any:
    """Does what `native` does, without a warning."""
    if isinstance(transform, tuple) and transform:
        return tuple(map(native_or_same, transform))
    if not callable(transform):
        raise TypeError(f"headrace.images.native: give a transform, not {type(transform).__name__}")
    if untouched.is_plain(transform, _tables.FIRST):
        return NativeTail([transform])
    return _replaced(transform)


def _replaced(transform: Any) -> Any:
    noting = _jitter.noting(transform)
    if noting is not None:
        return noting
    is_sequential = untouched.is_one_of(transform, untouched.SEQUENTIAL)
    steps: Any = list(transform) if is_sequential else None
    if untouched.is_one_of(transform, _ENTERED):
        steps = getattr(transform, "transforms", None)
    if not isinstance(steps, (list, tuple, torch.nn.ModuleList)):
        return transform
    if (is_sequential or isinstance(steps, torch.nn.ModuleList)) and not _can_set_modules:
        return transform
    replaced = list(map(_replaced, steps))
    if not untouched.is_one_of(transform, untouched.APPLIES):
        replaced = _replace_tails(replaced)
    if len(replaced) == len(steps) and all(map(operator.is_, replaced, steps)):
        return transform
    new = copy.copy(transform)
    if is_sequential:
        torch_names.set_modules(new, {str(number): _as_module(step) for number, step in enumerate(replaced)})
    elif isinstance(steps, torch.nn.ModuleList):
        torch_names.set_modules(new, torch_names.modules_of(new))  # a shallow copy shares the dict
        new.transforms = torch.nn.ModuleList(map(_as_module, replaced))
    else:
        new.transforms = type(steps)(replaced)
    return new


def _as_module(step: Any) -> Any:
    return NativeModule(step) if isinstance(step, NativeTail) else step


def _replace_tails(steps: list[Any]) -> list[Any]:
    """Puts each run of steps that a table can hold into one NativeTail."""
    result: list[Any] = []
    run: list[Any] = []
    for step in steps:
        if run and not untouched.is_plain(step, _tables.FURTHER):
            result.append(NativeTail(run))
            run = []
        if run or untouched.is_plain(step, _tables.FIRST):
            run.append(step)
        else:
            result.append(step)
    return [*result, NativeTail(run)] if run else result

# SPDX-License-Identifier: Apache-2.0
"""Divides the transform of a dataset in front of its first random step: what comes before is cached, the rest runs
behind the cache.

Only known steps are divided: torchvision's, MONAI's and albumentations'. The dataset gets a transform that does the
first steps and marks its result. In a sample from the cache, the rest is applied to what is marked.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

from headrace._inspect import lookup

_TORCHVISION = frozenset(
    "CenterCrop ConvertImageDtype FiveCrop Grayscale Normalize PILToTensor Pad Resize RGB TenCrop ToDtype ToImage "
    "ToPILImage ToPureTensor ToTensor".split()
)
_ALBUMENTATIONS = frozenset(
    "CenterCrop Crop FromFloat LongestMaxSize Normalize PadIfNeeded Resize SmallestMaxSize ToFloat ToTensorV2".split()
)
_COMPOSES = {"torchvision": "Compose", "monai": "Compose", "albumentations": "Compose"}
CHANGED = (
    "headrace: cache= has divided the transform of the dataset in front of its first random step, but its result is "
    "not in the sample as it is: the dataset changes it afterwards, or puts it into an object. Give the random steps "
    "yourself: headrace.cache_samples(dataset, transform=...), with a dataset that does not have them"
)
_ONE = ""  # the key of a result that is neither a dict nor a tuple


class Mark(NamedTuple):
    """A value that the first steps have made. number: all marks of one call have the same, from 0 in each sample."""

    number: int
    key: str | int
    value: Any


def _library_of(step: Any) -> str:
    return str(type(step).__module__).partition(".")[0]


def is_known(step: Any) -> bool:
    """Returns True for a step whose result depends on its input only."""
    library, name = _library_of(step), type(step).__name__
    if library == "torchvision":
        return name in _TORCHVISION
    if library == "monai":
        bases = {base.__name__ for base in type(step).__mro__}
        return not bases & {"Randomizable", "RandomizableTrait", "Compose"} and not name.startswith("Lambda")
    if library == "albumentations":
        return name in _ALBUMENTATIONS and getattr(step, "p", 1) >= 1
    return False


def name_of(step: Any) -> str:
    return getattr(step, "__name__", None) or type(step).__name__


class Division(NamedTuple):
    """A transform in two parts, each a list of steps."""

    compose: Any  # the whole
    first: list[Any]
    rest: list[Any]


def divide(transform: Any) -> Division | None:
    """Divides a Compose in front of its first step that is not known. None: it is no such Compose, or all is known."""
    library = _library_of(transform)
    if type(transform).__name__ != _COMPOSES.get(library) or getattr(transform, "p", 1) != 1:
        return None
    if getattr(transform, "processors", None):  # albumentations changes boxes and key points before and after
        return None
    steps = list(transform.transforms)
    count = next((at for at, step in enumerate(steps) if not is_known(step)), len(steps))
    return None if count == len(steps) else Division(transform, steps[:count], steps[count:])


def _compose(whole: Any, steps: list[Any]) -> Any:
    """Returns a Compose like the whole one, with other steps."""
    part = copy.copy(whole)
    part.transforms = type(whole.transforms)(steps) if isinstance(whole.transforms, (list, tuple)) else steps
    return part


class First:
    """The transform that the dataset gets: does the first steps, and marks the result."""

    def __init__(self, division: Division) -> None:
        self.steps = division.first
        self._compose = _compose(division.compose, division.first) if division.first else None
        self._calls = 0

    def begin(self) -> None:
        """A sample begins."""
        self._calls = 0

    def check(self, sample: Any) -> None:
        """Raises TypeError if the result of a call is not in the sample as it is."""
        marks: dict[int, dict[str | int, Any]] = {}
        _collect(sample, marks)
        if len(marks) != self._calls:
            raise TypeError(CHANGED)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        number, self._calls = self._calls, self._calls + 1
        if self._compose is not None:
            made = self._compose(*inputs, **named)
        else:
            made = named if named else inputs[0] if len(inputs) == 1 else inputs
        if named:
            return {key: Mark(number, key, value) for key, value in made.items()}
        if len(inputs) > 1 and isinstance(made, tuple):
            return tuple(Mark(number, at, value) for at, value in enumerate(made))
        return Mark(number, _ONE, made)


class Rest:
    """The steps that run behind the cache."""

    def __init__(self, division: Division) -> None:
        self.names = [name_of(step) for step in division.rest]
        self._compose = _compose(division.compose, division.rest)

    def __call__(self, sample: Any) -> Any:
        """Returns a sample with the rest of the steps applied to what is marked."""
        marks: dict[int, dict[str | int, Any]] = {}
        _collect(sample, marks)
        made = {number: self._apply(values) for number, values in sorted(marks.items())}
        return _replace(sample, made)

    def _apply(self, values: dict[str | int, Any]) -> Any:
        if list(values) == [_ONE]:
            return {_ONE: self._compose(values[_ONE])}
        if all(isinstance(key, str) for key in values):
            return self._compose(**{str(key): value for key, value in values.items()})
        return dict(enumerate(self._compose(*(values[key] for key in sorted(values)))))


def _parts(value: Any) -> Any:
    return value.values() if type(value) is dict else value


def _is_container(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or type(value) is dict


def _collect(value: Any, marks: dict[int, dict[str | int, Any]]) -> None:
    if type(value) is Mark:
        marks.setdefault(value.number, {})[value.key] = value.value
    elif _is_container(value):
        for part in _parts(value):
            _collect(part, marks)


def _replace(value: Any, made: dict[int, Any]) -> Any:
    if type(value) is Mark:
        return made[value.number][value.key]
    if type(value) is dict:
        return {key: _replace(part, made) for key, part in value.items()}
    if type(value) is list:
        return [_replace(part, made) for part in value]
    if type(value) is tuple:
        return tuple(_replace(part, made) for part in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_replace(part, made) for part in value))
    return value


def unmarked(sample: Any) -> Any:
    """Returns a sample without marks, for comparisons and messages."""
    if type(sample) is Mark:
        return sample.value
    if type(sample) is dict:
        return {key: unmarked(part) for key, part in sample.items()}
    if type(sample) in (list, tuple):
        return type(sample)(unmarked(part) for part in sample)
    return sample


def _is_subset(dataset: Any) -> bool:
    return type(dataset).__name__ == "Subset" and str(type(dataset).__module__).startswith("torch.utils.data")


def division_of(dataset: Any) -> Division | None:
    """Divides the transform of a dataset, or of the one that a Subset of torch has."""
    return division_of(dataset.dataset) if _is_subset(dataset) else divide(lookup.attribute(dataset, "transform"))


def inner_of(dataset: Any) -> Any:
    """Returns the dataset that has the transform."""
    return inner_of(dataset.dataset) if _is_subset(dataset) else dataset


@contextlib.contextmanager
def doing_first(dataset: Any, division: Division, first: First) -> Iterator[None]:
    """While it is active, the dataset does the first steps only. Its other attributes stay its own, because it may open
    files when it makes a sample. torchvision's datasets have a second reference to the transform, in `transforms`."""
    inner = inner_of(dataset)
    if getattr(inner, "transform", None) is not division.compose:
        raise RuntimeError(
            "headrace: the transform of the dataset was replaced after its samples were cached, and a part of it is in "
            "the cache; make the dataset, the cache and the loader again"
        )
    both = vars(inner).get("transforms")
    owners = [inner, both] if getattr(both, "transform", None) is division.compose else [inner]
    first.begin()
    for owner in owners:
        owner.transform = first
    try:
        yield
    finally:
        for owner in owners:
            owner.transform = division.compose

# SPDX-License-Identifier: Apache-2.0
"""Divides the transform of a dataset in front of its first random step: what comes before is cached, the rest runs
behind the cache.

Only known steps are divided: torchvision's, MONAI's and albumentations'. The dataset gets a transform that does the
first steps and returns stand-ins, which refuse every use. In a complete sample they become marks, and in a sample from
the cache the rest is applied to what is marked. Whether that gives the samples of the whole transform is proved by
_samples/checks.py, with equal random numbers; a dataset for which it is not proved is not divided.
"""

from __future__ import annotations

import contextlib
import copy
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from headrace._base import lookup
from headrace._cache import fingerprint
from headrace._cache.stand_in import Mark, StandIn, mark_of
from headrace._samples import kept_generators, random_numbers
from headrace._samples.checks import NotProved

_TORCHVISION = frozenset(
    "CenterCrop ConvertImageDtype FiveCrop Grayscale Normalize PILToTensor Pad Resize RGB TenCrop ToDtype ToImage "
    "ToPILImage ToPureTensor ToTensor".split()
)
_ALBUMENTATIONS = frozenset(
    "CenterCrop Crop FromFloat LongestMaxSize Normalize PadIfNeeded Resize SmallestMaxSize ToFloat ToTensorV2".split()
)
_COMPOSES = {"torchvision": "Compose", "monai": "Compose", "albumentations": "Compose"}
_ONE = ""  # the key of a result that is neither a dict nor a tuple


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


def unused_draws_of(dataset: Any) -> Any:
    """Returns the transform of a dataset if all of its steps are known, or None: those of albumentations draw whether
    they are applied, also if they always are."""
    transform = lookup.attribute(inner_of(dataset), "transform")
    name = _COMPOSES.get(_library_of(transform))
    steps = transform.transforms if type(transform).__name__ == name else [None]
    return transform if all(map(is_known, steps)) else None


def _compose(whole: Any, steps: list[Any]) -> Any:
    """Returns a Compose like the whole one, as it is now, with other steps. It is made for each call, because a
    worker_init_fn may give the whole one other generators."""
    part = copy.copy(whole)
    part.transforms = type(whole.transforms)(steps) if isinstance(whole.transforms, (list, tuple)) else steps
    return part


def _placeholders(division: Division) -> list[Any]:
    """Returns steps that draw as many random numbers as the first ones do, and change nothing. Each step of
    albumentations draws whether it is applied, also one that always is."""
    if _library_of(division.compose) != "albumentations":
        return []
    kind: Any = sys.modules["albumentations"].NoOp
    steps = [kind(p=1) for _ in division.first]
    if hasattr(division.compose, "py_random"):  # since version 2 the steps share the generators of the Compose
        for step in steps:
            step.set_random_state(division.compose.random_generator, division.compose.py_random)
    return steps


class First(fingerprint.WithoutGenerators):
    """The transform that the dataset gets: does the first steps, and returns stand-ins for the result."""

    def __init__(self, division: Division) -> None:
        self._division = division
        self.begin()

    def fingerprint_parts(self) -> Any:
        first = self._division.first
        return type(self._division.compose), _compose(self._division.compose, first) if first else None

    def __getstate__(self) -> Any:
        return self._division

    def __setstate__(self, state: Any) -> None:
        self._division = state
        self.begin()

    def begin(self) -> None:
        """A sample begins."""
        self._calls = 0
        self._uses: list[str] = []
        self._made: list[weakref.ref[StandIn]] = []

    def marks_of(self, sample: Any) -> Any:
        """Returns a sample with marks in the place of the stand-ins. Raises NotProved unless each of them is in the
        sample."""
        self.check_not_used()
        if not self._calls:
            raise NotProved("the dataset made a sample without its transform")
        met: set[int] = set()

        def to_mark(stand_in: StandIn) -> Mark:
            met.add(id(stand_in))
            return mark_of(stand_in)

        marked = _replace(sample, StandIn, to_mark)
        if len(met) != len(self._made):
            raise NotProved("the result of the transform is not in the sample as it is, but in an object, or left out")
        return marked

    def check_not_used(self) -> None:
        """Raises NotProved if the dataset has used a stand-in, also if it has caught the exception."""
        if self._uses:
            raise NotProved(f"the dataset uses the result of its transform ({', '.join(self._uses[:3])})")

    def check_not_kept(self) -> None:
        """Raises NotProved if a stand-in still exists, although its sample does not."""
        if any(one() is not None for one in self._made):
            raise NotProved("the dataset keeps the result of its transform")

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        number, self._calls = self._calls, self._calls + 1
        made = self._apply(inputs, named)
        if named:
            return {key: self._stand_in(Mark(number, key, value)) for key, value in made.items()}
        if len(inputs) > 1 and isinstance(made, tuple):
            return tuple(self._stand_in(Mark(number, at, value)) for at, value in enumerate(made))
        return self._stand_in(Mark(number, _ONE, made))

    def _apply(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if not self._division.first:
            return named if named else inputs[0] if len(inputs) == 1 else inputs
        compose = _compose(self._division.compose, self._division.first)
        if _library_of(compose) != "albumentations":
            return compose(*inputs, **named)
        with random_numbers.generators_kept(), kept_generators.Own(compose).kept():  # the placeholders draw them
            return compose(*inputs, **named)

    def _stand_in(self, mark: Mark) -> StandIn:
        made = StandIn(mark, self._uses.append)
        self._made.append(weakref.ref(made))
        return made


class Rest:
    """The steps that run behind the cache."""

    def __init__(self, division: Division) -> None:
        self.names = [name_of(step) for step in division.rest]
        self._division = division

    def __call__(self, sample: Any) -> Any:
        """Returns a sample with the rest of the steps applied to what is marked."""
        marks: dict[int, dict[str | int, Any]] = {}

        def collect(mark: Mark) -> Mark:
            marks.setdefault(mark.number, {})[mark.key] = mark.value
            return mark

        _replace(sample, Mark, collect)
        made = {number: self._apply(values) for number, values in sorted(marks.items())}
        return _replace(sample, Mark, lambda mark: made[mark.number][mark.key])

    def _apply(self, values: dict[str | int, Any]) -> Any:
        division = self._division
        compose = _compose(division.compose, [*_placeholders(division), *division.rest])
        if list(values) == [_ONE]:
            return {_ONE: compose(values[_ONE])}
        if all(isinstance(key, str) for key in values):
            return compose(**{str(key): value for key, value in values.items()})
        return dict(enumerate(compose(*(values[key] for key in sorted(values)))))


def _replace(value: Any, kind: type, by: Callable[[Any], Any], known: dict[int, Any] | None = None) -> Any:
    """Returns a sample with other values in the place of those of one class. It looks into lists, tuples, named tuples
    and dicts; one that occurs twice, or in itself, does so in the result."""
    known = {} if known is None else known
    if id(value) in known:
        return known[id(value)]
    if type(value) is kind:
        found = known[id(value)] = by(value)
        return found
    if type(value) in (list, dict):
        return _replace_in(value, kind, by, known)
    if type(value) is tuple:
        return tuple(_replace(part, kind, by, known) for part in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_replace(part, kind, by, known) for part in value))
    return value


def _replace_in(value: Any, kind: type, by: Callable[[Any], Any], known: dict[int, Any]) -> Any:
    new: Any
    if type(value) is list:
        new = known[id(value)] = []
        new.extend(_replace(part, kind, by, known) for part in value)
    else:
        new = known[id(value)] = {}
        new.update((key, _replace(part, kind, by, known)) for key, part in value.items())
    return new


def unmarked(sample: Any) -> Any:
    """Returns a sample without marks, for comparisons and messages."""
    return _replace(sample, Mark, lambda mark: mark.value)


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
    check_unchanged(dataset, division)
    inner = inner_of(dataset)
    both = vars(inner).get("transforms")
    owners = [inner, both] if getattr(both, "transform", None) is division.compose else [inner]
    first.begin()
    try:
        for owner in owners:
            owner.transform = first
        yield
    finally:
        for owner in owners:
            owner.transform = division.compose


def check_unchanged(dataset: Any, division: Division) -> None:
    """Raises RuntimeError if the dataset has another transform than the one that was divided, or that has other
    steps."""
    steps = [*division.first, *division.rest]
    now = list(division.compose.transforms)
    is_same = getattr(inner_of(dataset), "transform", None) is division.compose and len(now) == len(steps)
    if not is_same or any(one is not other for one, other in zip(now, steps, strict=True)):
        raise RuntimeError(
            "headrace: the transform of the dataset was replaced after its samples were cached, and a part of it is in "
            "the cache; make the dataset, the cache and the loader again"
        )

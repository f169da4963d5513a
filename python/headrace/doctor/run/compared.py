# SPDX-License-Identifier: Apache-2.0
"""headrace doctor --compare: draws a loader's batches with torch's engine and with headrace's, from equal seeds, and
says where they differ first."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from headrace import _options
from headrace._samples import compare, random_numbers
from headrace.doctor.observations import Observation

_SEED = 0
_END = "the epoch has ended"
_NAME, _BOTH = "comparison", "torch's engine and headrace's, from equal seeds"
_GUIDE = "see docs/guides/losses.md for what is usually not seeded"
_OTHERWISE = ("rng", "on_bad_sample", "retries", "steps_per_epoch")  # what headrace does otherwise than torch if asked


class _Raised(NamedTuple):
    kind: str
    text: str


class _Difference(NamedTuple):
    """The first difference. batch: its number in all epochs. where: epoch, batch and sample, in words. what: the part
    of the batch."""

    batch: int
    where: str
    what: str


# ---- the two loaders ----


def _torchs_engine(loader: Any) -> AbstractContextManager[None]:
    from headrace.torch._own import loaders

    return loaders.torchs_engine(loader)


def _headraces_engine(loader: Any) -> AbstractContextManager[None]:
    from headrace.torch import installed
    from headrace.torch._own import table

    return installed(**table.installed_options)


class _Drawn:
    """A loader that is made and iterated with random numbers of its own: two of them can be drawn in turn."""

    def __init__(self, make: Callable[[], Any], engine: Callable[[Any], AbstractContextManager[None]]) -> None:
        self._engine = engine
        self._iterator: Any = None
        with random_numbers.generators_kept():
            _seed_all()
            self.loader = make()
            self._states = random_numbers.states()

    def next(self) -> Any:
        """Returns the next batch, _END after the last one of an epoch, or what was raised."""
        with random_numbers.generators_kept():
            random_numbers.restore(self._states)
            try:
                if self._iterator is None:
                    with self._engine(self.loader):
                        self._iterator = iter(self.loader)
                return next(self._iterator)
            except StopIteration:
                self._iterator = None
                return _END
            except Exception as error:
                return _Raised(type(error).__name__, str(error))
            finally:
                self._states = random_numbers.states()


def _seed_all() -> None:
    random.seed(_SEED)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed(_SEED)
    if torch is not None:
        torch.manual_seed(_SEED)


# ---- where they differ ----


def _size_of(value: Any) -> int:
    """Returns the number of samples of a batch: the length of its first tensor or array, or 0."""
    if hasattr(value, "shape"):
        return int(value.shape[0]) if len(value.shape) else 0
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return next((size for size in map(_size_of, parts) if size), 0)


def _sample_of(value: Any, at: int, size: int) -> Any:
    """Returns what a batch has of one sample: a row of each tensor, and an element of each list of texts."""
    if hasattr(value, "shape"):
        return value[at] if len(value.shape) and value.shape[0] == size else value
    if isinstance(value, dict):
        return {key: _sample_of(one, at, size) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        if len(value) == size and all(isinstance(one, (str, bytes)) for one in value):
            return value[at]
        return [_sample_of(one, at, size) for one in value]
    return value


def _differing_sample(one: Any, other: Any) -> int | None:
    size = _size_of(one)
    if size != _size_of(other):
        return None
    pairs = ((_sample_of(one, at, size), _sample_of(other, at, size)) for at in range(size))
    return next((at for at, pair in enumerate(pairs) if compare.difference(*pair) is not None), None)


def _index_of(loader: Any, at: int) -> str:
    """Returns the index of a sample of the batch that a loader of headrace's engine has delivered last, in words."""
    from headrace.torch._own import table

    found = table.found(loader)
    last = None if found is None else found.position.last()
    indices = None if last is None else last.indices
    return f" (index {indices[at]!r})" if isinstance(indices, list) and at < len(indices) else ""


def _find(one: _Drawn, other: _Drawn, batches: int) -> tuple[int, _Difference | _Raised | None]:
    """Draws from both in turn. Returns how many batches are equal, and the first difference, an exception that both
    raise, or None."""
    done, epoch, number = 0, 0, 0
    while done < batches:
        first, second = one.next(), other.next()
        place = f"batch {number} of epoch {epoch}"
        if first is _END and second is _END:
            if not number:
                break
            epoch, number = epoch + 1, 0
            continue
        if first is _END or second is _END:
            who = "the first" if first is _END else "the second"
            return done, _Difference(done, place, f"the epoch of {who} has ended before it")
        if isinstance(first, _Raised) or isinstance(second, _Raised):
            return done, _of_raised(first, second, done, place)
        what = compare.difference(first, second, "batch")
        if what is not None:
            at = _differing_sample(first, second)
            sample = "" if at is None else f", sample {at} of it{_index_of(other.loader, at)}"
            return done, _Difference(done, place + sample, what)
        done, number = done + 1, number + 1
    return done, None


def _of_raised(first: Any, second: Any, done: int, place: str) -> _Difference | _Raised:
    if isinstance(first, _Raised) and isinstance(second, _Raised) and first.kind == second.kind:
        return _Raised(first.kind, f"{place}: {first.text}")
    texts = [f"raises {x.kind}: {x.text}" if isinstance(x, _Raised) else "gives a batch" for x in (first, second)]
    return _Difference(done, place, f"the first {texts[0]}; the second {texts[1]}")


# ---- the report ----


def examine(make: Callable[[], Any], batches: int) -> list[Observation]:
    """Compares the batches of the loaders that make() returns: the first is drawn with torch's engine, and the second
    with headrace's."""
    ours = _Drawn(make, _headraces_engine)
    done, found = _find(_Drawn(make, _torchs_engine), ours, batches)
    if found is None and not done:
        return [Observation(_NAME, "warning", "the loader gives no batch", _BOTH)]
    if found is None:
        return [Observation(_NAME, "ok", f"{done} batches are equal, to the last bit", _BOTH)]
    if isinstance(found, _Raised):
        text = f"Both raise the same exception after {done} equal batches, at {found.text.splitlines()[0]}"
        return [Observation(_NAME, "warning", f"both raise {found.kind}", _BOTH, text)]
    _, again = _find(_Drawn(make, _torchs_engine), _Drawn(make, _torchs_engine), found.batch + 1)
    if isinstance(again, _Difference):
        text = (
            f"{again.what}. torch's engine gives other batches when it is run again from equal seeds, so the first "
            "difference to headrace's says nothing."
        )
        return [Observation(_NAME, "warning", f"torch's differs from itself: {again.where}", _BOTH, text, _GUIDE)]
    text = f"{found.what} (first: torch's, second: headrace's). {done} batches before it are equal, to the last bit."
    text += _reason(ours.loader)
    return [Observation(_NAME, "error", f"they differ: {found.where}", _BOTH, text)]


def _reason(loader: Any) -> str:
    """Returns what is known to make a difference: options that torch does not have, and the order of arrival."""
    from headrace.torch._own import loaders, table

    options = {name: table.option(loader, name) for name in _OTHERWISE}
    given = [f"{name}={value!r}" for name, value in options.items() if _options.is_given(name, value)]
    if not loaders.is_in_order(loader):
        given.append("in_order=False")
    return f"\nTry without {', '.join(given)}: torch does otherwise there." if given else ""

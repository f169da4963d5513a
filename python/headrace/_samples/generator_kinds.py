# SPDX-License-Identifier: Apache-2.0
"""Seeds, reads and restores one random number generator of Python, numpy or torch, in place.

own_generators.py finds the generators. In place, because several objects may hold the same generator.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from headrace._base.lookup import is_a

_WORD = 0xFFFFFFFF


class Kind(NamedTuple):
    """The operations on the generators of a class. seed: takes 64 bits."""

    seed: Callable[[Any, int], Any]
    state: Callable[[Any], Any]
    restore: Callable[[Any, Any], Any]


def _seed_bits(bits: Any, key: int) -> None:
    bits.state = type(bits)(key).state


def _seed_legacy(generator: Any, key: int) -> None:
    """Seeds a numpy.random.RandomState, whose seed() works with the bit generator MT19937 only."""
    bits = generator._bit_generator
    if type(bits).__name__ == "MT19937":
        generator.seed([key & _WORD, key >> 32])
    else:
        generator.set_state(type(generator)(type(bits)(key)).get_state(legacy=False))


_PYTHONS = Kind(lambda one, key: one.seed(key), lambda one: one.getstate(), lambda one, state: one.setstate(state))
_NUMPYS = Kind(
    lambda one, key: _seed_bits(one.bit_generator, key),
    lambda one: one.bit_generator.state,
    lambda one, state: setattr(one.bit_generator, "state", state),
)
_BITS = Kind(_seed_bits, lambda one: one.state, lambda one, state: setattr(one, "state", state))
_LEGACY = Kind(_seed_legacy, lambda one: one.get_state(legacy=False), lambda one, state: one.set_state(state))
_TORCHS = Kind(
    lambda one, key: one.manual_seed(key), lambda one: one.get_state(), lambda one, state: one.set_state(state)
)
_CLASSES = (
    ("random", "Random", _PYTHONS),
    ("numpy.random", "Generator", _NUMPYS),
    ("numpy.random", "BitGenerator", _BITS),
    ("numpy.random", "RandomState", _LEGACY),
    ("torch", "Generator", _TORCHS),
)


def kinds() -> list[tuple[type, Kind]]:
    """Returns the classes of generators in the modules that are imported."""
    found = [(getattr(sys.modules.get(module), name, None), kind) for module, name, kind in _CLASSES]
    return [(cls, kind) for cls, kind in found if isinstance(cls, type)]


def kind_of(value: Any) -> Kind | None:
    """Returns how to treat a generator, or None for other objects. A random.SystemRandom is a generator too."""
    return next((kind for cls, kind in kinds() if is_a(value, cls)), None)


def state_of(generator: Any) -> Any:
    """Returns the state of a generator as values that can be compared. restore takes it."""
    kind = kind_of(generator)
    assert kind is not None
    return kind.state(generator)


def restore(generator: Any, state: Any) -> None:
    """Sets a generator to a state that state_of has returned."""
    kind = kind_of(generator)
    assert kind is not None
    kind.restore(generator, state)


def shared_generators() -> list[Any]:
    """Returns the generators that all code of the process shares, which random_numbers.seed_all seeds."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    found: list[Any] = [random._inst]
    if numpy is not None:
        legacy = numpy.random.mtrand._rand
        found += [legacy, legacy._bit_generator]
    if torch is not None:
        found.append(torch.default_generator)
    return found


def why_not(generator: Any, kind: Kind) -> str:
    """Returns why a generator cannot be seeded and restored, or "". The generator stays as it is."""
    if is_a(generator, random.SystemRandom):
        return "it draws from the operating system, and has no seed"
    try:
        state = kind.state(generator)
        try:
            kind.seed(generator, 1)
        finally:
            kind.restore(generator, state)
    except Exception as error:  # of a class that numpy or the user does not make so, or of a device that is not there
        return f"it cannot be seeded: {type(error).__name__}: {error}"
    return ""

# SPDX-License-Identifier: Apache-2.0
"""The state of a sampler of the user's, as text for the state of a loader: that of the random number generators that it
has as attributes, and its own, if it has state_dict and load_state_dict. It needs no torch."""

from __future__ import annotations

import random
import sys
from typing import Any

from headrace._inspect import lookup
from headrace.sampling import _values
from headrace.sampling._state import StateError


def _is_of(value: Any, module: str, name: str) -> bool:
    kind: Any = sys.modules.get(module)
    return kind is not None and isinstance(value, getattr(kind, name))


def is_generator(value: Any) -> bool:
    """Returns True for a torch.Generator, a random.Random and a numpy.random.Generator."""
    return (
        isinstance(value, random.Random)
        or _is_of(value, "torch", "Generator")
        or _is_of(value, "numpy.random", "Generator")
    )


def generators_of(sampler: Any) -> dict[str, Any]:
    """Returns the generators that a sampler has as attributes, and those of a sampler inside it."""
    found: dict[str, Any] = {}
    for name, value in lookup.attribute(sampler, "__dict__", {}).items():
        if is_generator(value):
            found[name] = value
        elif name in ("sampler", "batch_sampler"):
            found |= {f"{name}.{inner}": one for inner, one in generators_of(value).items()}
    return found


def state_of(sampler: Any) -> str | None:
    """Returns the state of a sampler, or None if it has none. Raises StateError if it contains objects that a state may
    not contain."""
    own = {name: _state_of_generator(one) for name, one in generators_of(sampler).items()}
    has_state = lookup.has_state(sampler)
    if not own and not has_state:
        return None
    return _values.encode([own, sampler.state_dict() if has_state else None])


def put_back(sampler: Any, text: Any) -> None:
    """Sets a sampler to a state that state_of has returned. Raises StateError if it does not fit."""
    found = _values.decode(text)
    generators = generators_of(sampler)
    if not isinstance(found, list) or len(found) != 2 or not isinstance(found[0], dict):
        raise StateError("headrace: this state is damaged: it has no state of a sampler")
    own, state = found
    for name, one in own.items():
        if name not in generators:
            raise StateError(
                f"headrace: this state has the state of the generator {name!r} of the sampler that orders a plan, and "
                f"this {type(sampler).__name__} has no such generator; give the plan the same kind of sampler"
            )
        _set_generator(generators[name], one)
    if state is not None and lookup.has_state(sampler):
        sampler.load_state_dict(state)


def _state_of_generator(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.get_state() if hasattr(generator, "get_state") else generator.bit_generator.state


def _set_generator(generator: Any, state: Any) -> None:
    try:
        if isinstance(generator, random.Random):
            generator.setstate(state)
        elif hasattr(generator, "get_state"):
            generator.set_state(state)
        else:
            generator.bit_generator.state = state
    except (RuntimeError, TypeError, ValueError, KeyError) as error:
        raise StateError(f"headrace: the state of a {type(generator).__name__} does not fit it: {error!r}") from None

# SPDX-License-Identifier: Apache-2.0
"""The state of a sampler of the user's, as text for the state of a loader: that of the random number generators that it
has, and its own, if it has state_dict and load_state_dict. It needs no torch."""

from __future__ import annotations

import threading
from typing import Any

from headrace._base.warn import warn_user
from headrace._samples import generator_kinds
from headrace.sampling import _values
from headrace.sampling._sampler_parts import SamplerParts
from headrace.sampling._state import StateError

CHANGED = "changed"  # in the seeds of a state


def generators_of(sampler: Any) -> dict[str, Any]:
    """Returns the generators of a sampler and of what is inside it, by the paths of the attributes."""
    return SamplerParts(sampler).generators


def state_of(sampler: Any) -> str | None:
    """Returns the state of a sampler, or None if it has none. Raises StateError if it contains objects that a state may
    not contain."""
    parts = SamplerParts(sampler)
    own = parts.states()
    if not own and not parts.stateful:
        return None
    return _values.encode([own, state_dicts(parts)])


def put_back(sampler: Any, text: Any) -> None:
    """Sets a sampler to a state that state_of has returned. Raises StateError if it does not fit."""
    found = _values.decode(text)
    parts = SamplerParts(sampler)
    if not isinstance(found, list) or len(found) != 2 or not isinstance(found[0], dict):
        raise StateError("headrace: this state is damaged: it has no state of a sampler")
    own, states = found
    for name, one in own.items():
        if name not in parts.generators:
            raise StateError(
                f"headrace: this state has the state of the generator {name!r} of a sampler, and this "
                f"{type(sampler).__name__} has no such generator; give the loader or the plan the same kind of sampler"
            )
        _set_generator(parts.generators[name], one)
    load_state_dicts(sampler, parts, states)


def parts_of(sampler: Any) -> SamplerParts:
    """Returns what a sampler's order may depend on, with the values by which it may count its epochs."""
    return SamplerParts(sampler, reads_values=True)


def changed_seeds(parts: SamplerParts, before: SamplerParts | None) -> dict[str, Any]:
    """Returns the part of a state's seeds with the values that a sampler without a state has changed since another
    walk."""
    changed = {} if before is None or parts.stateful else parts.changed_since(before)
    return {CHANGED: changed} if changed else {}


def warn_of_changed(sampler: Any, seeds: dict[str, Any]) -> None:
    """Warns of values that a sampler had changed when a state was taken, and that are others here. Called before the
    sampler begins the epoch."""
    changed = seeds.get(CHANGED)
    if differing := parts_of(sampler).differing(changed) if changed else []:
        kind = type(sampler).__name__
        warn_user(
            f"headrace: the {kind} changes {', '.join(map(repr, differing))} of its own in each epoch, and has no "
            f"state_dict and load_state_dict, so here it is not where it was when the state was taken; if its order "
            "depends on that, this epoch has not the order of the run that was never stopped: give it these methods"
        )


_asked = threading.local()  # `ids`: of the samplers whose state is being taken


def state_dicts(parts: SamplerParts) -> dict[str, Any]:
    """Returns the states of the samplers that have one, by their paths. The state_dict of a sampler may ask for that of
    a loader, which asks for that of the sampler: then it is left out."""
    outer: frozenset[int] = getattr(_asked, "ids", frozenset())
    asked = {path: one for path, one in parts.stateful.items() if id(one) not in outer}
    _asked.ids = outer | {id(one) for one in asked.values()}
    try:
        return {path: one.state_dict() for path, one in asked.items()}
    finally:
        _asked.ids = outer


def load_state_dicts(sampler: Any, parts: SamplerParts, states: Any) -> None:
    """Loads what state_dicts has returned. Raises StateError if it does not fit."""
    if not isinstance(states, dict) or states.keys() != parts.stateful.keys():
        raise StateError(
            f"headrace: this state does not have the states of the samplers in this {type(sampler).__name__}; give it "
            "the same kind of sampler"
        )
    for path, state in states.items():
        parts.stateful[path].load_state_dict(state)


def _set_generator(generator: Any, state: Any) -> None:
    try:
        generator_kinds.restore(generator, state)
    except (RuntimeError, TypeError, ValueError, KeyError) as error:
        raise StateError(f"headrace: the state of a {type(generator).__name__} does not fit it: {error!r}") from None

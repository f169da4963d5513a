# SPDX-License-Identifier: Apache-2.0
"""Refuses samplers in which the repeats of tail="exact" cannot be told from other samples. Both loaders use it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace._base import lookup
from headrace.sampling._sampler_parts import SamplerParts, is_loader


def check(outer: Any, inner: Iterable[Any], advice: str = "") -> None:
    """Raises ValueError if `outer`, a sampler or loader that does not know the repeats of the samplers `inner` and of
    those that they hold, is around one with tail="exact" that repeats samples: they would have the weight 1. advice:
    what to do instead."""
    name = type(outer).__name__
    for one in filter(_repeats, (part for sampler in inner for part in (sampler, *_held_by(sampler)))):
        of_plan = "give the plan itself to the loader as batch_sampler"
        advice = advice or (of_plan if _is_plan(one) else f"deal what it gives: per_rank({name}(...), tail='exact')")
        raise ValueError(
            f"headrace: {name} draws from {'a Plan' if _is_plan(one) else 'per_rank'} with tail='exact', which may "
            f"repeat a sample so that all ranks make the same number of steps. {name} hides which one that is, so it "
            f"would count (weight 1 in loader.last.weights); {advice}, or use tail='pad' or 'drop'"
        )


def _held_by(sampler: Any) -> list[Any]:
    """Returns the objects of headrace that a sampler holds, under any name, but not those of loaders that it holds."""
    found = SamplerParts(sampler).ours
    loaders = [f"{path}." for path, one in found.items() if is_loader(one)]
    return [one for path, one in found.items() if not any(map(path.startswith, loaders))]


def _is_plan(sampler: Any) -> bool:
    return type(sampler).__name__ == "Plan"


def _repeats(sampler: Any) -> bool:
    """Returns True if a sampler of headrace with tail="exact" may have repeats."""
    if not str(type(sampler).__module__).startswith("headrace."):
        return False
    tail = sampler.settings.tail if _is_plan(sampler) else lookup.attribute(sampler, "tail")
    if tail != "exact" or sampler.num_replicas < 2:
        return False
    try:
        return bool(_is_plan(sampler) or len(sampler.dataset) % sampler.num_replicas)
    except TypeError:  # its length is not known before it is drawn
        return True

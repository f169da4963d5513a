# SPDX-License-Identifier: Apache-2.0
"""Says when a cache of a loader's samples would pay: making a sample takes much longer than copying it, and all samples
fit into the memory of this machine. Measured on a few samples of the loader."""

from __future__ import annotations

import time
from typing import Any

from headrace import _core
from headrace._base import lookup, pickling
from headrace._base.units import in_units
from headrace._cache.samples import CachedSamples
from headrace._samples import checks
from headrace._samples.compare import difference
from headrace._samples.random_numbers import generators_kept, seed_all
from headrace.doctor.machine.cache import memory_room
from headrace.doctor.observations import Observation
from headrace.doctor.run.fixes import with_option

_SAMPLES = 6
_WORTH_IT = 3.0  # times as fast
_LEAST_S = 1e-4  # of a sample: below that, what the loader does with it takes longer
_COPY_BYTES_PER_S = 4e9
_READ_S = 5e-6  # to find a sample and make its objects


def check_caching(loader: Any) -> list[Observation]:
    """Returns an observation if a cache would pay, else none. Exceptions of the dataset are left to the loader's own
    run."""
    dataset = loader.dataset
    has_parts = lookup.has_special(dataset, "__getitem__") and lookup.has_special(dataset, "__len__")
    if not has_parts or isinstance(dataset, CachedSamples) or getattr(loader, "cache", None) is not None:
        return []
    try:
        return _measure(loader, dataset)
    except Exception:
        return []


def _measure(loader: Any, dataset: Any) -> list[Observation]:
    uncached = CachedSamples(dataset, None)  # makes samples as a cache would keep them
    numbers = checks.spread(len(dataset), _SAMPLES)
    seconds, size, random = 0.0, 0, ""
    with generators_kept():
        for number in numbers:
            seed_all(1, 0, number)
            start = time.perf_counter()
            sample = uncached[number]
            seconds += time.perf_counter() - start
            size += pickling.size_of(sample)
            seed_all(2, 0, number)
            random = random or difference(sample, uncached[number]) or ""
    made_s, each = seconds / len(numbers), size / len(numbers)
    speedup = made_s / (_READ_S + each / _COPY_BYTES_PER_S)
    total, room = int(each * len(dataset)), memory_room(_core.machine())
    if made_s < _LEAST_S or speedup < _WORTH_IT or total > room:
        return []
    text = f"Making a sample takes {1e3 * made_s:.2f} ms, and copying one from memory about 1/{speedup:.0f} of that."
    fix = with_option(loader, 'cache="auto"')
    if random:
        text += f" The samples are random ({random}), so the random steps have to run behind the cache."
        fix = "headrace.cache_samples(dataset_without_random_steps, transform=random_steps)"
    value, limit = f"{in_units(total)} of samples", f"{in_units(room)} fit into memory"
    return [Observation("caching", "note", value, limit, text, fix)]

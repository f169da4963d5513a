# SPDX-License-Identifier: Apache-2.0
"""Says whether the workers of a loader draw equal random numbers, because each has a copy of a generator that the
dataset, a transform or collate_fn has of its own. The loader is run with two workers, as it is, and the states of the
generators are compared."""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import sys
from collections.abc import Iterator
from typing import Any

from headrace import Loader
from headrace._base import lookup
from headrace._samples.own_generators import Search, roots_of
from headrace.doctor.observations import Observation
from headrace.doctor.run import measure
from headrace.doctor.run.fixes import with_option

_WORKERS = 2
_NAMED = 4

_States = dict[str, str]  # digests of states by the paths of generators
_at_start: _States = {}  # in a worker


def _states(collate_fn: Any) -> _States:
    """Returns the states of the generators in this worker."""
    torch, numpys = sys.modules.get("torch"), sys.modules.get("headrace._numpy.batch_maker")
    infos = [torch.utils.data.get_worker_info()] if torch is not None else []
    infos += [numpys.get_worker_info()] if numpys is not None else []
    dataset = next(info.dataset for info in infos if info is not None)
    found = Search(roots_of(dataset, collate_fn)).found
    return {one.path: hashlib.sha256(pickle.dumps(one.kind.state(one.generator))).hexdigest() for one in found}


class _Init:
    """A worker_init_fn that notes the states after the user's."""

    def __init__(self, inner: Any, collate_fn: Any) -> None:
        self._inner = inner
        self._collate_fn = collate_fn

    def __call__(self, worker: int) -> None:
        if self._inner is not None:
            self._inner(worker)
        _at_start.clear()
        _at_start.update(_states(self._collate_fn))


class _Collate:
    """A collate_fn that returns the states instead of a batch: of the worker's start, and after this batch."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __call__(self, samples: Any) -> tuple[_States, _States]:
        if self._inner is not None:
            self._inner(samples)
        return dict(_at_start), _states(self._inner)


@contextlib.contextmanager
def _watched(loader: Any) -> Iterator[None]:
    kept = loader.worker_init_fn, loader.collate_fn
    loader.worker_init_fn, loader.collate_fn = _Init(*kept), _Collate(kept[1])
    try:
        yield
    finally:
        loader.worker_init_fn, loader.collate_fn = kept


def _run(loader: Any) -> list[tuple[_States, _States]]:
    """Returns the states in the first batch of each worker."""
    with _watched(loader), measure.with_workers(loader, _WORKERS):
        iterator = iter(loader)
        try:
            return [states for _, states in zip(range(_WORKERS), iterator, strict=False)]
        finally:
            measure.close(iterator)


def _equal(one: tuple[_States, _States], other: tuple[_States, _States]) -> list[str]:
    """Returns the generators from which both workers drew, and which gave both the same numbers."""
    (start, after), (others_start, others_after) = one, other
    used = [path for path in after if start.get(path) != after[path]]
    return [
        path
        for path in used
        if path in others_after
        and (
            start[path] == others_start.get(path)
            if path in start
            else path not in others_start and after[path] == others_after[path]
        )
    ]


def _seeds_by_sample(loader: Any) -> bool:
    return bool(lookup.attribute(loader, "rng") == "sample")


def _in_words(paths: list[str]) -> str:
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ", ".join(paths[:_NAMED]) + more


def check_generators(loader: Any) -> list[Observation]:
    """Returns an observation if workers draw equal random numbers. Exceptions of the dataset are left to the loader's
    own run."""
    if _seeds_by_sample(loader):
        return _unreachable(loader)
    try:
        runs = _run(loader)
        if len(runs) < _WORKERS or not (paths := _equal(*runs)):
            return []
        again = [] if loader.persistent_workers else _equal(runs[0], _run(loader)[0])
    except Exception:
        return []
    return [_observe(loader, paths, [path for path in paths if path in again])]


def _observe(loader: Any, paths: list[str], repeated: list[str]) -> Observation:
    text = (
        f"Each worker has a copy of {_in_words(paths)}, and all copies give the same random numbers, so samples of one "
        "worker have those of another."
    )
    if repeated:
        text += " Each epoch repeats them, because new workers get the same copies."
    option = with_option(loader, 'rng="sample"')
    seed = "torch.utils.data.get_worker_info().seed"
    if isinstance(loader, Loader):  # get_worker_info().seed is the same in all workers and epochs
        seed = "random.getrandbits(32), which headrace has seeded for this worker and epoch; the worker's copy of the "
        seed += "dataset is headrace.get_worker_info().dataset"
    fix = f"{option}: each sample has its own, with any number of workers; or seed them in worker_init_fn with {seed}"
    return Observation("random numbers", "warning", "equal in all workers", f"{len(paths)} generators", text, fix)


def _unreachable(loader: Any) -> list[Observation]:
    found = Search(roots_of(loader.dataset, loader.collate_fn)).unreachable
    if not found:
        return []
    named = "; ".join(f"{one.path} ({one.type}): {one.why}" for one in found[:_NAMED])
    text = f'rng="sample" cannot seed them, so samples may depend on the number of workers. {named}.'
    fix = "use the generators of random, numpy or torch, or a numpy.random.Generator in an attribute"
    return [Observation("random numbers", "warning", "not all by sample", f"{len(found)} generators", text, fix)]

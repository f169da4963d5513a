# SPDX-License-Identifier: Apache-2.0
"""headrace.torch.DataLoader, and the choice of the iterator for each of torch's loaders: headrace's or torch's."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from headrace import _options
from headrace._base import this_process
from headrace._base.help_key import help_on
from headrace._loader import headspace
from headrace._loader.forkserver import client, context
from headrace._loader.start import contexts
from headrace._loader.trainer import engine as _engine
from headrace._ranks import callers, worker_count
from headrace.torch import (
    _accelerate,
    _agree,
    _base,
    _in_process,
    _internals,
    _iterator,
    _loader_options,
    _per_loader,
    _plain,
    _resume,
    _torchs,
    _windows,
)

_T_co = TypeVar("_T_co", covariant=True)
_PRELOAD = ["numpy.random", "headrace.torch._worker"]
# What a loader loses when accelerate rebuilds it, and how to keep it.
_ENGINE_LOST = "which runs torch's workers; call headrace.torch.install() to keep headrace's"
_OPTIONS_LOST = "which drops {}; call headrace.torch.install({}) to set that for such loaders"


@functools.cache
def _warn_of_torchs(reason: str) -> None:
    """Warns once per process and reason."""
    warnings.warn(
        f"headrace: using torch's DataLoader instead of headrace's: {reason}" + help_on("disabled"), stacklevel=4
    )


@functools.cache
def _warn_of_accelerate(loss: str) -> None:
    """Warns once per process and loss."""
    warnings.warn(
        f"headrace: accelerate's prepare() replaces this loader with its own class, {loss}" + help_on("accelerate"),
        stacklevel=8,
    )


@_options.documented("torch")
class DataLoader(_base.DataLoader[_T_co]):
    """torch.utils.data.DataLoader with headrace's workers, which pass batches to the trainer without copying them.

    It takes torch's arguments, and num_workers="auto", which finds the number of workers by trying
    (docs/guides/workers.md). Batches, their order, random numbers and exceptions are those of torch. With
    num_workers=0 it is torch's loader, and of headrace's own options only rng, seed, on_bad_sample and retries have an
    effect.
    multiprocessing_context="headrace" forks workers from a server that has imported the script once; "forkserver" does
    the same, and "fork", where it is the default, forks them from this process.

    Args (headrace's own options, given as keywords):
        {options}
    """

    def _warm_up(self) -> None:
        _per_loader.position_of(self).made_by = callers.place_of_caller()
        if _uses_engine(self) and not contexts.foreign_class(self.multiprocessing_context):
            _warm_up_for(self)

    def _headrace_context(self) -> Any:
        return context.Context()

    def _use_auto_workers(self) -> None:
        is_forked = contexts.start_method_of(self.multiprocessing_context) == "fork"
        self.num_workers = worker_count.AutoWorkers(worker_count.most(is_forked))

    def _get_iterator(self) -> Any:
        return get_iterator(self)

    def __iter__(self) -> Any:
        """Returns an iterator over an epoch."""
        return _measured(self, super().__iter__) if headspace.is_asked() else super().__iter__()

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch, which rng="sample" and on_bad_sample="refill" use. Without it, the epochs
        are counted. Passes it on to the sampler, the batch sampler and the dataset, if they have set_epoch; workers
        that persist get it too."""
        _resume.set_epoch(self, epoch)

    def report(self) -> dict[str, Any]:
        """Returns counters of the newest iterator: see headrace.Loader.report. If the sampler deals to several ranks,
        there is also `ranks`, a text that says which rank this is, what says so, and how it is compared with the
        others. Raises RuntimeError before the first one."""
        engine = _loader_options.engines.get(self)
        dataset = _loader_options.report_dataset(self)
        if engine is None and not dataset:
            raise RuntimeError(_engine.NO_REPORT)
        ranks = _agree.describe(self)
        report = {**(engine.report() if engine is not None else {}), **dataset}
        return {**report, "ranks": ranks} if ranks else report

    # Not a property, so that users can set it to True, which makes accelerate keep the loader.
    @functools.cached_property
    def _is_accelerate_prepared(self) -> bool:
        """Warns of what will be lost, and raises RuntimeError if most samples would be. Only accelerate reads this
        attribute, before it rebuilds a loader."""
        _accelerate.check_before_prepare(self)
        _windows.check_before_prepare(self)
        if _uses_engine(self) and not _why_torchs(self):
            if _internals.factories()[0] is not get_iterator:
                _warn_of_accelerate(_ENGINE_LOST)
                if worker_count.is_auto(self.num_workers):  # torch's workers are never parked
                    self.num_workers = worker_count.by_rule()
            elif lost := [name for name in _options.TABLE if self._loses(name)]:
                _warn_of_accelerate(_OPTIONS_LOST.format(", ".join(lost), ", ".join(f"{name}=..." for name in lost)))
        return False

    def _loses(self, name: str) -> bool:
        if name in ("device", "device_prefetch"):  # accelerate moves the batches itself
            return False
        own = _options.own(self, name, _options.DEFAULTS[name])
        return _options.is_given(name, own) and name not in _per_loader.installed_options


def _measured(loader: Any, begin: Callable[[], Any]) -> Any:
    """Returns an iterator over an epoch whose loop is measured."""
    from headrace._loader.headspace import session  # imported only if it is needed

    return session.iterate(loader, _loader_options.show_of(loader), begin, _internals.is_iterable(loader))


def iter_measured(loader: _torchs.DataLoader[Any], begin: Callable[[], Any]) -> Any:
    """Iterates over torch's loaders while headrace is installed and loops are measured."""
    return begin() if isinstance(loader, _base.DataLoader) else _measured(loader, begin)


def _uses_engine(loader: _torchs.DataLoader[Any]) -> bool:
    return loader.num_workers > 0 and not isinstance(loader.dataset, _internals.DataPipes)


def _why_torchs(loader: _torchs.DataLoader[Any]) -> str | None:
    """Returns why a loader with workers gets torch's engine, or None if it gets headrace's."""
    if name := contexts.foreign_class(loader.multiprocessing_context):
        return f"its multiprocessing_context starts workers as {name}, which is not a process of multiprocessing"
    return this_process.why_engine_cannot_run()


def get_iterator(loader: _torchs.DataLoader[Any]) -> Any:
    """Returns the iterator of any torch loader: headrace's if its engine can run, else torch's."""
    if not _uses_engine(loader):
        iterator = _iterator_in_process(loader)
        return iterator if isinstance(iterator, _in_process.InProcessIterator) else _base.moved(loader, iterator)
    if reason := _why_torchs(loader):
        _warn_of_torchs(reason)
        if worker_count.is_auto(loader.num_workers):
            loader.num_workers = worker_count.by_rule()
        return _base.moved(loader, _torchs_iterator(loader))
    if not worker_count.is_auto(loader.num_workers):
        _internals.called_by_torch(loader.check_worker_number_rationality)
    return _iterator_over_workers(loader)


def _iterator_in_process(loader: _torchs.DataLoader[Any]) -> Any:
    if isinstance(loader.dataset, _internals.DataPipes):
        return _internals.torchs_iterator(loader)
    policy = _loader_options.policy_of(loader)
    if _internals.is_wrapped and not policy.is_per_sample:
        return _torchs_iterator(loader)
    return _in_process.InProcessIterator(loader, policy)


def _torchs_iterator(loader: _torchs.DataLoader[Any]) -> Any:
    """Returns torch's iterator. It is counted and continued for loaders that have a state: headrace's own."""
    if isinstance(loader, _base.DataLoader) or _per_loader.position_of(loader).next_start is not None:
        return _plain.get_iterator(loader)
    return _internals.torchs_iterator(loader)


def _iterator_over_workers(loader: _torchs.DataLoader[Any]) -> Any:
    if not _loader_options.warmed.get(loader):
        _warm_up_for(loader)
    return _iterator.Iterator(loader)


def _warm_up_for(loader: _torchs.DataLoader[Any]) -> None:
    _loader_options.warmed.set(loader, True)
    parts = [loader.dataset, loader.collate_fn, loader.worker_init_fn]
    client.warm_up(loader.multiprocessing_context, _PRELOAD, parts)


def new_iterator(cls: type, *arguments: Any, **named: Any) -> Any:
    """Replaces __new__ of torch's iterator class for workers while headrace is installed. A class that derives from it
    has its own arguments, and is not changed."""
    if cls is not _internals.MultiProcessingIterator:
        return _internals.torchs_new(cls)
    return _new_iterator(*arguments, **named)


def _new_iterator(loader: _torchs.DataLoader[Any]) -> Any:
    if not _uses_engine(loader) or _why_torchs(loader):
        return _internals.torchs_new(_internals.MultiProcessingIterator)
    return _iterator_over_workers(loader)

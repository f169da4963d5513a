# SPDX-License-Identifier: Apache-2.0
"""headrace.torch.DataLoader."""

from __future__ import annotations

import functools
import warnings
from typing import Any, TypeVar

from headrace import _options
from headrace._base import tracebacks
from headrace._base.help_key import help_on
from headrace._loader import headspace
from headrace._loader.forkserver import context
from headrace._loader.start import contexts
from headrace._ranks import callers, worker_count
from headrace.torch._frameworks import accelerate
from headrace.torch._loader import base, choose
from headrace.torch._loader.as_any import AsAnyLoader
from headrace.torch._own import loaders, table

_T_co = TypeVar("_T_co", covariant=True)
# What a loader loses when accelerate rebuilds it, and how to keep it.
_ENGINE_LOST = "which runs torch's workers; call headrace.torch.install() to keep headrace's"
_OPTIONS_LOST = "which drops {}; call headrace.torch.install({}) to set that for such loaders"


@functools.cache
def _warn_of_accelerate(loss: str) -> None:
    """Warns once per process and loss."""
    warnings.warn(
        f"headrace: accelerate's prepare() replaces this loader with its own class, {loss}" + help_on("accelerate"),
        stacklevel=8,
    )


@_options.documented("torch")
class DataLoader(base.DataLoader[_T_co]):
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
        table.kept(self).position.made_by = callers.place_of_caller()
        if choose.uses_engine(self) and not contexts.foreign_class(self.multiprocessing_context):
            choose.warm_up_for(self)

    def _headrace_context(self) -> Any:
        return context.called_headrace()

    def _use_auto_workers(self) -> None:
        is_forked = contexts.start_method_of(self.multiprocessing_context) == "fork"
        self.num_workers = worker_count.AutoWorkers(worker_count.most(is_forked))

    def _get_iterator(self) -> Any:
        return choose.get_iterator(self)

    def __iter__(self) -> Any:
        """Returns an iterator over an epoch."""
        try:
            return choose.measured(self, super().__iter__) if headspace.is_asked() else super().__iter__()
        except Exception as error:
            tracebacks.cut(error)
            raise error

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch, which rng="sample" and on_bad_sample="refill" use. Without it, the epochs
        are counted. Passes it on to the sampler, the batch sampler and the dataset, if they have set_epoch; workers
        that persist get it too."""
        self._set_epoch(epoch)

    def report(self) -> dict[str, Any]:
        """Returns counters of the newest iterator: see headrace.Loader.report. If the sampler deals to several ranks,
        there is also `ranks`, a text that says which rank this is, what says so, and how it is compared with the
        others. Raises RuntimeError before the first one."""
        return table.kept(self).report(AsAnyLoader(self))

    # Not a property, so that users can set it to True, which makes accelerate keep the loader.
    @functools.cached_property
    def _is_accelerate_prepared(self) -> bool:
        """Warns of what will be lost, and raises RuntimeError if most samples would be. Only accelerate reads this
        attribute, before it rebuilds a loader."""
        accelerate.check_before_prepare(self)
        accelerate.check_steps_before_prepare(self)
        if choose.uses_engine(self) and not choose.why_torchs(self):
            if loaders.factories()[0] is not choose.get_iterator:
                _warn_of_accelerate(_ENGINE_LOST)
                if worker_count.is_auto(self.num_workers):  # torch's workers are never parked
                    self.num_workers = worker_count.by_rule()
            elif lost := [name for name in _options.TABLE if self._loses(name)]:
                _warn_of_accelerate(_OPTIONS_LOST.format(", ".join(lost), ", ".join(f"{name}=..." for name in lost)))
        return False

    def _loses(self, name: str) -> bool:
        if name in ("device", "device_prefetch"):  # accelerate moves the batches itself
            return False
        return _options.is_given(name, _options.Settings.one(name, _options.own_values(self), {})) and (
            name not in table.installed_options
        )

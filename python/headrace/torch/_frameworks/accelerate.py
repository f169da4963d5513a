# SPDX-License-Identifier: Apache-2.0
"""Changes accelerate's loaders while headrace is installed. _install.py calls it.

accelerate's prepare() and skip_first_batches() make loaders of accelerate's own classes, each with a torch DataLoader
inside. Without these changes that is torch's class or torchdata's StatefulDataLoader, whose order of samples is another
one after a resume, and a sampler that gives the part of one rank is dealt to the ranks again.

With use_stateful_dataloader=True, accelerate keeps the state of the loader inside in `dl_state_dict` at each batch, and
save_state() saves that. A DataLoaderShard has fetched one batch more than its user has, and keeps the state before
that. A DataLoaderDispatcher fetches a batch for each rank on rank 0, one step ahead; the other ranks fetch nothing, but
each rank saves to the same file, so all get the state of rank 0.
"""

from __future__ import annotations

import importlib.machinery
import sys
import warnings
from typing import Any

from headrace._base.help_key import help_on
from headrace.sampling import _state
from headrace.torch._frameworks import dealt_again
from headrace.torch._own import classes, table
from headrace.torch._own.classes import is_plan

_MODULE = "accelerate.data_loader"
_ITERATION = "_iteration"  # the key in a state for accelerate's number of the epoch
_originals: dict[tuple[str, str], Any] = {}  # (class, method) -> accelerate's function, while it is replaced
_loader_class: Any = classes.DataLoader  # of the loaders inside accelerate's


# ---- what replaces methods of accelerate's classes ----


def _make_base(
    adapter: Any, dataset: Any, use_stateful_dataloader: bool = False, batch_sampler: Any = None, **options: Any
) -> None:
    """Replaces DataLoaderAdapter.__init__, which makes the loader inside from torch's or torchdata's class."""
    adapter.use_stateful_dataloader = use_stateful_dataloader
    adapter.base_dataloader = _loader_class(dataset, batch_sampler=batch_sampler, **options)
    if use_stateful_dataloader:
        adapter.dl_state_dict = adapter.base_dataloader.state_dict()


def _state_dict(adapter: Any) -> Any:
    """Replaces DataLoaderAdapter.state_dict."""
    if not adapter.use_stateful_dataloader:
        raise RuntimeError(
            "headrace: accelerate keeps the state of a loader only if it is told to: "
            "Accelerator(dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True))"
        )
    return adapter.dl_state_dict


def _update_state(adapter: Any) -> None:
    """Replaces DataLoaderAdapter._update_state_dict, which is called before each batch is fetched, and at the end."""
    if not adapter.use_stateful_dataloader:
        return
    if not _is_dispatcher(adapter):
        adapter.dl_state_dict = _marked(adapter, adapter.base_dataloader.state_dict())
    elif adapter.end_of_dataloader:  # all ranks call it then
        _share_state(adapter)


def _fetch_batches(dispatcher: Any, iterator: Any) -> Any:
    """Replaces DataLoaderDispatcher._fetch_batches, which all ranks call one step ahead of what their users have."""
    if dispatcher.use_stateful_dataloader:
        _share_state(dispatcher)
    return _originals["DataLoaderDispatcher", "_fetch_batches"](dispatcher, iterator)


def _share_state(dispatcher: Any) -> None:
    """Gives the state of rank 0's loader to all ranks."""
    is_first = dispatcher.state.process_index == 0
    shared = [dispatcher.base_dataloader.state_dict() if is_first else None]
    sys.modules[_MODULE].broadcast_object_list(shared)
    dispatcher.dl_state_dict = _marked(dispatcher, shared[0])


def _marked(adapter: Any, state: Any) -> dict[str, Any]:
    """Returns the state of the loader inside with what accelerate adds, and its number of the next batch's epoch."""
    is_finished = adapter.end_of_dataloader
    iteration = getattr(adapter, "iteration", 0)  # SkipDataLoader has none
    return {**state, "_iterator_finished": is_finished, _ITERATION: iteration + is_finished}


def _load_state(adapter: Any, state: Any) -> None:
    """Replaces DataLoaderAdapter.load_state_dict. accelerate sets the samplers to the epoch `iteration`, which is 0 in
    a new process."""
    loaded = _state.decode(state)
    if not _is_dispatcher(adapter) or adapter.state.process_index == 0:
        adapter.base_dataloader.load_state_dict(state)
    iteration = state.get(_ITERATION)
    adapter.iteration = iteration if type(iteration) is int else loaded.order.get("epoch", loaded.epoch)


def _is_dispatcher(adapter: Any) -> bool:
    return isinstance(adapter, sys.modules[_MODULE].DataLoaderDispatcher)


def _iterate_shard(shard: Any) -> Any:
    """Replaces BatchSamplerShard.__iter__."""
    if not is_left_as_it_is(shard):
        return _originals["BatchSamplerShard", "__iter__"](shard)
    return iter(shard.batch_sampler)


def _count_shard(shard: Any) -> int:
    """Replaces BatchSamplerShard.__len__."""
    if not is_left_as_it_is(shard):
        return _originals["BatchSamplerShard", "__len__"](shard)  # type: ignore[no-any-return]
    return len(shard.batch_sampler)


_REPLACEMENTS = {
    ("DataLoaderAdapter", "__init__"): _make_base,
    ("DataLoaderAdapter", "state_dict"): _state_dict,
    ("DataLoaderAdapter", "load_state_dict"): _load_state,
    ("DataLoaderAdapter", "_update_state_dict"): _update_state,
    ("DataLoaderDispatcher", "_fetch_batches"): _fetch_batches,
    ("BatchSamplerShard", "__iter__"): _iterate_shard,
    ("BatchSamplerShard", "__len__"): _count_shard,
}


def sampler_of_one_rank(batch_sampler: Any) -> Any:
    """Returns the batch sampler, or the sampler that it draws from, if it gives only the part of one of several ranks;
    else None."""
    samplers = [batch_sampler, getattr(batch_sampler, "sampler", None)]
    dealt = [one for one in samplers if isinstance(one, classes.DistributedSampler) or is_plan(one)]
    return next((one for one in dealt if one.num_replicas > 1), None)


def is_left_as_it_is(shard: Any) -> bool:
    """Returns True if a BatchSamplerShard gives the batches of the batch sampler inside it, which are those of one
    rank."""
    return is_installed() and sampler_of_one_rank(shard.batch_sampler) is not None


def check_before_prepare(loader: Any) -> None:
    """Raises RuntimeError if accelerate is about to deal the part of one rank again, and headrace is not installed to
    prevent it."""
    states = sys.modules.get("accelerate.state")
    processes = states.PartialState().num_processes if states else 1
    sampler = sampler_of_one_rank(loader.batch_sampler)
    # A plan gives the batches of all ranks if accelerate deals them.
    if processes > 1 and not is_installed() and sampler is not None and not is_plan(sampler):
        raise RuntimeError(dealt_again.describe(sampler, processes))


def check_steps_before_prepare(loader: Any) -> None:
    """Raises RuntimeError if accelerate is about to replace a loader by one whose epochs are the passes."""
    windows = table.kept(loader).position.windows
    if windows is not None:
        raise RuntimeError(
            f"headrace: accelerate's prepare() would make this loader again, without steps_per_epoch={windows.steps}; "
            "do not give it to prepare(): deal its sampler with headrace.torch.per_rank, and move its batches to the "
            "device" + help_on("accelerate")
        )


# ---- where the replacements are put ----


class _Finder:
    """Finds accelerate's module as Python does, and changes it when it has been imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != _MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = _then_replace(spec.loader.exec_module)  # type: ignore[method-assign]
        return spec


def _then_replace(execute: Any) -> Any:
    def execute_and_replace(module: Any) -> None:
        execute(module)
        if is_installed():
            _replace(module)

    return execute_and_replace


_finder = _Finder()


def is_installed() -> bool:
    """Returns True if accelerate's classes are changed, or will be when they are imported."""
    return _finder in sys.meta_path


def install(loader_class: Any) -> None:
    """Makes accelerate put loaders of a class into its own."""
    global _loader_class
    _loader_class = loader_class
    if not is_installed():
        sys.meta_path.insert(0, _finder)
    if _MODULE in sys.modules:
        _replace(sys.modules[_MODULE])


def uninstall() -> None:
    if is_installed():
        sys.meta_path.remove(_finder)
    for (kind, method), original in _originals.items():
        setattr(getattr(sys.modules[_MODULE], kind), method, original)
    _originals.clear()


def _replace(module: Any) -> None:
    if missing := [f"{kind}.{method}" for kind, method in _REPLACEMENTS if not _has(module, kind, method)]:
        warnings.warn(
            f"headrace: this accelerate has no {', '.join(missing)}, so its loaders are left as they are: their state "
            "is not headrace's",
            stacklevel=3,
        )
        return
    for (kind, method), replacement in _REPLACEMENTS.items():
        original = getattr(getattr(module, kind), method)
        if original is not replacement:
            _originals[kind, method] = original
            setattr(getattr(module, kind), method, replacement)


def _has(module: Any, kind: str, method: str) -> bool:
    return method in vars(getattr(module, kind, object))

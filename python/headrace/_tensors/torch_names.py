# SPDX-License-Identifier: Apache-2.0
"""All private names of torch that headrace uses, and what becomes of headrace if a torch does not have one.

headrace.torch looks at the required ones before it imports anything that needs them. The functions that use the names
are in the folder headrace/torch/_own; headrace.images and headrace._tensors take theirs from here.
tools/check_names.py refuses them elsewhere, and tools/torch_names.py looks for them in a wheel. So this module imports
neither torch nor headrace.
"""

from __future__ import annotations

import sys
import types
from typing import Any, NamedTuple

FLOOR, NEWEST = "2.6", "2.15"  # the versions of torch that headrace is made for: the oldest, and the newest known one

ENGINE = "engine"  # without it, headrace.torch is torch's loader
STATE = "state"  # without it, that loader has no state either
OPTIONAL = ""
_SHOWN = 3  # a warning names so many

_ENGINES = "headrace's engine"
_STATES = "headrace's engine, and the state of loaders on torch's iterators"


class Name(NamedTuple):
    """A private name of torch: a member of a module, or of a class, which may be an attribute of its instances.

    since: the first version of torch that has it; "2.0": that one or an older one. need: ENGINE, STATE or OPTIONAL.
    lost: what headrace lacks without it.
    """

    path: str
    since: str
    need: str
    lost: str


_DATA = "torch.utils.data.dataloader"
_BASE = f"{_DATA}._BaseDataLoaderIter"
_WORKERS = f"{_DATA}._MultiProcessingDataLoaderIter"
_PYTREE = "torch.utils._pytree"
SHUTDOWN = "_shutdown_workers"

NAMES = (
    # torch's loader and its iterators
    Name(f"{_DATA}.DataLoader._get_iterator", "2.0", STATE, _STATES),
    Name(f"{_DATA}.DataLoader._index_sampler", "2.0", STATE, _STATES),
    Name(f"{_DATA}.DataLoader._auto_collation", "2.0", STATE, _STATES),
    Name(f"{_DATA}.DataLoader._dataset_kind", "2.0", STATE, _STATES),
    Name(f"{_DATA}.DataLoader._iterator", "2.0", STATE, _STATES),
    Name(f"{_DATA}.DataLoader.in_order", "2.6", OPTIONAL, "in_order=False"),
    Name(f"{_DATA}._DatasetKind", "2.0", STATE, _STATES),
    Name(f"{_DATA}._DatasetKind.Iterable", "2.0", STATE, _STATES),
    Name(f"{_DATA}._DatasetKind.Map", "2.0", ENGINE, _ENGINES),
    Name(f"{_DATA}._DatasetKind.create_fetcher", "2.0", ENGINE, _ENGINES),
    Name(f"{_DATA}._InfiniteConstantSampler", "2.0", OPTIONAL, "the tasks of iterable datasets that C makes"),
    Name("torch.utils.data.sampler.RandomSampler._num_samples", "2.0", STATE, _STATES),
    Name(_BASE, "2.0", STATE, _STATES),
    Name(f"{_BASE}._base_seed", "2.0", STATE, _STATES),
    Name(f"{_BASE}._next_data", "2.0", STATE, _STATES),
    Name(f"{_BASE}._reset", "2.0", STATE, _STATES),
    Name(f"{_BASE}._num_yielded", "2.0", OPTIONAL, "nothing: headrace's iterators count under the same name"),
    Name(f"{_BASE}._profile_name", "2.0", OPTIONAL, "nothing: headrace's iterators have a name for profilers"),
    Name(f"{_BASE}._IterableDataset_len_called", "2.0", OPTIONAL, "the warning of an IterableDataset that is longer"),
    Name(f"{_BASE}._auto_collation", "2.0", ENGINE, _ENGINES),
    Name(f"{_BASE}._collate_fn", "2.0", ENGINE, _ENGINES),
    Name(f"{_BASE}._dataset", "2.0", ENGINE, _ENGINES),
    Name(f"{_BASE}._dataset_kind", "2.0", ENGINE, _ENGINES),
    Name(f"{_BASE}._drop_last", "2.0", ENGINE, _ENGINES),
    Name(f"{_BASE}._index_sampler", "2.0", STATE, _STATES),
    Name(f"{_BASE}._num_workers", "2.0", ENGINE, _ENGINES),
    Name(f"{_BASE}._persistent_workers", "2.0", ENGINE, _ENGINES),
    Name(f"{_BASE}._pin_memory", "2.0", ENGINE, _ENGINES),
    Name(f"{_BASE}._pin_memory_device", "2.0", OPTIONAL, "pin_memory_device: torch's accelerator is taken"),
    Name(f"{_BASE}._sampler_iter", "2.0", ENGINE, _ENGINES),
    Name(f"{_BASE}._timeout", "2.0", ENGINE, _ENGINES),
    Name(f"{_DATA}._SingleProcessDataLoaderIter", "2.0", ENGINE, _ENGINES),
    Name(f"{_DATA}._SingleProcessDataLoaderIter._dataset_fetcher", "2.0", ENGINE, _ENGINES),
    Name(_WORKERS, "2.0", STATE, _STATES),
    Name(f"{_WORKERS}._task_info", "2.0", STATE, _STATES),
    Name(f"{_WORKERS}.{SHUTDOWN}", "2.0", STATE, _STATES),
    Name(f"{_WORKERS}._shutdown", "2.0", OPTIONAL, "steps_per_epoch after a framework has ended the workers"),
    Name(f"{_WORKERS}._workers", "2.0", OPTIONAL, "steps_per_epoch after a worker of torch has died"),
    # what torch's workers do
    Name("torch._utils.ExceptionWrapper", "2.0", ENGINE, _ENGINES),
    Name("torch.utils.data._utils.worker.WorkerInfo", "2.0", ENGINE, _ENGINES),
    Name("torch.utils.data._utils.worker._worker_info", "2.0", ENGINE, _ENGINES),
    Name("torch.utils.data._utils.worker._generate_state", "2.0", ENGINE, _ENGINES),
    Name("torch.utils.data._utils.worker.HAS_NUMPY", "2.0", OPTIONAL, "nothing: headrace looks for numpy itself"),
    Name(
        "torch.utils.data._utils.signal_handling._set_worker_signal_handlers",
        "2.0",
        OPTIONAL,
        "torch's line of text when a worker dies of a signal",
    ),
    Name("torch.utils.data._utils.pin_memory.pin_memory", "2.0", ENGINE, _ENGINES),
    Name("torch.utils.data._utils.pin_memory._pin_memory_loop", "2.0", ENGINE, _ENGINES),
    Name("torch.utils.data._utils.collate.collate", "2.0", OPTIONAL, "collating in C"),
    Name("torch.utils.data._utils.collate.default_collate_fn_map", "2.0", OPTIONAL, "collating in C"),
    Name("torch.utils.data._utils.collate.default_convert", "2.0", OPTIONAL, "a faster default_convert"),
    Name("torch.utils.data._utils.fetch._MapDatasetFetcher", "2.0", OPTIONAL, "gathering rows, and collating in C"),
    Name(
        "torch.utils.data._utils.fetch._IterableDatasetFetcher",
        "2.0",
        OPTIONAL,
        "collating in C, and a batch after Ctrl-C",
    ),
    Name("torch._C._len_torch_function_stack", "2.0", OPTIONAL, "gathering the rows of a TensorDataset in C"),
    Name("torch._C._functorch.peek_interpreter_stack", "2.0", OPTIONAL, "seeing that torch.func transforms a loop"),
    Name("torch.autograd.forward_ad._current_level", "2.0", OPTIONAL, "gathering the rows of a TensorDataset in C"),
    Name("torch._C._len_torch_dispatch_stack", "2.0", OPTIONAL, "gathering the rows of a TensorDataset in C"),
    Name("torch.multiprocessing._set_thread_name", "2.5", OPTIONAL, "the name of a worker in ps and top"),
    Name("torch.autograd.profiler._is_profiler_enabled", "2.1", OPTIONAL, "some microseconds for each batch"),
    Name("torch.storage.TypedStorage._untyped_storage", "2.0", OPTIONAL, "the doctor's words on typed storages"),
    Name("torch.UntypedStorage._cdata", "2.0", ENGINE, _ENGINES),
    Name("torch.UntypedStorage._new_shared", "2.0", OPTIONAL, "a copy less of what the user's collate_fn makes"),
    Name("torch.Tensor.__dlpack_c_exchange_api__", "2.10", OPTIONAL, "tensors without DLPack capsules"),
    # torch.distributed
    Name("torch.distributed.distributed_c10d._get_default_store", "2.0", OPTIONAL, "comparing ranks of machines"),
    Name("torch.distributed.distributed_c10d._world", "2.0", OPTIONAL, "counting collective operations"),
    Name(
        "torch._C._distributed_c10d.ProcessGroup._get_sequence_number_for_group",
        "2.0",
        OPTIONAL,
        "counting collective operations",
    ),
    # headrace.images
    Name("torch.Tensor._make_wrapper_subclass", "2.0", OPTIONAL, "making the images of a batch together"),
    Name("torch._C.DisableTorchFunctionSubclass", "2.0", OPTIONAL, "making the images of a batch together"),
    Name(f"{_PYTREE}.tree_map", "2.0", OPTIONAL, "making the images of a batch together"),
    Name(f"{_PYTREE}.tree_flatten", "2.0", OPTIONAL, "images among boxes and masks"),
    Name(f"{_PYTREE}.tree_unflatten", "2.0", OPTIONAL, "images among boxes and masks"),
    Name("torch.nn.modules.module.Module._modules", "2.0", OPTIONAL, "native steps inside Sequential and ModuleList"),
    Name("torch.nn.modules.module.Module._forward_hooks", "2.0", OPTIONAL, "native steps that are modules"),
    Name("torch.nn.modules.module.Module._forward_pre_hooks", "2.0", OPTIONAL, "native steps that are modules"),
    Name("torch._C._set_throw_on_mutable_data_ptr", "2.4", OPTIONAL, "an exception where C code takes a null pointer"),
    Name("torch._C._storage_Use_Count", "2.2", OPTIONAL, "using the memory of images again"),
)
BY_PATH = {one.path: one for one in NAMES}
# A module whose functions give the samples to headrace's collate function. Without it, images are made one by one.
FETCHERS = "torch.utils.data._utils.fetch"

_NOTHING = object()


def find(path: str, default: Any = None) -> Any:
    """Returns what torch has under a name of the table, or the default. Modules are not imported."""
    assert path in BY_PATH, path
    return _find(path, default)


def _find(path: str, default: Any) -> Any:
    module = path
    names: list[str] = []
    while module not in sys.modules:
        module, _, name = module.rpartition(".")
        if not module:
            return default
        names.insert(0, name)
    found: Any = sys.modules[module]
    for name in names:
        found = getattr(found, name, _NOTHING)
        if found is _NOTHING:
            return default
    return found


def has(path: str) -> bool:
    """Returns True if torch has a name. An attribute of instances counts if the code of a class's functions has it: to
    make an instance may draw random numbers."""
    if _find(path, _NOTHING) is not _NOTHING:
        return True
    owner, _, name = path.rpartition(".")
    kind = _find(owner, None)
    return isinstance(kind, type) and any(_mentions(one, name) for base in kind.__mro__ for one in vars(base).values())


def _mentions(function: Any, name: str) -> bool:
    if not isinstance(function, types.FunctionType):
        return False
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return name in getattr(getattr(function, "__code__", None), "co_names", ())


def missing(*needs: str) -> list[str]:
    """Returns the names of these needs that torch does not have."""
    return [one.path for one in NAMES if one.need in needs and not has(one.path)]


def why_not() -> str | None:
    """Returns why headrace's engine does not fit the torch that is imported, or None if it does."""
    if not (lacking := missing(ENGINE, STATE)):
        return None
    shown = ", ".join(lacking[:_SHOWN]) + (f" (and {len(lacking) - _SHOWN} more)" if len(lacking) > _SHOWN else "")
    states = ". Its loaders have no state_dict and load_state_dict here" if missing(STATE) else ""
    return (
        f"torch {version()} has no {shown}, which headrace needs{states}. headrace is made for torch {FLOOR} to "
        f"{NEWEST}: install one of these, or a newer headrace; HEADRACE_DISABLE=1 chooses torch's loader and says so "
        "without this look"
    )


def version() -> str:
    """Returns the version of the torch that is imported."""
    return str(getattr(sys.modules.get("torch"), "__version__", "(without a version)"))


def storage_key(storage: Any) -> int:
    """Returns one number per storage. Another storage may have it once this one is freed."""
    key: int = storage._cdata
    return key


def untyped(storage: Any) -> Any:
    """Returns the storage inside a TypedStorage; any other as it is."""
    return getattr(storage, "_untyped_storage", storage)


def may_have_hooks(value: Any) -> bool:
    """Returns True if the call of an object may run hooks of torch.nn.Module, which it has or which torch hides."""
    hooks = [vars(value).get(name) for name in ("_forward_hooks", "_forward_pre_hooks")]
    module = getattr(sys.modules.get("torch.nn.modules.module"), "Module", ())
    return any(hooks) or (isinstance(value, module) and None in hooks)


def modules_of(module: Any) -> dict[str, Any]:
    """Returns the modules inside a module, by name."""
    return dict(module._modules)


def set_modules(module: Any, inner: dict[str, Any]) -> None:
    """Puts other modules inside a module, and leaves the dict of those before as it is."""
    module._modules = inner


def has_numpy() -> bool:
    """Returns True if torch seeds numpy's random numbers in workers."""
    found = find("torch.utils.data._utils.worker.HAS_NUMPY")
    if found is None:
        from importlib.util import find_spec

        return find_spec("numpy") is not None
    return bool(found)

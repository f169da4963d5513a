# SPDX-License-Identifier: Apache-2.0
"""Finds torch.distributed's default group, its store, and how many collective operations have begun. With private names
of torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from headrace._tensors import torch_names


def default_group_size() -> int:
    """Returns the number of processes of torch.distributed's default group, or 0 if there is no group, or none whose
    store torch gives."""
    distributed = sys.modules.get("torch.distributed")
    if (
        distributed is None
        or _store_function() is None
        or not distributed.is_available()
        or not distributed.is_initialized()
    ):
        return 0
    return int(distributed.get_world_size())


def count_collectives() -> int:
    """Returns how many collective operations this process has begun in all groups of torch.distributed, or 0 if torch
    does not say."""
    return _count_collectives(lambda world: world.pg_map)


def count_collectives_of_all() -> int:
    """Returns how many collective operations this process has begun in the default group, which has all ranks, or 0 if
    torch does not say."""
    return _count_collectives(lambda world: [world.default_pg])


def _count_collectives(groups_of: Callable[[Any], Iterable[Any]]) -> int:
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        return sum(group._get_sequence_number_for_group() for group in groups_of(distributed._world))  # type: ignore[union-attr]
    except (AttributeError, RuntimeError):  # another torch, no group, or a backend that does not count
        return 0


def default_store() -> Any:
    """Returns the store of torch.distributed's default group."""
    return _store_function()()


def _store_function() -> Any:
    return torch_names.find("torch.distributed.distributed_c10d._get_default_store")

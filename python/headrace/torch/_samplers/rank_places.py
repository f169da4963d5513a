# SPDX-License-Identifier: Apache-2.0
"""Finds the data-parallel rank of this process in a group or a mesh of torch.distributed, or as _ranks/where.py does.
per_rank uses it."""

from __future__ import annotations

from typing import Any

import torch.distributed

from headrace._ranks import where

_DATA_PARALLEL = "dp"  # the names of such dimensions of a mesh start with it, if there are several


def find(num_replicas: int | None, rank: int | None, group: Any, mesh: Any) -> where.RankPlace:
    """Returns the place of this process among the data-parallel ranks. Tensor-parallel and context-parallel peers
    have the same rank.

    group: a group of torch.distributed. mesh: a DeviceMesh whose dimensions are all data-parallel. Raises ValueError if
    the place is given in two ways, or if this process is in neither the group nor the mesh.
    """
    given = {"num_replicas and rank": (num_replicas, rank) != (None, None), "group": group, "mesh": mesh}
    names = [name for name, value in given.items() if value is not None and value is not False]
    if len(names) > 1:
        raise ValueError(f"headrace: give only one of {', '.join(given)}; given are {' and '.join(names)}")
    if mesh is not None:
        return _of_mesh(mesh)
    return where.find(num_replicas, rank) if group is None else _of_group(group)


def ranks_of_machine(place: where.RankPlace) -> int:
    """Returns how many ranks each machine has. Raises ValueError if that is not known, or if the ranks of this machine
    do not follow each other, or not at a multiple of their number: then machines have different numbers of them."""
    count, local = place.local_world_size, place.local_rank
    if count is None or local is None:
        raise ValueError(
            f'headrace.torch.per_rank: stay="machine" needs the number of ranks of a machine, which is not known here '
            f"(the rank was found in: {place.source}); give it, such as stay=8"
        )
    if place.world_size % count or place.rank % count != local:
        raise ValueError(
            f'headrace.torch.per_rank: stay="machine" needs equally many ranks on each machine, numbered one machine '
            f"after the other, but rank {place.rank} of {place.world_size} is number {local} of {count} ranks on its "
            "machine; give stay= a number that divides them, or use stay=None"
        )
    return count


def _of_group(group: Any) -> where.RankPlace:
    rank, size = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
    if rank < 0:
        raise ValueError("headrace: this process is not in the group; give the group of its data-parallel ranks")
    return where.RankPlace(rank, size, None, None, "group of torch.distributed")


def _of_mesh(mesh: Any) -> where.RankPlace:
    """Returns the place in a mesh. The ranks are counted in the order of its dimensions: the last one is fastest."""
    names, shape, own = mesh.mesh_dim_names or (), tuple(mesh.shape), mesh.get_coordinate()
    if len(shape) != 1 and not (names and all(name.startswith(_DATA_PARALLEL) for name in names)):
        raise ValueError(
            f"headrace: the mesh has {len(shape)} dimensions ({', '.join(names) or 'without names'}), and it is not "
            f'known which of them are data-parallel; give these only, such as mesh=mesh["dp"]'
        )
    if own is None:
        raise ValueError("headrace: this process is not in the mesh; give the mesh of its data-parallel ranks")
    rank, size = 0, 1
    for coordinate, length in zip(own, shape, strict=True):
        rank, size = rank * length + coordinate, size * length
    return where.RankPlace(rank, size, None, None, f"mesh of torch.distributed ({', '.join(names) or 'one dimension'})")

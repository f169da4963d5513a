# SPDX-License-Identifier: Apache-2.0
"""Compares the epochs of a loader with those of other ranks, if its sampler deals an order to them."""

from __future__ import annotations

from headrace._loader.both.any_loader import AnyLoader
from headrace._ranks.agreement import Agreement
from headrace._ranks.callers import place_of_caller
from headrace.sampling._epoch import Epoch
from headrace.sampling._watch import Watch


def watch_of(loader: AnyLoader, epoch: Epoch) -> Watch | None:
    """Returns what compares this epoch with that of the other ranks, or None if no other rank reads its order."""
    dealing = loader.dealing()
    if dealing is None or not loader.option("compare_ranks"):
        return None
    position = loader.kept.position
    if position.agreement is None:
        made_by = position.made_by or place_of_caller(f"{epoch.indices.order['n']} {dealing.settings}")
        position.agreement = Agreement(made_by, dealing.rank, dealing.ranks, dealing.settings)
    return Watch(
        position.agreement, epoch, dealing.length, dealing.seed, dealing.remainder(), own_seeds=dealing.own_seeds
    )


def describe(loader: AnyLoader) -> str:
    """Returns which rank a loader reads for, what says so, and how it is compared with the others. "": its sampler
    deals to one rank."""
    dealing = loader.dealing()
    if dealing is None:
        return ""
    agreement = loader.kept.position.agreement
    compared = "not compared yet" if agreement is None else agreement.describe()
    if not loader.option("compare_ranks"):
        compared = "compare_ranks=False is set"
    return f"rank {dealing.rank} of {dealing.ranks} ({dealing.source}); {compared}"

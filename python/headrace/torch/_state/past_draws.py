# SPDX-License-Identifier: Apache-2.0
"""Recognises that an epoch after a resume has the order of an earlier one, because the random numbers that orders are
drawn from begin again in each process: `torch.manual_seed(0)` at the top of a script, and shuffle=True.

The state of a loader has a checksum of what each of the last epochs was drawn from. _resume.py saves and loads them.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

import torch

from headrace._base.help_key import help_on
from headrace._base.warn import warn_user
from headrace.sampling._epoch import Epoch
from headrace.sampling._position import EpochPosition
from headrace.torch._own import table
from headrace.torch._samplers import generators

NAME = "past"  # in the seeds of a state
_KEPT = 16  # epochs


class PastDraws:
    """Checksums of what the epochs of a loader were drawn from. loaded: those of earlier processes."""

    def __init__(self, loaded: list[int]) -> None:
        self.known = list(loaded)
        self._loaded = set(loaded) if len(set(loaded)) == len(loaded) else set()  # repeated orders are meant to be so

    def note(self, drawn: int) -> bool:
        """Notes what an epoch was drawn from. Returns True, once, if an epoch of an earlier process had the same."""
        is_repeated = drawn in self._loaded
        if is_repeated:
            self._loaded = set()
        self.known = [*self.known, drawn][-_KEPT:]
        return is_repeated


def load(loader: Any, seeds: dict[str, Any]) -> None:
    """Takes over what a state has, whose numbers were not checked yet."""
    found = seeds.get(NAME)
    is_sound = isinstance(found, list) and all(type(one) is int for one in found)
    table.kept(loader).position.past_draws = PastDraws(found if is_sound else [])  # type: ignore[arg-type]


def as_seeds(loader: Any) -> dict[str, Any]:
    """Returns the part of a state's seeds that `load` takes."""
    past = table.kept(loader).position.past_draws
    return {} if past is None or not past.known else {NAME: past.known}


def note(position: EpochPosition, epoch: Epoch) -> None:
    """Notes what an epoch was drawn from, when its first indices are. Warns if an earlier process has drawn the same
    order."""
    drawn = None if epoch.is_continued else _checksum_of(epoch.indices.seeds)
    if position.past_draws is None:
        position.past_draws = PastDraws([])
    if drawn is not None and position.past_draws.note(drawn):
        warn_user(
            "headrace: this epoch has the same order as an earlier one, because the random numbers that it is drawn "
            "from began again when the process was restarted. Give the loader generator=torch.Generator().manual_seed("
            "seed), whose state is in that of the loader, or save torch.get_rng_state() in the checkpoint and set it "
            "with torch.set_rng_state(...) before the epoch" + help_on("order-changed")
        )


def _checksum_of(seeds: dict[str, Any]) -> int | None:
    """Returns a checksum of the shared random numbers that an order was drawn from, or None for another order."""
    drawn = next((seeds[name] for name in ("seed", "torch", "globals") if name in seeds), None)
    if isinstance(drawn, torch.Tensor):
        return zlib.crc32(generators.bytes_of(drawn))
    return None if drawn is None else zlib.crc32(json.dumps(drawn).encode())

# SPDX-License-Identifier: Apache-2.0
"""Finds the plan (headrace.Plan) that would take the padding out of a loader's batches, or balance its ranks, and says
by how much. padding.py calls it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from headrace._base import lookup
from headrace._ranks import where
from headrace.doctor.observations import Observation
from headrace.doctor.run import draws
from headrace.sampling._plan import Plan

_ROUND = 64  # limits are rounded up to a multiple
_UNEVEN = 1.1  # of the mean: so much more may the most expensive rank of a step cost
_LEAST_STEPS = 2


@dataclass(frozen=True)
class Padded:
    """The lengths that were measured. batches: those of each batch that the loader made. others: of more samples. path:
    of the part of a sample that is padded, such as "['ids']"; "": the sample itself."""

    batches: list[list[int]]
    others: list[int]
    path: str

    @property
    def sizes(self) -> list[int]:
        """The sizes of the batches with their padding."""
        return [max(one) * len(one) for one in self.batches]

    @property
    def padding(self) -> float:
        """The share of the batches that is padding."""
        return 1 - sum(map(sum, self.batches)) / max(1, sum(self.sizes))

    def plan(self, world_size: int) -> Plan:
        """Returns the plan of these samples whose batches are as large as the loader's are on average."""
        lengths = [length for one in self.batches for length in one] + self.others
        limit = max(*lengths, sum(self.sizes) // len(self.sizes))
        limit = -(-limit // _ROUND) * _ROUND
        return Plan(lengths, max_padded=limit, world_size=world_size, rank=0, tail="pad", oversized="alone")


def count_ranks(loader: Any) -> int:
    """Returns how many ranks there are, or for how many the loader's sampler deals its order."""
    try:
        found = where.find().world_size
    except ValueError:  # what is around this process is wrong; ranks.py says so
        found = 1
    count = lookup.attribute(draws.sampler_of(loader), "num_replicas")
    return max(found, count if isinstance(count, int) else 1)


def has_plan(loader: Any) -> bool:
    """Returns True if the batches of a loader are those of a headrace.Plan."""
    return isinstance(getattr(loader, "batch_sampler", None), Plan)


def fix_of(padded: Padded, plan: Plan) -> str:
    """Returns the argument of the loader that makes it use the plan."""
    key = "" if not padded.path else f", {_key_of(padded.path)}"
    limit = plan.settings.max_padded
    return (
        f"batch_sampler=headrace.Plan(headrace.lengths(dataset{key}), max_padded={limit}, oversized='alone', "
        "tail='pad'), in place of batch_size, shuffle and sampler; tail='pad' gives all ranks of the last step equally "
        "many samples and repeats fewer than there are ranks, 'drop' leaves that step out"
    )


def _key_of(path: str) -> str:
    single = re.fullmatch(r"\[('[^']*'|\d+)\]", path)
    return single[1] if single else f"lambda sample: sample{path}"


def describe_gain(padded: Padded, plan: Plan) -> str:
    """Says what the plan would change."""
    report = plan.report()
    now = sum(padded.sizes) / sum(map(len, padded.batches))
    then = report["padded_tokens"] / max(1, report["samples"] + report["repeats"])
    return (
        f"Batches by a plan of similar lengths would have {report['padding']:.0%} of padding, so a sample would cost "
        f"{then / now:.0%} of what it costs now (simulated with {report['samples']:,} samples; "
        "with more of them it is less)."
    )


def check_balance(padded: Padded, world_size: int) -> list[Observation]:
    """Compares what the ranks of a step have to compute, as if batches that follow each other were those of the
    ranks."""
    steps = [padded.sizes[i : i + world_size] for i in range(0, len(padded.sizes) - world_size + 1, world_size)]
    if world_size < 2 or len(steps) < _LEAST_STEPS:
        return []
    ratio = sum(max(step) * len(step) / max(1, sum(step)) for step in steps) / len(steps)
    value, limit = f"{ratio:.2f} of the mean", f"{world_size} ranks, {len(steps)} steps, simulated"
    if ratio <= _UNEVEN:
        return [Observation("rank balance", "ok", value, limit, "The ranks of a step have about as much to compute.")]
    plan = padded.plan(world_size)
    then = plan.report()["cost_max_to_mean"]
    text = "All ranks of a step wait for the one with the largest batch. "
    text += f"With a plan it would have {then:.2f} of the mean."
    return [Observation("rank balance", "warning", value, limit, text, fix_of(padded, plan))]

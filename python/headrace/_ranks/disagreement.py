# SPDX-License-Identifier: Apache-2.0
"""Compares the facts of ranks, and says what differs, in which ranks, and what to do. Agreements use it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace._base.help_key import help_on


class RanksDisagree(RuntimeError):
    """Raised if the ranks of a job do not read the same epoch: they would wait for each other in a collective
    operation, or train on other data than was meant."""


RanksDisagree.__module__ = "headrace"  # as users import it


class Facts(NamedTuple):
    """The facts that a rank knows about its epoch. -1: not known."""

    length: int  # samples of this rank
    steps: int  # batches of this rank
    seed: int
    epoch: int
    digest: int  # of the order of all ranks
    samples: int  # size of the dataset


class _Field(NamedTuple):
    has: str  # of one rank; {} is the value
    have: str  # of several ranks
    short: str  # of the ranks after the first ones
    advice: str


# The first field that differs is reported, so causes come before what follows from them.
_FIELDS = {
    "samples": _Field(
        "has a dataset of {} samples",
        "have datasets of {} samples",
        "{}",
        "give all ranks the same dataset, for example sort its list of files",
    ),
    "epoch": _Field(
        "is in epoch {}",
        "are in epoch {}",
        "in epoch {}",
        "call sampler.set_epoch(epoch) in every rank before it iterates over the loader",
    ),
    "seed": _Field(
        "has the seed {}",
        "have the seed {}",
        "{}",
        "give all ranks the same seed, for example seed= of the sampler",
    ),
    "steps": _Field(
        "has {} batches",
        "have {} batches",
        "{}",
        "give all ranks the same number of batches, for example with headrace.torch.per_rank",
    ),
    "length": _Field(
        "has {} samples of the epoch",
        "have {} samples of the epoch",
        "{}",
        "give all ranks the same number of samples, for example with headrace.torch.per_rank",
    ),
    "digest": _Field(
        "has another order of samples",
        "have another order of samples",
        "one of their own",
        "a sampler that draws from a generator of each rank has another order in each; use headrace.torch.per_rank, or "
        "seed the sampler equally in all ranks; for a headrace.Plan measure the lengths once and give all ranks the "
        "same ones, and the same order; with stay= of per_rank give all ranks the same number of ranks of a machine",
    ),
}
_MANY = 8  # so many ranks are listed
_CLOSE = 50  # sizes of datasets that differ by less than one in so many may be those of the same dataset
SWITCH = "HEADRACE_COMPARE_RANKS"  # an environment variable: 0 turns the comparison off
_OFF = f"if these loaders are not meant to be equal, give them compare_ranks=False, or set {SWITCH}=0"


def describe(where: str, found: Iterable[tuple[int, Facts]], without: Sequence[str] = ()) -> str | None:
    """Returns a message about the first field that differs between ranks, or None. Ranks that do not know a field are
    not compared. without: fields that may differ."""
    message = _describe(where, found, without)
    return None if message is None else message + help_on("ranks-disagree")


def _describe(where: str, found: Iterable[tuple[int, Facts]], without: Sequence[str]) -> str | None:
    pairs = list(found)
    for name, field in _FIELDS.items():
        if name in without:
            continue
        ranks: defaultdict[int, set[int]] = defaultdict(set)
        for rank, facts in pairs:
            if getattr(facts, name) != -1:
                ranks[getattr(facts, name)].add(rank)
        if len(ranks) > 1:
            epochs = {facts.epoch for _, facts in pairs} - {-1}
            when = f"epoch {epochs.pop()}" if len(epochs) == 1 else "at the start of an epoch"
            return f"{_place(where)}{when}: {_clauses(field, ranks)}{_lengths(name, pairs)}; {field.advice}; {_OFF}"
    return None


def describe_remainder(where: str, found: Iterable[tuple[int, Facts]]) -> str | None:
    """Returns a warning about ranks whose numbers of batches differ by the rest of a division, or None."""
    message = _describe(where, found, [name for name in _FIELDS if name != "steps"])
    if message is None:
        return None
    return (
        f"{message}. This is an error only if the ranks wait for each other in each step, as in a training: then it is "
        "raised at the end of the epoch. A prediction under torch.no_grad() gives no warning"
        + help_on("ranks-disagree")
    )


def describe_seeds(where: str, found: Iterable[tuple[int, Facts]]) -> str | None:
    """Returns a warning about ranks that have other seeds, although their samplers may mean it so, or None."""
    message = _describe(where, found, [name for name in _FIELDS if name != "seed"])
    if message is None:
        return None
    return (
        f"{message}. This is right only if the sampler draws with replacement, or if each rank has samples of its own"
        + help_on("ranks-disagree")
    )


def have_other_datasets(found: Iterable[tuple[int, Facts]]) -> bool:
    """Returns True if the sizes of the datasets differ so much that they are not the same dataset with some files
    missing. The smallest and the largest one are compared, so all ranks come to the same result."""
    sizes = [facts.samples for _, facts in found if facts.samples != -1]
    return bool(sizes) and (max(sizes) - min(sizes)) * _CLOSE > max(sizes)


def describe_other_dataset(where: str, found: Iterable[tuple[int, Facts]]) -> str:
    """Returns a warning about ranks whose loaders have other datasets."""
    ranks: defaultdict[int, set[int]] = defaultdict(set)
    for rank, facts in found:
        ranks[facts.samples].add(rank)
    return (
        f"{_place(where)}{_clauses(_FIELDS['samples'], ranks)}; so these are different loaders, and the loaders of "
        f"this line are not compared any more. If they are meant to be equal, {_FIELDS['samples'].advice}"
    )


def describe_end(where: str, facts: Facts, mine: tuple[int, int], theirs: tuple[int, int]) -> str:
    """Returns a message about two ranks, each with its number of batches, of which one is at its end."""
    (short_rank, short), (long_rank, long) = sorted([mine, theirs], key=lambda one: one[1])
    when = f"epoch {facts.epoch}: " if facts.epoch != -1 else ""
    return (
        f"{_place(where)}{when}rank {short_rank} is at its end after {short} batches, and rank {long_rank} has taken "
        f"{long}; {_FIELDS['steps'].advice}; {_OFF}" + help_on("ranks-disagree")
    )


def _place(where: str) -> str:
    return f"headrace: loader at {where}, "


def _clauses(field: _Field, ranks: dict[int, set[int]]) -> str:
    """Returns `rank 1 has 77 batches, ranks 0, 2, 3 have 78`: the fewest ranks first."""
    groups = sorted(ranks.items(), key=lambda item: (len(item[1]), min(item[1])))
    clauses: list[str] = []
    for value, members in groups[:_MANY]:
        is_one = len(members) == 1
        verb = (field.has if is_one else field.have) if not clauses else _continued(field, is_one)
        clauses.append(f"rank{'' if is_one else 's'} {_list(sorted(members))} {verb.format(value)}")
    return ", ".join(clauses) + (", ..." if len(groups) > _MANY else "")


def _continued(field: _Field, is_one: bool) -> str:
    """Returns the verb and the value without the noun, which was in the first clause."""
    verb = (field.has if is_one else field.have).split()[0]
    return f"{verb} {field.short}"


def _list(ranks: Sequence[int]) -> str:
    text = ", ".join(map(str, ranks[:_MANY]))
    return text + (f" and {len(ranks) - _MANY} others" if len(ranks) > _MANY else "")


def _lengths(name: str, pairs: Iterable[tuple[int, Facts]]) -> str:
    lengths = sorted({facts.length for _, facts in pairs} - {-1})
    if name != "steps" or len(lengths) < 2:
        return ""
    return f" (lengths {', '.join(map(str, lengths[:_MANY]))}{', ...' if len(lengths) > _MANY else ''})"

# SPDX-License-Identifier: Apache-2.0
"""The state of a loader: how far it is in an epoch, as a dict with one string, and back with all checks.

    {"headrace": "<JSON>"}     the same key before, during and after an epoch, so that any checkpoint format takes it

The JSON has the fields of State, `format` and a checksum. A loader in order has the same state on each rank.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace._base.help_key import help_on

KEY = "headrace"
FORMAT = 1
# What other libraries' states contain, and whose states they are.
_FOREIGN = {
    "_snapshot": "torchdata's StatefulDataLoader",
    "_steps_since_snapshot": "torchdata's StatefulDataLoader",
    "_sampler_iter_yielded": "torchdata's StatefulDataLoader",
    "_iterator_finished": "torchdata's StatefulDataLoader or accelerate",
    "dp_rank_0": "torchtitan's ParallelAwareDataloader",
    "sample_in_epoch": "Streaming's StreamingDataset",
    "last_seen_indices": "Grain's DataLoader",
}


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))  # equal states are equal texts


class StateError(ValueError):
    """Raised if a state cannot be loaded. Nothing of it is loaded then."""


class OrderChangedError(StateError):
    """Raised if the rest of an epoch cannot be read any more, because what its order is made from has changed. The next
    epoch can."""


@dataclass
class Segment:
    """A part of an epoch with one division among ranks: `steps` batches of `batch` entries on each of `world` ranks.
    drop_last: an incomplete last batch is left out. tail: what is done with an indivisible rest of the order. plan: the
    settings of a plan, whose batches have other sizes; digest: a hash of its batches, or 0 if it is not known."""

    world: int
    batch: int
    drop_last: bool
    tail: str
    steps: int = 0
    plan: dict[str, Any] = field(default_factory=dict)
    digest: int = 0

    def divides_as(self, other: Segment) -> bool:
        """Returns True if both divide an order in the same way. One may have been loaded: it has lists for tuples."""
        mine, theirs = (_ENCODER.encode({**vars(one), "steps": 0, "digest": 0}) for one in (self, other))
        return mine == theirs

    def at_start(self) -> Segment:
        """Returns the same division of an epoch before its first step."""
        return Segment(**{**vars(self), "steps": 0, "digest": 0})

    def as_fields(self) -> dict[str, Any]:
        """Returns the fields as a state contains them: those of a plan only if there is one."""
        return {name: value for name, value in vars(self).items() if self.plan or name not in _PLAN_TYPES}


@dataclass
class State:
    """How far a loader is in an epoch.

    epoch: the loader's number of the epoch. steps: batches of each rank that the consumer has. samples: entries of the
    order, of all ranks, that were consumed; -1 if that is not known. order: what the order of this epoch is made from
    (`kind`, and `n`, `seed`, `epoch`, ... as far as they exist), which must be the same at load. segments: the parts of
    this epoch, of which the last one is under way. holes: of the last segment, numbers of batches that were not
    delivered although later ones were. last: a hash of the indices of the batch that was delivered last, to find an
    order that has changed; 0: not known. by: the rank that it was delivered to. seeds: random numbers that were drawn
    for this epoch, and `workers`, how many make its batches with num_workers="auto". rank: whose state it is, or -1 if
    it is right for all ranks. workers: for an iterable dataset, the state of each worker. is_end: it was taken after
    the last batch of the epoch that `order` has. window: with steps_per_epoch, the place in the user's epoch (`epoch`,
    `done` of its `steps`), while all else is of one pass.
    """

    epoch: int
    steps: int
    samples: int
    order: dict[str, Any]
    segments: list[Segment]
    holes: list[int] = field(default_factory=list)
    last: int = 0
    seeds: dict[str, Any] = field(default_factory=dict)
    rank: int = -1
    by: int = 0
    workers: list[Any] = field(default_factory=list)
    is_end: bool = False
    algorithm: int = 1
    window: dict[str, int] = field(default_factory=dict)

    @property
    def is_of_all_ranks(self) -> bool:
        """Returns True if each rank may load it."""
        return self.rank < 0


_TYPES: dict[str, type] = {
    "epoch": int,
    "steps": int,
    "samples": int,
    "order": dict,
    "segments": list,
    "holes": list,
    "last": int,
    "seeds": dict,
    "rank": int,
    "by": int,
    "workers": list,
    "is_end": bool,
    "algorithm": int,
}
_SEGMENT_TYPES: dict[str, type] = {"world": int, "batch": int, "drop_last": bool, "tail": str, "steps": int}
_PLAN_TYPES: dict[str, type] = {"plan": dict, "digest": int}
_TAILS = ("pad", "drop", "exact", "slice")


def encode(state: State) -> dict[str, str]:
    """Returns the state as users keep it."""
    fields = {"format": FORMAT, **vars(state), "segments": [one.as_fields() for one in state.segments]}
    if not state.window:
        del fields["window"]
    text = _ENCODER.encode(fields)
    return {KEY: f'{text[:-1]},"checksum":{zlib.crc32(text.encode())}}}'}


def _checksum(fields: Mapping[str, Any]) -> int:
    return zlib.crc32(_ENCODER.encode(fields).encode())


def decode(given: Any) -> State:
    """Returns the state of what encode returned, or of the decoded dict. Raises TypeError for another type, and
    StateError for a state that is damaged, newer, or of another library."""
    fields = _fields_of(given)
    version = fields.get("format")
    if type(version) is int and version > FORMAT:
        raise StateError(
            f"headrace: this state has format {version}, and this version of headrace reads formats up to {FORMAT}; "
            "install the version of headrace that has made it, or a newer one" + help_on("state")
        )
    if version != FORMAT:
        raise StateError(f"headrace: this is not a state of a headrace loader: its format is {version!r}")
    checksum = fields.pop("checksum", None)
    if checksum != _checksum(fields):
        raise StateError(
            "headrace: this state was damaged or edited: its checksum does not fit; use another checkpoint, or "
            "loader.skip(steps) and set_epoch to begin at a place of your choice" + help_on("state")
        )
    del fields["format"]
    return _checked(fields)


def _fields_of(given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise TypeError(
            f"headrace: load_state_dict takes the dict that state_dict() returned, but got a {type(given).__name__}"
        )
    if KEY not in given:
        if "format" in given and "segments" in given:
            return dict(given)
        raise StateError(f"headrace: {_whose(given)}" + help_on("state"))
    text = given[KEY]
    if isinstance(text, Mapping):
        return dict(text)
    if not isinstance(text, (str, bytes)):
        raise StateError(f"headrace: the state should contain a string at {KEY!r}, but has a {type(text).__name__}")
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise StateError(
            f"headrace: this state is damaged: its {len(text)} characters are no JSON ({error}); it was cut off or "
            "edited, so use another checkpoint" + help_on("state")
        ) from None
    if not isinstance(fields, dict):
        raise StateError(f"headrace: this state is damaged: it contains a {type(fields).__name__}, not a dict")
    return fields


def _whose(given: Mapping[Any, Any]) -> str:
    for name, whose in _FOREIGN.items():
        if name in given:
            steps = given.get("_num_yielded")
            skip = f"loader.skip({steps})" if isinstance(steps, int) else "loader.skip(steps)"
            return (
                f"this is a state of {whose}, which headrace cannot read; set_epoch and {skip} begin at the same batch "
                "if the sampler gives the same order"
            )
    names = ", ".join(map(repr, list(given)[:5])) or "nothing"
    return f"this is not a state of a headrace loader: it should have the key {KEY!r}, but has {names}"


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and (kind is not int or type(value) is int)


def _check_types(fields: Mapping[str, Any], types: Mapping[str, type], what: str) -> None:
    for name, kind in types.items():
        if not _is(fields.get(name), kind):
            raise StateError(f"headrace: this state is damaged: {what} has {name}={fields.get(name)!r}")
    if unknown := set(fields) - set(types):
        raise StateError(f"headrace: this state is damaged: {what} has an unknown field {sorted(unknown)[0]!r}")


def _segment(fields: Any) -> Segment:
    if not isinstance(fields, Mapping):
        raise StateError(f"headrace: this state is damaged: a segment is {fields!r}")
    _check_types(fields, _SEGMENT_TYPES | (_PLAN_TYPES if "plan" in fields else {}), "a segment")
    is_in_range = 1 <= fields["world"] < 1 << 32 and 1 <= fields["batch"] < 1 << 32 and 0 <= fields["steps"] < 1 << 62
    if not is_in_range or fields["tail"] not in _TAILS:
        raise StateError(f"headrace: this state is damaged: a segment is {dict(fields)!r}")
    return Segment(**fields)


_MOST = 1 << 63  # of numbers that count
_NUMBERS = ("n", "seed", "epoch", "num_samples", "workers")  # of an order, as far as it has them


def _check_numbers(fields: dict[str, Any]) -> None:
    """Raises StateError for numbers that are out of range."""
    if fields["algorithm"] != 1:
        raise StateError(
            f"headrace: this state needs algorithm {fields['algorithm']}, which this version of headrace does not "
            "have; install a newer one"
        )
    order, seeds = fields["order"], fields["seeds"]
    numbers = [fields[name] for name in ("epoch", "steps", "samples", "rank", "by")]
    numbers += [order.get("n")] + [order[name] for name in _NUMBERS if name in order]
    numbers += [seeds[name] for name in ("base", "seed", "loader", "workers") if name in seeds]
    if not all(type(one) is int and -_MOST <= one < 2 * _MOST for one in numbers):
        raise StateError(f"headrace: this state is damaged: a number of {order!r} or of its seeds is out of range")


def _check_window(window: dict[str, Any]) -> None:
    _check_types(window, dict.fromkeys(("epoch", "done", "steps"), int), "its window")
    if not (0 <= window["done"] < window["steps"] < _MOST and 0 <= window["epoch"] < _MOST):
        raise StateError(f"headrace: this state is damaged: its window is {window!r}")


def _checked(fields: dict[str, Any]) -> State:
    _check_types(fields, _TYPES | ({"window": dict} if "window" in fields else {}), "it")
    if "window" in fields:
        _check_window(fields["window"])
    segments = [_segment(one) for one in fields["segments"]]
    _check_numbers(fields)
    holes = fields["holes"]
    if not segments or fields["epoch"] < 0 or fields["steps"] < 0 or not isinstance(fields["order"].get("kind"), str):
        raise StateError("headrace: this state is damaged: its epoch, steps, order or segments are out of range")
    if not all(type(one) is int and 0 <= one < segments[-1].steps for one in holes):
        raise StateError(f"headrace: this state is damaged: holes={holes!r}")
    if sum(one.steps for one in segments) - len(holes) != fields["steps"]:
        raise StateError("headrace: this state is damaged: its segments do not sum up to its steps")
    return State(**{**fields, "segments": segments})

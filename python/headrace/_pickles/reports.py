# SPDX-License-Identifier: Apache-2.0
"""The report of headrace.doctor.check, as data and as text."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from headrace._base.units import in_units

BIG_BYTES = 32 << 20  # for each worker; from this size on the report mentions freeze
_SHOWN_BYTES = 1 << 20  # an attribute of this size is listed
_WIDTH = 118
BATCH, INDICES = "batch", "indices"  # used instead of a start method
_WAYS = {BATCH: "to the trainer", INDICES: "to a worker"}


@dataclass(frozen=True)
class Finding:
    """One object that cannot be pickled, or a warning.

    path: a Python expression for the object, that starts with the name that was checked. type: its class's name.
    reason: why, in plain words. where: the line that set or defined it, "" if unknown. fix: what to do.
    severity: "error": a worker cannot be started with it, or cannot use it; "warning": it can, at a price.
    more: how many others have the same cause. repair: what repair="auto" does with it, "" if nothing.
    """

    path: str
    type: str
    reason: str
    where: str
    fix: str
    severity: str = "error"
    more: int = 0
    repair: str = ""


@dataclass(frozen=True)
class Size:
    """The size of one attribute: bytes that each worker receives, and bytes that all share (storages of tensors)."""

    path: str
    bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class Report:
    """The result of headrace.doctor.check. `bytes` and `shared_bytes` are sums of `sizes`, and `seconds` is how long
    pickling takes; all three are 0 and () if something cannot be pickled, or if nothing is pickled."""

    name: str
    method: str
    findings: tuple[Finding, ...] = ()
    sizes: tuple[Size, ...] = ()
    seconds: float = 0.0
    subject: str = field(default="", compare=False)  # what the text calls it; "" means `name`

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(one for one in self.findings if one.severity == "error")

    @property
    def ok(self) -> bool:
        """True if there are no errors; there may be warnings."""
        return not self.errors

    @property
    def exit_code(self) -> int:
        """0: fine; 1: warnings; 2: errors."""
        return 2 if self.errors else 1 if self.findings else 0

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.sizes)

    @property
    def shared_bytes(self) -> int:
        return sum(one.shared_bytes for one in self.sizes)

    def to_json(self) -> str:
        """The report as a JSON object."""
        kept = {**asdict(self), "ok": self.ok, "bytes": self.bytes, "shared_bytes": self.shared_bytes}
        del kept["subject"]
        return json.dumps(kept, indent=2)

    def __str__(self) -> str:
        return "\n".join([self._headline(), *_table(self.findings), *self._weights()])

    def _headline(self) -> str:
        subject = self.subject or self.name
        errors = self.errors
        if errors:
            count = sum(1 + one.more for one in errors)
            verb = "object is" if count == 1 else "objects are"
            where = _WAYS.get(self.method, f"to worker processes (start method: {self.method})")
            return f"{subject} cannot be sent {where}. {count:,} {verb} in the way:"
        if self.method == "fork":
            return f"{subject} is inherited by worker processes (start method: fork): nothing is pickled"
        return f"{subject} can be sent to worker processes (start method: {self.method})"

    def _weights(self) -> list[str]:
        if not self.sizes:
            return []
        lines = ["", f"  each worker receives {in_units(self.bytes)}, pickled in {self.seconds:.2f} s{self._shared()}"]
        large = sorted((one for one in self.sizes if one.bytes >= _SHOWN_BYTES), key=lambda one: -one.bytes)[:8]
        width = max((len(one.path) for one in large), default=0)
        lines += [f"    {one.path:{width}}  {in_units(one.bytes)}" for one in large]
        if self.bytes >= BIG_BYTES:
            lines.append(
                "  headrace.freeze keeps one copy in memory that all workers map, and nothing is pickled: "
                f"{large[0].path} = headrace.freeze({large[0].path})"
                if large
                else "  headrace.freeze keeps one copy in memory that all workers map, and nothing is pickled"
            )
        return lines

    def _shared(self) -> str:
        return f"; tensors of {in_units(self.shared_bytes)} are shared and not copied" if self.shared_bytes else ""


def _table(findings: Iterable[Finding]) -> list[str]:
    found = list(findings)
    if not found:
        return []
    paths = min(60, max(len(one.path) for one in found))
    types = min(24, max(len(_kind(one)) for one in found))
    lines = [""]
    for one in found:
        start = f"  {one.path:{paths}}  {_kind(one):{types}}"
        if len(start) + 2 + len(one.reason) <= _WIDTH:
            lines.append(f"{start}  {one.reason}")
        else:
            lines += [start.rstrip(), *_wrapped(one.reason)]
        lines += _details(one)
    return lines


def _kind(finding: Finding) -> str:
    return finding.type if finding.severity == "error" else f"warning: {finding.type}"


def _details(finding: Finding) -> list[str]:
    fix = f"fix: {finding.fix}" + (f'; or repair="auto" {finding.repair}' if finding.repair else "")
    together = f"      {finding.where}     {fix}"
    if finding.where and len(together) <= _WIDTH:
        lines = [together]
    else:
        lines = [*_wrapped(finding.where), *_wrapped(fix)]
    if finding.more:
        lines.append(f"      and {finding.more:,} more like {finding.path}")
    return lines


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6, break_long_words=False)

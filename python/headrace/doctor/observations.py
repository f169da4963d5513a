# SPDX-License-Identifier: Apache-2.0
"""Observations of headrace doctor in a machine and in a running loader, as text and as JSON.

A Finding (pickle/reports.py) is another thing: an object that cannot be pickled, with the line that set it.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass

FINE, WARNINGS, ERRORS = 0, 1, 2  # exit codes
_CODES = {"ok": FINE, "note": FINE, "warning": WARNINGS, "error": ERRORS}
_WIDTH = 100


@dataclass(frozen=True)
class Observation:
    """One thing that was looked at. --json prints the fields under these names.

    severity: "ok"; "note" (fine, but good to know); "warning"; "error". value: what was found. limit: what it is
    compared with, or what sets it. consequence: what follows for a loader. fix: a command or a line of code, "" if
    nothing has to be changed.
    """

    name: str
    severity: str
    value: str
    limit: str = ""
    consequence: str = ""
    fix: str = ""


def exit_code(observations: Iterable[Observation]) -> int:
    """Returns 0 if all is well, 1 if there are warnings, 2 if there are errors."""
    return max((_CODES[one.severity] for one in observations), default=FINE)


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(
        text, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def in_words(one: Observation) -> str:
    """Returns a line, and below it the consequence and the fix."""
    limit = f"   ({one.limit})" if one.limit else ""
    lines = [f"{one.severity:8} {one.name:16} {one.value}{limit}"]
    if one.consequence:
        lines += [_wrapped(line, " " * 9) for line in one.consequence.splitlines()]
    if one.fix:
        lines.append(f"{' ' * 9}fix: {one.fix}")
    return "\n".join(lines)


def as_text(observations: list[Observation]) -> str:
    counts = [(word, sum(one.severity == word for one in observations)) for word in ("error", "warning")]
    summary = [f"{count} {word}{'' if count == 1 else 's'}" for word, count in counts if count]
    return "\n".join([*map(in_words, observations), "", ", ".join(summary) or "nothing is wrong"])


def as_json(observations: list[Observation], **more: object) -> str:
    whole = {"findings": [asdict(one) for one in observations], "exit_code": exit_code(observations), **more}
    return json.dumps(whole, indent=2)

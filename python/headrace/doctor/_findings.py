# SPDX-License-Identifier: Apache-2.0
"""What headrace doctor says of a machine and of a loader: findings, as text and as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass

FINE, WARNINGS, ERRORS = 0, 1, 2  # exit codes
_CODES = {"ok": FINE, "note": FINE, "warning": WARNINGS, "error": ERRORS}
_WIDTH = 100


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    severity: "ok"; "note": fine, but there is something to know; "warning"; "error". value: what it is; limit: what it
    may be, or what bounds it; consequence: what follows for a loader; fix: a command or a line of code, where there is
    something to change.
    """

    name: str
    severity: str
    value: str
    limit: str = ""
    consequence: str = ""
    fix: str = ""


def exit_code(findings: Iterable[Finding]) -> int:
    return max((_CODES[finding.severity] for finding in findings), default=FINE)


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(
        text, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def in_words(finding: Finding) -> str:
    """A line, and below it what follows and what to do."""
    limit = f"   ({finding.limit})" if finding.limit else ""
    lines = [f"{finding.severity:8} {finding.name:16} {finding.value}{limit}"]
    if finding.consequence:
        lines += [_wrapped(line, " " * 9) for line in finding.consequence.splitlines()]
    if finding.fix:
        lines.append(f"{' ' * 9}fix: {finding.fix}")
    return "\n".join(lines)


def as_text(findings: list[Finding]) -> str:
    counts = [(word, sum(finding.severity == word for finding in findings)) for word in ("error", "warning")]
    said = [f"{count} {word}{'' if count == 1 else 's'}" for word, count in counts if count]
    return "\n".join([*map(in_words, findings), "", ", ".join(said) or "nothing is wrong"])


def as_json(findings: list[Finding], **more: object) -> str:
    whole = {"findings": [asdict(finding) for finding in findings], "exit_code": exit_code(findings), **more}
    return json.dumps(whole, indent=2)

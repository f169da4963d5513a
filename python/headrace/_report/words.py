# SPDX-License-Identifier: Apache-2.0
"""Numbers as texts, for the verdict, the terminal and the page."""

from __future__ import annotations

from headrace._base.units import in_units

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_SHOWN_UP_TO = 100  # of a duration in seconds


def share(part: float) -> str:
    """Formats a share: 0.31 is "31 %"; small ones have a digit more."""
    return f"{100 * part:.1f} %" if 0 < part < 0.0995 else f"{100 * part:.0f} %"


def count(number: float) -> str:
    return f"{number:,.0f}"


def rate(number: float) -> str:
    return f"{number:,.0f}" if number >= _SHOWN_UP_TO else f"{number:.3g}"


def duration(seconds: float) -> str:
    """Formats a duration of any length: "2.6 ms", "12 s", "2 h 14 min", "3 d 4 h"."""
    if seconds <= 0:
        return "0"
    if seconds < 1:
        return brief(seconds * 1e9)
    if seconds < _SHOWN_UP_TO:
        return f"{seconds:.3g} s"
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    large, small, units = (_HOUR, _MINUTE, ("h", "min")) if seconds < _DAY else (_DAY, _HOUR, ("d", "h"))
    whole = round(seconds / small) * small
    return f"{whole // large} {units[0]}" + (f" {whole % large // small} {units[1]}" if whole % large else "")


def brief(ns: float) -> str:
    """Formats a short time."""
    for unit, length in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= length:
            return f"{ns / length:.3g} {unit}" if ns < 999.5 * length else f"{ns / length:,.0f} {unit}"
    return f"{ns:.0f} ns"


def size(size_bytes: float) -> str:
    return in_units(size_bytes)


def counted(number: int, noun: str, plural: str = "") -> str:
    """Formats a number of things: "1 worker", "8 workers". plural: one that does not end with an s alone."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def printable(text: str) -> str:
    """Returns a text that came from another process as a terminal can show it: without control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)

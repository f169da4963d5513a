# SPDX-License-Identifier: Apache-2.0
"""The report of a mixture: what an epoch has of each source."""

from __future__ import annotations

from typing import Any

_HEADINGS = ("source", "samples", "weight", "share", "in the epoch", "passes")


class MixtureReport(dict[str, Any]):
    """A dict that prints as a table.

    epoch; length: samples of an epoch. period: the sum of the shares. is_exact: the shares are the weights exactly.
    sources: for each name a dict. samples: of the source. weight: its part of all weights, as given. share: so many of
    `period` samples. part: share / period. before: samples that earlier epochs have read. count: those of this epoch.
    passes: count / samples.
    """

    def __str__(self) -> str:
        rows = [
            (
                name,
                f"{one['samples']:,}",
                f"{one['weight']:.6g}",
                f"{one['share']:,} of {self['period']:,}",
                f"{one['count']:,}",
                f"{one['passes']:.4g}",
            )
            for name, one in self["sources"].items()
        ]
        widths = [max(map(len, column)) for column in zip(_HEADINGS, *rows, strict=True)]
        lines = ["  ".join(_aligned(row, widths)).rstrip() for row in (_HEADINGS, *rows)]
        kind = "" if self["is_exact"] else "; the shares are the nearest ones to the weights"
        return "\n".join([f"epoch {self['epoch']:,}: {self['length']:,} samples{kind}", *lines])


def _aligned(row: tuple[str, ...], widths: list[int]) -> list[str]:
    first, *others = widths
    return [row[0].ljust(first), *(text.rjust(width) for text, width in zip(row[1:], others, strict=True))]


def report_of(described: Any, names: list[str], sizes: list[int], weights: list[int], epoch: int) -> MixtureReport:
    """Returns the report of a mixture that _core.Order.look has described."""
    length, _, period, parts = described
    total = sum(weights)
    found = {}
    for name, size, weight, (share, before, count) in zip(names, sizes, weights, parts, strict=True):
        found[name] = {
            "samples": size,
            "weight": weight / total,
            "share": share,
            "part": share / period,
            "before": before,
            "count": count,
            "passes": count / size,
        }
    is_exact = all(share * total == weight * period for (share, *_), weight in zip(parts, weights, strict=True))
    return MixtureReport(epoch=epoch, length=length, period=period, is_exact=is_exact, sources=found)

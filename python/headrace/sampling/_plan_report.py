# SPDX-License-Identifier: Apache-2.0
"""Measures what a plan costs: padding, fill and the balance of the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.sampling._plan_settings import PlanSettings

if TYPE_CHECKING:
    import numpy as np

    from headrace.sampling._plan_table import Table


class PlanReport(dict[str, Any]):
    """A dict that prints as a table.

    samples, steps, batches: of all ranks. skipped: samples that are not in the epoch. repeats: samples that come
    again to fill up the last steps. tokens: the sum of all lengths. padded_tokens: the same, with each sample of a
    batch as long as its longest one. padding: the share of these that is padding. fill: how much of what the batches
    may have they have, from 0 to 1; None for batches that are bounded by their number of samples only. largest_batch:
    samples.
    cost_max_to_mean: the cost of the most expensive rank of a step divided by the mean of its ranks, on average over
    the steps, and cost_max_to_mean_worst in the worst step: so much longer than necessary a step takes, if cost is
    time. The cost is that of the padded samples if batches are padded. seconds: the time that planning took.
    """

    def __str__(self) -> str:
        fill = "" if self["fill"] is None else f", {self['fill']:.2%} full"
        rows = [
            ("batches", f"{self['batches']:,} in {self['steps']:,} steps, up to {self['largest_batch']:,} samples"),
            ("samples", f"{self['samples']:,}, {self['skipped']:,} left out, {self['repeats']:,} repeated"),
            ("tokens", f"{self['tokens']:,}{fill}"),
            ("padding", f"{self['padding']:.2%} if each sample is padded to the longest one of its batch"),
            (
                "cost of a step",
                f"{self['cost_max_to_mean']:.4f} of the mean of its ranks, {self['cost_max_to_mean_worst']:.4f} in the "
                "worst step",
            ),
            ("planned in", f"{self['seconds']:.3f} s"),
        ]
        return "\n".join(f"{name:<15} {text}" for name, text in rows)


def report_of(table: Table, settings: PlanSettings, world_size: int, seconds: float) -> PlanReport:
    """Returns the report of a plan."""
    import numpy as np

    sizes = np.diff(table.starts)
    lengths = table.samples.lengths[table.positions].astype(np.int64)
    repeats = len(table.repeats)
    count = len(lengths) - repeats
    sums, longest = (_by_batch(function, lengths, table.starts) for function in (np.add, np.maximum))
    padded = int((longest * sizes).sum())
    costs = _costs(settings, lengths, longest, sizes, table.starts).reshape(-1, world_size)
    means = costs.mean(1)
    ratios = costs.max(1)[means > 0] / means[means > 0] if len(costs) else np.ones(0)
    return PlanReport(
        samples=count,
        skipped=len(table.samples.order) - count,
        repeats=repeats,
        batches=len(sizes),
        steps=len(costs),
        largest_batch=int(sizes.max()) if len(sizes) else 0,
        tokens=int(lengths.sum()),
        padded_tokens=padded,
        padding=1 - int(lengths.sum()) / padded if padded else 0.0,
        fill=_fill(settings, sums, longest * sizes, longest, sizes),
        cost_max_to_mean=float(ratios.mean()) if len(ratios) else 1.0,
        cost_max_to_mean_worst=float(ratios.max()) if len(ratios) else 1.0,
        seconds=seconds,
    )


def _by_batch(function: Any, values: np.ndarray[Any, Any], starts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return function.reduceat(values, starts[:-1]) if len(values) else values


def _costs(settings: PlanSettings, lengths: Any, longest: Any, sizes: Any, starts: Any) -> Any:
    """Returns the cost of each batch, as floats."""
    linear, quadratic = float(settings.cost_linear), float(settings.cost_quadratic)
    if settings.counts_padding:
        return sizes * (linear * longest + quadratic * longest.astype(float) ** 2)
    import numpy as np

    return _by_batch(np.add, linear * lengths + quadratic * lengths.astype(float) ** 2, starts)


def _fill(settings: PlanSettings, sums: Any, padded: Any, longest: Any, sizes: Any) -> float | None:
    """Returns the share of the bound that is used, of the bound that is used most if there are several."""
    shares = []
    for limit, used in ((settings.pack or settings.max_sum, sums), (settings.max_padded, padded)):
        if limit and len(used):
            shares.append(float(used.clip(max=limit).mean()) / limit)
    if settings.buckets and len(sizes):
        most = [next((size for end, size in settings.buckets if end is None or one <= end), 1) for one in longest]
        shares.append(float((sizes / most).mean()))
    return max(shares) if shares else None

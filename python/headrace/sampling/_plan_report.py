# SPDX-License-Identifier: Apache-2.0
"""Measures what a plan costs: padding, fill and the balance of the ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.sampling._plan_settings import PlanSettings

if TYPE_CHECKING:
    import numpy as np

    from headrace.sampling._plan_table import Table

_TOKENS = ("tokens", "padded_tokens", "padding", "fill")


class PlanReport(dict[str, Any]):
    """A dict that prints as a table.

    samples, steps, batches: of all ranks. skipped: samples that are not in the epoch. repeats: samples that come
    again to fill up the last steps. tokens: the sum of all lengths. padded_tokens: the same, with each sample of a
    batch as long as its longest one. padding: the share of these that is padding. fill: how much of what the batches
    may have they have, from 0 to 1; None for batches that are bounded by their number of samples only. largest_batch:
    samples. With several lengths, tokens, padded_tokens, padding and fill are dicts by name, and tighter is the name
    whose limit is used most, or None.
    cost_max_to_mean: the cost of the most expensive rank of a step divided by the mean of its ranks, on average over
    the steps, cost_max_to_mean_p99 in all but one of 100 steps, and cost_max_to_mean_worst in the worst step: so much
    longer than necessary a step takes, if cost is time. With balance="optimizer_step" a step is an optimizer step, and
    a rank costs the sum of its batches. The cost is that of the padded samples for lengths that are padded. seconds:
    the time that planning took.
    """

    def __str__(self) -> str:
        rows = [
            ("batches", f"{self['batches']:,} in {self['steps']:,} steps, up to {self['largest_batch']:,} samples"),
            ("samples", f"{self['samples']:,}, {self['skipped']:,} left out, {self['repeats']:,} repeated"),
            *self._rows_of_lengths(),
            (
                "cost of a step",
                f"{self['cost_max_to_mean']:.4f} of the mean of its ranks, {self['cost_max_to_mean_p99']:.4f} in 99 of "
                f"100 steps, {self['cost_max_to_mean_worst']:.4f} in the worst step",
            ),
            ("planned in", f"{self['seconds']:.3f} s"),
        ]
        width = max(15, *(len(name) + 1 for name, _ in rows))
        return "\n".join(f"{name:<{width}} {text}" for name, text in rows)

    def _rows_of_lengths(self) -> list[tuple[str, str]]:
        if "tighter" not in self:
            padding = f"{self['padding']:.2%} if each sample is padded to the longest one of its batch"
            return [("tokens", f"{self['tokens']:,}{_full(self['fill'])}"), ("padding", padding)]
        return [
            (
                name,
                f"{self['tokens'][name]:,}{_full(self['fill'][name])}, {self['padding'][name]:.2%} padding"
                + (" (the tighter budget)" if name == self["tighter"] else ""),
            )
            for name in self["tokens"]
        ]


def _full(fill: float | None) -> str:
    return "" if fill is None else f", {fill:.2%} full"


@dataclass(frozen=True)
class _Used:
    """How much of one of the lengths each batch has: the sum, the longest sample, and the number of samples."""

    name: str
    values: np.ndarray[Any, Any]  # of all entries
    sums: np.ndarray[Any, Any]
    longest: np.ndarray[Any, Any]
    sizes: np.ndarray[Any, Any]

    @property
    def padded(self) -> Any:
        """The same as `sums`, with each sample as long as the longest one of its batch."""
        return self.longest * self.sizes

    def numbers(self, settings: PlanSettings) -> dict[str, Any]:
        tokens, padded = int(self.sums.sum()), int(self.padded.sum())
        share = 1 - tokens / padded if padded else 0.0
        return dict(zip(_TOKENS, (tokens, padded, share, self.fill(settings)), strict=True))

    def fill(self, settings: PlanSettings) -> float | None:
        """Returns the share of the bound that is used, of the bound that is used most if there are several."""
        shares = []
        for setting, used in (("pack", self.sums), ("max_sum", self.sums), ("max_padded", self.padded)):
            limit = settings.limit_of(setting, self.name)
            if limit and len(used):
                shares.append(float(used.clip(max=limit).mean()) / limit)
        if settings.buckets and len(self.sizes):
            ends = (
                (one, [size for end, size in settings.buckets if end is None or one <= end]) for one in self.longest
            )
            most = [sizes[0] if sizes else 1 for _, sizes in ends]
            shares.append(float((self.sizes / most).mean()))
        return max(shares) if shares else None

    def costs(self, settings: PlanSettings, starts: Any) -> Any:
        """Returns what the length adds to the cost of each batch, as floats."""
        linear, quadratic = (float(factor) for factor in settings.factors_of(self.name))
        if settings.counts_padding(self.name):
            return self.sizes * (linear * self.longest + quadratic * self.longest.astype(float) ** 2)
        import numpy as np

        return _by_batch(np.add, linear * self.values + quadratic * self.values.astype(float) ** 2, starts)


def report_of(table: Table, settings: PlanSettings, world_size: int, seconds: float) -> PlanReport:
    """Returns the report of a plan."""
    sizes = _sizes(table)
    count = int(sizes.sum()) - len(table.repeats)
    used = [_used(table, name, sizes) for name in table.samples.lengths.arrays]
    costs = _costs(table, settings, used)
    return PlanReport(
        samples=count,
        skipped=len(table.samples.order) - count,
        repeats=len(table.repeats),
        batches=len(sizes),
        steps=len(sizes) // world_size,
        largest_batch=int(sizes.max()) if len(sizes) else 0,
        **_of_lengths(used, settings),
        **_balance(costs, settings, world_size),
        seconds=seconds,
    )


def _sizes(table: Table) -> Any:
    import numpy as np

    return np.diff(table.starts)


def _used(table: Table, name: str, sizes: Any) -> _Used:
    import numpy as np

    values = table.samples.lengths.arrays[name][table.positions].astype(np.int64)
    sums, longest = (_by_batch(function, values, table.starts) for function in (np.add, np.maximum))
    return _Used(name, values, sums, longest, sizes)


def _by_batch(function: Any, values: np.ndarray[Any, Any], starts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return function.reduceat(values, starts[:-1]) if len(values) else values


def _of_lengths(used: list[_Used], settings: PlanSettings) -> dict[str, Any]:
    found = {one.name: one.numbers(settings) for one in used}
    if not settings.names:
        return found[""]
    fill = {name: numbers["fill"] for name, numbers in found.items() if numbers["fill"] is not None}
    by_name = {key: {name: numbers[key] for name, numbers in found.items()} for key in _TOKENS}
    return {**by_name, "tighter": max(fill, key=lambda name: fill[name]) if fill else None}


def _costs(table: Table, settings: PlanSettings, used: list[_Used]) -> Any:
    """Returns the cost of each batch, as floats."""
    import numpy as np

    costs = table.samples.lengths.costs
    if isinstance(settings.cost, str) and costs is not None:
        return _by_batch(np.add, costs[table.positions].astype(float), table.starts)
    return sum((one.costs(settings, table.starts) for one in used), np.zeros(len(table.starts) - 1))


def _balance(costs: Any, settings: PlanSettings, world_size: int) -> dict[str, float]:
    import numpy as np

    together = settings.accumulate if settings.balance == "optimizer_step" else 1
    ranks = costs.reshape(-1, together, world_size).sum(1)
    means = ranks.mean(1)
    ratios = ranks.max(1)[means > 0] / means[means > 0] if len(ranks) else np.ones(0)
    if not len(ratios):
        ratios = np.ones(1)
    return {
        "cost_max_to_mean": float(ratios.mean()),
        "cost_max_to_mean_p99": float(np.quantile(ratios, 0.99)),
        "cost_max_to_mean_worst": float(ratios.max()),
    }

# SPDX-License-Identifier: Apache-2.0
"""headrace.torch.stats: the numbers of a loader for a logger."""

from __future__ import annotations

from typing import Any

from headrace._loader.trainer import shown
from headrace.torch._own import table


def stats(loader: Any, *, max_over_ranks: bool = False) -> dict[str, float]:
    """Returns numbers of the newest epoch of a loader, also while it runs, flat for a logger. {}: the loader has not
    begun an epoch with headrace.

    `epoch`, `step`, `batches`, `samples`, `errors` (batches that came as an exception); `seconds` since the first one;
    `wait`: the share of that time (0 to 1) that the loop spent inside next(), and `wait_s` the same in seconds; its
    parts `workers_s` (waiting for a worker), `pin_s` (for the pinning thread), `draw_s` (asking the sampler) and
    `rebuild_s` (making tensors); `start_s` until the first batch came; `batches_per_s`, `samples_per_s`, `mb_per_s`;
    `restarts` and `bad_samples`; `workers`, `queue` (batches that are ready now), `busy` (the share of their time in
    which the workers had something to do), `sample_p50_ms`, `sample_p99_ms` and `sample_worst_ms` of a sample, since
    the loader was made. Quantiles are those of a histogram with steps of two.

    max_over_ranks: `job_wait` is the largest `wait` of all ranks on this machine, and `job_rank` the rank that has it.
    Without other ranks (see `report()["ranks"]`) these are the loader's own. No rank waits for another one for that.

    A GPU works on while the loop waits, so `wait` is at most what faster loading could save.
    """
    found = table.found(loader)
    show = None if found is None else found.show
    if found is None or show is None:
        return {}
    numbers = shown.flat(show)
    if max_over_ranks:
        rank, share = shown.slowest(show, found.position.agreement)
        numbers["job_wait"] = max(share, numbers["wait"])
        numbers["job_rank"] = rank
    return numbers

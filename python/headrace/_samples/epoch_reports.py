# SPDX-License-Identifier: Apache-2.0
"""Writes the warnings about an epoch: samples that failed, and an end that came too early.

The engine, the iterators with num_workers=0 and headrace.torch show them with warn_user.
"""

from __future__ import annotations

import textwrap
from typing import Any

from headrace._base.help_key import help_on
from headrace._samples.names import short_repr


def describe_early_end(came: int, due: str, where: str) -> str:
    """Describes an epoch that the user's StopIteration ended. `where`: what is known of the line that raised it."""
    return (
        f"headrace: the loop ends after {came} of {due} batches, because the dataset or collate_fn raised "
        "StopIteration, which ends a for loop without an error. Often it comes from next() on an empty iterator: give "
        f"next() a default, or raise another exception.\n{textwrap.indent(where, '    ')}\n "
        + help_on("epoch-ends-early")
    )


def describe_ended_sampler(count: int, sampler: str, error: str) -> str:
    """Describes an epoch that was shorter than it should be, because an exception ended the sampler's iterator."""
    return (
        f"headrace: this epoch ended after {count} batches, because the iterator of the {sampler} raised an exception "
        f"and gave nothing more ({error}). A generator cannot continue after an exception: catch it "
        "there, or write the iterator as a class with __next__" + help_on("epoch-ends-early")
    )


def describe_bad_samples(bad: list[Any], shown: int = 10) -> str:
    """Lists the samples that could not be made in an epoch, at most `shown` of them."""
    lines = [f"  {short_repr(one.index)}{_of_worker(one.worker)}: {one.error}" for one in bad[:shown]]
    more = [f"  and {len(bad) - shown} more: see report()['bad_samples']"] if len(bad) > shown else []
    count = "1 bad sample" if len(bad) == 1 else f"{len(bad)} bad samples"
    return "\n".join([f"headrace: {count} in this epoch:", *lines, *more, " " + help_on("bad-samples")])


def describe_retried_samples(retried: list[Any], shown: int = 10) -> str:
    """Lists the further tries of an epoch, at most `shown` of them."""
    lines = [f"  {short_repr(one.index)}{_of_worker(one.worker)}: {one.error}" for one in retried[:shown]]
    more = [f"  and {len(retried) - shown} more"] if len(retried) > shown else []
    times = "once" if len(retried) == 1 else f"{len(retried)} times in all"
    head = f"headrace: samples were made again in this epoch, {times}, after I/O errors that may pass:"
    return "\n".join([head, *lines, *more])


def _of_worker(worker: int | None) -> str:
    return "" if worker is None else f" (worker {worker})"

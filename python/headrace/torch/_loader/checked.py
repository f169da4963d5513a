# SPDX-License-Identifier: Apache-2.0
"""Does what torch's iterators do in __next__ around a batch: the profiler's record, and the warning about too many
samples."""

from __future__ import annotations

import warnings
from typing import Any

from headrace._base import tracebacks
from headrace.sampling._watch import EpochIterator
from headrace.torch._own import iterators

# In torch's words, so that users' warning filters match.
_LONGER = (
    "Length of IterableDataset {} was reported to be {}(when accessing len(dataloader)), but {} samples have been "
    "fetched. "
)
_LONGER_WITH_WORKERS = (
    "For multiprocessing data-loading, this could be caused by not properly configuring the IterableDataset replica at "
    "each worker. Please see https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
)


class CheckedIterator(EpochIterator):
    """A base of both iterators: does what torch's iterators do in __next__ before and after _next_data."""

    _warned_at = 0  # the number of the last batch that caused a warning
    # torch's own values, if its iterator has them.
    _IterableDataset_len_called: int | None = None
    _pin_memory_device: Any = None
    _profile_name = "enumerate(DataLoader)"

    def _prepare(self: Any) -> Any:
        # All in one frame, so that warnings name the caller's line. A profiler's record is opened only if a profiler
        # is on, because opening it takes longer than making a small batch.
        try:
            if iterators.profiler_is_on():
                with iterators.profiler.record_function(self._profile_name):
                    data = self._next_data()
            else:
                data = self._next_data()
        except Exception as error:
            tracebacks.cut(error)
            raise error
        length, number = self._IterableDataset_len_called, self._num_yielded + 1
        if length is not None and number > length and number != self._warned_at:
            self._warned_at = number  # set first: if warnings are errors, the next call returns the batch
            warnings.warn(
                (_LONGER + _LONGER_WITH_WORKERS * (self._num_workers > 0)).format(self._dataset, length, number),
                stacklevel=2,
            )
        return data

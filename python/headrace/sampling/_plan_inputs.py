# SPDX-License-Identifier: Apache-2.0
"""Draws the order of an epoch of a plan, from its argument `order`."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from headrace._base import lookup
from headrace._samples import random_numbers
from headrace.sampling import _sampler_state
from headrace.sampling._mixture import Mixture
from headrace.sampling._order import Order
from headrace.sampling._state import StateError

if TYPE_CHECKING:
    import numpy as np

_KEPT = 4  # epochs of a sampler whose state is known


class EpochOrder:
    """The order of an epoch: a method that gives the samples, and the text that says what it is made from."""

    is_constant = True  # False: other samples may come in each epoch

    def __init__(self, n: int, seed: int) -> None:
        self._n, self._seed = n, seed

    def samples(self, epoch: int) -> np.ndarray[Any, Any]:
        """Returns the samples of an epoch in order, an array of int64."""
        import numpy as np

        return np.asarray(Order(self._n, seed=self._seed, epoch=epoch))

    def numbers(self, samples: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns the numbers of samples in the dataset, by which their lengths are looked up."""
        return samples

    def describe(self) -> str:
        """Returns what the order is made from, apart from seed and epoch."""
        return "all samples"

    def of_first(self, n: int) -> EpochOrder | None:
        """Returns the order of an epoch that began when there were lengths of n samples only, or None if it is not
        known."""
        return EpochOrder(n, self._seed)

    def constant(self) -> np.ndarray[Any, Any] | None:
        """Returns the samples that come in every epoch, or None: all of them."""
        return None

    def check_sizes(self) -> None:
        """Raises ValueError if the samples are others than when the order was made."""

    def state(self, epoch: int) -> str | None:
        """Returns the state of what gives the order before it gave that of an epoch; None: it has none."""
        return None

    def state_of_next(self) -> str | None:
        """Returns the state of what gives the order before the next epoch that it has not given yet."""
        return None

    def continue_from(self, epoch: int, state: Any, following: Any) -> None:
        """Lets an epoch have the order that it had when state(epoch) was this, also in another process. following: what
        state_of_next was at its end; None: it had not ended. Raises StateError."""


class _OfOrder(EpochOrder):
    """A headrace.Order, or a slice of one."""

    def __init__(self, order: Order | Mixture) -> None:
        self._order = order[:]
        self.is_constant = len(self._order) == order.n

    def of_first(self, n: int) -> EpochOrder | None:
        return self if self._order.n <= n else None

    def constant(self) -> np.ndarray[Any, Any] | None:
        import numpy as np

        return np.arange(self._order.n)

    def samples(self, epoch: int) -> np.ndarray[Any, Any]:
        import numpy as np

        return np.asarray(self._order.with_epoch(epoch))

    def describe(self) -> str:
        return repr(self._order.with_epoch(0))


class _OfMixture(_OfOrder):
    """A headrace.Mixture, or a slice of one. All samples may come in some epoch, whatever the weights are."""

    def __init__(self, mix: Mixture, n: int) -> None:
        mix.check_begins("a Plan")
        super().__init__(mix)
        self.is_constant = True
        self._count = n

    def of_first(self, n: int) -> EpochOrder | None:
        return None

    def constant(self) -> np.ndarray[Any, Any] | None:
        return None

    def check_sizes(self) -> None:
        self._order.dataset.check_sizes()  # type: ignore[union-attr] # it is a Mixture

    def numbers(self, samples: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = samples % self._count
        return found


class _OfSubset(EpochOrder):
    """Some of the samples, which are shuffled in each epoch."""

    def __init__(self, subset: np.ndarray[Any, Any], seed: int) -> None:
        super().__init__(len(subset), seed)
        self._subset = subset

    def of_first(self, n: int) -> EpochOrder | None:
        return self if not self._n or self._subset.max() < n else None

    def constant(self) -> np.ndarray[Any, Any] | None:
        return self._subset

    def samples(self, epoch: int) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = self._subset[super().samples(epoch)]
        return found

    def describe(self) -> str:
        return f"{self._n} samples, {zlib.crc32(self._subset.astype('<i8').tobytes()):08x}"


class _OfSampler(EpochOrder):
    """The indices that a sampler gives in each epoch."""

    is_constant = False

    def __init__(self, sampler: Iterable[Any], n: int, seed: int) -> None:
        super().__init__(n, seed)
        self._sampler = sampler
        self._before: dict[int, str | None] = {}  # by epoch, the sampler's state before it gave the order
        self._given: set[int] = set()  # epochs whose order it has given, so that it is in a later one

    def of_first(self, n: int) -> EpochOrder | None:
        return None

    def samples(self, epoch: int) -> np.ndarray[Any, Any]:
        before, was_given = self.state(epoch), epoch in self._given
        now = self.state_of_next() if was_given else None
        if before is not None and before != now:
            _sampler_state.put_back(self._sampler, before)
        drawn = self._draw(epoch)
        if was_given and now is not None:
            _sampler_state.put_back(self._sampler, now)
        self._note(epoch, before)
        self._given.add(epoch)
        return drawn

    def state(self, epoch: int) -> str | None:
        return self._before[epoch] if epoch in self._before else self.state_of_next()

    def state_of_next(self) -> str | None:
        try:
            return _sampler_state.state_of(self._sampler)
        except StateError:  # a state_dict of other objects; if another order comes after a resume, the digest shows it
            return None

    def continue_from(self, epoch: int, state: Any, following: Any) -> None:
        _sampler_state.put_back(self._sampler, state if following is None else following)
        self._before.clear()
        self._given = set() if following is None else {epoch}
        self._note(epoch, state)

    def _note(self, epoch: int, state: str | None) -> None:
        self._before[epoch] = state
        while len(self._before) > _KEPT:
            oldest = next(iter(self._before))
            del self._before[oldest]
            self._given.discard(oldest)

    def _draw(self, epoch: int) -> np.ndarray[Any, Any]:
        import numpy as np

        set_epoch = lookup.attribute(self._sampler, "set_epoch")
        most = 4 * self._n + (1 << 20)
        with random_numbers.generators_kept():
            random_numbers.seed_all(self._seed, epoch, "Plan")
            if callable(set_epoch):
                set_epoch(epoch)
            drawn = list(itertools.islice(iter(self._sampler), most + 1))
        if len(drawn) > most:
            raise ValueError(
                f"Plan: the {type(self._sampler).__name__} gave more than {most:,} indices of {self._n:,} samples, and "
                "seems to have no end; an order has to end"
            )
        return _check_indices(np.asarray(drawn, np.int64) if not drawn else np.asarray(drawn), self._n)

    def describe(self) -> str:
        return type(self._sampler).__name__


def _check_indices(array: Any, n: int) -> np.ndarray[Any, Any]:
    """Returns indices of samples as int64. Raises TypeError and ValueError."""
    import numpy as np

    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise TypeError(
            f"Plan: order should give indices of samples, but gave {array.dtype} of shape {array.shape}; for batches, "
            "use their sampler"
        )
    for at in (int(array.argmin()), int(array.argmax())) if array.size else ():
        if not 0 <= int(array[at]) < n:
            raise ValueError(
                f"Plan: order has index {array[at]} at position {at}, but lengths are given for {n:,} samples"
            )
    found: np.ndarray[Any, Any] = array.astype(np.int64, copy=False)
    return found


def order_of(given: Any, n: int, seed: int) -> EpochOrder:
    """Returns the order that the argument `order` of a plan says. Raises TypeError and ValueError."""
    import numpy as np

    if given is None:
        return EpochOrder(n, seed)
    if isinstance(given, Mixture):
        if len(given.dataset) != n:
            raise ValueError(
                f"Plan: order is a Mixture of {len(given.dataset):,} samples, but lengths are given for {n:,}; give "
                "Plan(mix.lengths, order=mix)"
            )
        return _OfMixture(given, n)
    if isinstance(given, Order):
        if given.n > n:
            raise ValueError(f"Plan: order is of {given.n:,} samples, but lengths are given for {n:,}")
        return _OfOrder(given)
    count = lookup.attribute(given, "num_replicas")
    if isinstance(count, int) and count != 1:
        raise ValueError(
            f"Plan: order is a {type(given).__name__} with num_replicas={count}, which gives the part of one rank; "
            "give the order of all ranks, because the plan deals its batches itself"
        )
    if isinstance(given, (set, frozenset)):
        raise TypeError(
            f"Plan: order is a {type(given).__name__}, which has no order of its own; give the indices as a list, for "
            "example sorted(...)"
        )
    if lookup.has_special(given, "__getitem__"):
        return _OfSubset(_check_indices(np.asarray(given), n).copy(), seed)
    if lookup.has_special(given, "__iter__") and not lookup.has_special(given, "__next__"):
        return _OfSampler(given, n, seed)
    raise TypeError(
        "Plan: order should be a headrace.Order, a Mixture, indices of samples (an array or a list), or a sampler, but "
        f"got a {type(given).__name__}"
    )

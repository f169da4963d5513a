# SPDX-License-Identifier: Apache-2.0
"""The state of headrace.Loader with map-style datasets."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import warnings
from typing import Any

import headrace
import numpy as np
import pytest
from loaders import only_headrace
from resumed import NUMPY_MAKERS as MAKERS
from resumed import N, Numbers, plain

pytestmark = only_headrace


@pytest.mark.parametrize("kind", list(MAKERS))
@pytest.mark.parametrize("workers", [0, 2])
def test_a_continued_run_gives_the_batches_of_the_whole_run(kind: str, workers: int) -> None:
    loader = MAKERS[kind](num_workers=workers)
    states, epochs = [(0, 0, loader.state_dict())], []
    for epoch in range(2):
        batches: list[Any] = []
        for batch in loader:
            batches.append(plain(batch))
            states.append((epoch, len(batches), loader.state_dict()))
            assert loader.last.step == len(batches) - 1 and loader.last.epoch == epoch
            assert loader.last.indices == batches[-1] and loader.last.weights.dtype == np.float32
        epochs.append(batches)
    for epoch, done, state in states:
        if done == len(epochs[epoch]):
            epoch, done = epoch + 1, 0
        if epoch == 2 or (kind == "own state" and epoch):
            continue
        other = MAKERS[kind](num_workers=2 - workers)
        other.load_state_dict(state)
        assert other.steps_left in (len(epochs[epoch]) - done, None)
        assert [plain(batch) for batch in other] == epochs[epoch][done:]


def test_the_seed_is_loaded_or_has_to_be_the_same() -> None:
    state = headrace.Loader(Numbers(), 4, shuffle=True, seed=7).state_dict()
    loader = headrace.Loader(Numbers(), 4, shuffle=True)
    loader.load_state_dict(state)
    assert loader.seed == 7
    with pytest.raises(ValueError, match="taken with seed=7, and this loader has seed=8"):
        headrace.Loader(Numbers(), 4, shuffle=True, seed=8).load_state_dict(state)


def test_the_batch_size_may_change() -> None:
    loader = headrace.Loader(Numbers(), 4, shuffle=True, seed=7)
    iterator = iter(loader)
    seen = [plain(next(iterator)) for _ in range(2)]
    other = headrace.Loader(Numbers(), 5, shuffle=True, seed=7)
    other.load_state_dict(loader.state_dict())
    assert len(other) == 2 + 3 and other.steps_left == 3
    rest = [plain(batch) for batch in other]
    assert sorted(itertools.chain.from_iterable(seen + rest)) == list(range(N)) and len(rest) == 3


def test_the_ranks_of_an_order_may_change() -> None:
    order = headrace.Order(N, seed=1)
    loaders = [headrace.Loader(Numbers(), 2, sampler=order[rank::3]) for rank in range(3)]
    seen = []
    for loader in loaders:
        seen += [plain(batch) for batch in itertools.islice(loader, 2)]
    rest = []
    for rank in range(2):
        loader = headrace.Loader(Numbers(), 2, sampler=order[rank::2])
        loader.load_state_dict(loaders[1].state_dict())
        rest += [plain(batch) for batch in loader]
    assert sorted(itertools.chain.from_iterable(seen + rest)) == list(range(N))


def test_a_dataset_that_has_grown_and_another_epoch() -> None:
    loader = headrace.Loader(Numbers(20), 4, shuffle=True, seed=7)
    iterator = iter(loader)
    seen = [plain(next(iterator)) for _ in range(2)]
    state = loader.state_dict()
    with pytest.raises(ValueError, match="taken with 20 samples, and the dataset has 30"):
        headrace.Loader(Numbers(30), 4, shuffle=True, seed=7).load_state_dict(state)
    grown = headrace.Loader(Numbers(30), 4, shuffle=True, seed=7, on_changed="finish")
    grown.load_state_dict(state)
    rest = [plain(batch) for batch in grown]
    assert sorted(itertools.chain.from_iterable(seen + rest)) == list(range(20))
    assert sum(map(len, grown)) == 30
    loader = headrace.Loader(Numbers(20), 4, shuffle=True, seed=7)
    loader.load_state_dict(state)
    with pytest.warns(UserWarning, match=r"set_epoch\(3\) discards the state"):
        loader.set_epoch(3)
    assert sum(map(len, loader)) == 20


def test_copies_and_pickles_begin_again() -> None:
    loader = headrace.Loader(Numbers(), 4)
    iterator = iter(loader)
    next(iterator)
    for other in (pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader)):
        assert json.loads(other.state_dict()["headrace"])["steps"] == 0 and other.last is None


def test_skip() -> None:
    loader = headrace.Loader(Numbers(), 4, shuffle=True, seed=7)
    whole = [plain(batch) for batch in loader]
    loader.set_epoch(0)
    loader.skip(2)
    assert loader.steps_left == 4 and [plain(batch) for batch in loader] == whole[2:]
    with pytest.raises(ValueError, match="6 steps are left"):
        loader.skip(7)
    with pytest.raises(TypeError, match="steps should be an int"):
        loader.skip(1.5)  # type: ignore[arg-type]


# ---- samplers that are set to an epoch ----


def loader_in_order() -> headrace.Loader:
    return headrace.Loader(Numbers(), batch_size=4, sampler=headrace.Order(24, seed=5))


def test_order_that_repeats_an_epoch_is_warned_of() -> None:
    loader = loader_in_order()
    list(loader)
    state = loader.state_dict()
    for epoch, warns in ((0, True), (1, False)):
        loader = loader_in_order()
        loader.load_state_dict(state)
        loader.sampler.set_epoch(epoch)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert len(list(loader)) == 6
        assert ["begin the loop over epochs at 1" in str(one.message) for one in caught] == [True] * warns


def test_state_of_another_epoch_is_discarded_with_a_warning() -> None:
    loader = loader_in_order()
    loader.sampler.set_epoch(1)
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = loader.state_dict()
    loader = loader_in_order()
    loader.load_state_dict(state)
    loader.sampler.set_epoch(3)
    with pytest.warns(
        UserWarning, match=r"set_epoch\(3\) discards the state that was loaded, of epoch 1 after 2 steps"
    ):
        found = [index for batch in loader for index in batch.tolist()]
    assert found == list(headrace.Order(24, seed=5, epoch=3))

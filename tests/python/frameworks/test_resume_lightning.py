# SPDX-License-Identifier: Apache-2.0
"""Lightning's own checkpoints in the middle of an epoch, with headrace's loader."""

from __future__ import annotations

import pytest
from resumed_runs import COUNT, Facts, after_save, facts_of, indices, resumed, saved_at

pytestmark = pytest.mark.timeout(1000)


@pytest.fixture(scope="module")
def lightning(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return facts_of("lightning", tmp_path_factory.mktemp("lightning"))


@pytest.mark.parametrize("case", ["generator_0", "generator_2", "two_loaders"])
def test_lightning_resumed_in_mid_epoch_sees_the_rest(lightning: Facts, case: str) -> None:
    assert resumed(lightning, f"{case}.rank0") == after_save(lightning, f"{case}.rank0", saved_at())


@pytest.mark.parametrize("workers", [0, 2])
def test_epoch_that_lightning_ended_is_not_continued(lightning: Facts, workers: int) -> None:
    """limit_train_batches=5 of 13, saved at the end of the second epoch: the third one starts at its beginning."""
    case = f"limited_{workers}.rank0"
    expected = after_save(lightning, case, 10)
    assert resumed(lightning, case) == expected and len(expected) == 5


@pytest.mark.parametrize("workers", [0, 2])
def test_lightning_resumed_sees_the_rest_of_a_shuffled_epoch(lightning: Facts, workers: int) -> None:
    """The order of the next epoch is drawn from torch's generator, whose state Lightning does not save."""
    case = f"shuffled_{workers}.rank0"
    seen, expected = resumed(lightning, case), after_save(lightning, case, saved_at())
    assert indices(seen, 1) == indices(expected, 1)
    assert sorted(indices(seen, 2)) == list(range(COUNT))


@pytest.mark.parametrize("workers", [0, 2])
def test_lightning_resumed_continues_stream_of_unknown_length(lightning: Facts, workers: int) -> None:
    """Lightning fetches one batch ahead there, which the loader's option held_back=1 counts as not delivered."""
    case = f"stream_{workers}.rank0"
    assert resumed(lightning, case) == after_save(lightning, case, saved_at())


@pytest.mark.parametrize("workers", [0, 2])
def test_two_devices_resumed_see_the_rest(lightning: Facts, workers: int) -> None:
    for rank in range(2):
        case = f"two_{workers}.rank{rank}"
        assert resumed(lightning, case) == after_save(lightning, case, saved_at(2))
        assert lightning[f"resume.{case}"]["samplers"] == ["headrace.torch._samplers.distributed_sampler"]

# SPDX-License-Identifier: Apache-2.0
"""accelerate's save_state, load_state and skip_first_batches under headrace.torch.install(), and without it."""

from __future__ import annotations

import pytest
from resumed_runs import Facts, after_save, facts_of, needs, resumed, saved_at, steps_of

pytestmark = pytest.mark.timeout(1000)
RANKS = [("alone", 0, 1), ("two", 0, 2), ("two", 1, 2)]  # processes, rank, world size


@pytest.fixture(scope="module")
def accelerate(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return facts_of("accelerate", tmp_path_factory.mktemp("accelerate"), "disabled")


@pytest.mark.parametrize(("processes", "rank", "world_size"), RANKS)
@pytest.mark.parametrize("kind", ["seedable_0", "seedable_2", "random_0", "random_2", "skip_0", "skip_2"])
def test_accelerate_resumed_in_mid_epoch_sees_the_rest(
    accelerate: Facts, processes: str, rank: int, world_size: int, kind: str
) -> None:
    case = f"{processes}_{kind}.rank{rank}"
    assert resumed(accelerate, case) == after_save(accelerate, case, saved_at(world_size))


@pytest.mark.parametrize(("kind", "steps"), [("split", saved_at(1)), ("dispatched", saved_at(2))])
@pytest.mark.parametrize("rank", [0, 1])
def test_accelerate_with_shared_batches_sees_the_rest(accelerate: Facts, kind: str, steps: int, rank: int) -> None:
    case = f"two_{kind}.rank{rank}"
    assert resumed(accelerate, case) == after_save(accelerate, case, steps)


@pytest.mark.parametrize(("processes", "rank", "world_size"), RANKS)
@pytest.mark.parametrize("workers", [0, 2])
def test_accelerate_resumed_continues_iterable_dataset(
    accelerate: Facts, processes: str, rank: int, world_size: int, workers: int
) -> None:
    case = f"{processes}_stream_{workers}.rank{rank}"
    assert resumed(accelerate, case) == after_save(accelerate, case, saved_at(world_size))


@pytest.mark.parametrize(("processes", "rank", "world_size"), RANKS)
def test_accelerate_resumed_after_epoch_sees_the_next_one(
    accelerate: Facts, processes: str, rank: int, world_size: int
) -> None:
    for kind in ("end", "dispatched_end") if world_size == 2 else ("end",):
        case = f"{processes}_{kind}.rank{rank}"
        expected = after_save(accelerate, case, 2 * steps_of(world_size))
        assert resumed(accelerate, case) == expected
        assert len(expected) == steps_of(world_size)


@pytest.mark.parametrize("workers", [0, 2])
def test_accelerate_resumed_without_the_engine_sees_the_rest(accelerate: Facts, workers: int) -> None:
    case = f"alone_seedable_{workers}"
    assert accelerate[f"disabled.{case}.rank0"]["seen"] == after_save(accelerate, f"{case}.rank0", saved_at())


def test_resumed_accelerate_makes_no_samples_again(accelerate: Facts) -> None:
    for kind in ("seedable_0", "random_0", "skip_0"):
        seen = sum(len(batch) for _, batch in resumed(accelerate, f"alone_{kind}.rank0"))
        assert accelerate[f"resume.alone_{kind}.rank0"]["made"] == seen


@needs("torchdata")
@pytest.mark.parametrize(("processes", "world_size"), [("alone", 1), ("two", 2)])
@pytest.mark.parametrize("kind", ["seedable_0", "random_0", "seedable_2", "random_2"])
def test_accelerate_with_torchdata_loses_the_order(
    accelerate: Facts, processes: str, world_size: int, kind: str
) -> None:
    """In a new process it resumes at the right place of another epoch's order (accelerate#4195, accelerate#3996)."""
    case = f"torchdata_{processes}_{kind}.rank0"
    assert resumed(accelerate, case) != after_save(accelerate, case, saved_at(world_size))

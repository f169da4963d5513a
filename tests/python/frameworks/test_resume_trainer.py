# SPDX-License-Identifier: Apache-2.0
"""transformers' Trainer with resume_from_checkpoint under headrace.torch.install()."""

from __future__ import annotations

import pytest
from resumed_runs import BATCH, COUNT, EPOCHS, Facts, after_save, facts_of, resumed, saved_at

pytestmark = pytest.mark.timeout(1000)


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return facts_of("trainer", tmp_path_factory.mktemp("trainer"))


@pytest.mark.parametrize("case", ["torch", "alone_0", "alone_2"])
def test_trainer_resumed_in_mid_epoch_sees_the_rest(trainer: Facts, case: str) -> None:
    assert resumed(trainer, f"{case}.rank0") == after_save(trainer, f"{case}.rank0", saved_at())


def test_trainer_sees_the_same_batches_as_with_torch(trainer: Facts) -> None:
    assert trainer["save.alone_0.rank0"]["seen"] == trainer["save.torch.rank0"]["seen"]


def test_resumed_trainer_makes_no_samples_again(trainer: Facts) -> None:
    seen = sum(len(batch) for _, batch in resumed(trainer, "alone_0.rank0"))
    assert trainer["resume.alone_0.rank0"]["made"] == seen
    assert seen == EPOCHS * COUNT - saved_at() * BATCH + (4 - COUNT % 4) % 4


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("rank", [0, 1])
def test_trainer_resumed_on_two_ranks_sees_the_rest(trainer: Facts, workers: int, rank: int) -> None:
    case = f"two_{workers}.rank{rank}"
    assert resumed(trainer, case) == after_save(trainer, case, saved_at(2))

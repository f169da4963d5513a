# SPDX-License-Identifier: Apache-2.0
"""A loader's state in torch.save and torch.distributed.checkpoint, without a framework."""

from __future__ import annotations

import pytest
from resumed_runs import COUNT, Facts, after_save, facts_of, indices, resumed, saved_at

pytestmark = pytest.mark.timeout(1000)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return facts_of("plain", tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("way", ["torch", "dcp", "dcp_dict"])
@pytest.mark.parametrize("workers", [0, 2])
def test_run_resumed_from_checkpoint_sees_the_rest(plain: Facts, way: str, workers: int) -> None:
    case = f"{way}_{workers}.rank0"
    assert resumed(plain, case) == after_save(plain, case, saved_at())
    assert sorted(indices(resumed(plain, case), 2)) == list(range(COUNT))


@pytest.mark.parametrize("way", ["torch", "dcp", "dcp_dict"])
def test_resumed_run_makes_no_samples_again(plain: Facts, way: str) -> None:
    case = f"{way}_0.rank0"
    seen = sum(len(batch) for _, batch in resumed(plain, case))
    assert plain[f"resume.{case}"]["made"] == seen


@pytest.mark.parametrize("workers", [0, 2])
def test_two_ranks_resumed_from_checkpoint_see_the_rest(plain: Facts, workers: int) -> None:
    for rank in range(2):
        case = f"two_{workers}.rank{rank}"
        assert resumed(plain, case) == after_save(plain, case, saved_at(2))

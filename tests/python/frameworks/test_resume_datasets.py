# SPDX-License-Identifier: Apache-2.0
"""The state of a loader over Hugging Face's datasets, map-style and iterable."""

from __future__ import annotations

import pytest
from resumed_runs import Facts, after_save, facts_of, needs, resumed

SAVED_AT = 18  # as in scripts/resume_datasets.py

pytestmark = [pytest.mark.timeout(1000), needs("pyarrow")]  # lib/datasets.py has the package's name


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return facts_of("datasets", tmp_path_factory.mktemp("datasets"))


@pytest.mark.parametrize("kind", ["map", "iterable", "shuffled"])
@pytest.mark.parametrize("workers", [0, 2])
def test_loader_over_datasets_resumed_sees_the_rest(datasets: Facts, kind: str, workers: int) -> None:
    case = f"{kind}_{workers}"
    assert resumed(datasets, case) == after_save(datasets, case, SAVED_AT)

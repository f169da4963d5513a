# SPDX-License-Identifier: Apache-2.0
"""The state of a loader over Hugging Face's datasets, map-style and iterable."""

from __future__ import annotations

import pytest
from resumed_runs import COUNT, Facts, after_save, facts_of, indices, needs, resumed

SAVED_AT = 18  # as in scripts/resume_datasets.py

# datasets needs multiprocess; the name "datasets" finds lib/datasets.py.
pytestmark = [pytest.mark.timeout(1000), needs("multiprocess")]


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return facts_of("datasets", tmp_path_factory.mktemp("datasets"))


@pytest.mark.parametrize(
    "case",
    [
        "map_0", "map_2", "iterable_0", "iterable_2", "shuffled_0", "shuffled_2", "buffered_0", "buffered_2",
    ],
)  # fmt: skip
def test_loader_over_datasets_resumed_sees_the_rest(datasets: Facts, case: str) -> None:
    assert resumed(datasets, case) == after_save(datasets, case, SAVED_AT)
    assert sorted(indices(resumed(datasets, case), 2)) == list(range(COUNT))


@needs("torchdata")
def test_torchdata_cannot_resume_shuffled_datasets(datasets: Facts) -> None:
    """datasets 5.2 cannot load the state of a shuffled dataset that is shared between workers."""
    assert "list index out of range" in datasets["resume.torchdata_shuffled_2"]["error"]


@needs("torchdata")
def test_torchdata_loses_the_next_epochs_order_of_a_generator(datasets: Facts) -> None:
    """In process, it leaves the user's generator as it was in the middle of the epoch."""
    case = "torchdata_map_0"
    seen, expected = resumed(datasets, case), after_save(datasets, case, SAVED_AT)
    assert indices(seen, 1) == indices(expected, 1)
    assert indices(seen, 2) != indices(expected, 2)

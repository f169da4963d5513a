# SPDX-License-Identifier: Apache-2.0
"""States that an earlier headrace took: they are continued, and those of today are the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import golden_states
import pytest
import torch
from loaders import only_headrace

pytestmark = [only_headrace, pytest.mark.filterwarnings("ignore:headrace")]
PATH = Path(__file__).resolve().parents[2] / "golden/states.json"
GOLDEN: dict[str, Any] = json.loads(PATH.read_text())
KINDS = pytest.mark.parametrize("kind", list(GOLDEN["records"]))


@KINDS
@pytest.mark.parametrize("workers", [0, 2])
def test_earlier_state_is_continued(kind: str, workers: int) -> None:
    if workers and kind.endswith("iterable"):
        pytest.skip("its batches depend on the number of workers")
    for record in GOLDEN["records"][kind]:
        if not record["rest"]:  # a state at the end: the next epoch begins, as it does from the state of today
            continue
        loader = golden_states.KINDS[kind](num_workers=workers)
        loader.load_state_dict(record["state"])
        numbers = bytes.fromhex(GOLDEN["numbers"][record["numbers"]])
        torch.set_rng_state(torch.frombuffer(bytearray(numbers), dtype=torch.uint8))
        rest = golden_states.epoch(loader, record["epoch"])
        assert json.loads(json.dumps(rest)) == record["rest"]


@KINDS
def test_state_of_today_is_the_earlier_one(kind: str) -> None:
    found = [record["state"] for record in golden_states.record(kind)]
    assert found == [record["state"] for record in GOLDEN["records"][kind]]

# SPDX-License-Identifier: Apache-2.0
"""Frameworks that move batches themselves find nothing to move, with a GPU that is simulated."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from loaders import ENGINE, Headrace
from simulated_device import Simulated, standing_in

if not ENGINE:
    pytest.skip("torch's loader does not do this", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore:headrace. workers are started by fork")


class Wide(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        return {"x": torch.full((20_000,), float(index)), "y": index}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulated]:
    for simulated in standing_in(monkeypatch):
        yield simulated
        faults = simulated.faults
    assert faults == []


def first_batch() -> Any:
    iterator = iter(Headrace(Wide(), 4, num_workers=1, device="cuda", multiprocessing_context="fork"))
    return next(iterator)


def addresses(batch: Any) -> list[int]:
    return [one.data_ptr() for one in batch.values()]


def test_accelerate_moves_nothing(device: Simulated) -> None:
    accelerate = pytest.importorskip("accelerate.utils")
    batch = first_batch()
    assert set(addresses(batch)) <= device.blocks
    assert addresses(accelerate.send_to_device(batch, torch.device("cpu"), non_blocking=True)) == addresses(batch)


def test_lightning_moves_nothing(device: Simulated) -> None:
    functions = pytest.importorskip("lightning_fabric.utilities.apply_func")
    batch = first_batch()
    assert addresses(functions.move_data_to_device(batch, torch.device("cpu"))) == addresses(batch)


def test_trainer_moves_nothing(device: Simulated) -> None:
    transformers = pytest.importorskip("transformers")
    trainer: Any = transformers.Trainer.__new__(transformers.Trainer)
    trainer.args = types.SimpleNamespace(device=torch.device("cpu"))
    trainer.is_deepspeed_enabled = False
    batch = first_batch()
    assert addresses(trainer._prepare_input(batch)) == addresses(batch)

# SPDX-License-Identifier: Apache-2.0
"""headrace.torch.stats, the line at the end of an epoch, and the time that report() says the loop waited."""

import logging
import os
import time
from typing import Any

import accelerator
import pytest
import torch
from headrace._loader.trainer import shown
from headrace.torch import DataLoader, stats

SAMPLE_S, COUNT, SIZE = 0.004, 40, 4


class Slow(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, broken: int = -1) -> None:
        self.broken = broken

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(SAMPLE_S)
        if index == self.broken:
            raise ValueError("broken")
        return torch.full((8,), index)


def load(**options: Any) -> DataLoader[torch.Tensor]:
    return DataLoader(Slow(), batch_size=SIZE, **{"multiprocessing_context": None, **options})


@pytest.mark.parametrize("workers", [0, 1])
def test_stats_are_those_of_the_epoch(workers: int) -> None:
    loader = load(num_workers=workers)
    assert stats(loader) == {}
    for epoch in range(2):
        for count, _ in enumerate(loader, 1):
            if count == 5:
                assert (stats(loader)["step"], stats(loader)["samples"]) == (5, 20)
        found = stats(loader)
        assert (found["epoch"], found["batches"], found["samples"], found["errors"]) == (epoch, 10, COUNT, 0)
        assert found["wait"] > 0.5, "the loop does nothing else"
        assert found["wait_s"] == pytest.approx(found["wait"] * found["seconds"])
        assert found["start_s"] > SAMPLE_S * SIZE
        assert 0 < found["batches_per_s"] <= 1 / (SAMPLE_S * SIZE)
        assert found["samples_per_s"] == pytest.approx(SIZE * found["batches_per_s"])
        parts = sum(found[name] for name in ("workers_s", "pin_s", "draw_s", "rebuild_s"))
        assert parts <= found["wait_s"] * 1.1 + 0.01
        if workers:
            assert found["workers_s"] > 0.5 * found["wait_s"]
            assert found["busy"] > 0.5
            assert SAMPLE_S * 1000 * 0.7 < found["sample_p50_ms"] < SAMPLE_S * 1000 * 10


def test_idle_loop_waits_little() -> None:
    loader = load(num_workers=2, prefetch_factor=4)
    for _ in loader:
        time.sleep(3 * SAMPLE_S * SIZE)
    found = stats(loader)
    assert found["wait_s"] - found["start_s"] < 0.3 * (found["seconds"] - found["start_s"])


def test_errors_are_no_batches() -> None:
    loader = DataLoader(Slow(broken=6), batch_size=SIZE, num_workers=1)
    iterator, errors = iter(loader), 0
    for _ in range(COUNT // SIZE):
        try:
            next(iterator)
        except ValueError:
            errors += 1
    assert errors == 1
    assert (stats(loader)["errors"], stats(loader)["batches"], stats(loader)["samples"]) == (1, 9, COUNT - SIZE)


def test_report_counts_no_announcements() -> None:
    loader = load(num_workers=2, persistent_workers=True)
    for epochs in (1, 2, 3):
        list(loader)
        assert loader.report()["batches"] == 10 * epochs


def test_waiting_for_pinning_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator.watch_pinning(monkeypatch)
    pin = torch.Tensor.pin_memory

    def pin_slowly(tensor: torch.Tensor) -> torch.Tensor:
        time.sleep(0.05)
        return pin(tensor)

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_slowly)
    loader = DataLoader(range(40), batch_size=4, num_workers=1, pin_memory=True)  # type: ignore[arg-type] # map-style
    list(loader)
    assert loader.report()["waited_s"] > 0.4
    assert stats(loader)["pin_s"] > 0.4
    assert stats(loader)["wait"] > 0.8


def test_epochs_are_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "_WORTH_S", 0.05)
    loader = load(num_workers=1)
    with caplog.at_level(logging.INFO, "headrace.epochs"):
        list(loader)
        list(loader)
    texts = [one.getMessage() for one in caplog.records if one.name == "headrace.epochs"]
    assert len(texts) == 2
    assert texts[0].startswith("test_stats.py:") and "epoch 0: 10 batches in " in texts[0]
    assert "the loop waited " in texts[0] and "(workers " in texts[0]
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with caplog.at_level(logging.INFO, "headrace.epochs"):
        caplog.clear()
        list(loader)
    assert caplog.records == [], "another rank logs"


def test_short_epochs_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "headrace.epochs"):
        list(DataLoader(range(8), batch_size=4))  # type: ignore[arg-type] # it is map-style
    assert caplog.records == []


def test_one_rank_has_its_own_wait() -> None:
    loader = load(num_workers=1)
    list(loader)
    found = stats(loader, max_over_ranks=True)
    assert (found["job_wait"], found["job_rank"]) == (found["wait"], -1)


def test_forked_child_has_no_counts_of_its_parent() -> None:
    loader = load(num_workers=0)
    for _ in range(2):
        iterator = iter(loader)
        next(iterator)
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        found = stats(loader)
        os.write(write, f"{found['batches']} {found['samples']} {found['wait_s']}".encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 1000) == b"0 0 0.0"
    os.close(read)
    os.close(write)
    del iterator

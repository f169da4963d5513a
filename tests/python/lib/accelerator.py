# SPDX-License-Identifier: Apache-2.0
"""An accelerator that is made up, for pin_memory: torch's own pinning thread runs, and what it calls is watched."""

from __future__ import annotations

import threading

import pytest
import torch
from torch_features import says


def watch_pinning(monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """Puts the accelerator in place. Returns which thread pinned a tensor, by the address of the result."""
    threads: dict[int, str] = {}

    def pin(tensor: torch.Tensor, device: object = None) -> torch.Tensor:
        if tensor.numel() == 3:
            raise RuntimeError("no pinned memory")
        copy = tensor.clone()
        threads[copy.data_ptr()] = threading.current_thread().name
        return copy

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cpu"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    if not says("torch.accelerator"):  # 2.6 looks for CUDA only
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return threads

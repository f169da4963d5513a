# SPDX-License-Identifier: Apache-2.0
"""Says which device the option `device` means. The fallback calls it too, so it needs no extension."""

from __future__ import annotations

from typing import Any

import torch


def parsed(given: Any) -> torch.device | None:
    """Returns the device of the option, or None if batches stay on the CPU. Raises RuntimeError for what torch does not
    know, and ValueError for other devices than GPUs of CUDA."""
    if given is None:
        return None
    device = torch.device(given)
    if device.type == "cpu":
        return None
    if device.type != "cuda" or torch.version.hip:
        name = "ROCm" if device.type == "cuda" else device.type
        raise ValueError(
            f'device should be "cuda", "cuda:N", "cpu" or None, but got {given!r}; headrace does not copy batches to '
            f"{name}: leave the option out, and call batch.to({str(device)!r}) in the loop"
        )
    return device


def resolved(device: Any) -> torch.device:
    """Returns the device with its number, which is known late: ranks call torch.cuda.set_device after they have made
    their loaders. Raises torch's exception if there is no CUDA."""
    found = parsed(device)
    torch.cuda.init()  # type: ignore[no-untyped-call]
    assert found is not None
    return torch.device("cuda", torch.cuda.current_device() if found.index is None else found.index)


def opened(device: Any) -> Any:
    """Returns the Device (interface.py) of the option."""
    from headrace.torch._device import cuda  # imported only if it is needed

    return cuda.Cuda(resolved(device))

# SPDX-License-Identifier: Apache-2.0
"""Makes torch's types known to the extension. Loaders and headrace.frozen call it before the first tensor."""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch

from headrace import _core
from headrace._base import pickling
from headrace._tensors import pickling as tensor_pickling
from headrace._tensors import torch_names

_exchange_table: Any = torch_names.find("torch.Tensor.__dlpack_c_exchange_api__")


def use_torch() -> None:
    """Makes torch known to the extension and to the pickler of batches. It may be called more than once."""
    # HEADRACE_DLPACK=capsule makes headrace work as with a torch that has no exchange table.
    table = None if os.environ.get("HEADRACE_DLPACK") == "capsule" else _exchange_table
    _core.use_torch(torch.Tensor, torch.int8, torch.uint8, torch.utils.dlpack.from_dlpack, table)
    if torch_names.has_numpy():
        _core.use_numpy()
        importlib.import_module("numpy.random")  # numpy imports it late: once here, not in each forked worker
    pickling.use_pickler(tensor_pickling.Pickler)

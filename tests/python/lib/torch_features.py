# SPDX-License-Identifier: Apache-2.0
"""Looks up what the installed torch does, where its versions differ, for tests that compare headrace with it."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from torch.utils.data import dataloader


def says(text: str) -> bool:
    """Says whether torch's loader has a text, which newer versions may have added or changed."""
    return text in inspect.getsource(dataloader)


def skip_unless_said(text: str) -> None:
    """Skips a test that compares a text which headrace has from a newer torch."""
    if not says(text):
        pytest.skip(f"the loader of torch {torch.__version__} does not say {text!r}")


def collates_numpy_booleans() -> bool:
    """Says whether torch makes tensors of np.bool_. 2.6 does not, because NumPy 2 has given the class another name."""
    try:
        return torch.as_tensor([np.bool_(True)]).tolist() == [True]
    except TypeError:
        return False

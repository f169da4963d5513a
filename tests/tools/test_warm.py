# SPDX-License-Identifier: Apache-2.0
"""Which processes of tests are forked from one that has imported torch or NumPy (lib/warm.py)."""

from __future__ import annotations

import pytest
import warm
from processes import environment


@pytest.mark.parametrize(
    ("name", "is_warm"),
    [("HEADRACE_DISABLE", True), ("PYTORCH_NVML_BASED_CUDA_CHECK", True), ("OMP_NUM_THREADS", False)],
)
def test_process_is_new_if_its_variable_is_read_early(name: str, is_warm: bool) -> None:
    assert warm.fits(["-c", "import numpy"], ".", environment(**{name: "17"})) == is_warm


@pytest.mark.cold("this is the mark that is tested")
def test_process_of_a_cold_test_is_new() -> None:
    assert not warm.fits(["-c", "import numpy"], ".", environment())

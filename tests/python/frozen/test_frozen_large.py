# SPDX-License-Identifier: Apache-2.0
"""Frozen data in which offsets need more than 32 bits."""

from __future__ import annotations

import os
from pathlib import Path

import headrace
import pytest

BLOCK, COUNT = 300_000_000, 17


@pytest.mark.skipif("HEADRACE_LARGE" not in os.environ, reason="5 GB: set HEADRACE_LARGE=1")
@pytest.mark.timeout(600)
def test_list_of_5_gb_of_texts_is_complete(tmp_path: Path) -> None:
    texts = [
        chr(97 + number) * BLOCK if number in (0, COUNT - 1) else "m" * (BLOCK + number) for number in range(COUNT)
    ]
    headrace.freeze(texts, path=tmp_path / "large.frozen")
    ends = [(len(text), text[0], text[-1]) for text in texts]
    del texts
    frozen = headrace.open(tmp_path / "large.frozen", verify=True)
    assert headrace.frozen.nbytes(frozen) > 2**32
    assert [(len(text), text[0], text[-1]) for text in frozen] == ends
    assert frozen.get_many([COUNT - 1])[0] == chr(97 + COUNT - 1) * BLOCK

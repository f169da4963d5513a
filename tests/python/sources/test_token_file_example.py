# SPDX-License-Identifier: Apache-2.0
"""examples/train_token_file.py learns from a token file, and says how fast."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
from processes import run_python

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/train_token_file.py"


def losses(folder: Path, *words: str) -> list[float]:
    done = run_python(folder, str(EXAMPLE), *words, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert re.search(r"the loader alone: \d[\d,]* tokens/s\n$", done.stdout)
    found = re.findall(r"step \d+: loss ([\d.]+), \d[\d,]* tokens/s", done.stdout)
    return list(map(float, found))


def test_model_learns_from_a_token_file(tmp_path: Path) -> None:
    found = losses(tmp_path, "--steps=40", "--workers=1")
    assert len(found) == 2 and found[1] < found[0] < 5.0
    assert not os.listdir(tmp_path)


def test_a_file_of_the_users_is_read(tmp_path: Path) -> None:
    np.tile(np.arange(10, dtype=np.uint16), 1000).tofile(tmp_path / "own.bin")
    words = ["--steps=20", "--length=16", "--vocab-size=10"]
    assert losses(tmp_path, str(tmp_path / "own.bin"), *words)[-1] < 2.0

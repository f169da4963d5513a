# SPDX-License-Identifier: Apache-2.0
"""examples/train_mixture.py: two tar files, a mixture and native images on two ranks, which are killed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import photos
import pytest

pytestmark = pytest.mark.skipif(photos.MISSING, reason=photos.WHY_MISSING)
ROOT = Path(__file__).parents[3]
LIBRARY = ROOT / "tests" / "python" / "lib"
# In each process of the example, makes torchvision importable with a torch for the CPU.
SITE = f"""
import sys
if any("train_mixture.py" in word for word in sys.orig_argv):
    sys.path.insert(0, {str(LIBRARY)!r})
    import photos
    photos.import_torchvision()
"""


def test_mixture_of_tars_goes_on_with_another_rank(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE)
    paths = [str(tmp_path), *sys.path]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "examples" / "train_mixture.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "each epoch had the samples of its mixture" in done.stdout
    assert "resumed after step 20, in epoch 1, on 1 ranks" in done.stdout
    epochs = re.findall(r"epoch (\d): (\d+) samples, \{(.*)\}, (\d+) of a later pass", done.stdout)
    assert [number for number, *_ in epochs] == ["0", "1"]
    for _, count, names, again in epochs:
        counts = {name: int(found) for name, found in re.findall(r"'(\w+)': (\d+)", names)}
        assert counts["stripes"] + counts["noise"] == int(count) and 149 <= counts["stripes"] <= 151
        assert abs(3 * counts["stripes"] - 7 * counts["noise"]) < 10 and int(again) > 0

# SPDX-License-Identifier: Apache-2.0
"""The tests of equality with other versions of Pillow, each in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import photos
import pytest

FOLDERS = sorted(photos.FOLDER.glob("pillow-*.*.[0-9]"))
pytestmark = pytest.mark.skipif(not FOLDERS, reason=photos.WHY_MISSING)
CASES = 150


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_equality_holds_with_another_pillow(folder: Path) -> None:
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": str(folder), "HEADRACE_EXAMPLES": str(CASES)}
    tests = [here / "test_exact.py", here / "test_lazy.py"]
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, tests)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=photos.FOLDER.parents[1],
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
    shown = subprocess.run(
        [sys.executable, "-c", "import PIL; print(PIL.__version__)"], capture_output=True, text=True, env=environment
    )
    assert f"pillow-{shown.stdout.strip()}" == folder.name

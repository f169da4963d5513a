# SPDX-License-Identifier: Apache-2.0
"""Two builds give the same bytes, with the sources, the tools and the results in other folders. Takes minutes.

The second one starts from the sdist of the first.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from datetime import datetime
from pathlib import Path

import pytest
import wheel_files
from wheel_files import DIST, ROOT

TOOLS = ROOT / "build/wheel-tools"
PYTHON = "3.11"
WHEELS = [wheel for wheel in wheel_files.list_wheels() if wheel.python == PYTHON]
pytestmark = pytest.mark.skipif(not WHEELS or not TOOLS.exists(), reason=wheel_files.WHY_MISSING)


def link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def move_tools(folder: Path) -> Path:
    """Returns the interpreter of a copy of the tools. Their programs name it in their first line."""
    shutil.copytree(TOOLS, folder, symlinks=True, copy_function=link_or_copy)
    for program in (folder / "bin").iterdir():
        if program.is_symlink() or not program.read_bytes().startswith(b"#!"):
            continue
        text = program.read_text().replace(str(TOOLS), str(folder))
        program.unlink()
        program.write_text(text)
        program.chmod(0o755)
    return folder / "bin/python"


def unpack_sources(folder: Path) -> Path:
    folder.mkdir()
    sdist = next(DIST.glob("headrace-*.tar.gz"))
    subprocess.run(["tar", "xf", sdist, "-C", folder, "--touch"], check=True)
    return next(folder.iterdir())


def find_time(wheel: wheel_files.Wheel) -> str:
    """SOURCE_DATE_EPOCH of the build that made a wheel."""
    bill = json.loads(wheel.read()[f"{wheel.info}/sboms/headrace.cdx.json"])
    return str(int(datetime.fromisoformat(bill["metadata"]["timestamp"].replace("Z", "+00:00")).timestamp()))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.timeout(1200)
def test_second_build_gives_the_same_bytes(tmp_path: Path) -> None:
    python = move_tools(tmp_path / "other-tools")
    sources = unpack_sources(tmp_path / "other-sources")
    downloads = ROOT / "build/wheels/debian/files"
    shutil.copytree(downloads, tmp_path / "other-work/debian/files", copy_function=link_or_copy)
    words = [PYTHON, *(wheel.machine for wheel in WHEELS)]
    places = ["--work", tmp_path / "other-work", "--dist", tmp_path / "other-dist"]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": find_time(WHEELS[0])}
    command = [python, sources / "tools/make_wheels.py", *places, *words]
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    made = {path.name: digest(path) for path in (tmp_path / "other-dist").iterdir()}
    assert len(made) == 1 + len(WHEELS)
    assert made == {name: digest(DIST / name) for name in made}

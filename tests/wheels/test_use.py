# SPDX-License-Identifier: Apache-2.0
"""Each wheel works where a new user installs it: an environment without a compiler.

The wheels of x86-64 are used with each interpreter that is on this machine. NumPy and Pillow come from the package
index.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import wheel_files
from wheel_files import Wheel
from wheels import headers

HERE = [wheel for wheel in wheel_files.list_wheels() if wheel.machine == platform.machine()]
pytestmark = pytest.mark.skipif(not HERE, reason=wheel_files.WHY_MISSING)
METHODS = ["fork", "spawn", "forkserver"]
PATIENCE_S = 250
RANK = "import headrace, os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], headrace.__version__)\n"
SAME_AS_TORCH = """
import sys, torch, headrace, headrace.torch
import torch.utils.data
assert headrace.__file__.startswith(sys.argv[1]), headrace.__file__

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, index):
        return torch.rand(3, 8, 8) + index, index

if __name__ == "__main__":
    for method in ("fork", "spawn"):
        epochs = []
        for made in (torch.utils.data.DataLoader, headrace.torch.DataLoader):
            torch.manual_seed(7)
            loader = made(Data(), 8, shuffle=True, num_workers=2, multiprocessing_context=method)
            epochs.append([(x.clone(), y.clone()) for x, y in loader])
        assert len(epochs[0]) == len(epochs[1]) == 13
        assert all(torch.equal(p, q) for a, b in zip(*epochs) for p, q in zip(a, b))
    assert loader.report()["memory"] == "memfd", "headrace's engine did not run"
    print("same")
"""


def run(words: list[Any], cwd: Path, **environment: str) -> str:
    """Runs a command that finds no compiler, nor any other program, outside of its environment."""
    path = str(Path(words[0]).parent)
    everything = {"PATH": path, "HOME": str(cwd), **environment}
    done = subprocess.run(
        list(map(str, words)), cwd=cwd, env=everything, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=HERE, ids=lambda wheel: wheel.python)
def environment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of an environment with a wheel."""
    wheel: Wheel = request.param
    interpreters = headers.list_interpreters(wheel.python)
    if not interpreters:
        pytest.skip(f"no Python {wheel.python} is on this machine")
    folder = tmp_path_factory.mktemp("environment") / "venv"
    uv = Path(sys.executable).parent / "uv"
    python = folder / "bin/python"
    for words in (
        ["venv", "--python", interpreters[0], folder],
        ["pip", "install", "--python", python, "--only-binary", ":all:", "numpy", "pillow"],
        ["pip", "install", "--python", python, "--no-deps", "--offline", wheel.path],
    ):
        subprocess.run([uv, *words], check=True, capture_output=True)
    return folder / "bin"


@pytest.fixture(scope="module")
def seen(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Runs tour.py once; returns what it saw."""
    scratch = tmp_path_factory.mktemp("tour")
    output = run([environment / "python", "-I", Path(__file__).with_name("tour.py")], scratch)
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    assert found["where"].startswith(str(environment.parent))
    return found


def test_images_are_made_in_c(seen: dict[str, Any]) -> None:
    assert seen["images"] == {method: {"same": True, "made": 32, "left": {}} for method in METHODS}


@pytest.mark.parametrize("method", METHODS)
def test_worker_keeps_large_blocks(seen: dict[str, Any], method: str) -> None:
    """The wheel is built for a glibc without mallinfo2, and finds the one of this machine."""
    assert max(seen["heap"][method][-5:]) < seen["block pages"] / 10


def test_frozen_data_come_back(seen: dict[str, Any]) -> None:
    assert seen["frozen"]


def test_cache_is_built_once(seen: dict[str, Any]) -> None:
    assert seen["cache"] == [1, 499_500, 499_500]


def test_compressed_arrays_are_unpacked(seen: dict[str, Any]) -> None:
    assert seen["packed"]


def test_program_says_its_version(environment: Path, tmp_path: Path) -> None:
    version = HERE[0].version
    assert run([environment / "headrace", "--version"], tmp_path) == f"headrace {version}\n"


def test_doctor_says_that_images_are_decoded(environment: Path, tmp_path: Path) -> None:
    said = run([environment / "headrace", "doctor"], tmp_path)
    assert "JPEG files can be decoded in C" in said
    assert "engine" in said


def test_ranks_run(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    said = run([environment / "headrace", "run", "--nproc", "2", "rank.py"], tmp_path)
    for rank in range(2):
        assert f"rank {rank} of 2 {HERE[0].version}" in said


def test_torch_gets_the_same_batches(tmp_path: Path) -> None:
    """The torch of the development environment loads with the wheel of the same Python."""
    python = "{}.{}".format(*sys.version_info)
    wheel = next((wheel for wheel in HERE if wheel.python == python), None)
    if wheel is None:
        pytest.skip(f"no wheel for the Python {python} that has torch")
    with zipfile.ZipFile(wheel.path) as archive:
        archive.extractall(tmp_path / "site")
    (tmp_path / "script.py").write_text(SAME_AS_TORCH)
    script = [Path(sys.executable), "script.py", tmp_path / "site"]
    assert run(script, tmp_path, PYTHONPATH=os.fspath(tmp_path / "site")) == "same\n"


def test_sdist_builds_without_network(tmp_path: Path) -> None:
    """It needs a compiler, and decodes images in C where libjpeg-turbo is installed."""
    sdist = next(wheel_files.DIST.glob("headrace-*.tar.gz"))
    options = {"setup-args": ["-Djpeg=enabled", "-Dwerror=true"]}
    hook = f"import mesonpy, sys; print(mesonpy.build_wheel(sys.argv[1], {options}))"
    subprocess.run(["tar", "xf", sdist, "-C", tmp_path], check=True)
    source = next(path for path in tmp_path.iterdir() if path.is_dir())
    alone = ["unshare", "--net", "--map-root-user"]
    command = [*alone, sys.executable, "-c", hook, str(tmp_path)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    built = subprocess.run(command, cwd=source, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        archive.extractall(tmp_path / "site")
    said = run([sys.executable, "-m", "headrace", "doctor"], tmp_path, PYTHONPATH=os.fspath(tmp_path / "site"))
    assert "JPEG files can be decoded in C" in said

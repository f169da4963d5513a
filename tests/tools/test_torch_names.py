# SPDX-License-Identifier: Apache-2.0
"""torch_names.py finds the names of the table in a build of torch without importing it; try_torches.py asks first."""

import importlib.util
import re
import zipfile
from pathlib import Path

import pytest

found = importlib.util.find_spec("torch")
TORCH = Path(found.origin).parent if found and found.origin else None
needs_torch = pytest.mark.skipif(TORCH is None, reason="torch is not installed")
DATALOADER = "utils/data/dataloader.py"


def pack(path: Path, renamed: dict[str, tuple[str, str]], leaves_out: str = "") -> Path:
    """Packs Python's files of the installed torch into a wheel, with changed text."""
    assert TORCH is not None
    parts = ["", "utils", "utils/data", "utils/data/_utils", "nn/modules", "autograd", "multiprocessing", "distributed"]
    with zipfile.ZipFile(path, "w") as wheel:
        for file in (file for part in [*parts, "_C"] for file in (TORCH / part).glob("*.py*")):
            name = file.relative_to(TORCH).as_posix()
            if name != leaves_out:
                wheel.writestr(f"torch/{name}", file.read_text().replace(*renamed.get(name, ("", ""))))
    return path


def missing(output: str) -> list[str]:
    return re.findall(r"^  missing .* (torch\.\S+)$", output, re.MULTILINE)


@needs_torch
def test_torch_that_is_installed_has_all_required_names(run_tool):
    result = run_tool("torch_names.py", TORCH)
    assert result.returncode == 0
    assert "0 of those missing are required" in result.stdout


@needs_torch
def test_name_that_a_wheel_lacks_is_missing(run_tool, tmp_path):
    changed = {
        DATALOADER: ("_task_info", "_tasks"),
        "utils/data/_utils/worker.py": ("def _generate_state", "def _generate"),
        "multiprocessing/__init__.py": ("def _set_thread_name", "def _name_thread"),
    }
    result = run_tool("torch_names.py", pack(tmp_path / "torch.whl", changed))
    wanted = {"_task_info", "_generate_state", "_set_thread_name"}
    assert result.returncode == 1
    assert wanted <= {path.rpartition(".")[2] for path in missing(result.stdout)}
    assert "2 of those missing are required" in result.stdout


def test_folder_without_torch_is_named(run_tool, tmp_path):
    result = run_tool("torch_names.py", tmp_path)
    assert result.returncode == 1
    assert f"{tmp_path}: no torch" in result.stderr


def test_other_torches_without_versions_are_not_downloaded(run_tool):
    result = run_tool("try_torches.py")
    assert result.returncode == 2
    assert "about 5 GB to download" in result.stdout
    assert "Nothing was downloaded" in result.stdout

# SPDX-License-Identifier: Apache-2.0
"""examples/demo.ipynb, executed by nbclient with a few small files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import photos
import pytest

pytestmark = [
    pytest.mark.skipif(photos.MISSING, reason=photos.WHY_MISSING),
    pytest.mark.timeout(600),
]
nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
EXAMPLES = Path(__file__).parents[3] / "examples"
SETTINGS, SMALL = "PER_CLASS, BATCH = 40, 16", "PER_CLASS, BATCH = 4, 8"


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Executes the notebook next to the demo, and returns what each code cell printed, by the cell's first line."""
    folder = tmp_path_factory.mktemp("notebook")
    shutil.copy(EXAMPLES / "demo.py", folder)
    notebook = nbformat.read(EXAMPLES / "demo.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert SETTINGS in cells[0].source
    cells[0].source = cells[0].source.replace(SETTINGS, SMALL)
    with pytest.MonkeyPatch.context() as patch:
        paths = [*photos.fake_packages(folder / "packages"), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        patch.setenv("OMP_NUM_THREADS", "1")
        nbclient.NotebookClient(notebook, timeout=500, resources={"metadata": {"path": str(folder)}}).execute()
    return {cell.source.partition("\n")[0]: _text(cell.outputs) for cell in cells}


def _text(outputs: list[Any]) -> str:
    return "".join(output.get("text", "") for output in outputs)


def find(printed: dict[str, str], begin: str) -> str:
    (text,) = [text for line, text in printed.items() if line.startswith(begin)]
    return text


def test_notebook_trains_with_equal_losses(printed: dict[str, str]) -> None:
    text = find(printed, "def train")
    assert text.count("samples/s") == 3
    assert "4 losses" in text and "all are equal to the last bit" in text


def test_notebook_replaces_a_killed_worker(printed: dict[str, str]) -> None:
    assert "headrace replaces it (restart 1 of 1)" in find(printed, "mark =")


def test_notebook_goes_on_after_a_killed_job(printed: dict[str, str]) -> None:
    assert "def train_on_ranks" in find(printed, "import inspect")
    assert "each of 32 samples was seen once" in find(printed, "rows, result")


def test_notebook_shows_what_spawned_workers_can_import(printed: dict[str, str]) -> None:
    assert "OfACell is defined in __main__, which a worker cannot import" in find(printed, "class OfACell")
    assert all(method in find(printed, "import crops") for method in ("fork", "forkserver", "spawn"))

# SPDX-License-Identifier: Apache-2.0
"""Libraries whose threads fitness.py takes for safe: forks many workers from a server that has imported and used them,
and uses them in each worker. A library that is not installed is skipped; `make test-imports` installs all of them."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest
from loaders import only_headrace
from processes import run

pytestmark = [only_headrace, pytest.mark.cold("the fork server has to import the library itself")]

# What is imported, and used at once, so that the threads run; and what uses it again.
LIBRARIES = {
    "numpy": ("import numpy", "numpy.linalg.svd(numpy.ones((200, 200)))[1][0]"),
    "torch": ("import torch", "torch.nn.functional.conv2d(torch.ones(1, 3, 64, 64), torch.ones(8, 3, 3, 3)).sum()"),
    "scipy": ("import scipy.linalg, numpy", "scipy.linalg.lu(numpy.ones((300, 300)))[2][0, 0]"),
    "pyarrow": ("import pyarrow, pyarrow.compute", "pyarrow.compute.sum(pyarrow.array(range(100_000))).as_py()"),
    "pandas": ("import pandas", "pandas.DataFrame({'a': range(10_000)}).groupby('a').sum().shape[0]"),
    "sklearn": (
        "import sklearn.svm, numpy",
        "sklearn.svm.SVC().fit(numpy.eye(20), numpy.arange(20) % 2).predict(numpy.eye(20))[0]",
    ),
    "cv2": ("import cv2, numpy", "cv2.GaussianBlur(numpy.ones((64, 64, 3), numpy.float32), (5, 5), 0).sum()"),
}
SCRIPT = """
{imports}
import headrace

def use():
    return float({use})

{at_import}

class Uses(list):
    def __getitem__(self, index):
        return use()

if __name__ == "__main__":
    expected = use()
    for _ in range(3):
        options = dict(num_workers=4, multiprocessing_context="forkserver", stall_after=200)  # each may import it
        loader = headrace.Loader(Uses(range(4)), batch_size=None, **options)
        assert list(loader) == [expected] * 4
    print(loader.report()["fork_server"]["kept"])
"""


def is_installed(name: str) -> bool:
    modules = [part.strip().partition(".")[0] for part in LIBRARIES[name][0].removeprefix("import").split(",")]
    return all(map(importlib.util.find_spec, modules))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("at_import", ["", "use()"], ids=["imported", "used"])
@pytest.mark.parametrize("name", LIBRARIES)
def test_library_works_in_forked_workers(tmp_path: pathlib.Path, name: str, at_import: str) -> None:
    imports, use = LIBRARIES[name]
    if not is_installed(name):
        pytest.skip(f"{name} is not installed")
    output = run(tmp_path, SCRIPT.format(imports=imports, use=use, at_import=at_import))
    assert output in (["all\n"] if not at_import else ["all\n", "part\n", "nothing\n"])


@pytest.mark.timeout(300)
def test_all_libraries_work_together(tmp_path: pathlib.Path) -> None:
    """All that are installed, in one process: as many kinds of threads as a script can have."""
    found = list(filter(is_installed, LIBRARIES))
    imports = "\n".join(LIBRARIES[name][0] for name in found)
    use = " + ".join(f"float({LIBRARIES[name][1]})" for name in found)
    assert run(tmp_path, SCRIPT.format(imports=imports, use=use, at_import="")) == "all\n"

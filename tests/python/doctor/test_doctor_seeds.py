# SPDX-License-Identifier: Apache-2.0
"""Typical problems that lead users to the doctor: their scripts, how they run them, and the output."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest
from doctors import doctor, make_machine, needs_cores
from loaders import needs_failpoints, only_headrace
from processes import run_python

pytestmark = [only_headrace, pytest.mark.timeout(600)]


def flat(text: str) -> str:
    """Without the breaks of lines."""
    return " ".join(text.split())


def run_script(folder: pathlib.Path, prefix: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    """`python train.py`, with what it prints."""
    return run_python(folder, "train.py", prefix=prefix)


# ---- a dataset that grows by copy-on-write ----

GROWING = """
import os
from headrace.torch import DataLoader
from torch.utils.data import Dataset, Subset

class Images(Dataset):
    def __init__(self, count):
        self.annotations = [
            {"path": f"images/{at:012}.jpg", "box": [at + 0.5, at + 1.5, at + 2.5, at + 3.5], "label": at % 91}
            for at in range(count)
        ]
        self.unused = [f"images/{at:012}.jpg" for at in range(count)]
    def __len__(self):
        return len(self.annotations)
    def __getitem__(self, index):
        one = self.annotations[index]
        return sum(one["box"]), sum(range(300))

def make_loader():
    images = Images(200_000)
    return DataLoader(Subset(images, range(len(images))), 64, shuffle=True, num_workers=2, persistent_workers=True,
                      multiprocessing_context="fork")

if __name__ == "__main__":
    loader = make_loader()
    for epoch in range(3):
        print("epoch", epoch, sum(len(boxes) for boxes, _ in loader))
"""


def test_growth_by_copy_on_write_is_reported_during_training(tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text(GROWING)
    result = run_script(tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "epoch 0 200000\nepoch 1 200000\nepoch 2 200000\n"
    (warning,) = [line for line in result.stderr.splitlines() if "increases the memory" in line]
    assert "/train.py:2" in warning  # the line of the loop
    assert "reading dataset.dataset.annotations (list of 200,000" in warning
    assert "per 1,000 samples" in warning
    assert "dataset.dataset.annotations = headrace.freeze(dataset.dataset.annotations)" in warning
    assert "DataLoader(..., freeze=True)" in warning
    assert "unused" not in result.stderr


def test_growth_by_copy_on_write_is_reported_by_the_doctor(tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text(GROWING)
    result = doctor("--run", "train:make_loader", "--batches", "1500", folder=tmp_path)
    assert result.stderr == ""
    assert result.returncode == 1
    assert "warning  growth           dataset.dataset.annotations by " in result.stdout
    assert "in each of 2 workers" in result.stdout
    assert "fix: dataset.dataset.annotations = headrace.freeze(dataset.dataset.annotations)" in result.stdout
    assert "unused" not in result.stdout


FIXES = {
    "the option": ('multiprocessing_context="fork"', 'multiprocessing_context="fork", freeze=True'),
    "the line": (
        "    images = Images(200_000)\n",
        "    import headrace\n"
        "    images = Images(200_000)\n"
        "    images.annotations = headrace.freeze(images.annotations)\n",
    ),
}


@pytest.mark.parametrize("fix", FIXES)
def test_the_line_that_the_growth_warning_names_cures_it(tmp_path: pathlib.Path, fix: str) -> None:
    code = GROWING.replace(*FIXES[fix]).replace("range(3)", "range(2)")
    assert code != GROWING.replace("range(3)", "range(2)")
    (tmp_path / "train.py").write_text(code)
    result = run_script(tmp_path)
    assert (result.returncode, result.stdout) == (0, "epoch 0 200000\nepoch 1 200000\n"), result.stderr
    assert "private memory" not in result.stderr
    result = doctor("--run", "train:make_loader", "--batches", "500", folder=tmp_path)
    assert "No attribute of the dataset was copied into the workers' own memory." in flat(result.stdout), result.stdout


# ---- a 64 MB /dev/shm ----

LARGE = """
import sys
import torch
if sys.argv[1:] == ["torchs"]:
    from torch.utils.data import DataLoader
else:
    from headrace.torch import DataLoader

class Large(torch.utils.data.Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, index):
        return torch.full((5_000_000,), index)

if __name__ == "__main__":
    print([int(batch[0, 0]) for batch in DataLoader(Large(), 3, num_workers=2)])
"""


@pytest.fixture
def small_shm() -> list[str]:
    """Returns the command prefix that gives a command a /dev/shm of 64 MB, like docker's."""
    prefix = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=64m shm /dev/shm && exec "$@"', "sh"]
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
        pytest.skip("no mount namespaces here")
    return prefix


def test_in_a_small_dev_shm_batches_of_120_mb_cross_all_the_same(tmp_path: pathlib.Path, small_shm: list[str]) -> None:
    (tmp_path / "train.py").write_text(LARGE)
    result = run_script(tmp_path, small_shm)
    assert (result.returncode, result.stdout) == (0, "[0, 3]\n"), result.stderr
    result = doctor(prefix=small_shm)
    assert "/dev/shm         64.0 MiB   (headrace puts nothing there)" in result.stdout
    assert "headrace does not need docker run --ipc=host or --shm-size" in flat(result.stdout)


def test_torchs_own_loader_dies_in_a_small_dev_shm(tmp_path: pathlib.Path, small_shm: list[str]) -> None:
    (tmp_path / "train.py").write_text(LARGE)
    result = run_python(tmp_path, "train.py", "torchs", prefix=small_shm)
    assert result.returncode != 0
    assert "Bus error" in result.stderr or "No space left" in result.stderr


@needs_cores
@needs_failpoints
def test_doctor_says_that_a_small_dev_shm_does_not_matter(tmp_path: pathlib.Path) -> None:
    """The machine description (HEADRACE_ROOT) is of a container with a small /dev/shm."""
    result = doctor(HEADRACE_ROOT=make_machine(tmp_path))
    assert result.returncode == 0
    assert "ok       /dev/shm         64.0 MiB" in result.stdout
    assert "headrace does not need docker run --ipc=host or --shm-size" in flat(result.stdout)


# ---- a thread pool before the fork ----

# As OpenCV: a pool of threads that starts with the first call, and that a forked process waits for without end.
CV2 = """
import concurrent.futures, os
_count, _pool = 4, None
def getNumThreads():
    return _count
def setNumThreads(count):
    global _count
    _count = count
def getNumberOfCPUs():
    return os.cpu_count() + 100
def resize(number):
    global _pool
    if _count < 2:
        return number
    _pool = _pool or concurrent.futures.ThreadPoolExecutor(_count)
    return _pool.submit(int, number).result()
"""

POOL = """
import cv2
from headrace.torch import DataLoader

class Images:
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return cv2.resize(index)

def make_loader():
    cv2.resize(1)  # a look at the first image
    return DataLoader(Images(), 4, num_workers=1, multiprocessing_context="fork", stall_after=STALL_AFTER)

if __name__ == "__main__":
    loader = make_loader()
    FIX
    loader.on_stall = "raise"  # else it would wait for ever
    print(sum(map(len, loader)))
"""


def write_pool(folder: pathlib.Path, fix: str = "pass", stall_after: float = 6.0) -> None:
    """`stall_after`: seconds in which a worker is in the pool, or past it."""
    (folder / "cv2.py").write_text(CV2)
    (folder / "train.py").write_text(POOL.replace("FIX", fix).replace("STALL_AFTER", str(stall_after)))


def test_pool_started_before_fork_warns_and_stall_names_line(tmp_path: pathlib.Path) -> None:
    write_pool(tmp_path)
    result = run_script(tmp_path)
    stderr = flat(result.stderr)
    assert result.returncode != 0
    assert (
        "OpenCV has a thread pool, which may hang in the workers (cv2.setNumThreads(0) in this process avoids that)"
        in stderr
    )
    assert "RuntimeError: headrace: no batch for" in stderr
    assert "cv2.py" in stderr and "in resize" in stderr  # the worker's stack
    assert "it was forked from a process with" in stderr


def test_the_line_that_the_warning_names_cures_it(tmp_path: pathlib.Path) -> None:
    write_pool(tmp_path, "cv2.setNumThreads(0)", 100.0)
    result = run_script(tmp_path)
    assert (result.returncode, result.stdout) == (0, "40\n"), result.stderr
    assert "OpenCV has a thread pool" not in result.stderr


def test_doctor_names_the_pool_and_does_not_hang_with_the_loader(tmp_path: pathlib.Path) -> None:
    write_pool(tmp_path)
    result = doctor("--run", "train:make_loader", folder=tmp_path)
    assert result.returncode == 2
    assert "warning  OpenCV           4 threads" in result.stdout
    assert "fix: cv2.setNumThreads(0)" in result.stdout
    assert "error    run              stalled" in result.stdout
    assert "in resize" in result.stdout

# SPDX-License-Identifier: Apache-2.0
"""The examples that train, for a few seconds."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import processes
import pytest

pytestmark = pytest.mark.timeout(600)

pytest.importorskip("torch")
pytest.importorskip("tqdm")

EXAMPLES = Path(__file__).parents[3] / "examples"


def trained(report: Path, *flags: str) -> dict[str, Any]:
    """Runs the training script without a launcher, as the only rank, and reads its report."""
    script = [sys.executable, str(EXAMPLES / "train_stdlib.py"), "--seconds=300", "--epochs=1", f"--report={report}"]
    small = ["--workers=1", "--batch-size=16", "--max-bytes=32", "--width=64", "--lr=0.01"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "1", "RANK": "0"}
    done = subprocess.run([*script, *small, *flags], env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    measured: dict[str, Any] = json.loads(report.read_text())
    return measured


def test_the_example_learns_and_reports_what_loading_cost(tmp_path: Path) -> None:
    measured = trained(tmp_path / "report.json", "--start-method=forkserver")
    assert measured["loader"].startswith("headrace.")
    assert measured["first_loss"] > 5.0
    assert measured["last_loss"] < 3.5
    assert measured["epochs"] == 1
    assert len(measured["loss_curve"]) == measured["steps"]
    assert 0 < measured["first_batch_seconds"] <= measured["wait_seconds"] < measured["seconds"]
    assert len(measured["worker_private_bytes"]) == 1
    assert measured["worker_private_bytes"][0] > 2**20
    assert measured["descriptors"]["after"] < measured["descriptors"]["live"]


def seconds_from_ctrl_c_to_the_end() -> float:
    command = [sys.executable, str(EXAMPLES / "compare_stdlib.py"), "--seconds=60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stderr
        while "blocks" not in process.stdout.readline():  # the ranks train
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        begin = time.monotonic()
        _, errors = process.communicate(timeout=100)  # to the end of the pipes: no descendant holds them any more
        took = time.monotonic() - begin
    assert process.returncode == 130
    assert errors.rstrip().endswith("compare_stdlib: interrupted")
    assert "Traceback" not in errors
    return took


def test_comparison_ends_promptly_and_completely_at_ctrl_c() -> None:
    assert any(seconds_from_ctrl_c_to_the_end() < 10 for _ in range(3))


def test_the_example_of_resuming_sees_each_sample_once() -> None:
    """The state is that after the last batch of an epoch, which has 30 steps. The example of a bucket resumes in the
    middle of an epoch, with the same code."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    script = [sys.executable, str(EXAMPLES / "resume.py"), "--killed-at=32"]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "resumed after step 30, in epoch 1, on 1 ranks" in done.stdout
    assert done.stdout.count("600 samples, 600 different ones") == 2


def test_the_example_of_a_bucket_sees_each_sample_once() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    script = [sys.executable, str(EXAMPLES / "train_from_bucket.py")]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "resumed after step 140, in epoch 1, on 1 ranks" in done.stdout
    assert done.stdout.splitlines()[-1] == "each sample was seen once per epoch"


def test_the_example_of_packed_rows_sees_each_sample_once() -> None:
    """Two ranks are killed in the middle of the epoch, and three go on."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    script = [sys.executable, str(EXAMPLES / "train_tokens.py"), "--modules=10", "--no-comparison"]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resumed after step 10, on 3 ranks" in done.stdout
    assert re.search(r"(\d[\d,]+) samples were trained on, \1 different ones", done.stdout)
    assert "each sample was seen once" in done.stdout


def test_the_example_of_texts_and_images_balances_its_ranks() -> None:
    """Two ranks train with a plan of the tokens alone, and with one of tokens and patches."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    script = [sys.executable, str(EXAMPLES / "train_text_images.py"), "--samples=400"]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout + done.stderr
    lost = [float(one) for one in re.findall(r"steps take (\d\.\d+) of what they would take", done.stdout)]
    assert len(lost) == 2 and lost[0] > 1.05 > lost[1]
    assert "each sample was seen once, and ranks wait less" in done.stdout


@pytest.mark.parametrize("name, package", [("train_lightning", "lightning"), ("train_trainer", "transformers")])
def test_example_of_framework_sees_each_sample_once(tmp_path: Path, name: str, package: str) -> None:
    pytest.importorskip(package)
    done = processes.run_python(tmp_path, str(EXAMPLES / f"{name}.py"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith("of the epoch was seen once"), done.stdout

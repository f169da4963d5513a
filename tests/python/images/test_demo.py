# SPDX-License-Identifier: Apache-2.0
"""examples/demo.py, the demo of `make demo`, with a few small files: each of its scenes, its table and its picture, and
that it fails if a scene is not as it should be."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import photos
import pytest

pytestmark = [
    pytest.mark.skipif(photos.MISSING, reason=photos.WHY_MISSING),
    pytest.mark.timeout(600),
]
DEMO = Path(__file__).parents[3] / "examples" / "demo.py"
SMALL = ("--per-class=4", "--batch=8", "--epochs=1")
COUNT = 8 * 4


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["demo"] = module  # NamedTuple looks it up
    spec.loader.exec_module(module)
    return module


demo = _load()


def _start(folder: Path) -> subprocess.Popen[str]:
    """Starts a copy of the demo, without the other files of this repository. The photographs are in fake packages."""
    alone = folder / "demo.py"
    alone.write_bytes(DEMO.read_bytes())
    paths = (*photos.fake_packages(folder / "packages"), os.environ.get("PYTHONPATH", ""))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, str(alone), *SMALL], cwd=folder, env=environment, **pipes)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("demo")
    with _start(folder) as process:
        printed, errors = process.communicate(timeout=500)
    assert process.returncode == 0, printed + errors
    return SimpleNamespace(printed=printed, errors=errors, folder=folder / "headrace-demo")


def test_screen_names_the_photographers(run: SimpleNamespace) -> None:
    for _, _, credit in demo.PHOTOGRAPHS:
        assert credit in run.printed
    assert "https://creativecommons.org/licenses/by/2.0/" in run.printed
    files = list((run.folder / "photographs-4").glob("*/*.jpg"))
    assert len(files) == COUNT


def test_three_scenes_have_equal_losses(run: SimpleNamespace) -> None:
    (digests,) = re.findall(r"digests of the losses: (.*)", run.printed)
    assert len(digests.split(", ")) == 3
    assert len(set(digests.split(", "))) == 1
    assert "left to Pillow" not in run.printed
    assert "headrace gains nothing where the model is the bottleneck" in run.printed


def test_killed_worker_is_replaced_and_losses_are_equal(run: SimpleNamespace) -> None:
    assert "headrace replaces it (restart 1 of 1)" in run.errors
    assert re.search(r"torch's DataLoader, killed at the same sample: \w+Error: ", run.printed)
    assert "the losses are those without the kill." in run.printed


def test_killed_job_goes_on_with_each_sample_once(run: SimpleNamespace) -> None:
    assert "rank 1 failed first: it was ended by signal 9" in run.errors
    assert f"each of {COUNT} samples was seen once." in run.printed


def test_table_has_six_rows_of_measured_numbers(run: SimpleNamespace) -> None:
    rows = re.findall(r"^([1-6]) \S.*?((?: +(?:\d+(?:\.\d)?(?: ms| MB|%)?)){6})$", run.printed, re.MULTILINE)
    assert [number for number, _ in rows] == list("123456")
    cells = {number: re.findall(r"[\d.]+", text) for number, text in rows}
    for number, (rate, _, cpu, private, dev_shm, memfd) in cells.items():
        assert min(float(rate), float(cpu), float(private)) > 0
        assert (float(dev_shm) > 0) == (number == "1")  # torch's batches
        assert (float(memfd) > 0) == (number != "1")  # headrace's


def test_picture_is_readable_in_light_and_dark(run: SimpleNamespace) -> None:
    text = (run.folder / "demo.svg").read_text()
    assert len(text) < 50_000
    assert "prefers-color-scheme: dark" in text
    root = ElementTree.fromstring(text)
    rectangles = root.findall("{http://www.w3.org/2000/svg}rect")
    assert [one.get("class") for one in rectangles] == ["paper", *["torch", "bar", "bar"] * 2]
    right = max(float(one.get("x", 0)) + float(one.get("width", 0)) for one in rectangles)
    assert right <= float(root.get("width", 0))
    words = [one.text or "" for one in root.findall("{http://www.w3.org/2000/svg}text")]
    assert any("was seen once" in one for one in words)


def test_demo_ends_all_processes_at_ctrl_c(tmp_path: Path) -> None:
    with _start(tmp_path) as process:
        assert process.stdout
        while "Scene 3" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        begun = time.monotonic()
        _, errors = process.communicate(timeout=100)  # to the end of stderr, which the scenes have too
        assert time.monotonic() - begun < 50
    assert process.returncode == 130
    assert errors.rstrip().endswith("demo: interrupted")


# ---- It says so if something is not as it should be


class FakeScene:
    """A scene whose reports are given."""

    reports: dict[str, dict[str, Any]]

    def __init__(self, args: argparse.Namespace, name: str, **more: int) -> None:
        self.name, self.more = name, more
        self.stdout: list[str] = []

    def train(self) -> dict[str, Any]:
        return self.reports[self.name]

    def read(self) -> dict[str, Any]:
        return self.reports[self.name]

    def end(self) -> None:
        pass


MEASURED = {
    "samples": 1,
    "seconds": 1.0,
    "waited": 0.5,
    "cpu": 0.1,
    "private": 1,
    "/dev/shm": 0,
    "memfd": 0,
}
ONE, OTHER = [(0.5).hex()] * 2, [(0.5).hex(), (0.5 + 2**-52).hex()]  # two epochs of a step each


def test_demo_fails_if_losses_differ_in_the_last_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "Scene", FakeScene)
    args = argparse.Namespace(epochs=1)
    FakeScene.reports = {name: {**MEASURED, "losses": ONE, "left": {}} for name in demo.TURNS}
    rows, _ = demo.show_turns(args)
    assert len(rows) == 3
    FakeScene.reports["images"] = {**MEASURED, "losses": OTHER, "left": {}}
    with pytest.raises(demo.Wrong, match="the losses of scenes 1 to 3 differ"):
        demo.show_turns(args)


@pytest.mark.parametrize(("killed", "restarts"), [(OTHER, 1), (ONE, 0)])
def test_demo_fails_if_the_kill_has_another_effect(
    monkeypatch: pytest.MonkeyPatch, killed: list[str], restarts: int
) -> None:
    monkeypatch.setattr(demo, "Scene", FakeScene)
    FakeScene.reports = {"kill": {**MEASURED, "whole": ONE, "killed": killed, "restarts": restarts}}
    with pytest.raises(demo.Wrong, match=f"{restarts} workers were replaced"):
        demo.show_kill(argparse.Namespace())


def _note(folder: Path, name: str, *lines: tuple[int, int, list[int]]) -> None:
    (folder / name).write_text("".join(f"[{epoch}, {step}, {seen}]\n" for epoch, step, seen in lines))


def test_samples_after_the_checkpoint_do_not_count(tmp_path: Path) -> None:
    _note(tmp_path, "seen-0-of-2", (0, 1, [0, 2]), (1, 2, [0]), (1, 3, [1]))
    _note(tmp_path, "seen-1-of-2", (0, 1, [1, 3]), (1, 2, [2]), (1, 3, [3]))
    _note(tmp_path, "seen-0-of-1", (1, 3, [1, 3]))
    assert sorted(demo.samples_seen(tmp_path, kept=2)) == [0, 1, 2, 3]


def test_demo_fails_if_a_sample_was_seen_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "class").mkdir()
    for number in range(4):
        (tmp_path / "class" / f"{number}.jpg").touch()

    def run_ranks(args: argparse.Namespace, ranks: int, **more: int) -> list[dict[str, Any]]:
        for rank in range(ranks):
            _note(tmp_path, f"seen-{rank}-of-{ranks}", (1, 1, [0, 1]))
        return [MEASURED] * ranks

    monkeypatch.setattr(demo, "run_ranks", run_ranks)
    with pytest.raises(demo.Wrong, match="not each of 4 once"):
        demo.show_ranks(argparse.Namespace(files=tmp_path, folder=tmp_path, batch=2))

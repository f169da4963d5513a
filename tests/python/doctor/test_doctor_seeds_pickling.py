# SPDX-License-Identifier: Apache-2.0
"""Scripts that ran under fork and do not under spawn or forkserver: what their owners see, and that the fix is one."""

from __future__ import annotations

import pathlib

import pytest
from loaders import only_headrace
from processes import run_python

pytestmark = [only_headrace, pytest.mark.timeout(600)]

MAIN = """
def make_dataset():
    return Data()

if __name__ == "__main__":
    import sys
    from headrace.torch import DataLoader
    loader = DataLoader(make_dataset(), 4, num_workers=1, multiprocessing_context="spawn")
    print(sum(len(batch) for batch in loader))
"""

LOGGER = """
import logging

class Recorder:
    def __init__(self):
        self.handler = logging.StreamHandler()

class Data:
    def __init__(self):
        self.recorder = Recorder()
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return index
"""
LOGGER_FIXED = LOGGER.replace(
    "class Data:",
    """    def __getstate__(self):
        return {}
    def __setstate__(self, state):
        self.__init__()

class Data:""",
)

VOCABULARY = """
from collections import defaultdict

class Vocabulary:
    def __init__(self, words):
        self.word2id = defaultdict(lambda: 0, {word: at for at, word in enumerate(words)})

class Data:
    def __init__(self):
        self.vocabulary = Vocabulary("a few words".split())
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return self.vocabulary.word2id["few"]
"""
VOCABULARY_FIXED = VOCABULARY.replace("lambda: 0", "zero") + "\ndef zero():\n    return 0\n"

CONFIG = """
class EvaluationConfig:
    def __init__(self, class_range):
        self.class_range = class_range
        self.class_names = self.class_range.keys()

class Data:
    def __init__(self):
        self.eval_cfg = EvaluationConfig({"car": 50, "pedestrian": 40})
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return len(self.eval_cfg.class_names)
"""
CONFIG_FIXED = CONFIG.replace("self.class_range.keys()", "list(self.class_range.keys())")

# The script, what it becomes by the fix, the path and the type that are named, and where it was set.
SEEDS = {
    "logger": (LOGGER, LOGGER_FIXED, ".recorder.handler", "StreamHandler", "logging.StreamHandler()"),
    "vocabulary": (VOCABULARY, VOCABULARY_FIXED, ".vocabulary.word2id.default_factory", "lambda", "lambda: 0"),
    "config": (CONFIG, CONFIG_FIXED, ".eval_cfg.class_names", "dict_keys", "class_range.keys()"),
}


def line_of(code: str, piece: str) -> int:
    return 1 + code[: code.index(piece)].count("\n")


@pytest.mark.parametrize("name", SEEDS)
def test_the_script_ends_with_the_object_the_line_and_the_fix(tmp_path: pathlib.Path, name: str) -> None:
    code, _, path, kind, piece = SEEDS[name]
    (tmp_path / "train.py").write_text(code + MAIN)
    result = run_python(tmp_path, "train.py")
    assert result.returncode != 0
    assert f"dataset{path}" in result.stderr
    assert kind in result.stderr
    assert f"train.py:{line_of(code, piece)}" in result.stderr
    assert "fix: " in result.stderr


@pytest.mark.parametrize("name", SEEDS)
def test_the_doctor_says_the_same_without_a_training_run(tmp_path: pathlib.Path, name: str) -> None:
    code, _, path, kind, piece = SEEDS[name]
    (tmp_path / "train.py").write_text(code + MAIN)
    result = run_python(tmp_path, "-m", "headrace", "doctor", "train:make_dataset")
    assert result.returncode == 2
    assert f"make_dataset(){path}" in result.stdout
    assert kind in result.stdout
    assert f"train.py:{line_of(code, piece)}" in result.stdout
    assert "fix: " in result.stdout


@pytest.mark.parametrize("name", SEEDS)
def test_with_the_fix_the_script_runs_and_the_doctor_is_content(tmp_path: pathlib.Path, name: str) -> None:
    code = SEEDS[name][1]
    (tmp_path / "train.py").write_text(code + MAIN)
    result = run_python(tmp_path, "train.py")
    assert (result.returncode, result.stdout) == (0, "8\n"), result.stderr
    assert run_python(tmp_path, "-m", "headrace", "doctor", "train:make_dataset").returncode == 0


def test_the_commands_without_a_source_are_the_machines(tmp_path: pathlib.Path) -> None:
    result = run_python(tmp_path, "-m", "headrace", "doctor", "--json")
    assert '"name": "/dev/shm"' in result.stdout
    assert run_python(tmp_path, "-m", "headrace", "doctor", "--machine-help").returncode == 0

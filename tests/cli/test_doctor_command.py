# SPDX-License-Identifier: Apache-2.0
"""headrace doctor SOURCE: what a user whose dataset does not reach the workers types and sees."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from program import PROGRAM, pipe_without_reader, run

DATA = """\
import threading

class Fine:
    def __init__(self):
        self.numbers = list(range(10))
    def __len__(self):
        return 10
    def __getitem__(self, index):
        return self.numbers[index]

class Bad(Fine):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()
        self.key = {("k", 1): lambda: 0}

class Breaks(Fine):
    def __setstate__(self, state):
        raise KeyError("a field of an older version")

class Ends(Fine):
    def __setstate__(self, state):
        import os
        os._exit(3)

class Loader:
    def __init__(self):
        self.dataset, self.sampler, self.collate_fn, self.worker_init_fn = Bad(), None, lambda batch: batch, None
    def __iter__(self):
        raise AssertionError("the loader was iterated")

fine = Fine()
bad = Bad()

def make():
    return Bad()

def make_loader():
    return Loader()

def breaks():
    return Breaks()

def ends():
    return Ends()

def fail():
    raise RuntimeError("no disk")

def needs(root):
    return root
"""

SCRIPT = """\
import numpy as np
from torch.utils.data import Dataset

class Training(Dataset):
    def __init__(self):
        self.rows = [1, 2]

if __name__ == "__main__":
    class Guarded:
        pass
    raise SystemExit("the main guard ran")
"""

LOGGER = """\
import logging, sys

class Reader:
    def __init__(self):
        self.logger = logging.Logger("reader")
        self.logger.addHandler(logging.StreamHandler(sys.stdout))
        self.handler = self.logger.handlers[0]
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return index

def make():
    return Reader()
"""

VOCABULARY = """\
from collections import defaultdict

class Vocab:
    @classmethod
    def load(cls):
        vocab = cls()
        vocab.word2id = defaultdict(lambda: 0)
        return vocab

class Text:
    def __init__(self):
        self.vocab = Vocab.load()
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return self.vocab.word2id[index]

def make():
    return Text()
"""

EVALUATION = """\
class Config:
    def __init__(self):
        self.class_range = {"car": 50, "bus": 40}
        self.class_names = self.class_range.keys()

class Boxes:
    def __init__(self):
        self.eval_cfg = Config()
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return index

def make():
    return Boxes()
"""

FILES = {"data.py": DATA, "train.py": SCRIPT, "reader.py": LOGGER, "vocab.py": VOCABULARY, "boxes.py": EVALUATION}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def doctor(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return run("doctor", *arguments, cwd=folder, env=dict(os.environ))


def test_fine_object_is_reported_and_exits_with_0(folder: Path) -> None:
    result = doctor(folder, "data:fine")
    assert result.returncode == 0 and result.stderr == ""
    assert result.stdout.startswith(
        "fine can be sent to worker processes (start method: spawn)\n\n  each worker receives "
    )


def test_every_unpicklable_object_is_shown_with_its_line_and_fix(folder: Path) -> None:
    result = doctor(folder, "data:make")
    assert result.returncode == 2 and result.stderr == ""
    assert result.stdout == (
        "make() cannot be sent to worker processes (start method: spawn). 2 objects are in the way:\n"
        "\n"
        "  make().lock           lock               a lock belongs to the threads of one process\n"
        "      set in data.py:14\n"
        "      fix: leave it out in __getstate__, make it in __setstate__; "
        'or repair="auto" makes a new one in each worker\n'
        "  make().key[('k', 1)]  function <lambda>  "
        "a lambda: pickle sends functions by name, and a lambda does not have one\n"
        "      defined in data.py:15, in Bad.__init__\n"
        '      fix: a named function at module level; or repair="auto" sends it by value\n'
    )


def test_an_object_is_checked_as_it_is(folder: Path) -> None:
    assert "bad.lock " in doctor(folder, "data:bad").stdout
    assert "obj.dataset" not in doctor(folder, "data:bad").stdout


def test_a_loader_is_checked_part_by_part_and_not_iterated(folder: Path) -> None:
    result = doctor(folder, "data:make_loader")
    assert result.returncode == 2
    for path in ("make_loader().dataset.lock", "make_loader().dataset.key[('k', 1)]", "make_loader().collate_fn"):
        assert f"\n  {path} " in result.stdout


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_object_that_does_not_unpickle_is_found_by_default(folder: Path, method: str) -> None:
    result = doctor(folder, "data:breaks", "--method", method)
    assert result.returncode == 2
    assert "it can be pickled, but not unpickled: KeyError: 'a field of an older version'" in result.stdout
    assert "raised in data.py:19" in result.stdout
    assert doctor(folder, "data:breaks", "--method", method, "--no-load").returncode == 0


def test_unpickling_that_ends_the_process_is_reported(folder: Path) -> None:
    result = doctor(folder, "data:ends")
    assert result.returncode == 2 and "the process that loads it ended with exit code 3" in result.stdout


def test_with_fork_no_object_is_reported(folder: Path) -> None:
    result = doctor(folder, "data:make", "--method", "fork")
    assert result.returncode == 0 and "nothing is pickled" in result.stdout


def test_a_warning_exits_with_1(folder: Path) -> None:
    (folder / "mapped.py").write_text(
        "import numpy as np\narray = np.memmap('a.bin', dtype='u1', mode='w+', shape=(1 << 20,))\n"
    )
    result = doctor(folder, "mapped:array")
    assert result.returncode == 1 and "warning: memmap" in result.stdout and "1.0 MiB" in result.stdout


def test_json_has_the_same(folder: Path) -> None:
    result = doctor(folder, "data:make", "--json")
    report = json.loads(result.stdout)
    assert result.returncode == 2 and report["ok"] is False and report["method"] == "spawn"
    assert [one["path"] for one in report["findings"]] == ["make().lock", "make().key[('k', 1)]"]
    assert report["findings"][0]["where"] == "set in data.py:14"


def test_a_script_is_read_without_its_main_guard(folder: Path) -> None:
    result = doctor(folder, "train.py:Training")
    assert result.returncode == 0 and result.stdout.startswith("Training() can be sent")


def test_a_pickle_is_checked(folder: Path) -> None:
    (folder / "data.pkl").write_bytes(pickle.dumps([1, {"a": 2}]))
    result = doctor(folder, "data.pkl")
    assert result.returncode == 0 and result.stdout.startswith("obj can be sent")


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("data:fail", "RuntimeError: no disk", "data:fail was called without arguments, to check its result"),
        ("data:needs", "argument: 'root'", "data:needs was called without arguments, to check its result"),
        ("data:mak", "", "has no 'mak'; did you mean 'make'?"),
        ("nowhere:make", "", "No module named 'nowhere'"),
        ("train.py", "", "which of its names is the dataset? train.py:NAME"),
    ],
)
def test_target_that_cannot_be_loaded_is_reported(folder: Path, source: str, error: str, message: str) -> None:
    result = doctor(folder, source)
    assert result.returncode == 2 and result.stdout == ""
    assert error in result.stderr and message in result.stderr and "headrace doctor: " in result.stderr
    assert "_commands" not in result.stderr


def test_help_describes_source() -> None:
    result = run("doctor", "--help")
    assert result.returncode == 0 and result.stdout.startswith("usage: headrace doctor ")
    assert "module:name" in result.stdout and "--json" in result.stdout and "Exit code" in result.stdout


# ---- as it is met in real life: what a training run shows, and that the repair works ----

TRAIN = """\
import sys, warnings
from headrace import Loader
import {module}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    options = {{"repair": "auto"}} if sys.argv[1:] else {{}}
    loader = Loader({module}.make(), 2, num_workers=1, multiprocessing_context="spawn", **options)
    print([batch.tolist() for batch in loader])
"""

REAL_LIFE = {
    "reader": (
        "2 objects are in the way:\n\n"
        "  dataset.logger   Logger         it is not the logger that logging.getLogger returns for its name\n"
        "      set in reader.py:5\n"
        "      fix: call logging.getLogger(name) where it is used; "
        'or repair="auto" gets the logger of that name in each worker\n'
        "  dataset.handler  StreamHandler  a logging handler holds a lock and a stream\n"
        "      set in reader.py:7     fix: set up logging in worker_init_fn; "
        'or repair="auto" makes a new one in each worker\n',
        [[0, 1], [2, 3]],
    ),
    "vocab": (
        "1 object is in the way:\n\n"
        "  dataset.vocab.word2id.default_factory  function <lambda>\n"
        "      a lambda: pickle sends functions by name, and a lambda does not have one\n"
        "      defined in vocab.py:7, in Vocab.load\n"
        '      fix: a named function at module level; or repair="auto" sends it by value\n',
        [[0, 0], [0, 0]],
    ),
    "boxes": (
        "1 object is in the way:\n\n"
        "  dataset.eval_cfg.class_names  dict_keys  a view of dataset.eval_cfg.class_range\n"
        '      set in boxes.py:4     fix: list(...); or repair="auto" sends a list of it\n',
        [[0, 1], [2, 3]],
    ),
}


def trained(folder: Path, module: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    (folder / "run.py").write_text(TRAIN.format(module=module))
    command = [sys.executable, "run.py", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("module", REAL_LIFE)
def test_a_training_run_says_what_is_in_the_way_and_repairs_it(folder: Path, module: str) -> None:
    text, batches = REAL_LIFE[module]
    failed = trained(folder, module)
    assert failed.returncode == 1
    assert f"headrace: dataset cannot be sent to worker processes (start method: spawn). {text}" in failed.stderr
    assert "headrace doctor YOUR_MODULE:MAKE_DATASET" in failed.stderr
    repaired = trained(folder, module, "auto")
    assert (repaired.returncode, repaired.stdout) == (0, f"{batches}\n"), repaired.stderr


# ---- what programs read ----

TALKS = """\
import os, sys
print("loading annotations", flush=True)

def make():
    os.system("echo index created")
    print("done")
    return [lambda: "\u540d"]

def leaves():
    sys.exit()
"""


@pytest.fixture
def talks(tmp_path: Path) -> Path:
    (tmp_path / "talks.py").write_text(TALKS)
    return tmp_path


def test_json_is_alone_on_stdout_whatever_the_users_code_prints(talks: Path) -> None:
    result = run("doctor", "talks:make", "--json", cwd=talks)
    assert [one["path"] for one in json.loads(result.stdout)["findings"]] == ["make()[0]"]
    assert result.returncode == 2
    assert result.stderr.startswith("loading annotations\nindex created\ndone\n")


@pytest.mark.parametrize("arguments", [["talks:leaves"], ["--run", "talks:leaves"]])
def test_a_source_that_ends_the_program_is_an_error(talks: Path, arguments: list[str]) -> None:
    result = run("doctor", *arguments, cwd=talks)
    assert result.returncode == 2
    assert "talks:leaves was called without arguments" in result.stderr


def test_text_that_stdout_cannot_encode_is_escaped(tmp_path: Path) -> None:
    (tmp_path / "named.py").write_text('data = {"\u540d": lambda: 0}', encoding="utf-8")
    result = run("doctor", "named:data", cwd=tmp_path, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert result.returncode == 2 and "\\u540d" in result.stdout
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("arguments", [["talks:make"], ["talks:make", "--json"]])
def test_a_closed_stdout_is_an_error(talks: Path, arguments: list[str]) -> None:
    command = ["sh", "-c", 'exec "$0" doctor "$@" >&-', str(PROGRAM), *arguments]
    done = subprocess.run(command, cwd=talks, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "headrace: standard output is closed; redirect it to /dev/null if you do not want it\n"


def test_a_closed_stderr_takes_nothing_from_the_report(talks: Path) -> None:
    command = ["sh", "-c", 'exec "$0" doctor talks:make --json 2>&-', str(PROGRAM)]
    closed, redirected = (
        subprocess.run(words, cwd=talks, capture_output=True, text=True)
        for words in (command, [str(PROGRAM), "doctor", "talks:make", "--json"])
    )
    assert closed.returncode == redirected.returncode
    assert json.loads(closed.stdout).keys() == json.loads(redirected.stdout).keys()


@pytest.mark.parametrize("arguments", [["quiet:data"], ["talks:make", "--json"], []])
def test_a_report_that_cannot_be_written_is_an_error(talks: Path, arguments: list[str]) -> None:
    (talks / "quiet.py").write_text("data = [1]")
    command = ["sh", "-c", 'exec "$0" doctor "$@" >/dev/full', str(PROGRAM), *arguments]
    done = subprocess.run(command, cwd=talks, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.endswith("headrace doctor: standard output: No space left on device\n")


@pytest.mark.parametrize("arguments", [["quiet:data"], ["quiet:data", "--json"], []])
def test_reader_that_has_gone_is_no_error(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "quiet.py").write_text("data = [1]")
    with pipe_without_reader() as pipe:
        result = run("doctor", *arguments, cwd=tmp_path, stdout=pipe)
    assert (result.returncode, result.stderr) == (141, "")

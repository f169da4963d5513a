# SPDX-License-Identifier: Apache-2.0
"""headrace replay: the commands and the output of a user who looks for a bad sample."""

import contextlib
import os
import pickle
import random
import re
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from headrace._samples.random_numbers import seed_all
from program import PROGRAM, pipe_without_reader, run

DATA = """\
import os, random, signal

class Numbers:
    def __len__(self):
        return 10
    def __getitem__(self, index):
        if index == 7:
            raise ValueError("seven is bad")
        return [0, 1, 2, 3, 4, 5, 6, 7, 8, 9][index]

class Holder:
    numbers = Numbers()

class Loader:
    dataset = Numbers()
    sampler = batch_size = None
    def __iter__(self):
        raise AssertionError("the loader was iterated")

class Items:
    def __iter__(self):
        for number in range(5):
            if number == 3:
                raise ValueError("three is bad")
            yield number

class Pictures:
    def __getitem__(self, index):
        import numpy as np
        return {"image": np.zeros((3, 4), np.float32), "label": index, "more": (None, "text", b"", 0.5, [1] * 10)}

class Drawn:
    def __init__(self):
        import numpy
        self.draw = numpy.random.rand
    def __getitem__(self, index):
        return random.random(), float(self.draw())

class Lazy:
    rng = None
    def __getitem__(self, index):
        if self.rng is None:
            self.rng = random.Random(0)
        drawn = self.rng.random()
        if index == 9:
            raise ValueError(drawn)
        return drawn

class Odd:
    shape, dtype = None, "int"

class Asks:
    def __getattr__(self, name):
        raise KeyError(name)

class Late:
    def __getitem__(self, index):
        import numpy
        return numpy.random.randint(1 << 30)

odd = {0: Odd(), 1: Asks(), 2: 10 ** 5000, 3: {"\u540d": 1}}

def letters():
    yield from "abc"

class Deadly:
    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGSEGV)

class Endless:
    def __getitem__(self, index):
        print("begun", flush=True)
        while True:
            pass

numbers = Numbers()
by_key = {"a": 1, (1, 2): 3, 300: 4}
five = 5

def make():
    return numbers

def make_loader():
    return Loader()

def make_from(root):
    return numbers

def fail():
    raise RuntimeError("no disk")
"""

BAD_LINE = 1 + DATA[: DATA.index("raise ValueError")].count("\n")

SCRIPT = """\
import argparse, pickle
argparse.ArgumentParser().parse_args()
import neighbour

class Numbers:
    def __getitem__(self, index):
        return type(pickle.loads(pickle.dumps(self))) is Numbers and index + neighbour.ONE

numbers = Numbers()
if __name__ == "__main__":
    pickle.dump(numbers, open("main.pkl", "wb"))
    print("the main guard ran")
"""


Result = subprocess.CompletedProcess[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder: what is in it shadows modules that headrace needs."""
    (tmp_path / "data.py").write_text(DATA)
    (tmp_path / "argparse.py").write_text("raise AssertionError('the current folder shadows Python')")
    (tmp_path / "headrace.py").write_text("raise AssertionError('the current folder shadows headrace')")
    return tmp_path


def replay(folder: Path, *arguments: str, stdin: str = "", env: dict[str, str] | None = None) -> Result:
    return run("replay", *arguments, cwd=folder, stdin=stdin, env={**os.environ, **(env or {})})


def masked(output: str) -> str:
    return re.sub(r"\d\.\d{6} s$", "# s", output, flags=re.MULTILINE)


# ---- samples ----


@pytest.mark.parametrize("name", ["numbers", "make", "Numbers", "Holder.numbers", "make_loader", "Loader"])
def test_dataset_is_found_and_made_and_taken_from_its_loader(folder: Path, name: str) -> None:
    result = replay(folder, f"data:{name}", "3")
    assert result.stderr == ""
    assert masked(result.stdout) == "3  int 3  # s\n"
    assert result.returncode == 0


@pytest.mark.parametrize(
    ("indices", "printed"),
    [
        (["2", "-1"], "2  int 2  # s\n-1  int 9  # s\n"),
        (["1:3", "0"], "1  int 1  # s\n2  int 2  # s\n0  int 0  # s\n"),
        (["1", "--repeat", "2", "2"], "1  int 1  # s\n2  int 2  # s\n" * 2),
    ],
)
def test_each_index_is_a_line(folder: Path, indices: list[str], printed: str) -> None:
    result = replay(folder, "data:numbers", *indices)
    assert masked(result.stdout) == printed
    assert result.returncode == 0


def test_an_index_can_be_any_literal(folder: Path) -> None:
    result = replay(folder, "data:by_key", '"a"', "(1, 2)", "300")
    assert masked(result.stdout) == "'a'  int 1  # s\n(1, 2)  int 3  # s\n300  int 4  # s\n"


def test_a_line_has_types_shapes_and_dtypes(folder: Path) -> None:
    assert masked(replay(folder, "data:Pictures", "0").stdout) == (
        "0  dict {image: ndarray float32 (3, 4), label: int 0, more: tuple (NoneType, str of 4, bytes of 0, float 0.5, "
        "list (int 1, int 1, int 1, int 1, int 1, int 1, int 1, int 1, 2 more))}  # s\n"
    )


def test_a_sample_that_raises_ends_it_with_the_users_traceback(folder: Path) -> None:
    result = replay(folder, "data:numbers", "6:9")
    assert masked(result.stdout) == "6  int 6  # s\n7  raised ValueError  # s\n"
    lines = [line for line in result.stderr.splitlines() if "^^^" not in line]
    assert lines == [
        "Traceback (most recent call last):",
        f'  File "{folder}/data.py", line {BAD_LINE}, in __getitem__',
        '    raise ValueError("seven is bad")',
        "ValueError: seven is bad",
    ]
    assert result.returncode == 1


def line_of_drawn(epoch: int) -> str:
    seed_all(5, epoch, 3)
    return f"3  tuple (float {random.random():.6g}, float {np.random.rand():.6g})  # s\n"


def test_with_a_seed_a_sample_draws_what_it_draws_in_a_worker(folder: Path) -> None:
    assert masked(replay(folder, "data:Drawn", "1:4", "--seed", "5").stdout).endswith("\n" + line_of_drawn(epoch=0))
    assert masked(replay(folder, "data:Drawn", "3", "--seed", "5", "--epoch", "2").stdout) == line_of_drawn(epoch=2)
    assert line_of_drawn(epoch=0) != line_of_drawn(epoch=2)


def test_with_a_seed_a_generator_that_is_made_late_is_seeded(folder: Path) -> None:
    both = masked(replay(folder, "data:Lazy", "2", "3", "--seed", "5").stdout)
    alone = masked(replay(folder, "data:Lazy", "3", "--seed", "5").stdout)
    assert both.endswith(f"\n{alone}")
    assert len(set(both.split())) > len(set(alone.split())) + 1, "sample 2 has another number"
    errors = [replay(folder, "data:Lazy", *indices, "--seed", "5").stderr for indices in (["9"], ["2", "9"])]
    assert len({line for error in errors for line in error.splitlines() if "ValueError: " in line}) == 1


def test_index_into_iterable_dataset_counts_items(folder: Path) -> None:
    result = replay(folder, "data:Items", "0", "2", "1")
    assert masked(result.stdout) == "0  int 0  # s\n2  int 2  # s\n1  int 1  # s\n"
    assert result.returncode == 0


def test_an_item_that_raises_on_the_way_is_named(folder: Path) -> None:
    result = replay(folder, "data:Items", "4")
    assert masked(result.stdout) == "4  raised ValueError  # s\n"
    assert result.stderr.endswith("ValueError: three is bad\nheadrace replay: item 3 raised, on the way to item 4\n")
    assert result.returncode == 1


def test_torch_iterables_iterate_and_subsets_stay_wrapped(folder: Path) -> None:
    pytest.importorskip("torch")
    (folder / "with_torch.py").write_text(
        "import torch\n"
        "from torch.utils.data import DataLoader, IterableDataset, Subset\n"
        "class Items(IterableDataset):\n"
        "    def __iter__(self):\n"
        "        return iter([torch.zeros(2, dtype=torch.int16), 1])\n"
        "subset = Subset(range(100), [10, 20])\n"
        "items = DataLoader(Items())\n"
    )
    result = replay(folder, "with_torch:items", "0")
    assert (masked(result.stdout), result.stderr) == ("0  Tensor int16 (2,)  # s\n", "")
    assert masked(replay(folder, "with_torch:subset", "1").stdout) == "1  int 20  # s\n"


# ---- scripts and pickles ----


def test_a_script_is_the_main_module_and_its_guard_does_not_run(folder: Path) -> None:
    (folder / "argparse.py").unlink()
    (folder / "scripts").mkdir()
    (folder / "scripts/train.py").write_text(SCRIPT)
    (folder / "scripts/neighbour.py").write_text("ONE = 1")
    result = replay(folder, "scripts/train.py:numbers", "3")
    assert result.stderr == ""
    assert masked(result.stdout) == "3  int 4  # s\n"


def test_a_pickled_dataset_is_loaded(folder: Path) -> None:
    (folder / "list.pkl").write_bytes(pickle.dumps([1, 2, 3]))
    (folder / "numbers.pkl").write_bytes(b"cdata\nNumbers\n)\x81.")  # its class is importable here only
    assert masked(replay(folder, "list.pkl", "1").stdout) == "1  int 2  # s\n"
    assert masked(replay(folder, "numbers.pkl", "1").stdout) == "1  int 1  # s\n"


# ---- debugging ----


def test_pdb_stops_at_the_line_where_the_sample_raised(folder: Path) -> None:
    result = replay(folder, "data:numbers", "7", "--pdb", stdin="p ('index is', index)\nquit\n")
    assert f"> {folder}/data.py({BAD_LINE})__getitem__()" in result.stdout
    assert "('index is', 7)" in result.stdout
    assert "ValueError: seven is bad" in result.stderr
    assert result.returncode == 1


def test_with_pdb_the_debugger_is_the_users(folder: Path) -> None:
    (folder / "mydebugger.py").write_text("def post_mortem(trace): print('debugging line', trace.tb_lineno)")
    result = replay(folder, "data:numbers", "7", "--pdb", env={"PYTHONBREAKPOINT": "mydebugger.set_trace"})
    assert result.stdout.endswith(f"debugging line {BAD_LINE}\n")


def test_a_fatal_signal_shows_the_stack_and_is_the_programs_end(folder: Path) -> None:
    result = replay(folder, "data:Deadly", "3")
    assert result.returncode == -signal.SIGSEGV
    assert result.stdout == "3  "
    assert re.search(rf'Segmentation fault\n(.*\n)+  File "{folder}/data.py", line \d+ in __getitem__', result.stderr)


def test_an_interrupt_shows_where_the_sample_is(folder: Path) -> None:
    command = [PROGRAM, "replay", "data:Endless", "3"]
    with (
        subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(process.kill)  # does nothing if it has ended
        assert process.stdout is not None
        assert process.stdout.readline() == "3  begun\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert re.fullmatch(r"raised KeyboardInterrupt  \d+\.\d+ s\n", out)
    assert re.search(rf'File "{folder}/data.py", line \d+, in __getitem__', err)
    assert "_commands" not in err
    assert process.returncode == 130


# ---- what cannot be done ----

MESSAGES = {
    ("data:number", "1"): "#/data.py has no 'number'; did you mean 'numbers'?",
    ("data:Holder.xyz", "1"): "#/data.py has no 'Holder.xyz'",
    (
        "date:numbers",
        "1",
    ): "No module named 'date'; looked in the current directory and on the path of @. SOURCE should be "
    "module:name, path/script.py:name, or a file with a pickled dataset",
    ("data", "1"): "data is neither a file with a pickled dataset nor module:name nor path/script.py:name",
    ("data.py", "1"): "data.py is neither a file with a pickled dataset nor module:name nor path/script.py:name; "
    "which of its names is the dataset? data.py:NAME",
    ("train.py:numbers", "1"): "there is no script train.py",
    ("data:five", "1"): "data:five gives no dataset: int has neither __getitem__ nor __iter__",
    ("data:Items", "1", "--seed", "1"): "--seed: samples of an iterable dataset do not have their own random numbers",
    ("data:Items", "-1"): "index -1: the dataset is iterable, and its items have the numbers 0, 1, 2, ...",
    ("data:by_key.values", "3"): "the dataset ends after 3 items: there is no item 3",
}


@pytest.mark.parametrize("arguments", MESSAGES, ids=" ".join)
def test_impossible_command_is_reported_in_one_line(folder: Path, arguments: tuple[str, ...]) -> None:
    result = replay(folder, *arguments)
    message = MESSAGES[arguments].replace("#", str(folder)).replace("@", str(PROGRAM.parent / "python3"))
    assert result.stderr == f"headrace replay: {message}\n"
    assert result.returncode == 2


USAGE = {
    ("data:numbers", "x"): "argument INDEX: 'x' is neither an integer nor a range such as 10:20 nor a Python literal; "
    "a string key needs its own quotes: '\"x\"'",
    (
        "data:numbers",
        "20:10",
    ): "argument INDEX: the range 20:10 is empty: the second number must be larger, as in 10:20",
    ("data:numbers", "1", "--repeat", "0"): "argument --repeat: should be a positive integer, but got '0'",
    ("data:numbers", "1", "--epoch", "1"): "--epoch is only used with --seed",
}


@pytest.mark.parametrize("arguments", USAGE, ids=" ".join)
def test_wrong_arguments_are_reported_below_the_usage(folder: Path, arguments: tuple[str, ...]) -> None:
    result = replay(folder, *arguments)
    assert result.stderr.startswith("usage: headrace replay ")
    assert result.stderr.endswith(f"\nheadrace replay: error: {USAGE[arguments]}\n")
    assert result.returncode == 2


FAILURES = {
    "data:numbers": ("IndexError: list index out of range", "index 12 is out of range: the dataset has 10 samples"),
    "data:fail": (
        "RuntimeError: no disk",
        "data:fail gives no dataset; headrace calls it without arguments if it can be called",
    ),
    "data:make_from": (
        "TypeError: make_from() missing 1 required positional argument: 'root'",
        "data:make_from gives no dataset; headrace calls it without arguments if it can be called",
    ),
    "broken:numbers": ("ModuleNotFoundError: No module named 'no_such_module'", "broken cannot be imported"),
    "argparse.py:x": ("AssertionError: the current folder shadows Python", "argparse.py cannot be imported"),
    "wrong.py:x": ("SyntaxError: invalid syntax", "wrong.py cannot be imported"),
    "leaves.py:x": ("SystemExit: 0", "leaves.py cannot be imported"),
    "text.pkl": (
        "_pickle.UnpicklingError: invalid load key, '\\xff'.",
        "text.pkl cannot be unpickled; write it with pickle.dump(dataset, file), and define its classes in modules "
        "that can be imported from here (not in a script: for that, replay path/script.py:name)",
    ),
}


@pytest.mark.parametrize("source", FAILURES)
def test_error_in_user_code_is_shown_without_calls_of_headrace(folder: Path, source: str) -> None:
    (folder / "broken.py").write_text("import no_such_module")
    (folder / "wrong.py").write_text("1 +")
    (folder / "leaves.py").write_text("raise SystemExit(0)")
    (folder / "text.pkl").write_bytes(b"\xff")
    result = replay(folder, source, "12")
    error, message = FAILURES[source]
    assert result.stderr.endswith(f"{error}\nheadrace replay: {message}\n")
    assert "_commands" not in result.stderr
    assert "importlib" not in result.stderr
    assert result.returncode == 2


def test_output_that_cannot_be_written_is_a_failure(folder: Path) -> None:
    with open("/dev/full", "w") as full:
        result = run("replay", "data:numbers", "1", cwd=folder, stdout=full)
    assert result.returncode == 1
    assert result.stderr == "headrace replay: standard output: No space left on device\n"


# ---- surroundings, and samples that are hard to describe ----


def test_a_sample_that_cannot_be_described_is_no_bad_one(folder: Path) -> None:
    result = replay(folder, "data:odd", "0", "1", "2", "3", env={"PYTHONIOENCODING": "ascii"})
    assert (result.returncode, result.stderr) == (0, "")
    expected = "0  Odd  # s\n1  Asks  # s\n2  int  # s\n3  dict {\\u540d: int 1}  # s\n"
    assert masked(result.stdout) == expected


def test_numpy_is_seeded_before_a_dataset_imports_it(folder: Path) -> None:
    alone, again = (replay(folder, "data:Late", "5", "--seed", "7").stdout for _ in range(2))
    second = replay(folder, "data:Late", "4", "5", "--seed", "7").stdout
    assert masked(alone) == masked(again) == masked(second).splitlines(keepends=True)[1]


def test_an_iterator_is_not_gone_through_twice(folder: Path) -> None:
    result = replay(folder, "data:letters", "0", "2", "0")
    assert result.returncode == 2
    assert masked(result.stdout) == "0  str of 1  # s\n2  str of 1  # s\n0  does not exist\n"
    assert "the dataset is an iterator, which gives each item once" in result.stderr


def test_a_project_may_have_modules_of_the_debuggers_names(folder: Path) -> None:
    (folder / "code").mkdir()
    (folder / "code" / "__init__.py").touch()
    (folder / "code" / "data.py").write_text("KEYS = {'a': 1}")
    (folder / "cmd.py").write_text("FORMAT = 'a'")
    (folder / "train.py").write_text("import cmd\nfrom code.data import KEYS\n")
    assert masked(replay(folder, "train.py:KEYS", "'a'").stdout) == "'a'  int 1  # s\n"
    result = replay(folder, "train.py:KEYS", "'b'", "--pdb", stdin="p 6 * 7\nq\n")
    assert "(Pdb) 42" in result.stdout and "KeyError: 'b'" in result.stderr


def test_a_link_to_a_script_has_the_scripts_neighbours(folder: Path) -> None:
    (folder / "repo").mkdir()
    (folder / "repo" / "neighbour.py").write_text("ROWS = [5]")
    (folder / "repo" / "train.py").write_text("from neighbour import ROWS")
    (folder / "train.py").symlink_to("repo/train.py")
    assert masked(replay(folder, "train.py:ROWS", "0").stdout) == "0  int 5  # s\n"


def test_without_stderr_samples_are_made_all_the_same(folder: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" replay data:numbers 3 2>&-', PROGRAM], cwd=folder, capture_output=True, text=True
    )
    assert (done.returncode, masked(done.stdout)) == (0, "3  int 3  # s\n")


def test_reader_that_has_gone_is_no_error(folder: Path) -> None:
    with pipe_without_reader() as pipe:
        result = run("replay", "data:numbers", "1", cwd=folder, stdout=pipe)
    assert (result.returncode, result.stderr) == (141, "")

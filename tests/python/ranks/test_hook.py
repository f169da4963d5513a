# SPDX-License-Identifier: Apache-2.0
"""The private sitecustomize of a rank: the user does not see it, and the front learns how the rank has ended."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from rank_pages import KEEPERS_AT, STACKS_AT, TEXT_AT, Rank, need_python

VERSIONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]
OTHER_VERSIONS = ["3.6", "3.7", "3.8", "3.9"]
PYTHON = sys.executable
ALIVE = "import time; print(flush=True); time.sleep(1000)"
SHOW = """
import os, sys
print(sys.path, "sitecustomize" in sys.modules, sorted(os.environ.items()), sys.path_importer_cache.keys())
"""


@pytest.fixture(params=VERSIONS)
def python(request: pytest.FixtureRequest) -> str:
    return need_python(request.param)


def plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run_plain(*command: str, **env: str) -> subprocess.CompletedProcess[str]:
    everything = {**plain_environment(), **env}
    return subprocess.run(command, env=everything, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def assert_untouched(rank: Rank) -> None:
    words = rank.words()
    assert not any(value for name, value in words.items() if name not in ("magic", "is_watched", "others_over")), words


def write(folder: pathlib.Path, code: str, name: str = "train.py") -> str:
    path = folder / name
    path.write_text(code)
    return str(path)


# The user does not see it.


@pytest.mark.parametrize("before", [None, "", "one:two"])
def test_hook_leaves_no_trace(python: str, before: str | None) -> None:
    env = {} if before is None else {"PYTHONPATH": before}
    plain = run_plain(python, "-c", SHOW, **env)
    with Rank([python, "-c", SHOW], before=before) as rank:
        assert rank.finish() == 0
        assert (rank.stdout, rank.stderr) == (plain.stdout, plain.stderr)
        assert rank.words()["pid"] == rank.process.pid


def test_hook_keeps_what_a_script_adds_to_pythonpath(tmp_path: pathlib.Path) -> None:
    show = f'{PYTHON} -c \'import os, sys; print(os.environ["PYTHONPATH"], "/two" in sys.path)\''
    with Rank(["sh", "-c", f"export PYTHONPATH=/one:$PYTHONPATH:/two; {show}"]) as rank:
        assert rank.finish() == 0
        assert rank.stdout == "/one:/two True\n"


@pytest.mark.parametrize("version", [*OTHER_VERSIONS, *VERSIONS])
@pytest.mark.parametrize(
    "code",
    [
        "print('next', __name__, __file__)",
        "import nothing_like_it",
        "raise ValueError('mine')",
    ],
)
def test_hook_imports_next_sitecustomize(tmp_path: pathlib.Path, version: str, code: str) -> None:
    command = [need_python(version), "-c", "import sys; print(sys.modules.get('sitecustomize'))"]
    write(tmp_path, code, "sitecustomize.py")
    plain = run_plain(*command, PYTHONPATH=str(tmp_path))
    with Rank(command, before=str(tmp_path)) as rank:
        status = rank.finish()
        assert (status, rank.stdout, rank.stderr) == (plain.returncode, plain.stdout, plain.stderr)


def test_hook_passes_exit_of_next_sitecustomize_on(tmp_path: pathlib.Path, python: str) -> None:
    write(tmp_path, "import sys; sys.exit(4)", "sitecustomize.py")
    plain = run_plain(python, "-c", "", PYTHONPATH=str(tmp_path))
    with Rank([python, "-c", ""], before=str(tmp_path)) as rank:
        assert rank.finish() == plain.returncode == 1
        assert rank.stderr.splitlines()[-1] == plain.stderr.splitlines()[-1] == "SystemExit: 4"


@pytest.mark.parametrize("version", OTHER_VERSIONS)
def test_hook_does_nothing_in_unknown_python(version: str) -> None:
    command = [need_python(version), "-c", SHOW + "\n1/0"]
    plain = run_plain(*command)
    with Rank(command) as rank:
        status = rank.finish()
        assert (status, rank.stdout, rank.stderr) == (plain.returncode, plain.stdout, plain.stderr)
        assert_untouched(rank)


@pytest.mark.parametrize("switch", ["-S", "-I", "-E"])
def test_hook_is_absent_without_site(python: str, switch: str) -> None:
    with Rank([python, switch, "-c", "1/0"]) as rank:
        assert rank.finish() == 1
        assert rank.stderr.endswith("ZeroDivisionError: division by zero\n")
        assert_untouched(rank)


@pytest.mark.parametrize("fd", ["-1", "999", "x", "", "1"])
def test_hook_without_page_is_silent(python: str, fd: str) -> None:
    command = ["sh", "-c", f"HEADRACE_RANK_FD={fd} exec {python} -c 'import os; print(*os.environ)\n1/0'"]
    with Rank(command) as rank:
        assert rank.finish() == 1
        assert "HEADRACE_RANK" not in rank.stdout and rank.stderr.endswith("ZeroDivisionError: division by zero\n")
        assert_untouched(rank)


def test_hook_leaves_other_files_alone(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "mine"
    path.write_bytes(b"mine" * 100)
    fd = os.open(path, os.O_RDWR)
    try:
        with Rank([PYTHON, "-c", "1/0"], page=fd) as rank:
            assert rank.finish() == 1
    finally:
        os.close(fd)
    assert path.read_bytes() == b"mine" * 100


def test_hook_does_not_write_into_file_under_its_number(tmp_path: pathlib.Path) -> None:
    """The script closes all descriptors, as daemons do, and opens a file."""
    mine = str(tmp_path / "mine")
    code = f"import os\nos.closerange(3, 1000)\nfor _ in range(200): os.open({mine!r}, os.O_RDWR | os.O_CREAT)\n1/0"
    with Rank([PYTHON, "-c", code]) as rank:
        assert rank.finish() == 1
        assert rank.words()["exception_ns"] == rank.words()["over_ns"] == 0
    assert (tmp_path / "mine").read_bytes() == b""


# The front learns how the rank has ended.


def test_hook_notes_exception(tmp_path: pathlib.Path, python: str) -> None:
    script = write(
        tmp_path,
        "def f():\n    raise ValueError('naïve \\ud800')\ntry:\n    1/0\nfinally:\n    f()\n",
    )
    plain = run_plain(python, script)
    before = time.monotonic_ns()
    with Rank([python, script]) as rank:
        assert rank.finish() == 1
        words = rank.words()
        assert rank.stderr == plain.stderr == rank.text()
        assert before < words["exception_ns"] < words["over_ns"] < time.monotonic_ns()
        assert not words["is_lost_peer"] and not words["is_keeping"]


def test_hook_notes_exception_of_module(tmp_path: pathlib.Path, python: str) -> None:
    write(tmp_path, "1/0\n")
    with Rank([python, "-m", "train"], before=str(tmp_path)) as rank:
        assert rank.finish() == 1
        assert rank.text() == rank.stderr and rank.text().endswith("ZeroDivisionError: division by zero\n")


def test_hook_notes_ctrl_c(python: str, tmp_path: pathlib.Path) -> None:
    with Rank(
        [
            python,
            "-c",
            "import time\nprint(flush=True)\nwhile True: time.sleep(0.01)",
        ],  # 3.14 may go to sleep with a signal
        TORCHELASTIC_ERROR_FILE=str(tmp_path / "error.json"),
    ) as rank:
        rank.line()
        rank.process.send_signal(signal.SIGINT)
        assert rank.finish() == -signal.SIGINT
        assert rank.text().splitlines() == [line for line in rank.stderr.splitlines() if not line.startswith("    ")]
        assert rank.words()["exception_ns"]
    assert not (tmp_path / "error.json").exists()


@pytest.mark.parametrize("code", ["pass", "import sys; sys.exit(3)", "raise SystemExit('sorry')"])
def test_hook_notes_only_end_without_exception(python: str, code: str) -> None:
    with Rank([python, "-c", code]) as rank:
        rank.finish()
        words = rank.words()
        assert words["over_ns"] and not words["exception_ns"] and not words["keepers_bytes"]


def test_hook_notes_exception_behind_own_excepthook(python: str) -> None:
    with Rank([python, "-c", "import sys\nsys.excepthook = lambda *_: print('mine')\n1/0"]) as rank:
        assert rank.finish() == 1
        assert (rank.stdout, rank.stderr) == ("mine\n", "")
        assert rank.words()["exception_ns"] and rank.text().endswith("ZeroDivisionError: division by zero\n")


def test_hook_keeps_end_of_long_text(python: str) -> None:
    with Rank([python, "-c", "raise ValueError('é🙂' * 20000 + 'end')"]) as rank:
        assert rank.finish() == 1
        size = rank.words()["text_bytes"]
        assert KEEPERS_AT - TEXT_AT - 4 < size <= KEEPERS_AT - TEXT_AT
        assert rank.text().endswith("é🙂end\n")  # it decodes: its characters are whole


NESTED = """
import traceback
def other_process():
    try:
        {}["key"]
    except KeyError:
        return traceback.format_exc()
"""
GROUP = (
    "ExceptionGroup('several', [ExceptionGroup('two', [ValueError('\\nbad row'), OSError(2, 'gone')]), TypeError()])"
)
REASONS = {
    "raise ValueError('no sample')": "ValueError: no sample",
    "raise ValueError('\\n\\n  no sample\\nmore')": "ValueError: no sample",
    "raise ValueError('\\n====\\nt.py FAILED')": "ValueError: t.py FAILED",
    "raise ValueError('')": "ValueError",
    "raise ValueError('  \\n')": "ValueError",
    "import json; json.loads('{')": "json.decoder.JSONDecodeError: Expecting property name",
    "compile('a b', 'x.py', 'exec')": "SyntaxError: invalid syntax",
    NESTED + "raise RuntimeError('Caught KeyError in worker 0.\\nOriginal ' + other_process())": (
        "RuntimeError: Caught KeyError in worker 0. (KeyError: 'key')"
    ),
    NESTED + "raise RuntimeError('a worker failed:\\n  | ' + other_process().replace('\\n', '\\n  | '))": (
        "RuntimeError: a worker failed (KeyError: 'key')"
    ),
    NESTED + "raise RuntimeError('cut: ' + other_process()[:60])": "RuntimeError: cut",
    NESTED + "raise RuntimeError(other_process())": "RuntimeError (KeyError: 'key')",
    NESTED + "raise RuntimeError('\\n\\n-- Process 0 failed:\\n' + other_process())": (
        "RuntimeError: -- Process 0 failed: (KeyError: 'key')"
    ),
    NESTED + "raise ValueError('rank 3 failed:\\n  ' + other_process().replace('\\n', '\\n  ') + '=====')": (
        "ValueError: rank 3 failed (KeyError: 'key')"
    ),
    "raise ValueError('é' * 4000)": "ValueError: ééé",
    "class E(Exception):\n  exceptions = property(lambda self: 1 / 0)\nraise E('odd')": "E",
}


@pytest.mark.parametrize("version", VERSIONS)
def test_hook_notes_line_that_says_something(version: str) -> None:
    python = need_python(version)
    groups = {
        f"raise {GROUP}": "ValueError: bad row (the first of 3 exceptions in ExceptionGroup: several (2 sub-except",
        "raise BaseExceptionGroup('one', [KeyboardInterrupt()])": "KeyboardInterrupt (the first of 1 exceptions in ",
    }
    for code, wanted in {**REASONS, **(groups if version != "3.10" else {})}.items():
        with Rank([python, "-c", code]) as rank:
            assert rank.finish() == 1, code
            assert rank.reason().startswith(wanted) and "\n" not in rank.reason(), (code, rank.reason())


@pytest.mark.parametrize("code", ["class E(Exception):\n  def __str__(self): raise TypeError\nraise E", "raise E"])
def test_hook_survives_hostile_exception(code: str) -> None:
    plain = run_plain(PYTHON, "-c", code)
    with Rank([PYTHON, "-c", code]) as rank:
        assert rank.finish() == 1
        assert rank.stderr == plain.stderr
        assert rank.words()["exception_ns"]


def test_hook_writes_torchruns_error_file(tmp_path: pathlib.Path, python: str) -> None:
    path = tmp_path / "error.json"
    with Rank([python, "-c", "raise ValueError('mine')"], TORCHELASTIC_ERROR_FILE=str(path)) as rank:
        assert rank.finish() == 1
        message = json.loads(path.read_text())["message"]
        assert message["message"] == "ValueError: mine"
        assert message["extraInfo"]["py_callstack"] == rank.text()
        assert abs(int(message["extraInfo"]["timestamp"]) - time.time()) < 1000


def test_hook_does_not_replace_error_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "error.json"
    path.write_text("mine")
    with Rank([PYTHON, "-c", "1/0"], TORCHELASTIC_ERROR_FILE=str(path)) as rank:
        assert rank.finish() == 1
    assert path.read_text() == "mine"


def test_hook_ignores_error_file_that_cannot_be_written(tmp_path: pathlib.Path) -> None:
    with Rank([PYTHON, "-c", "1/0"], TORCHELASTIC_ERROR_FILE=str(tmp_path / "missing" / "error.json")) as rank:
        assert rank.finish() == 1
        assert rank.text() == rank.stderr


# Only the interpreter of the rank writes.

CHILDREN = """
import multiprocessing, os, subprocess, sys, time
def fail():
    raise ValueError("of a child")
if __name__ == "__main__":
    for method in ("spawn", "forkserver", "fork"):
        child = multiprocessing.get_context(method).Process(target=fail)
        child.start()
        child.join()
    subprocess.run([sys.executable, "-c", "1/0"])
    os.system(sys.executable + " -c 1/0")
    pid = os.fork()
    if pid == 0:
        fail()
    os.waitpid(pid, 0)
    print("alive", flush=True)
    time.sleep(1000)
"""
FIRST = """
import pathlib, time
pathlib.Path("first").touch()
while not pathlib.Path("second").exists():
    time.sleep(0.01)
1/0
"""
SECOND = """
import pathlib, time
pathlib.Path("second").touch()
while not pathlib.Path("over").exists():
    time.sleep(0.01)
print("over", flush=True)
time.sleep(1000)
"""


def test_hook_children_do_not_write(tmp_path: pathlib.Path, python: str) -> None:
    with Rank([python, write(tmp_path, CHILDREN)]) as rank:
        assert rank.line() == "alive"
        words = rank.words()
        assert words["pid"] == rank.process.pid
        assert not words["exception_ns"] and not words["over_ns"]
        assert rank.stacks() == ""


def test_hook_next_interpreter_claims_page(python: str) -> None:
    with Rank(["bash", "-c", f"{python} -c 1/0; {python} -c '{ALIVE}'; true"]) as rank:
        rank.line()
        words = rank.words()
        assert words["pid"] != rank.process.pid
        assert not words["exception_ns"] and not words["over_ns"]
        assert rank.ask_for_stacks('File "<string>", line 1 in <module>')


def test_hook_earlier_interpreter_leaves_page_to_later_one(tmp_path: pathlib.Path) -> None:
    write(tmp_path, FIRST, "first.py")
    write(tmp_path, SECOND, "second.py")
    first, wait = f"({PYTHON} first.py; touch over) &", "until [ -e first ]; do sleep 0.01; done"
    with Rank(["bash", "-c", f"cd {tmp_path}; {first} {wait}; {PYTHON} second.py; true"]) as rank:
        assert rank.line() == "over"
        assert not rank.words()["exception_ns"] and not rank.words()["over_ns"]
        assert rank.ask_for_stacks("second.py")
        os.kill(rank.words()["pid"], signal.SIGKILL)
        rank.finish()


def test_hook_page_is_closed_by_exec(python: str) -> None:
    """The front sees that the stack signal would end the other program."""
    code = f"import os, sys; os.execv(sys.executable, [sys.executable, '-c', {ALIVE!r}])"
    with Rank([python, "-c", code]) as rank:
        rank.line()
        assert rank.words()["pid"] == rank.process.pid
        assert not os.path.exists(f"/proc/{rank.process.pid}/fd/{rank.fd}")


# Stacks and threads.

THREADS = """
import threading, time
from functools import partial

class Prefetch(threading.Thread):
    def run(self):
        time.sleep(1000)

def serve(seconds):
    time.sleep(seconds)

threading.Thread(target=serve, args=(1000,), name="service").start()
threading.Thread(target=partial(serve, 1000), name="part").start()
threading.Thread(target=serve, args=(1000,), daemon=True, name="daemon").start()
Prefetch(name="näme").start()
"""


def test_hook_appends_stacks(python: str, tmp_path: pathlib.Path) -> None:
    script = write(
        tmp_path, "import time\ndef wait():\n    print(flush=True)\n    while True: time.sleep(1000)\nwait()\n"
    )
    with Rank([python, script]) as rank:
        rank.line()
        for _ in range(2):
            stacks = rank.ask_for_stacks(f'"{script}", line 4 in wait', f'"{script}", line 5 in <module>')
            assert stacks.count("most recent call first") == 1
        assert rank.process.poll() is None


def test_hook_appends_stacks_while_c_code_holds_gil(python: str) -> None:
    code = "import ctypes\nprint(flush=True)\nwhile True: ctypes.PyDLL(None).sleep(1000)"
    with Rank([python, "-c", code]) as rank:
        rank.line()
        assert rank.ask_for_stacks('File "<string>", line 3 in <module>')


def test_hook_names_threads_that_keep_process(python: str, tmp_path: pathlib.Path) -> None:
    with Rank([python, write(tmp_path, THREADS)]) as rank:
        rank.wait_for("over_ns")
        expected = ["service (__main__.serve)", "part (__main__.serve)", "näme (__main__.Prefetch.run)"]
        assert rank.keepers().splitlines() == expected
        assert rank.ask_for_stacks("in _end").count(" in serve") == 3
        assert rank.process.poll() is None


def test_hook_cuts_long_list_of_threads() -> None:
    start = "threading.Thread(target=time.sleep, args=(1000,), name='n' * 5000).start()"
    code = f"import threading, time\nfor _ in range(9): {start}"
    with Rank([PYTHON, "-c", code]) as rank:
        rank.wait_for("over_ns")
        lines = rank.keepers().splitlines()
        assert len(lines) == (STACKS_AT - KEEPERS_AT) // len(lines[0] + "\n") and all(
            line.endswith(")") for line in lines
        )


# Rank 0 keeps torch's store until the other ranks are over.

STORE = """
import os, socket, sys, types
sys.modules.setdefault("torch", types.ModuleType("torch"))
store = socket.create_server(("127.0.0.1", 0))
os.environ["MASTER_PORT"] = str(store.getsockname()[1])
print(flush=True)
{after}
"""
ENDS_WELL = ["", "sys.exit()", "sys.exit(0)", "sys.exit(None)"]
ENDS_WITH_ERROR = [
    "sys.exit(3)",
    "sys.exit('sorry')",
    "raise SystemExit(3)",
    "1/0",
    "exit(3)",
    "os.kill(os.getpid(), 2)",
]


@pytest.mark.parametrize("end", ENDS_WELL)
def test_hook_keeps_store_until_others_are_over(python: str, tmp_path: pathlib.Path, end: str) -> None:
    script = write(tmp_path, STORE.format(after=end))
    with Rank([python, script], is_watched=True) as rank:
        rank.wait_for("is_keeping")
        assert rank.words()["over_ns"] and not rank.words()["exception_ns"]
        assert rank.process.poll() is None
        rank.end_others()
        assert rank.finish() == 0
        assert rank.stderr == ""


def test_hook_keeps_store_of_module(python: str, tmp_path: pathlib.Path) -> None:
    write(tmp_path, STORE.format(after=""))
    with Rank([python, "-m", "train"], before=str(tmp_path), is_watched=True) as rank:
        rank.wait_for("is_keeping")
        rank.end_others()
        assert rank.finish() == 0


@pytest.mark.parametrize("end", ENDS_WITH_ERROR)
def test_hook_does_not_keep_store_after_error(python: str, tmp_path: pathlib.Path, end: str) -> None:
    script = write(tmp_path, STORE.format(after=end))
    plain = run_plain(python, script)
    with Rank([python, script], is_watched=True) as rank:
        assert (rank.finish(), rank.stderr) == (plain.returncode, plain.stderr)
        assert rank.words()["over_ns"] and not rank.words()["is_keeping"]


@pytest.mark.parametrize(
    ("code", "is_watched"),
    [
        (STORE.format(after=""), False),
        (STORE.format(after="store.close()"), True),
        (STORE.format(after="del sys.modules['torch']"), True),
        (STORE.format(after="os.environ['MASTER_PORT'] = '1'"), True),
        (STORE.format(after="del os.environ['MASTER_PORT']"), True),
        ("pass", True),
    ],
)
def test_hook_does_not_keep_rank_without_store(tmp_path: pathlib.Path, code: str, is_watched: bool) -> None:
    with Rank([PYTHON, write(tmp_path, code)], is_watched=is_watched) as rank:
        assert rank.finish() == 0
        assert rank.words()["over_ns"] and not rank.words()["is_keeping"]


def test_hook_keeps_no_store_when_front_is_gone(python: str, tmp_path: pathlib.Path) -> None:
    script = write(tmp_path, STORE.format(after="print(os.getppid(), flush=True)"))
    with Rank(["sh", "-c", f"{python} {script}; true"], is_watched=True) as rank:
        rank.line()
        parent = int(rank.line())
        rank.wait_for("is_keeping")
        os.kill(parent, signal.SIGKILL)
        assert rank.finish() == -signal.SIGKILL  # and the interpreter has closed its stdout


def test_hook_kept_rank_ends_by_ctrl_c(python: str, tmp_path: pathlib.Path) -> None:
    with Rank([python, write(tmp_path, STORE.format(after=""))], is_watched=True) as rank:
        rank.wait_for("is_keeping")
        rank.process.send_signal(signal.SIGINT)
        rank.finish()
        assert "KeyboardInterrupt" in rank.stderr

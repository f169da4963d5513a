# SPDX-License-Identifier: Apache-2.0
"""headrace top: what it shows of loaders in this process, and of memory that is not what it seems."""

import contextlib
import ctypes
import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import headrace
import numpy as np
import pytest
from headrace import _core
from processes import until
from program import PROGRAM, run
from prometheus_client.openmetrics.parser import text_string_to_metric_families

DEADLINE_S = 60
OTHER_USER = 65534
CLONE_NEWPID = 0x20000000
PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_PDEATHSIG = 4, 8, 1
CAP_SYS_NICE = 23
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


class Slow:
    def __init__(self, count: int = 40) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.001)
        return np.full(8, index)


class Killed(Slow):
    """Kills its worker once, at sample 11."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def __getitem__(self, index: int) -> Any:
        if index == 11:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def look(*pids: int) -> dict[str, Any]:
    result = run("top", "--json", *map(str, pids or [os.getpid()]))
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["version"] == 1
    return found


def metrics(*arguments: str) -> dict[tuple[Any, ...], float]:
    """Returns the samples of the metrics, as the parser of prometheus_client reads them."""
    result = run("top", "--prometheus", str(os.getpid()), *arguments)
    assert result.returncode == 0, result.stderr
    return parse(result.stdout)


def parse(text: str) -> dict[tuple[Any, ...], float]:
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def named(name: str) -> list[str]:
    return [one["loader"] for one in look()["loaders"] if one["loader"] == name]


def test_counts_of_a_loader_are_exact() -> None:
    loader = headrace.Loader(Slow(), batch_size=4, num_workers=2, persistent_workers=True)
    batches = list(loader)
    assert len(batches) == 10
    next(iterator := iter(loader))
    (seen,) = look()["loaders"]
    assert re.fullmatch(r"test_top\.py:\d+", seen["loader"])
    assert (seen["epoch"], seen["step"]) == (1, 1)
    assert (seen["batches_total"], seen["samples_total"]) == (11, 44)
    assert (seen["queue_room"], len(seen["workers"]), seen["pid"]) == (4, 2, os.getpid())
    assert seen["wait_seconds_total"] > 0 and seen["start_seconds_total"] > 0
    assert sum(one["batches_total"] for one in seen["workers"]) >= 11
    assert {one["pid"] for one in seen["workers"]} & {os.getpid()} == set()
    assert all(one["private_bytes"] > 0 for one in seen["workers"])
    assert seen["sample_seconds"]["p50"] > 0.0005
    assert seen["sample_seconds"]["worst_index"] in range(40)
    del iterator


def test_loaders_without_workers_are_shown() -> None:
    loader = headrace.Loader(Slow(12), batch_size=4)
    for count, _ in enumerate(loader, 1):
        if count == 2:
            (seen,) = look()["loaders"]
            assert (seen["batches_total"], seen["samples_total"], seen["workers"]) == (2, 8, [])
            assert seen["wait_seconds_total"] > 0.002
    assert look()["loaders"][0]["batches_total"] == 3
    del loader
    assert look()["loaders"] == []


def test_metrics_never_fall(tmp_path: Any) -> None:
    """Over a worker's restart and the ends of epochs, after which the workers are other ones."""
    loader = headrace.Loader(Killed(str(tmp_path / "once")), batch_size=2, num_workers=2, max_restarts=2)
    before: dict[tuple[Any, ...], float] = {}
    seen: set[str] = set()
    for _ in range(3):
        for count, _ in enumerate(loader):
            if count not in (1, 9, 19):
                continue
            now = metrics()
            for key, value in before.items():
                if key[0].endswith(("_total", "_count", "_sum", "_bucket")):
                    assert now[key] >= value, key
            before = now
            seen |= {key[0] for key in now}
    by_name = {key[0]: value for key, value in before.items()}
    assert by_name["headrace_batches_total"] == 60
    assert by_name["headrace_samples_total"] == 120
    assert by_name["headrace_worker_restarts_total"] == 1
    assert by_name["headrace_sample_seconds_count"] >= 110
    assert {"headrace_loader_info", "headrace_queue_batches", "headrace_worker_busy_seconds_total"} <= seen


def test_picture_tells_deaths_from_starts(tmp_path: Any) -> None:
    """Each epoch starts its workers again; only the one that was killed has died."""
    loader = headrace.Loader(Killed(str(tmp_path / "once")), batch_size=2, num_workers=2, max_restarts=2)
    for _ in range(2):
        for _ in loader:
            pass
    for count, _ in enumerate(loader):
        if count == 9:
            picture = run("top", "--once", str(os.getpid())).stdout
            break
    assert "(workers died and were replaced: 1)" in picture
    heads, *workers = picture[picture.index(" WORKER") :].splitlines()[:3]
    assert heads.endswith(" STARTS")
    assert sorted(int(line.split()[-1]) for line in workers) == [3, 4]


class Held(Slow):
    """Sample 7 waits until a byte comes in a pipe. The others write one into another pipe."""

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.let_go = os.pipe()
        self.counts, self.made = os.pipe()

    def __getitem__(self, index: int) -> Any:
        if index == 7:
            os.read(self.waits, 1)
        else:
            os.write(self.made, b".")
        return index

    def wait_for(self, count: int) -> None:
        while count:
            assert select.select([self.counts], [], [], DEADLINE_S)[0]
            count -= len(os.read(self.counts, count))

    def close(self) -> None:
        for one in (self.waits, self.let_go, self.counts, self.made):
            os.close(one)


@pytest.mark.parametrize("threads", [4, 24])  # 24: more than are recorded one by one
def test_sample_that_threads_wait_for_is_named(threads: int, request: pytest.FixtureRequest) -> None:
    request.addfinalizer((dataset := Held()).close)
    loader = headrace.Loader(dataset, 12, num_workers=1, sample_threads=threads, multiprocessing_context="fork")
    iterator = iter(loader)
    dataset.wait_for(23)  # all others of the two batches that the worker has

    def sample() -> Any:
        return look()["loaders"][0]["workers"][0]["sample"]

    assert until(lambda: sample() == 7, DEADLINE_S)
    screen = run("top", "--once", str(os.getpid())).stdout
    assert re.search(r"^ +0 +\d+ fetch +\S+ +7 ", screen, re.MULTILINE), screen
    os.write(dataset.let_go, b".")
    assert [int(index) for batch in iterator for index in batch] == list(range(40))
    loader = headrace.Loader(range(8), 8, num_workers=1, sample_threads=threads, persistent_workers=True)
    list(loader)
    assert until(lambda: sample() is None, DEADLINE_S)


def test_names_of_any_bytes_are_written() -> None:
    name = 'a "b"\\c\n\x1b[31m\x07\u00e9'
    show = _core.Show(name.encode(), 3, 8)
    show.page()
    show.begin(0, 0)
    bad = _core.Show(b"\xff\xfe\x9b1m", -1, 1)
    bad.page()
    bad.begin(0, 0)
    labels = [dict(key[1:]) for key in metrics() if key[0] == "headrace_loader_info"]
    assert sorted(one["loader"] for one in labels) == ["???1m", 'a "b"\\c\n?[31m?\u00e9']
    assert {one["rank"] for one in labels} == {"0", "3"}
    assert {one["loader"] for one in look()["loaders"]} == {name, "\ufffd\ufffd\ufffd1m"}
    screen = run("top", "--once", str(os.getpid())).stdout
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", screen)
    del show, bad


def test_parked_workers_are_shown_and_not_counted() -> None:
    loader = headrace.Loader(Slow(400), num_workers="auto", rng="sample", multiprocessing_context="fork")
    iterator = iter(loader)
    iterator._engine.use_workers(1)
    for _ in range(40):
        next(iterator)
    (seen,) = look()["loaders"]
    assert (seen["active_workers"], seen["queue_room"], len(seen["workers"])) == (1, 2, loader.num_workers)
    active = {key: value for key, value in metrics().items() if key[0] == "headrace_active_workers"}
    assert list(active.values()) == [1]
    screen = run("top", "--once", str(os.getpid())).stdout
    assert len(re.findall(r"^ +\d+ +\d+ parked ", screen, re.MULTILINE)) == loader.num_workers - 1
    iterator.close()


def test_output_replaces_a_file(tmp_path: Any) -> None:
    show = _core.Show(b"train.py:1", 0, 1)
    show.page()
    show.begin(0, 0)
    path = tmp_path / "headrace.prom"
    path.write_text("old")
    result = run("top", "--prometheus", "-o", str(path), str(os.getpid()))
    assert (result.returncode, result.stdout) == (0, "")
    assert any(key[0] == "headrace_loader_info" for key in parse(path.read_text()))
    assert os.listdir(tmp_path) == ["headrace.prom"]
    result = run("top", "--once", "-o", str(tmp_path / "no" / "file"))
    assert (result.returncode, result.stdout) == (1, "")
    assert "cannot write" in result.stderr


@pytest.mark.parametrize("words", [["0"], ["x"], ["--no"], ["-o"], ["--json", "--prometheus"], ["12.5"]])
def test_bad_words_are_refused(words: list[str]) -> None:
    result = run("top", *words)
    assert (result.returncode, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("words", [["--once"], []])
def test_process_without_a_loader_is_one_line_and_exit_code_1(words: list[str]) -> None:
    gone, own = "999999999", str(os.getpid())
    for pids, line in (
        ([gone], "there is no such process (any more)"),
        ([own], "this process has no loader that runs"),
        ([gone, own], "these processes have no loader that runs"),
    ):
        result = run("top", *words, *pids)
        assert (result.returncode, result.stdout, result.stderr) == (1, "", f"headrace: {line}\n")
    assert json.loads(run("top", "--json", gone).stdout)["loaders"] == []


def test_process_without_a_loader_is_one_line_in_a_terminal() -> None:
    terminal = Terminal(24, 80, "999999999")
    assert terminal.end() == 1
    assert terminal.text.strip() == "headrace: there is no such process (any more)"


def test_python_m_knows_top() -> None:
    loader = headrace.Loader(list(range(4)))
    next(iter(loader))
    command = [sys.executable, "-m", "headrace", "top", "--once", str(os.getpid())]
    result = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("headrace top ")


def test_closed_output_is_no_crash() -> None:
    read, write = os.pipe()
    os.close(read)
    result = subprocess.run([PROGRAM, "top", "--once"], stdout=write, stderr=subprocess.PIPE, timeout=DEADLINE_S)
    os.close(write)
    assert result.returncode in (1, -signal.SIGPIPE)


def test_many_loaders_are_shown() -> None:
    shows, loaders = [], []
    for i in range(64):
        shows.append(_core.Show(f"train.py:{i}".encode(), i, 64))
        loaders.append(_core.Loader(2, 2, True, 1 << 24))
        loaders[-1].show(shows[-1])
        shows[-1].begin(1, 0)
    found = look()["loaders"]
    assert sorted(one["rank"] for one in found) == list(range(64))
    assert len(run("top", "--once", str(os.getpid())).stdout.splitlines()) > 64
    for one in loaders:
        one.close()
    assert look()["loaders"] == []


class Sleeping(Slow):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.1)
        return index


class Computing(Slow):
    def __getitem__(self, index: int) -> Any:
        end = time.monotonic() + 0.1
        while time.monotonic() < end:
            pass
        return index


def collate_slowly(samples: list[int]) -> list[int]:
    time.sleep(0.1)
    return samples


STORAGE, COLLATING = "of that: they wait for a disk or a network", "of the workers' busy time is the collate function"
CAUSES = [
    (Sleeping(1000), None, {STORAGE}),
    (Computing(1000), None, set()),
    (range(1000), collate_slowly, {COLLATING}),
]


@pytest.mark.parametrize(("data", "collate_fn", "causes"), CAUSES, ids=["sleeping", "computing", "collating"])
def test_cause_is_what_the_workers_do(data: Any, collate_fn: Any, causes: set[str]) -> None:
    loader = headrace.Loader(data, batch_size=2, num_workers=2, multiprocessing_context="fork", collate_fn=collate_fn)
    over = threading.Event()

    def train(batches: Iterator[Any]) -> None:
        while not over.is_set():
            next(batches)

    thread = threading.Thread(target=train, args=(iter(loader),))
    thread.start()
    time.sleep(1)  # so long before the first look, the loop waits already
    text = " ".join(run("top", "--once", str(os.getpid())).stdout.split())
    over.set()
    thread.join()
    del thread, loader
    assert {cause for cause in (STORAGE, COLLATING) if cause in text} == causes, text


# ---- memory that is not what it seems ----


@contextlib.contextmanager
def memory(content: bytes, name: str = "headrace-arena") -> Iterator[int]:
    """Makes a memfd that has the name of a loader's, and the socket that says so."""
    fd = os.memfd_create(name)
    os.write(fd, content)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
        one.bind(f"\0headrace/{os.geteuid()}/{os.getpid()}/{fd}")
        try:
            yield fd
        finally:
            os.close(fd)


def page_of_show() -> bytes:
    """Returns the page of a loader without workers."""
    show = _core.Show(b"train.py:1", 0, 1)
    show.page()
    show.begin(0, 0)
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{entry}").startswith("/memfd:headrace-arena"):
                return os.pread(int(entry), 4096, 0)
    raise AssertionError("the show has no page")


SHOWN_AT, OPENED_AT = 1024, 88  # struct hr__shown, and opened_ns in it


def test_other_versions_are_one_line() -> None:
    page = bytearray(page_of_show())
    page[SHOWN_AT : SHOWN_AT + 8] = b"\0" * 8  # as before there was a part for observers
    with memory(bytes(page)):
        assert look()["other_versions"] == 1
        text = run("top", "--once", str(os.getpid())).stdout
    assert "1 loader is of another version of headrace" in text


def test_loader_of_impossible_times_is_drawn() -> None:
    page = bytearray(page_of_show())
    at = SHOWN_AT + OPENED_AT
    assert 0 < time.monotonic_ns() - int.from_bytes(page[at : at + 8], sys.byteorder) < 60e9
    page[at : at + 8] = b"\x80".rjust(8, b"\0")  # the smallest number
    with memory(bytes(page)):
        (line,) = re.findall(r"train\.py:1, pid .*", run("top", "--once", str(os.getpid())).stdout)
    assert ", -" not in line


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"x" * 8192, b"headrace" + b"\xff" * 8192])
def test_rubbish_is_no_loader(content: bytes) -> None:
    with memory(content):
        found = look()
        assert found["loaders"] == []
        assert run("top", "--once", str(os.getpid())).returncode in (0, 1)  # 1: it is no loader at all


def test_memory_cut_while_read_is_no_crash() -> None:
    page = page_of_show()
    over = threading.Event()
    with memory(page) as fd:

        def cut() -> None:
            while not over.is_set():
                os.ftruncate(fd, 100)
                os.ftruncate(fd, 4096)
                os.pwrite(fd, page, 0)

        thread = threading.Thread(target=cut)
        thread.start()
        try:
            for _ in range(20):
                assert run("top", "--prometheus", str(os.getpid())).returncode == 0
        finally:
            over.set()
            thread.join()


def test_pipe_under_the_name_is_not_opened() -> None:
    read, write = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
        one.bind(f"\0headrace/{os.geteuid()}/{os.getpid()}/{read}")
        assert look()["loaders"] == []
    os.close(read)
    os.close(write)


# ---- processes that the kernel does not show ----


@contextlib.contextmanager
def child(act: Callable[[], None]) -> Iterator[int]:
    """A forked child that calls `act`, and shows a loader until the block ends."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            act()
            show = _core.Show(b"child.py:1", 0, 1)
            show.page()
            show.begin(0, 0)
            os.write(write, b"x")
            time.sleep(DEADLINE_S)
        finally:
            os._exit(1)
    os.close(write)
    assert os.read(read, 1) == b"x"
    os.close(read)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def top_as_other(pid: int) -> dict[str, Any]:
    """Looks at one process only, because other tests start and end loaders meanwhile."""
    result = subprocess.run(
        [PROGRAM, "top", "--json", str(pid)],
        capture_output=True,
        text=True,
        user=OTHER_USER,
        group=OTHER_USER,
        extra_groups=[],
        timeout=100,
    )
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def become_other(dumpable: int, capability: int | None = None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_KEEPCAPS, 1 if capability is not None else 0)
    os.setgroups([])
    os.setgid(OTHER_USER)
    os.setuid(OTHER_USER)
    if capability is not None:
        header = struct.pack("=Ii", 0x20080522, 0)
        data = struct.pack("=6I", 1 << capability, 1 << capability, 0, 0, 0, 0)
        assert libc.syscall(126, header, data) == 0  # capset
    libc.prctl(PR_SET_DUMPABLE, dumpable)


def can_other_run() -> bool:
    try:
        subprocess.run([PROGRAM, "--version"], user=OTHER_USER, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


@AS_ROOT
def test_loaders_that_cannot_be_read_are_counted() -> None:
    if not can_other_run():
        pytest.skip("another user may not run this program")
    with child(lambda: None) as pid:
        assert top_as_other(pid)["refused"] == 1
        text = subprocess.run(
            [PROGRAM, "top", "--once", str(pid)], capture_output=True, text=True, user=OTHER_USER, timeout=100
        ).stdout
        assert "1 loader cannot be read: of other users; run headrace top as root" in text
    with child(lambda: become_other(1)) as pid:
        found = top_as_other(pid)
        assert (found["refused"], [one["pid"] for one in found["loaders"]]) == (0, [pid])
    with child(lambda: become_other(0)) as pid:
        assert top_as_other(pid)["refused"] == 1
    if os.uname().machine == "x86_64":
        with child(lambda: become_other(1, CAP_SYS_NICE)) as pid:
            assert top_as_other(pid)["refused"] == 1


def enter_pid_namespace() -> None:
    """The child continues as process 1 of a new namespace; its parent waits for it."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWPID) != 0:
        os._exit(77)
    if inner := os.fork():
        os.waitpid(inner, 0)
        os._exit(0)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@AS_ROOT
def test_other_namespace_of_pids_is_walked() -> None:
    with child(enter_pid_namespace) as outer:
        (seen,) = [one for one in look(outer)["loaders"] if one["loader"] == "child.py:1"]
        assert seen["pid"] not in (1, outer)


def test_loader_that_dies_vanishes() -> None:
    with child(lambda: None) as pid:
        assert len(look(pid)["loaders"]) == 1
    assert look(pid)["loaders"] == []


# ---- the terminal ----


def test_one_picture_fits_the_terminal() -> None:
    """In a pipe the lines are whole."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 60, 0, 0))
    with child(lambda: None) as pid:
        subprocess.run([PROGRAM, "top", "--once", str(pid)], stdout=theirs, check=True, timeout=DEADLINE_S)
        text = os.read(ours, 1 << 16).decode()
        assert "child.py:1" in text and max(map(len, text.split("\r\n"))) == 60
        assert max(map(len, run("top", "--once", str(pid)).stdout.split("\n"))) > 60
    os.close(ours)
    os.close(theirs)


class Terminal:
    """headrace top in a terminal."""

    def __init__(self, lines: int, columns: int, *arguments: str, blocks: bool = True) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.set_blocking(1, blocks)
            os.execv(PROGRAM, [str(PROGRAM), "top", *arguments])
        self.resize(lines, columns)
        self.text = ""

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))

    def read_until(self, wanted: str) -> str:
        """Reads until a text comes, and returns what came until then."""
        deadline = time.monotonic() + DEADLINE_S
        while wanted not in self.text:
            assert time.monotonic() < deadline, self.text[-2000:]
            if select.select([self.fd], [], [], 0.5)[0]:
                self.text += os.read(self.fd, 65536).decode(errors="replace")
        found, self.text = self.text.split(wanted, 1)
        return found

    def read_some(self, seconds: float) -> bool:
        """Reads what comes within this time. Returns False if nothing does, or if the program has ended."""
        with contextlib.suppress(OSError):
            if select.select([self.fd], [], [], seconds)[0]:
                data = os.read(self.fd, 65536)
                self.text += data.decode(errors="replace")
                return bool(data)
        return False

    def read_until_it_fits(self, columns: int) -> str:
        """Returns the first whole picture that is no wider: some may have been drawn before it was resized."""
        deadline = time.monotonic() + DEADLINE_S
        self.read_until("\x1b[J")
        while widest(picture := self.read_until("\x1b[J")) > columns:
            assert time.monotonic() < deadline, picture
        return picture

    def press(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def await_stop(self) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)[0] == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def end(self) -> int:
        deadline = time.monotonic() + DEADLINE_S
        while (found := os.waitpid(self.pid, os.WNOHANG))[0] == 0:
            assert time.monotonic() < deadline
            self.read_some(0.1)
        while self.read_some(0):  # it may have written since the last read
            pass
        self.was_canonical = bool(termios.tcgetattr(self.fd)[3] & termios.ICANON)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(found[1])


LEAVES = "\x1b[?25h\x1b[?1049l"


@pytest.fixture
def shows() -> Iterator[list[Any]]:
    found = [_core.Show(f"train.py:{i}".encode(), -1, 1) for i in range(3)]
    for one in found:
        one.page()
        one.begin(0, 0)
    yield found
    found.clear()


def widest(text: str) -> int:
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return max(len(line.strip("\r")) for line in plain.split("\n"))


@pytest.mark.usefixtures("shows")
def test_picture_fits_the_terminal() -> None:
    terminal = Terminal(24, 80, str(os.getpid()))
    terminal.read_until("WAIT%")
    assert widest(terminal.read_until("\x1b[J")) <= 80
    terminal.resize(12, 40)
    assert terminal.read_until_it_fits(40).count("\n") < 12
    picture = terminal.read_until("\x1b[J")
    assert widest(picture) <= 40
    assert picture.count("\n") < 12
    terminal.resize(50, 200)
    terminal.read_until("\x1b[J")
    assert "rank" not in terminal.read_until("\x1b[J")
    terminal.press("q")
    assert terminal.end() == 0
    assert LEAVES in terminal.text


@pytest.mark.usefixtures("shows")
def test_keys_choose_freeze_and_explain() -> None:
    terminal = Terminal(24, 80, str(os.getpid()))
    terminal.read_until("> ")
    terminal.press("\x1b[B")
    terminal.read_until("train.py:1, pid")
    terminal.press(" ")
    terminal.read_until("frozen")
    terminal.press(" o?")
    terminal.read_until("WAIT% is the share")
    terminal.press("x")
    terminal.read_until("SAMPLE/S")
    terminal.press("s")
    terminal.read_until("y/n")
    terminal.press("n\x1b[Aq")
    assert terminal.end() == 0


@pytest.mark.usefixtures("shows")
def test_terminal_is_restored_at_each_end() -> None:
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 0), (signal.SIGSEGV, -signal.SIGSEGV)):
        terminal = Terminal(24, 80, str(os.getpid()))
        terminal.read_until("WAIT%")
        os.kill(terminal.pid, number)
        assert terminal.end() == code
        assert LEAVES in terminal.text
        assert terminal.was_canonical


@pytest.mark.usefixtures("shows")
def test_output_that_does_not_block_waits_for_the_terminal() -> None:
    """Another program may have left the terminal so. Each key makes a picture, and nothing is read meanwhile."""
    terminal = Terminal(24, 80, str(os.getpid()), blocks=False)
    terminal.read_until("WAIT%")
    for _ in range(300):
        terminal.press("o")
        time.sleep(0.002)
    for _ in range(20):
        terminal.read_until("WAIT%")
    terminal.press("q")
    assert terminal.end() == 0
    assert terminal.was_canonical


@pytest.mark.usefixtures("shows")
def test_stopped_and_continued_draws_again() -> None:
    terminal = Terminal(24, 80, str(os.getpid()))
    terminal.read_until("WAIT%")
    terminal.press("\x1a")
    terminal.read_until(LEAVES)
    terminal.await_stop()
    os.kill(terminal.pid, signal.SIGCONT)
    terminal.read_until("\x1b[?1049h")
    terminal.read_until("WAIT%")
    terminal.press("q")
    assert terminal.end() == 0


@pytest.mark.usefixtures("shows")
def test_stopped_by_sigstop_gets_its_keys_again() -> None:
    """The shell has set its own modes of the terminal, and the program could not see that."""
    terminal = Terminal(24, 80, str(os.getpid()))
    terminal.read_until("WAIT%")
    os.kill(terminal.pid, signal.SIGSTOP)
    terminal.await_stop()
    modes = termios.tcgetattr(terminal.fd)
    modes[3] |= termios.ICANON
    termios.tcsetattr(terminal.fd, termios.TCSANOW, modes)
    os.kill(terminal.pid, signal.SIGCONT)
    terminal.read_until("\x1b[?1049h")
    terminal.press("q")
    assert terminal.end() == 0
    assert terminal.was_canonical


def test_stacks_of_workers_are_shown() -> None:
    loader = headrace.Loader(Slow(4000), batch_size=4, num_workers=1, multiprocessing_context="fork")
    iterator = iter(loader)
    next(iterator)
    terminal = Terminal(50, 200, str(os.getpid()))
    terminal.read_until("WORKER")
    terminal.press("sy")
    terminal.read_until("worker 0, pid")
    terminal.read_until("most recent call first")
    terminal.press("xq")
    assert terminal.end() == 0
    assert sum(1 for _ in iterator) == 999

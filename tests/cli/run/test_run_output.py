# SPDX-License-Identifier: Apache-2.0
"""Output of ranks: whole lines, in order, whatever they contain and wherever they go."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from jobs import SLACK, Job, parent_of, run
from processes import alive, until

# ---- lines ----


def test_lines_of_8_ranks_are_whole_and_in_order(tmp_path: Path) -> None:
    code = """from ranks import *
meet()
for i in range(10000):
    print(f"{RANK} {i} " + "x" * (i % 50), file=sys.stderr if i % 2 else sys.stdout)
"""
    with Job(tmp_path, code, nproc=8, stderr=subprocess.STDOUT) as job:
        result = job.finish(8)
    assert result.code == 0
    seen = dict.fromkeys(range(8), 0)
    for line in result.stdout.splitlines():
        found = re.fullmatch(r"\[(\d)\] (\d) (\d+) (x*)", line)
        assert found and found[1] == found[2], line
        rank, number = int(found[1]), int(found[3])
        assert number == seen[rank] and len(found[4]) == number % 50, line
        seen[rank] += 1
    assert set(seen.values()) == {10000}


def test_stdout_and_stderr_stay_apart(tmp_path: Path) -> None:
    result = run(tmp_path, "import sys\nprint('out')\nprint('err', file=sys.stderr)\n")
    assert sorted(result.stdout.splitlines()) == ["[0] out", "[1] out"]
    assert sorted(result.stderr.splitlines()) == ["[0] err", "[1] err"]


def test_output_of_one_rank_is_untouched(tmp_path: Path) -> None:
    code = "import sys\nsys.stdout.buffer.write(b'a\\r\\xff\\0b')\nsys.stderr.write('no newline')\n"
    with Job(tmp_path, code, nproc=1) as job:
        out, err = job.process.communicate(timeout=20)
    assert (out, err) == (b"a\r\xff\0b", b"no newline")


EPOCHS = """import sys
for epoch in range(3): print(f"Epoch {epoch}", *sys.argv[1:])
"""


@pytest.mark.parametrize("where", ["a pipe", "a file"])
@pytest.mark.parametrize("options", [(), ("--prefix", "auto"), ("--local-ranks-filter", "0")])
def test_lines_of_one_rank_begin_as_the_script_writes_them(
    tmp_path: Path, where: str, options: tuple[str, ...]
) -> None:
    """Words after the script are its own, also those that begin as an option of headrace."""
    words = ("--logs", "folder", "--nproc", "3", "-r", "3")
    wanted = [f"Epoch {epoch} {' '.join(words)}" for epoch in range(3)]
    if where == "a pipe":
        result = run(tmp_path, EPOCHS, *options, nproc=1, arguments=words)
        assert (result.code, result.stdout.splitlines(), result.stderr) == (0, wanted, "")
        return
    with (
        (tmp_path / "out").open("wb") as out,
        Job(tmp_path, EPOCHS, *options, nproc=1, arguments=words, stdout=out) as job,
    ):
        assert job.finish().code == 0
    assert (tmp_path / "out").read_text().splitlines() == wanted


@pytest.mark.parametrize("where", ["a pipe", "a file"])
def test_lines_of_several_ranks_begin_with_their_rank(tmp_path: Path, where: str) -> None:
    """--prefix never leaves it out."""
    out = tmp_path / "out"
    for options, mark in (((), "[{}] "), (("--prefix", "never"), "")):
        with (
            out.open("wb") as to,
            Job(tmp_path, EPOCHS, *options, stdout=to if where == "a file" else subprocess.PIPE) as job,
        ):
            result = job.finish()
        text = out.read_text() if where == "a file" else result.stdout
        assert sorted(text.splitlines()) == sorted(
            f"{mark.format(rank)}Epoch {epoch}" for rank in range(2) for epoch in range(3)
        )


def test_bytes_that_are_no_text_are_kept(tmp_path: Path) -> None:
    """A character of UTF-8 in two parts, bytes of no character, and zero bytes."""
    code = r"""from ranks import *
for part in (b"caf\xc3", b"\xa9 \xff\xfe \0 ", b"\xe2\x82", b"\xac\n"):
    os.write(1, part)
    time.sleep(0.02)
"""
    with Job(tmp_path, code, nproc=2) as job:
        out, _ = job.process.communicate(timeout=20)
    assert sorted(out.splitlines()) == [b"[%d] caf\xc3\xa9 \xff\xfe \0 \xe2\x82\xac" % rank for rank in (0, 1)]


def test_bars_show_their_last_state(tmp_path: Path) -> None:
    code = r"""from ranks import *
if RANK == 0:
    for i in range(1001):
        sys.stdout.write(f"\rstep {i}")
        sys.stdout.flush()
    print()
"""
    result = run(tmp_path, code)
    assert result.code == 0
    shown = [part for part in re.split(r"[\r\n]", result.stdout) if part]
    assert shown[-1] == "[0] step 1000"
    assert all(re.fullmatch(r"\[0\] step \d+", part) for part in shown), shown[:5]
    assert len(shown) < 500


def test_prompt_without_a_newline_is_shown(tmp_path: Path) -> None:
    code = "from ranks import *\nif RANK == 0: os.write(1, b'continue? ')\nawait_all('go')\n"
    with Job(tmp_path, code) as job:
        assert job.process.stdout is not None
        assert os.read(job.process.stdout.fileno(), 100) == b"[0] continue? "
        (tmp_path / "shared/go").touch()
        assert job.finish().code == 0


def test_line_of_100_mb_is_shown(tmp_path: Path) -> None:
    code = """from ranks import *
if RANK == 0:
    for _ in range(100): os.write(1, b"x" * 1000000)
    print()
    print("next")
"""
    with (tmp_path / "out").open("wb") as out, Job(tmp_path, code, stdout=out) as job:
        assert job.finish(5).code == 0
    with (tmp_path / "out").open("rb") as out:
        first = out.readline()
        assert first[:5] == b"[0] x" and len(first) == 4 + 100_000_000 + 1
        assert out.read() == b"[0] next\n"


def test_slow_reader_slows_the_ranks_and_loses_nothing(tmp_path: Path) -> None:
    code = """from ranks import *
announce("begun")
for i in range(200): print(RANK, i, "x" * 1000000)
announce(f"written.{RANK}")
"""
    with Job(tmp_path, code) as job:
        job.await_files("begun")
        time.sleep(1)
        assert not (tmp_path / "shared/written.0").exists()
        assert job.process.stdout is not None
        count = 0
        while chunk := os.read(job.process.stdout.fileno(), 1 << 20):
            count += len(chunk)
        assert job.process.wait(20) == 0
    lengths = [len(f"[{rank}] {rank} {i} ") + 1000001 for rank in range(2) for i in range(200)]
    assert count == sum(lengths)


def test_second_signal_ends_a_job_whose_output_is_not_read(tmp_path: Path) -> None:
    code = "from ranks import *\nannounce('begun')\nwhile True: print('x' * 100000)\n"
    with Job(tmp_path, code) as job:
        job.await_files("begun")
        ranks = [pid for pid in job.processes() if parent_of(pid) == job.guardian()]
        job.send(signal.SIGTERM)
        assert until(lambda: not any(alive(pid) for pid in ranks), SLACK * 2)
        time.sleep(0.2)
        assert job.process.poll() is None  # a reader may still come
        job.send(signal.SIGTERM)
        assert job.process.wait(SLACK * 2) == 143
        job.assert_nothing_is_left()


# ---- where it goes ----


def test_reader_that_goes_away_does_not_end_the_job(tmp_path: Path) -> None:
    """`headrace run ... | head -1`."""
    code = """from ranks import *
say("first")
await_all("closed")
for i in range(5000): print("line", i)
announce(f"end.{RANK}")
"""
    with Job(tmp_path, code) as job:
        assert job.process.stdout is not None
        assert os.read(job.process.stdout.fileno(), 100)
        job.process.stdout.close()
        job.process.stdout = None
        (tmp_path / "shared/closed").touch()
        result = job.finish()
        job.await_files("end.0", "end.1")
        job.assert_nothing_is_left()
    assert (result.code, result.stderr) == (0, "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("nproc", [1, 2])
def test_streams_may_be_closed(tmp_path: Path, closed: str, nproc: int) -> None:
    code = """from ranks import *
os.write(1, b"out\\n")
os.write(2, b"err\\n")
announce(f"end.{RANK}", repr(os.read(0, 1)))
meet()
sys.exit(3 if RANK == WORLD_SIZE - 1 else 0)
"""
    with Job(tmp_path, code, nproc=nproc, prefix=("sh", "-c", f'exec "$@" {closed}', "sh")) as job:
        result = job.finish()
        assert job.read("end.0") == "b''"
        job.assert_nothing_is_left()
    assert result.code == 3
    if "2>" not in closed:
        assert result.summary[-1] == "headrace: exit code 3"


def test_stdin_goes_to_rank_0_or_the_one_that_is_named(tmp_path: Path) -> None:
    code = "import sys\nprint(repr(sys.stdin.read()))\n"
    for options, reader in (((), 0), (("--stdin", "1"), 1), (("--stdin", "none"), None)):
        with Job(tmp_path, code, *options, stdin=subprocess.PIPE) as job:
            out, _ = job.process.communicate(b"data", timeout=20)
        wanted = {rank: "'data'" if rank == reader else "''" for rank in range(2)}
        assert sorted(out.decode().splitlines()) == [f"[{rank}] {wanted[rank]}" for rank in range(2)]


# ---- logs ----


@pytest.mark.parametrize(("word", "shown"), [("-t", True), ("-r", False)])
def test_logs_have_torchruns_layout(tmp_path: Path, word: str, shown: bool) -> None:
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\n"
    result = run(tmp_path, code, word, "3", "--log-dir", "logs/deep", "--rdzv-id", "job")
    assert result.code == 0
    (folder,) = (tmp_path / "logs/deep").iterdir()
    assert re.fullmatch(r"job_\w{8}|job_\w{6}", folder.name)
    for rank in range(2):
        own = folder / "attempt_0" / str(rank)
        assert (own / "stdout.log").read_text() == "out\n"
        assert (own / "stderr.log").read_text() == "err\n"
    assert sorted(result.stdout.splitlines()) == (["[default0]:out", "[default1]:out"] if shown else [])


def test_logged_lines_begin_with_the_template(tmp_path: Path) -> None:
    """Torchrun has the option since torch 2.15. It is stronger than the variable."""
    code = "from ranks import *\nprint('out')\n"
    template = ("--log-line-prefix-template", "${hostname} ${role_name}${rank}${local_rank}> ")
    environment = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "no"}
    result = run(tmp_path, code, "--tee", "3", "--log-dir", "logs", *template, nproc=1, env=environment)
    assert result.stdout == f"{socket.gethostname()} default00> out\n"


CHANGES_FOLDER = """from ranks import *
os.makedirs("outputs", exist_ok=True)
os.chdir("outputs")
path = os.environ["TORCHELASTIC_ERROR_FILE"]
say(os.path.isabs(path), os.path.isdir(os.path.dirname(path)))
meet()
raise ValueError("mine")
"""


@pytest.mark.parametrize("tmpdir", [None, "."])
def test_logs_of_a_script_that_changes_its_folder(tmp_path: Path, tmpdir: str | None) -> None:
    """The paths that ranks are given are absolute: as --log-dir, and of the temporary folder of logs."""
    options = ("--log-dir", "logs") if tmpdir is None else ()
    result = run(tmp_path, CHANGES_FOLDER, "-t", "3", *options, env={"TMPDIR": tmpdir} if tmpdir else {})
    result.assert_says("after ValueError: mine")
    assert "[default0]:True True" in result.stdout
    assert list(tmp_path.rglob("error.json")) and not list(tmp_path.rglob("outputs/*"))


def test_streams_of_single_ranks_are_logged(tmp_path: Path) -> None:
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\n"
    result = run(tmp_path, code, "-r", "0:1,1:2", "--log-dir", "logs")
    assert result.code == 0
    assert result.stdout.splitlines() == ["[1] out"]
    assert result.stderr.splitlines() == ["[0] err"]
    names = sorted(path.relative_to(tmp_path / "logs").as_posix().split("/", 1)[1] for path in tmp_path.rglob("*.log"))
    assert names == ["attempt_0/0/stdout.log", "attempt_0/1/stderr.log"]


def test_only_ranks_of_the_filter_are_shown(tmp_path: Path) -> None:
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\n"
    result = run(tmp_path, code, "--local-ranks-filter", "1,2", nproc=4)
    assert sorted(result.stdout.splitlines()) == ["[1] out", "[2] out"]
    assert sorted(result.stderr.splitlines()) == ["[1] err", "[2] err"]


def test_full_disk_under_the_logs_does_not_end_the_job(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk."""
    code = "from ranks import *\nfor i in range(2000): print('line', i, 'x' * 1000)\nannounce(f'end.{RANK}')\n"
    with Job(tmp_path, code, "-t", "1", "--log-dir", "logs", preexec_fn=_limit_files) as job:
        result = job.finish()
        job.await_files("end.0", "end.1")
        job.assert_nothing_is_left()
    assert result.code == 0
    lines = result.stdout.splitlines()
    assert all(lines.count(f"[default{rank}]:line {i} {'x' * 1000}") == 1 for rank in range(2) for i in (0, 1000, 1999))
    for rank in range(2):
        assert f"headrace: the stdout log of rank {rank} cannot be written: File too large;" in result.stderr


def _limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


def test_full_disk_is_told_for_real(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(tmp_path / "logs")]
    script = f'{" ".join(command)} && exec "$@"'
    probe = subprocess.run(["unshare", "--mount", "sh", "-c", " ".join(command)], capture_output=True)
    if probe.returncode:
        pytest.skip("no file system can be mounted here")
    code = "for i in range(20000): print('line', i)\n"
    result = run(
        tmp_path, code, "-t", "1", "--log-dir", "logs", prefix=("unshare", "--mount", "sh", "-c", script, "sh")
    )
    assert result.code == 0
    assert result.stdout.count("\n") == 40000
    assert "cannot be written: No space left on device" in result.stderr


@pytest.mark.parametrize("folder", ["/proc/nothing", "train.py/logs", "/dev/full"])
def test_folder_that_cannot_be_written_is_refused(tmp_path: Path, folder: str) -> None:
    result = run(tmp_path, "print('started')\n", "--log-dir", folder, "-t", "3")
    assert (result.code, result.stdout) == (2, "")
    assert re.fullmatch(rf"headrace: [^\n]*{folder}[^\n]*\n", result.stderr), result.stderr


def test_open_files_limit_is_explained(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    result = run(tmp_path, "print('started')\n", nproc=100, preexec_fn=limit)
    assert (result.code, result.stdout) == (125, "")
    assert "raise the limit (ulimit -n)" in result.stderr
    assert result.stderr.count("\n") == 2

# SPDX-License-Identifier: Apache-2.0
"""Ranks that fail: the exit code, the one that failed first, and what is left."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import FAILURES, OTHERS, START, failing
from jobs import run
from processes import until

GRACE = ("--grace", "0.5")
REPEAT = 50 if os.environ.get("HEADRACE_SOAK") == "1" else 1


@pytest.mark.parametrize("name", FAILURES)
def test_failure_is_explained_and_ends_the_job(tmp_path: Path, name: str) -> None:
    failure = FAILURES[name]
    result = run(tmp_path, failing(name), *GRACE, "--report", "report.json")
    assert result.code == failure.exit_code, result.stderr
    result.assert_says(r"^headrace: rank 1 failed first: it ", failure.says)
    assert "  rank 0 ended when asked to" in result.summary
    why = f" (128 + signal {failure.exit_code - 128})" if failure.exit_code > 128 else ""
    assert result.stderr.splitlines()[-1] == f"headrace: exit code {failure.exit_code}{why}"
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["exit_code"] == failure.exit_code


def test_first_failure_is_named_though_another_rank_dies_first(tmp_path: Path) -> None:
    """Rank 1 fails, and takes long to exit. Rank 0 fails 30 ms later, and is dead at once."""
    for fails, code in REPEAT * [("raise ValueError('mine')", 1), ("sys.exit(4)", 4)]:
        result = run(tmp_path, TWO_FAILURES.format(fails=fails), *GRACE)
        assert result.code == code, result.stderr
        result.assert_says(f"^headrace: rank 1 failed first: it ended with exit code {code}", "rank 0 .* exit code 9$")


TWO_FAILURES = """from ranks import *
import atexit
if RANK == 0:
    await_all("failing")
    time.sleep(0.03)
    os._exit(9)
atexit.register(time.sleep, 0.3)
ignore(*DEAF)
announce("failing")
{fails}
"""


def test_rank_that_lost_a_peer_is_not_named(tmp_path: Path) -> None:
    """Rank 0 sees first that rank 1 is gone, and says so with an exception of torch."""
    result = run(
        tmp_path,
        """from ranks import *
import atexit
if RANK == 1:
    await_all("lost")
    time.sleep(0.03)
    atexit.register(announce, "failed")
    raise ValueError("mine")
class DistNetworkError(RuntimeError): pass
DistNetworkError.__module__ = "torch.distributed"
atexit.register(await_all, "failed")
atexit.register(announce, "lost")
raise DistNetworkError("Connection reset by peer")
""",
    )
    assert result.code == 1
    result.assert_says("rank 1 failed first: it .*ValueError: mine", "rank 0 lost the conn")


def test_command_that_one_rank_cannot_execute_is_named(tmp_path: Path) -> None:
    program = tmp_path / "rank-0"
    program.write_text("#!/bin/sh\nsleep 1000\n")
    program.chmod(0o700)
    result = run(tmp_path, "", "--no-python", "./rank-${local_rank}")
    assert result.code == 127, result.stderr
    result.assert_says("rank 1 failed first: it could not execute .*: No such file or directory")


def test_exception_of_a_rank_that_is_ended_while_it_exits_counts(tmp_path: Path) -> None:
    """Rank 1 raises, and is still in its atexit handlers when rank 0 is dead and all are asked to end."""
    code = """from ranks import *
import atexit
if RANK == 0:
    await_all("exiting")
    os._exit(9)
atexit.register(time.sleep, 1000)
atexit.register(announce, "exiting")
raise ValueError("mine")
"""
    result = run(tmp_path, code, *GRACE)
    assert result.code == 1
    result.assert_says(r"rank 1 failed first: it raised ValueError: mine \(pid", "rank 0 ended with exit code 9")


@pytest.mark.parametrize("options", [(), ("--log-dir", "logs", "-t", "3"), ("--log-dir", "logs", "-r", "3")])
def test_last_lines_of_a_program_without_a_traceback_are_shown(tmp_path: Path, options: tuple[str, ...]) -> None:
    code = START + OTHERS + "for i in range(50): print('line', i)\nsys.stdout.flush()\nos._exit(3)\n"
    result = run(tmp_path, code, *options, *GRACE)
    assert result.code == 3
    result.assert_says("rank 1 failed first: it ended with exit code 3", "    line 30\n", "    line 49\n")
    assert not any("line 29" in line for line in result.summary)
    assert (options == ()) == ("logs are in" not in result.stderr)


@pytest.mark.parametrize("nproc", [1, 40])
def test_number_of_ranks_changes_nothing(tmp_path: Path, nproc: int) -> None:
    last = nproc - 1
    code = f"from ranks import *\nif RANK == {last}: sys.exit(7)\nsleep_forever()\n"
    result = run(tmp_path, code, *GRACE, nproc=nproc, expected_s=2 + 0.1 * nproc)
    assert result.code == 7
    result.assert_says(f"^headrace: rank {last} (failed first: it )?ended with exit code 7")


def test_inner_launcher_may_replace_its_error_file(tmp_path: Path) -> None:
    """Torchrun in a rank does so: it removes the file, and puts that of its own rank there."""
    code = START + (
        "path = os.environ['TORCHELASTIC_ERROR_FILE']\nopen(path, 'w').write('{}')\nos.remove(path)\n"
        "with open(path + '.new', 'w') as file: file.write('{}')\nos.replace(path + '.new', path)\n"
        "raise ValueError('the sample is damaged')\n"
    )
    for options in ((), ("--max-restarts", "1")):
        result = run(tmp_path, code, *options, *GRACE)
        assert result.code == 1
        result.assert_says(r"rank \d failed first: .*ValueError: the sample is damaged")
        assert list((tmp_path / "tmp").iterdir()) == []


def test_outer_launcher_gets_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "error.json"
    result = run(tmp_path, failing("exception"), *GRACE, env={"TORCHELASTIC_ERROR_FILE": str(file)})
    assert result.code == 1
    message = json.loads(file.read_text())["message"]
    assert "rank 1 failed first" in message["message"] and "ValueError" in message["extraInfo"]["py_callstack"]


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A memory cgroup of 200 MB (version 1 or 2), if this machine allows making one."""
    for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = Path(root, f"headrace-tests-{os.getpid()}")
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(200 << 20))
        except OSError:
            group.rmdir()
            continue
        yield group
        assert until(lambda group=group: _is_removed(group))
        return
    pytest.skip("no memory cgroup can be made here")


def _is_removed(group: Path) -> bool:
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


def test_lack_of_memory_is_explained(tmp_path: Path, small_group: Path) -> None:
    prefix = ("sh", "-c", f'echo $$ > {small_group}/cgroup.procs; exec "$@"', "sh")
    code = START + OTHERS + "memory = [bytearray(1 << 20) for _ in range(1000)]\n"
    result = run(tmp_path, code, *GRACE, prefix=prefix, expected_s=5)
    assert result.code == 137, result.stderr
    result.assert_says(r"rank 1 failed first: .*; memory ran out, and the kernel killed it. It used at most \d\d\d MiB")

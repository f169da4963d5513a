# SPDX-License-Identifier: Apache-2.0
"""`headrace index`, as a user types it."""

from __future__ import annotations

import io
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator

import pytest
from headrace import sources
from program import PROGRAM, run


@pytest.fixture(autouse=True)
def own_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.jsonl").write_text(f'{{"a": {number}}}\n\n[{number}]\n')
    return folder


def files_in(folder: pathlib.Path) -> list[str]:
    return sorted(str(path) for path in folder.iterdir())


def test_index_is_written_next_to_each_file_once(folder: pathlib.Path) -> None:
    result = run("index", *files_in(folder))
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "3 indexes written, of 6 samples; 0 were there already, 0 failed\n"
    names = [f"{number}.jsonl{end}" for number in range(3) for end in ("", ".hri")]
    assert [path.name for path in sorted(folder.iterdir())] == names
    before = (folder / "0.jsonl.hri").stat().st_mtime_ns
    again = run("index", *files_in(folder))  # the indexes themselves are left out
    assert again.stdout == "0 indexes written, of 0 samples; 3 were there already, 0 failed\n"
    assert (folder / "0.jsonl.hri").stat().st_mtime_ns == before
    assert "3 indexes written" in run("index", "--again", *files_in(folder)).stdout
    assert (folder / "0.jsonl.hri").stat().st_mtime_ns > before
    assert sources.Jsonl(f"{folder}/*.jsonl")[2] == {"a": 1}


def test_changed_file_is_indexed_again(folder: pathlib.Path) -> None:
    run("index", *files_in(folder))
    with open(folder / "1.jsonl", "a") as file:
        file.write("3\n")
    assert run("index", *files_in(folder)).stdout.startswith("1 indexes written, of 3 samples; 2 were there")


def test_check_compares_files_with_their_indexes(folder: pathlib.Path) -> None:
    run("index", *files_in(folder))
    result = run("index", "--check", *files_in(folder))
    assert (result.returncode, result.stdout) == (0, "3 of 3 files have a right index\n")
    before = (folder / "0.jsonl").stat()
    (folder / "0.jsonl").write_text('{"a": 9}\n\n[0]\n')
    os.utime(folder / "0.jsonl", ns=(before.st_atime_ns, before.st_mtime_ns))
    (folder / "1.jsonl").write_text("[]\n")
    (folder / "2.jsonl.hri").unlink()
    result = run("index", "--check", *files_in(folder))
    assert (result.returncode, result.stdout) == (1, "0 of 3 files have a right index\n")
    assert "0.jsonl has other entries than the file" in result.stderr
    assert "older than its file" in result.stderr and "2.jsonl has no index" in result.stderr
    assert not (folder / "2.jsonl.hri").exists()


def test_copied_folder_keeps_its_indexes(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """With the times of the files; the inodes are others."""
    run("index", *files_in(folder))
    subprocess.run(["cp", "-a", folder, tmp_path / "copy"], check=True)
    assert run("index", "--check", *files_in(tmp_path / "copy")).returncode == 0
    assert "3 were there already" in run("index", *files_in(tmp_path / "copy")).stdout
    assert list(sources.Jsonl(f"{tmp_path}/copy/*.jsonl"))[-1] == [2]


def test_kind_is_that_of_the_content_or_is_given(tmp_path: pathlib.Path) -> None:
    (tmp_path / "plain").write_text("one\ntwo\n")
    (tmp_path / "binary").write_bytes(bytes(100))
    result = run("index", str(tmp_path / "plain"), str(tmp_path / "binary"))
    assert result.returncode == 1 and result.stdout.startswith("1 indexes written, of 2 samples; 0 were there")
    assert "binary is neither a tar file nor text" in result.stderr
    assert run("index", "--kind", "lines", str(tmp_path / "binary")).returncode == 0
    for words, text in (
        (["--kind", "zip"], "give tar or lines"),
        (["--all"], "see headrace index --help"),
        ([], "give"),
    ):
        result = run("index", *words, *(["x"] if words else []))
        assert result.returncode == 2 and text in result.stderr


def test_compressed_file_is_refused_with_a_command(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(b"\x1f\x8b\x08\0rest")
    result = run("index", "--kind", "lines", str(tmp_path / "a.jsonl.gz"))
    assert result.returncode == 1 and "compressed by gzip" in result.stderr and "gzip -dk /" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl.gz"]


def test_tar_files_are_indexed_up_to_their_damage(tmp_path: pathlib.Path) -> None:
    """Kinds are mixed, one file is truncated, one is compressed, and one is no tar file."""
    for number in range(4):
        with tarfile.open(tmp_path / f"{number}.tar", "w:gz" if number == 2 else "w") as file:
            for name in ("a.txt", "a.cls", "b.txt", "b.cls"):
                info = tarfile.TarInfo(name)
                info.size = 600
                file.addfile(info, io.BytesIO(b"1" * 600))
    os.truncate(tmp_path / "1.tar", 3 * 1536 + 700)
    (tmp_path / "3.tar").write_text("no archive\n" * 100)
    (tmp_path / "4.txt").write_text("one\n")
    result = run("index", *files_in(tmp_path))
    assert result.returncode == 1 and result.stdout.startswith("2 indexes written, of ")
    assert "1.tar, offset 4,608: it ends within a member; the samples" in result.stderr.replace("4608", "4,608")
    assert (
        "2.tar, offset 0: it is compressed" in result.stderr and "3.tar, offset 0: there is no header" in result.stderr
    )
    assert [path.name for path in sorted(tmp_path.glob("*.hri"))] == ["0.tar.hri", "1.tar.hri", "4.txt.hri"]
    assert len(sources.Tar(tmp_path / "0.tar", decode=None)) == 2


def test_missing_files_and_folders_are_named(folder: pathlib.Path) -> None:
    result = run("index", str(folder / "none.jsonl"), str(folder), str(folder / "0.jsonl"))
    assert result.returncode == 1 and "1 indexes written" in result.stdout
    assert "none.jsonl: No such file" in result.stderr and "Is a directory" in result.stderr


# ---- places that cannot be written ----


@pytest.fixture
def other_user() -> Iterator[None]:
    """Root may write everywhere."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    yield
    os.seteuid(before)


def as_other_user() -> None:
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)


def test_folder_that_may_not_be_written_is_named() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = pathlib.Path(folder, "a.txt")
        path.write_text("one\n")
        path.chmod(0o644)
        pathlib.Path(folder).chmod(0o555)
        result = subprocess.run(
            [PROGRAM, "index", path], preexec_fn=as_other_user, capture_output=True, text=True, timeout=100
        )
        assert result.returncode == 1 and "a.txt.hri: Permission denied" in result.stderr
        assert "each machine makes its own in the cache" in result.stderr
        assert os.listdir(folder) == ["a.txt"]
        pathlib.Path(folder).chmod(0o755)


def test_full_disk_leaves_no_file(folder: pathlib.Path) -> None:
    """The command stops, because no other index would have room either."""
    environment = {**os.environ, "HEADRACE_FAIL": "index_write:ENOSPC"}
    result = run("index", *files_in(folder), env=environment)
    assert result.returncode == 1 and "0.jsonl.hri: No space left on device" in result.stderr
    assert "1.jsonl.hri" not in result.stderr, "no other file would have room either"
    assert len(files_in(folder)) == 3


# ---- interrupted, and many files ----


def test_interrupted_command_leaves_no_half_index(folder: pathlib.Path) -> None:
    """A large sparse file takes long to read."""
    with open(folder / "large.txt", "wb") as file:
        file.truncate(1 << 40)
    command = [PROGRAM, "index", "--kind", "lines", folder / "0.jsonl", folder / "large.txt"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (folder / "0.jsonl.hri").exists():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "stopped; the indexes that are written stay" in said
    assert not (folder / "large.txt.hri").exists() and not list(folder.glob("*.tmp"))


def test_many_files_under_a_low_limit_of_descriptors(tmp_path: pathlib.Path) -> None:
    for number in range(300):
        (tmp_path / f"{number}.txt").write_text(f"{number}\n")

    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))

    result = subprocess.run(
        [PROGRAM, "index", *files_in(tmp_path)], preexec_fn=lower, capture_output=True, text=True, timeout=100
    )
    assert (result.returncode, result.stderr) == (0, "") and result.stdout.startswith("300 indexes written, of 300")


def test_python_m_headrace_index_is_the_program(folder: pathlib.Path) -> None:
    command = [sys.executable, "-m", "headrace", "index", *files_in(folder)]
    assert "3 indexes written" in subprocess.run(command, capture_output=True, text=True, timeout=100).stdout
    assert "--check" in run("index", "--help").stdout

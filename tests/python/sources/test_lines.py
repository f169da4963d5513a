# SPDX-License-Identifier: Apache-2.0
"""headrace.sources.Lines: compared with Python's own reading of lines; files of other formats, files that change."""

from __future__ import annotations

import bz2
import copy
import errno
import gzip
import lzma
import os
import pathlib
import pickle
import resource
import tempfile
from collections.abc import Iterator
from typing import Any

import headrace
import numpy as np
import pytest
from drawn import draws
from headrace import sources
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.fixture(autouse=True)
def own_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def write(path: pathlib.Path, text: str | bytes) -> str:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def lines_of(path: Any) -> list[str]:
    """Reads lines as a plain program does, without their ends and without blank ones."""
    with open(path, encoding="utf-8-sig", newline="\n") as file:
        lines = [line.removesuffix("\r\n").removesuffix("\n") for line in file]
    return [line for line in lines if line.strip(" \t\n\v\f\r")]


# ---- compared with Python ----

texts = st.lists(
    st.sampled_from(
        ["a", "ä", "𝄞", "\u2028", "\x85", "\x1c", "\0", " ", "\t", "\r", "\r\n", "\n", "\n\n", "abc " * 9000]
    ),
    max_size=40,
).map("".join)


@given(files=st.lists(st.tuples(st.booleans(), texts), min_size=1, max_size=4))
@settings(deadline=None, max_examples=draws(200))
def test_lines_are_those_of_pythons_files(files: list[tuple[bool, str]]) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        paths = [pathlib.Path(folder, str(number)) for number in range(len(files))]
        for path, (has_mark, text) in zip(paths, files, strict=True):
            write(path, text.encode("utf-8-sig" if has_mark else "utf-8"))
        wanted = [line for path in paths for line in lines_of(path)]
        if wanted:
            found = sources.Lines(paths, keep="job")
        else:
            with pytest.warns(UserWarning, match="there is no sample"):
                found = sources.Lines(paths, keep="job")
        assert list(found) == wanted and len(found) == len(wanted)
        if not wanted:
            return
        assert [found[index - len(wanted)] for index in range(len(wanted))] == wanted
        assert list(sources.Lines(paths, decode=None, keep="job")) == [line.encode() for line in wanted]
        assert found.lengths.tolist() == [len(line.encode()) for line in wanted]
        every = found.report()
        assert every["samples"] == len(wanted) and every["bytes"] == found.lengths.sum()
        for index in range(len(wanted)):
            assert number_of(found.where(index)) == number_by_python(paths, index)


def number_of(place: str) -> int:
    return int(place.split(": line ")[1].split(",")[0])


def number_by_python(paths: list[pathlib.Path], index: int) -> int:
    for path in paths:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
        numbers = [number for number, line in enumerate(lines, 1) if line.strip()]
        if index < len(numbers):
            return numbers[index]
        index -= len(numbers)
    raise IndexError(index)


def test_source_is_a_sequence(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "a.txt", "one\n\ntwo\r\nthree")
    found = sources.Lines(path)
    assert (len(found), found[0], found[-1], list(found)) == (3, "one", "three", ["one", "two", "three"])
    assert repr(found) == f"sources.Lines({path!r}, 3 samples)"
    assert found.where(-2) == f"{path}: line 3, 3 bytes from byte 5 on"
    each = {"samples": 3, "bytes": 11, "blank_lines": 1}
    assert found.report() == {**each, "files": [{"path": path, **each}]}
    with pytest.raises(IndexError, match="index 3 is out of range, there are 3 samples"):
        found[3]
    with pytest.raises(TypeError, match="an index should be an int"):
        found["a"]  # type: ignore[index]
    assert list(pickle.loads(pickle.dumps(found))) == list(copy.deepcopy(found)) == list(found)


@pytest.mark.parametrize(
    "data", ["a\r", "one\ntwo\r", "\r\n\ra\r", "x" * 65535 + "\r", "x" * 65536 + "\r", "x" * 300_000 + "\r"]
)
def test_last_carriage_return_without_line_feed_stays(tmp_path: pathlib.Path, data: str) -> None:
    path = write(tmp_path / "a.txt", data)
    found = sources.Lines(path)
    assert list(found) == lines_of(path)
    assert found[-1].endswith("\r") and found.lengths.tolist() == [len(line) for line in lines_of(path)]


def test_pointer_of_git_lfs_is_no_text(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "a.jsonl", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n")
    for kind in (sources.Lines, sources.Jsonl):
        with pytest.raises(ValueError, match=r"a\.jsonl is a pointer of Git LFS.*git lfs pull"):
            kind(path)


def test_transform_and_encodings(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "a.txt", "Größe\nMaß\n".encode("latin-1"))
    assert list(sources.Lines(path, decode="latin-1")) == ["Größe", "Maß"]
    assert list(sources.Lines(path, decode=None, transform=len)) == [5, 3]
    assert list(sources.Lines(write(tmp_path / "b.txt", "a\nb"), transform=str.upper, decode="utf-8-sig")) == ["A", "B"]
    for wrong, text in (("utf-16", "the end of a line is not the byte 10"), ("latin-0", "no encoding that Python")):
        with pytest.raises(ValueError, match=text):
            sources.Lines(path, decode=wrong)
    with pytest.raises(TypeError, match="decode should be"):
        sources.Lines(path, decode=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="transform should be a function"):
        sources.Lines(path, transform="upper")  # type: ignore[arg-type]


def test_undecodable_line_is_named(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "a.txt", b"good\n\nbad \xff\xfe here\ngood too\n")
    found = sources.Lines(path)
    with pytest.raises(UnicodeDecodeError, match=r"invalid start byte \(byte 10 of the file, line 3 of /.*a\.txt\)"):
        found[1]
    assert [found[0], found[2]] == ["good", "good too"]
    with pytest.warns(UserWarning, match=r"line 3 of /.*a\.txt"):
        assert [list(batch) for batch in headrace.Loader(found, 2, on_bad_sample="skip")] == [["good"], ["good too"]]


def test_line_of_50_mb_is_read(tmp_path: pathlib.Path) -> None:
    long = "0123456789" * 5_000_000
    path = write(tmp_path / "a.txt", f"first\n{long}\nlast\n")
    found = sources.Lines(path)
    assert found[0] == "first" and found[2] == "last" and found[1] == long


# ---- files that cannot be read, or that change ----


@pytest.mark.parametrize(
    ("pack", "command"),
    [
        (gzip.compress, "gzip -dk"),
        (bz2.compress, "bzip2 -dk"),
        (lzma.compress, "xz -dk"),
        (lambda text: b"\x28\xb5\x2f\xfd" + text, "zstd -d"),
        (lambda text: text.decode().encode("utf-16"), "iconv -f UTF-16 -t UTF-8"),
    ],
)
def test_other_formats_are_refused_with_a_command(tmp_path: pathlib.Path, pack: Any, command: str) -> None:
    path = write(tmp_path / "a.jsonl", pack(b"one\ntwo\n"))
    for kind in (sources.Lines, sources.Jsonl):
        with pytest.raises(ValueError, match=f"a.jsonl is .*: {command} .*a.jsonl"):
            kind(path)


def test_file_truncated_in_mid_epoch_is_an_error(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "a.txt", "".join(f"{number}\n" for number in range(10_000)))
    batches = iter(headrace.Loader(sources.Lines(path), 50, num_workers=1, prefetch_factor=1))
    assert list(next(batches)) == [str(number) for number in range(50)]
    os.truncate(path, 1000)
    with pytest.raises(OSError, match=r"a\.txt was changed since it was opened: it had 48890 bytes, and now has 1000"):
        list(batches)


def test_file_replaced_in_mid_epoch_stays_the_same(tmp_path: pathlib.Path) -> None:
    """The open file has the old lines. A handle is refused, and a new source reads the new ones."""
    path = write(tmp_path / "a.txt", "one\ntwo\n")
    found = sources.Lines(path)
    handle = pickle.dumps(found)
    write(tmp_path / "b.txt", "three\nfour\n")
    os.replace(tmp_path / "b.txt", path)
    assert found[1] == "two"
    with pytest.raises(OSError, match=r"changed since this source was pickled, such as /.*a\.txt"):
        pickle.loads(handle)
    assert list(sources.Lines(path)) == ["three", "four"]


def test_rewritten_file_of_same_size_and_time_is_noticed(tmp_path: pathlib.Path) -> None:
    """Lines that are as they were are read; each other one is an error."""
    path = write(tmp_path / "a.txt", "one\ntwo\nthree\n")
    before = os.stat(path)
    found = sources.Lines(path)
    write(tmp_path / "a.txt", "one\ntwa\nthree\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert [found[0], found[2]] == ["one", "three"]
    with pytest.raises(OSError, match=r"there is another line at offset 4") as caught:
        found[1]
    assert caught.value.errno == errno.ESTALE


def test_forged_or_old_saved_index_gives_no_other_lines(tmp_path: pathlib.Path) -> None:
    """An index next to a file that is of other lines, with the size and the time of the file."""
    path = write(tmp_path / "a.txt", "one\ntwo\nthree\n")
    other = write(tmp_path / "b.txt", "on\ntwoo\nthree\n")
    before = os.stat(path)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    from headrace.sources import _index

    _index.save_index(_index._core.INDEX_LINES, other)
    os.replace(f"{other}.hri", f"{path}.hri")
    found = sources.Lines(path)
    assert found[2] == "three"
    for index in (0, 1):
        with pytest.raises(OSError, match=r"headrace index --again .*a\.txt"):
            found[index]
    os.unlink(f"{path}.hri")
    (tmp_path / "a.txt.hri").write_bytes(b"HRINDEX\0" + os.urandom(400))
    kept = next(iter(headrace.cache.ls()))
    headrace.cache.rm(kept.name, version=kept.version, force=True)
    with pytest.warns(UserWarning, match="saved indexes"):
        assert list(sources.Lines(path)) == ["one", "two", "three"]


@pytest.mark.parametrize("name", ["EIO", "ESTALE"])
def test_read_error_names_file_and_offset(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    found = sources.Lines(write(tmp_path / "a.txt", "one\ntwo\nthree\n"))
    monkeypatch.setenv("HEADRACE_FAIL", f"source_read:{name}")
    with pytest.raises(OSError, match=r"cannot read 6 bytes at offset 3 of .*a\.txt") as caught:
        found[1]
    assert caught.value.errno == getattr(errno, name)
    monkeypatch.delenv("HEADRACE_FAIL")
    assert found[1] == "two"


@pytest.fixture
def low_limit() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 32, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_2000_files_under_a_low_limit_of_descriptors(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, low_limit: None
) -> None:
    """Relative paths, a chdir, and a pickle."""
    monkeypatch.chdir(tmp_path)
    for number in range(2000):
        write(tmp_path / f"{number:04}.txt", f"{number} a\n{number} b\n")
    found = sources.Lines("{0000..1999}.txt")
    monkeypatch.chdir("/")
    order = np.random.default_rng(0).permutation(4000)
    for one in (found, pickle.loads(pickle.dumps(found))):
        assert [one[index] for index in order] == [f"{index // 2} {'ab'[index % 2]}" for index in order]
    with open(os.devnull), open(os.devnull):  # there is room for others
        pass


def test_missing_and_unreadable_files_are_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.txt"):
        sources.Lines(tmp_path / "none.txt")
    with pytest.raises(IsADirectoryError, match="cannot open"):
        sources.Lines(tmp_path)
    with pytest.raises(FileNotFoundError, match="no file matches"):
        sources.Lines(f"{tmp_path}/*.txt")
    path = write(tmp_path / "a.txt", "one\n")
    with pytest.warns(UserWarning, match=r"a\.txt' comes twice"):
        assert list(sources.Lines([path, path])) == ["one", "one"]

# SPDX-License-Identifier: Apache-2.0
"""Token files that are truncated, replaced, unreadable, or many."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import pathlib
import pickle
import re
import resource
import struct
import tempfile
import zipfile
from collections.abc import Iterator
from typing import Any

import headrace
import numpy as np
import pytest
from headrace import sources
from token_files import write_headless, write_megatron


def test_file_truncated_in_mid_epoch_is_an_error(tmp_path: pathlib.Path) -> None:
    """Batches until then are right; the error comes from a worker and names file and offset."""
    path = write_headless(tmp_path / "a.bin", range(50_000))
    loader = headrace.Loader(sources.Tokens(path, length=10), 50, num_workers=1, prefetch_factor=1)
    batches = iter(loader)
    first = next(batches)
    assert first.tolist() == np.arange(500).reshape(50, 10).tolist()
    os.truncate(path, 30_000)
    with pytest.raises(OSError, match=r"a\.bin was changed since it was opened: it had 100000 bytes.*30000") as caught:
        list(batches)
    assert re.search(r"wanted 20 bytes at offset \d+", str(caught.value))


def test_file_replaced_in_mid_epoch_stays_the_same(tmp_path: pathlib.Path) -> None:
    """Careful programs replace a file by a rename: the open file has the old tokens. A pickle is refused."""
    path = write_headless(tmp_path / "a.bin", range(100))
    found = sources.Tokens(path, length=10)
    handle = pickle.dumps(found)
    write_headless(tmp_path / "b.bin", range(100, 210))
    os.replace(tmp_path / "b.bin", path)
    assert found[3].tolist() == list(range(30, 40))
    with pytest.raises(OSError, match=r"a\.bin was changed since this source was pickled") as caught:
        pickle.loads(handle)
    assert caught.value.errno == errno.ESTALE


@pytest.mark.parametrize("change", ["written", "appended"])
def test_file_written_in_place_is_an_error(tmp_path: pathlib.Path, change: str) -> None:
    path = write_headless(tmp_path / "a.bin", range(100))
    found = sources.Tokens(path, length=10)
    if change == "written":
        os.utime(path, ns=(0, 0))
        write_headless(tmp_path / "a.bin", range(1, 101))
    else:
        with open(path, "ab") as file:
            file.write(b"12")
    text = "was written to since" if change == "written" else "it had 200 bytes, and now has 202"
    with pytest.raises(OSError, match=text):
        found[0]


def test_removed_file_is_read_while_it_is_open(tmp_path: pathlib.Path) -> None:
    path = write_headless(tmp_path / "a.bin", range(100))
    found = sources.Tokens(path, length=10)
    os.unlink(path)
    assert found[9].tolist() == list(range(90, 100))
    with pytest.raises(FileNotFoundError, match=r"cannot open .*a\.bin"):
        sources.Tokens(path, length=10)


@pytest.mark.parametrize("name", ["EIO", "ESTALE"])
def test_read_error_names_file_and_offset(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path = write_headless(tmp_path / "a.bin", range(100))
    found = sources.Tokens(path, length=10, labels=True)
    monkeypatch.setenv("HEADRACE_FAIL", f"source_read:{name}")
    with pytest.raises(
        OSError, match=r"cannot read 22 bytes at offset 60 of .*a\.bin: .*Look at the file system"
    ) as caught:
        found[3]
    assert caught.value.errno == getattr(errno, name)
    monkeypatch.delenv("HEADRACE_FAIL")
    assert found[3][0].tolist() == list(range(30, 40))


def test_bad_offset_in_an_index_is_an_error(tmp_path: pathlib.Path) -> None:
    """Before the source is opened, and after."""
    prefix = write_megatron(tmp_path / "a", [[[1, 2, 3]], [[4, 5]]])
    index = pathlib.Path(f"{prefix}.idx")
    right = index.read_bytes()
    wrong = right[:42] + np.int64(6).tobytes() + right[50:]
    index.write_bytes(wrong)
    with pytest.raises(ValueError, match=r"a\.idx: sequence 0 has 3 tokens .* at byte 6 \(offset 42\).*10 bytes"):
        sources.Tokens(prefix)
    index.write_bytes(right)
    found = sources.Tokens(prefix)
    before = index.stat()
    index.write_bytes(wrong)
    os.utime(index, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ValueError, match=r"a\.idx: sequence 0 has 3 tokens"):
        found[0]
    assert found[1].tolist() == [4, 5]


def test_truncated_data_of_megatron_is_an_error(tmp_path: pathlib.Path) -> None:
    prefix = write_megatron(tmp_path / "a", [[[1, 2, 3]], [[4, 5]]])
    os.truncate(f"{prefix}.bin", 8)
    with pytest.raises(ValueError, match="sequence 1 has 2 tokens"):
        sources.Tokens(prefix)


# ---- files that have no uint16 tokens ----

TEXT = np.random.default_rng(0).zipf(1.3, 40_000) % 50_257  # has the frequencies of a text's tokens
LARGE = np.where(np.arange(40_000) % 100, TEXT, TEXT + 70_000)  # tokens that need 32 bits
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 100000000\n"


def _packed(tokens: Any) -> bytes:
    """Returns a file of lit-gpt's PackedDataset: a name, a version, the code of a dtype, a size."""
    return b"LITPKDS" + struct.pack("<QBQ", 1, 8, len(tokens)) + tokens.astype("<u2").tobytes()


def _chunk(items: list[bytes]) -> bytes:
    ends = np.cumsum([4 * (len(items) + 2), *map(len, items)]).astype("<u4")
    return struct.pack("<I", len(items)) + ends.tobytes() + b"".join(items)


def _zipped(data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data", data)
    return file.getvalue()


FOREIGN = {
    "gzip": (gzip.compress(TEXT.astype("u2").tobytes()), "compressed by gzip"),
    "bzip2": (bz2.compress(TEXT.astype("u2").tobytes()), "compressed by bzip2"),
    "xz": (lzma.compress(TEXT.astype("u2").tobytes()), "compressed by xz"),
    "zstd": (b"\x28\xb5\x2f\xfd" + TEXT.astype("u2").tobytes(), "compressed by zstd"),
    "zip": (_zipped(b"tokens"), "a zip archive"),
    "pickle": (pickle.dumps(TEXT), "a pickle"),
    "safetensors": (struct.pack("<Q", 16) + b'{"a":{"dtype":0}}' + bytes(99), "safetensors"),
    "pointer": (POINTER, "pointer of Git LFS.*git lfs pull"),
    "lit-gpt": (_packed(TEXT), "PackedDataset"),
    "litdata": (_chunk([TEXT.astype("u2").tobytes()] * 3), "chunk of LitData"),
    "uint32": (TEXT.astype("u4").tobytes(), 'tokens of 4 bytes.*dtype="uint32"'),
    "large uint32": (LARGE.astype("u4").tobytes(), "tokens of 4 bytes"),
    "int32 with -1": (np.where(TEXT == 7, -1, TEXT).astype("i4").tobytes(), "tokens of 4 bytes"),
    "int64": (TEXT.astype("i8").tobytes(), "tokens of 8 bytes"),
    "big-endian int32": (TEXT.astype(">i4").tobytes(), "byte order of another machine"),
    "big-endian large int64": (LARGE.astype(">i8").tobytes(), "byte order of another machine"),
    "big-endian uint16": (TEXT.astype(">u2").tobytes(), "byte order of another machine"),
    "uint8": (np.frombuffer(b"a\0bc" * 300, "u1").tobytes(), "tokens of 1 byte"),
    "text": ("Ein Text, größer als nötig.\n".encode() * 9, "text, which has not been made into tokens"),
    "zeros": (bytes(4096), "begins with zeros"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_bin_file_is_an_error_that_says_what_it_is(tmp_path: pathlib.Path, name: str) -> None:
    """With a dtype it is read, except what Git LFS has not fetched."""
    data, text = FOREIGN[name]
    path = tmp_path / "a.bin"
    path.write_bytes(data + data[-1:] * (len(data) % 2))
    with pytest.raises(ValueError, match=r"a\.bin .*" + text):
        sources.Tokens(path, length=6)
    if name == "pointer":
        with pytest.raises(ValueError, match=text):
            sources.Tokens(path, length=6, dtype="uint16")
    else:
        first = np.frombuffer(data[:12], "u2").tolist()
        assert sources.Tokens(path, length=6, dtype="uint16")[0].tolist() == first


@pytest.mark.parametrize("name", ["a_text_document", "b_content_sentence"])
def test_megatron_file_without_index_is_an_error(tmp_path: pathlib.Path, name: str) -> None:
    path = write_headless(tmp_path / f"{name}.bin", TEXT)
    with pytest.raises(ValueError, match=rf"its index .*{name}\.idx is missing"):
        sources.Tokens(path, length=6)
    assert sources.Tokens(path, length=6, dtype="uint16")[0].tolist() == TEXT[:6].tolist()


@pytest.mark.parametrize(
    "tokens",
    [
        TEXT,
        TEXT % 65,
        TEXT % 20,
        TEXT % 2,
        TEXT + 15_000,
        range(40),
        range(7),
        [0] * 9,
        [65_535] * 99,
        np.arange(65_536),
    ],
)
def test_tokens_of_a_text_are_read_without_dtype(tmp_path: pathlib.Path, tokens: Any) -> None:
    path = write_headless(tmp_path / "a.bin", tokens)
    assert sources.Tokens(path, length=len(tokens))[0].tolist() == list(tokens)


@pytest.fixture
def low_limit() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 32, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_many_files_under_a_low_limit_of_descriptors(tmp_path: pathlib.Path, low_limit: None) -> None:
    paths = [write_headless(tmp_path / f"{number:03}.bin", [number, 1, 2, 3]) for number in range(200)]
    found = sources.Tokens(f"{tmp_path}/{{000..199}}.bin", length=4)
    order = np.random.default_rng(0).permutation(np.repeat(np.arange(200), 3))
    assert [int(found[index][0]) for index in order] == order.tolist()
    assert len(os.listdir("/proc/self/fd")) < len(paths)
    with open(os.devnull), open(os.devnull):  # there is room for others
        pass


def test_paths_hold_after_a_chdir(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(80):
        write_headless(tmp_path / f"{number:02}.bin", [number, 1, 2, 3])
    found = sources.Tokens("*.bin", length=4)
    monkeypatch.chdir("/")
    for one in (found, pickle.loads(pickle.dumps(found))):
        assert [int(x[0]) for x in one] == list(range(80))


def test_same_file_twice_is_a_warning(tmp_path: pathlib.Path) -> None:
    path = write_headless(tmp_path / "a.bin", range(4))
    with pytest.warns(UserWarning, match=r"a\.bin' comes twice; their samples are repeated"):
        found = sources.Tokens([path, path], length=4)
    assert len(found) == 2


def test_many_tokens_in_a_sparse_file_are_numbered_right(tmp_path: pathlib.Path) -> None:
    path = write_headless(tmp_path / "a.bin", [])
    count = 2**33
    os.truncate(path, 2 * count)
    with open(path, "r+b") as file:
        file.seek(2 * (count - 4))
        file.write(np.array([5, 6, 7, 8], np.uint16).tobytes())
    found = sources.Tokens(path, length=3, stride=1, labels=True, dtype="uint16")
    assert len(found) == count - 3
    assert [part.tolist() for part in found[-1]] == [[5, 6, 7], [6, 7, 8]]
    assert [part.tolist() for part in found[count // 2]] == [[0, 0, 0], [0, 0, 0]]


@pytest.fixture
def other_user() -> Iterator[None]:
    """Root may read everything."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    yield
    os.seteuid(before)


def test_file_without_permission_is_named(other_user: None) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = write_headless(pathlib.Path(folder, "a.bin"), range(4))
        os.chmod(path, 0)
        with pytest.raises(PermissionError, match=r"cannot open .*a\.bin: Permission denied"):
            sources.Tokens(path, length=4)


def test_folder_and_missing_file_are_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(IsADirectoryError, match="cannot open"):
        sources.Tokens(tmp_path, length=4, dtype="uint16")
    with pytest.raises(FileNotFoundError, match=r"cannot open .*none\.bin"):
        sources.Tokens(tmp_path / "none.bin", length=4)


def test_interrupted_scan_leaves_nothing_open(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ctrl-C is noticed between the pieces of a scan."""
    path = write_headless(tmp_path / "a.bin", range(100))

    def interrupt(self: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sources.Tokens, "_scan", interrupt)
    with pytest.raises(KeyboardInterrupt):
        sources.Tokens(path, separator=3)

# SPDX-License-Identifier: Apache-2.0
"""Tar files that are damaged, compressed, changed or many, and indexes that are old, forged or cannot be kept."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import pathlib
import pickle
import random
import resource
import shutil
import signal
from collections.abc import Iterator
from typing import Any

import headrace
import pytest
import tar_files
from cache_scripts import Scripts
from headrace import _core, sources
from headrace.sources import _index
from loaders import needs_failpoints
from processes import is_stopped, until
from tar_files import END, member, pax, write_bytes, write_samples, write_tar

WRONG = "is not the one that its index was made of"


@pytest.fixture
def scripts(tmp_path: pathlib.Path) -> Iterator[Scripts]:
    found = Scripts(tmp_path)
    yield found
    found.close()


def save_index(path: str) -> pathlib.Path:
    _index.save_index(_core.INDEX_TAR, path)
    return pathlib.Path(path + ".hri")


def without_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_DISABLE", "1")


# ---- damage ----


def test_truncated_files_give_the_good_samples(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_cache(monkeypatch)
    whole = pathlib.Path(write_samples(tmp_path / "a.tar", 4)).read_bytes()
    good = tar_files.by_webdataset(tmp_path / "a.tar")
    starts = [sources.Tar(tmp_path / "a.tar", decode=None)._tar.find(i)[1][0][1] for i in range(4)]
    path = tmp_path / "b.tar"
    for size in [*range(1, 6 * 512, 100), *range(6 * 512, 16 * 512, 512)]:
        path.write_bytes(whole[:size])
        with pytest.warns(UserWarning):  # damage, or no mark of the end
            found = sources.Tar(path, damaged="skip", decode=None)
        assert [*found] == good[: len(found)] or size % 512 == 0  # a cut between two members of a sample cannot be seen
        assert len(found) >= sum(start <= size for start in starts) - 2
    path.write_bytes(whole[: 5 * 512 + 10])
    with pytest.raises(ValueError, match=r"1 of 1 files .*b\.tar, offset 2,048: it ends within a member.*; 1 samples"):
        sources.Tar(path)


def test_wrong_checksum_names_offset_and_good_samples(tmp_path: pathlib.Path) -> None:
    path = write_samples(tmp_path / "a.tar", 4)
    at = sources.Tar(path)._tar.find(2)[1][0][1]
    data = bytearray(pathlib.Path(path).read_bytes())
    data[at + 3] ^= 1
    pathlib.Path(path).write_bytes(data)
    with pytest.raises(
        ValueError, match=rf"offset {at:,}: there is no header .*checksum; 1 samples before it are good"
    ):
        sources.Tar(path)
    with pytest.warns(UserWarning, match="1 files are not read to their end"):
        assert len(sources.Tar(path, damaged="skip")) == 1
    assert "checksum" in sources.Tar(path, damaged="skip").report()["files"][0]["damage"]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_files_are_refused_with_the_command(tmp_path: pathlib.Path, pack: Any) -> None:
    data = pathlib.Path(write_samples(tmp_path / "a.tar", 2)).read_bytes()
    path = write_bytes(tmp_path / "b.tar", pack(data))
    command = {gzip.compress: "gzip", bz2.compress: "bzip2", lzma.compress: "xz"}[pack]
    with pytest.raises(ValueError, match=rf"is compressed, .*unpack it: {command} -d '.*b\.tar'"):
        sources.Tar(path)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "it is empty"),
        (b"no tar" * 200, "it is no tar file"),
        (member(b"s.jpg", b"", kind=b"S") + END, "sparse"),
        (pax({"GNU.sparse.major": "1"}) + member(b"s.jpg", b"") + END, "sparse"),
        (pax({"path": "all.jpg"}, kind=b"g") + member(b"s.jpg", b"") + END, "not supported"),
        (tar_files.header(b"s.jpg", tar_files.base256(1 << 60)) + END, "not supported"),
        (tar_files.header(b"s.jpg", tar_files.base256(1 << 39)) + END, "ends within a member"),
        (tar_files.header(b"s.jpg", b"\xff" * 12) + END, "no tar file"),
        (tar_files.header(b"s.jpg", b"77777777777\0") + END, "ends within a member"),
        (pax({"size": "99999999999999999999"}) + member(b"s.jpg", b"") + END, "no tar file"),
        (tar_files.header(b"l", 1 << 20, kind=b"L") + END, "not supported"),
        (pax({"path": "x.jpg"}) + END, "no tar file"),
        (b"".join(member(b"k.f%d" % i, b"") for i in range(5000)) + END, "more than 4,096 different fields"),
    ],
)
def test_hostile_and_odd_headers_are_named(tmp_path: pathlib.Path, data: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        sources.Tar(write_bytes(tmp_path / "a.tar", data))


def test_large_sparse_file_is_indexed_by_its_headers(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_cache(monkeypatch)
    size = 10 << 30
    path = tmp_path / "a.tar"
    with open(path, "wb") as file:
        file.write(member(b"1.cls", b"1") + tar_files.header(b"2.bin", tar_files.base256(size)))
        file.seek(size, os.SEEK_CUR)
        file.write(member(b"3.cls", b"3") + END)
    found = sources.Tar(path, fields=("cls",), missing="skip")
    assert [*found] == [(1,), (3,)] and found.report()["bytes"] == size + 2


# ---- files that change ----


def test_file_changed_in_mid_epoch_is_an_error(tmp_path: pathlib.Path) -> None:
    path = write_samples(tmp_path / "a.tar", 400)
    loader = headrace.Loader(sources.Tar(path, fields=("bin", "cls")), 10, num_workers=1, prefetch_factor=1)
    batches = iter(loader)
    assert list(tar_files.numbers_of([next(batches)])) == list(range(10))
    os.truncate(path, 100_000)
    with pytest.raises(OSError, match=r"a\.tar was changed since it was opened: it had \d+ bytes, and now has 100000"):
        list(batches)


def test_file_swapped_for_one_of_the_same_size_is_an_error(tmp_path: pathlib.Path) -> None:
    """A rename leaves the open file as it is. In place it is refused, and so is a pickle, with a forged time too."""
    path, other = write_samples(tmp_path / "a.tar", 10), write_samples(tmp_path / "b.tar", 10, 100_000)
    data = pathlib.Path(other).read_bytes()[: os.path.getsize(path)]
    time = os.stat(path).st_mtime_ns
    found = sources.Tar(path)
    assert found[1]["cls"] == 1
    handle = pickle.dumps(found)
    pathlib.Path(other).write_bytes(data)
    os.replace(other, path)
    assert found[2]["cls"] == 2
    with pytest.raises(OSError, match="changed since this source was pickled"):
        pickle.loads(handle)
    os.utime(path, ns=(time, time))
    with pytest.raises(OSError, match="changed since this source was pickled"):
        pickle.loads(handle)
    again = sources.Tar(path)
    assert again[1]["__key__"] == "100001"
    with open(path, "r+b") as file:
        file.write(b"x")
    with pytest.raises(OSError, match="was written to since"):
        again[0]


def test_unlinked_file_is_read_while_it_is_open(tmp_path: pathlib.Path) -> None:
    path = write_samples(tmp_path / "a.tar", 5)
    found = sources.Tar(path)
    assert found[0]["cls"] == 0
    handle = pickle.dumps(found)
    os.unlink(path)
    assert found[4]["cls"] == 4
    with pytest.raises(FileNotFoundError, match=r"cannot open .*a\.tar"):
        pickle.loads(handle)


@needs_failpoints
@pytest.mark.parametrize("name", ["EIO", "ESTALE"])
def test_read_errors_name_file_and_offset(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    found = sources.Tar(write_samples(tmp_path / "a.tar", 5), fields=("cls",))
    monkeypatch.setenv("HEADRACE_FAIL", f"source_read:{name}")
    with pytest.raises(OSError, match=r"cannot read \d+ bytes at offset 1024 of .*a\.tar: "):
        found[0]
    with pytest.raises(OSError, match="cannot read"):
        sources.Tar(write_samples(tmp_path / "b.tar", 5))


def test_file_without_permission_is_an_error(tmp_path: pathlib.Path) -> None:
    path = write_samples(tmp_path / "a.tar", 1)
    os.chmod(path, 0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read all files")
    with pytest.raises(PermissionError, match=r"a\.tar"):
        sources.Tar(path)


# ---- indexes that are wrong ----


def test_saved_index_is_used_and_an_old_one_is_not(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_cache(monkeypatch)
    path = write_samples(tmp_path / "a.tar", 5)
    save_index(path)
    assert [one["cls"] for one in sources.Tar(path)] == [0, 1, 2, 3, 4]
    write_samples(tmp_path / "a.tar", 6)
    with pytest.warns(UserWarning, match=r"1 saved indexes \(\.hri\) are not used.*older than its file"):
        assert len(sources.Tar(path)) == 6


def test_forged_index_never_gives_other_bytes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each word of an index that has the right checksum is changed, so that only the entries can be wrong."""
    without_cache(monkeypatch)
    path = write_samples(tmp_path / "a.tar", 4)
    members = {
        (data, field): key for key, found in enumerate(sources.Tar(path, decode=None)) for field, data in found.items()
    }
    index = _index.make_index(_core.INDEX_TAR, [path], False)
    block: Any = index
    data = bytes(block)
    rng = random.Random(1)
    outcomes = {"error": 0, "right": 0}
    for at in range(120, len(data)):
        forged = bytearray(data)
        forged[at] = rng.randrange(256)
        try:
            files = _core.Index(bytes(forged), _core.INDEX_TAR, False)
            tar = _core.Tar((os.fsencode(path),), files, (), False, True, True)
            for number in range(min(tar.look()[0], 10)):
                found = tar.read(number)
                key = found.pop("__key__")
                assert all(members.get((value, field)) == int(key) for field, value in found.items()), (at, found)
            outcomes["right"] += 1
        except (ValueError, OSError):
            outcomes["error"] += 1
    assert outcomes["error"] > 100 and outcomes["right"] > 10, outcomes


def test_index_of_another_file_gives_an_error(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The saved index is that of a file with the same size and time, but other members."""
    without_cache(monkeypatch)
    path, other = write_samples(tmp_path / "a.tar", 4), write_samples(tmp_path / "b.tar", 4, 50)
    data = pathlib.Path(other).read_bytes().ljust(os.path.getsize(path), b"\0")
    pathlib.Path(other).write_bytes(data[: os.path.getsize(path)])
    for one in (path, other):
        os.utime(one, ns=(5, 5))
    os.replace(save_index(other), path + ".hri")
    found = sources.Tar(path)
    with pytest.raises(OSError, match=WRONG):
        list(found)


@pytest.mark.parametrize("kind", ["Tar", "Lines"])
def test_wrong_saved_index_is_gone_once_deleted(tmp_path: pathlib.Path, kind: str) -> None:
    """Not only from next to its file: the index in the cache was made of it."""
    path, other = str(tmp_path / "a"), str(tmp_path / "b")
    for one, text in ((path, b"one"), (other, b"two")):
        write_bytes(pathlib.Path(one), member(text + b".txt", text), END) if kind == "Tar" else write_bytes(
            pathlib.Path(one), text
        )
        os.utime(one, ns=(5, 5))
    _index.save_index(_core.INDEX_TAR if kind == "Tar" else _core.INDEX_LINES, other)
    os.replace(other + ".hri", path + ".hri")
    with pytest.raises(OSError, match="index"):
        getattr(sources, kind)(path)[0]
    os.unlink(path + ".hri")
    found = getattr(sources, kind)(path)[0]
    assert (found["txt"] if kind == "Tar" else found) == "one"


def test_pickle_stays_right_when_an_index_is_saved(tmp_path: pathlib.Path) -> None:
    """An index of a copy of the file, which has another inode, comes while the source is in use."""
    path = write_samples(tmp_path / "a.tar", 3)
    found = sources.Tar(path)
    copy = str(shutil.copy2(path, tmp_path / "copy.tar"))
    os.replace(save_index(copy), path + ".hri")
    assert [*pickle.loads(pickle.dumps(found))] == [*found]


@pytest.mark.parametrize("size", [0, 1, 119, 200, 5000])
def test_cut_or_random_saved_index_is_not_used(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    without_cache(monkeypatch)
    path = write_samples(tmp_path / "a.tar", 20)
    saved = save_index(path)
    data = saved.read_bytes()
    saved.write_bytes(data[:size] if size < len(data) else random.Random(size).randbytes(size))
    with pytest.warns(UserWarning, match="are not used, and their files are read again"):
        assert len(sources.Tar(path)) == 20


# ---- where the index is kept ----


def test_full_or_read_only_cache_folder_costs_a_warning(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_samples(tmp_path / "a.tar", 5)
    monkeypatch.setattr(_index, "_warned", {"cache": False})

    def fail(*args: Any, **options: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headrace._cache.building.obtain", fail)
    with pytest.warns(UserWarning, match="the index is not kept in headrace.cache .*No space left"):
        found = sources.Tar(path)
    assert [*pickle.loads(pickle.dumps(found))] == [*found] and len(found) == 5


@pytest.mark.filterwarnings("error")
def test_absent_file_is_no_fault_of_the_cache(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"cannot open .*absent\.tar"):
        sources.Tar(tmp_path / "absent.tar")


POINTS = "locked begun folder reserved written summed complete renamed published".split()
CROWDED = ("written", "complete", "renamed")  # eight processes each; three at the others, which costs less

BUILD = """
from headrace import sources
note("{name}")
found = sources.Tar("{folder}/*.tar", fields=("bin", "cls"))
assert [x[1] for x in found] == list(range(120)), len(found)
"""


@needs_failpoints
def test_eight_builders_that_are_killed_at_each_point(tmp_path: pathlib.Path, scripts: Scripts) -> None:
    """The builder stops at a point of the cache, and is killed when the others need the index, too. They have it."""
    for number in range(3):
        write_samples(tmp_path / f"{number}.tar", 40, 40 * number)
    for point in POINTS:
        (tmp_path / "cache" / point).mkdir(parents=True)
        root = {"HEADRACE_CACHE": str(tmp_path / "cache" / point)}
        stop = f"cache.{point}:{signal.SIGSTOP.value}"
        builder = scripts.start(BUILD.format(folder=tmp_path, name=point), HEADRACE_STOP=stop, **root)
        assert until(lambda pid=builder.pid: is_stopped(pid), 100), point
        names = [f"{point}-{number}" for number in range(7 if point in CROWDED else 2)]
        others = [scripts.start(BUILD.format(folder=tmp_path, name=name), **root) for name in names]
        for name in names:
            scripts.await_(name)
        builder.kill()
        assert builder.wait(100) == -signal.SIGKILL
        for other in others:
            scripts.end(other)


# ---- many files ----


def test_two_thousand_files_under_a_low_limit(tmp_path: pathlib.Path) -> None:
    """With 32 descriptors, workers of spawn, and another working directory."""
    (tmp_path / "files").mkdir()
    for number in range(2000):
        write_bytes(tmp_path / "files" / f"{number:04d}.tar", member(b"k.cls", b"%d" % number), END)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    here = os.getcwd()
    os.chdir(tmp_path)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_lowest(32), before[1]))
        found = sources.Tar("files/*.tar", fields=("cls",))
        os.chdir("/")
        order = random.Random(0).sample(range(2000), 2000)
        assert [found[i][0] for i in order] == order
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        os.chdir(here)
    loader = headrace.Loader(
        found, 50, shuffle=True, num_workers=2, multiprocessing_context="spawn", worker_init_fn=_limit
    )
    assert sorted(int(one) for batch in loader for one in batch[0]) == list(range(2000))


def _lowest(wanted: int) -> int:
    """The limit that leaves as many descriptors as `wanted` in a process that has none but the first three."""
    return wanted + max(int(name) for name in os.listdir("/proc/self/fd"))


def _limit(worker: int) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_lowest(32), limits[1]))
    os.chdir("/")


def test_file_that_comes_twice_is_a_warning(tmp_path: pathlib.Path) -> None:
    path = write_samples(tmp_path / "a.tar", 2)
    with pytest.warns(UserWarning, match="comes twice"):
        assert len(sources.Tar([path, path])) == 4


def test_ctrl_c_ends_the_indexing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_cache(monkeypatch)
    path = write_tar(tmp_path / "a.tar", [("1.cls", b"1")])

    class Slow:
        def __init__(self, *args: Any) -> None:
            self.waits = 0

        def wait(self, seconds: float) -> bool:
            raise KeyboardInterrupt

    monkeypatch.setattr(_core, "Indexing", Slow)
    with pytest.raises(KeyboardInterrupt):
        sources.Tar(path)

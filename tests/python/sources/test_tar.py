# SPDX-License-Identifier: Apache-2.0
"""sources.Tar: the same samples as webdataset for tar files of all kinds, and the options."""

from __future__ import annotations

import io
import json
import os
import pathlib
import pickle
import random
import shutil
import subprocess
import tarfile
from typing import Any

import numpy as np
import pytest
import tar_files
from headrace import sources
from tar_files import END, member, padded, pax, special, write_bytes, write_samples, write_tar

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def assert_same(*paths: str, **options: Any) -> sources.Tar:
    """Compares all samples with webdataset's."""
    found = sources.Tar(list(paths), decode=None, **options)
    assert [*found] == tar_files.by_webdataset(*paths)
    return found


# ---- the same samples as webdataset ----


@pytest.mark.parametrize("format", FORMATS)
def test_formats_of_tarfile_are_equal_to_webdataset(tmp_path: pathlib.Path, format: str) -> None:
    """Drawn names, sizes and members that are skipped."""
    rng = random.Random(format)
    files = []
    for number in range(3):
        members: list[Any] = [special("folder", tarfile.DIRTYPE), ("__meta__/info.json", b"{}"), ("__end__", b"")]
        for key in range(40):
            deep = "/".join("d" * rng.randint(1, 30) for _ in range(rng.randint(0, 4)))
            stem = f"{deep}/{key:05d}" if deep else f"{key:05d}"
            for field in rng.sample(["jpg", "cls", "SEG.png", "json", "txt.gz", "Ünï"], rng.randint(1, 5)):
                members.append((f"{stem}.{field}", rng.randbytes(rng.choice([0, 1, 511, 512, 513, 3000]))))
            if rng.random() < 0.2:
                members += [("no_field", b"x"), special(f"d{key}", tarfile.DIRTYPE), ("a.dir/none", b"1")]
        files.append(write_tar(tmp_path / f"{number}.tar", members, FORMATS[format]))
    found = assert_same(*files)
    assert len(found) == 120 and found.report()["skipped"]["folders"] >= 3
    assert found.report()["skipped"]["metadata"] == 6 and found.report()["repeated_keys"] == 0


@pytest.mark.parametrize("format", ["gnu", "pax"])
def test_long_and_odd_names_are_equal_to_webdataset(tmp_path: pathlib.Path, format: str) -> None:
    names = [
        "n" * 250 + ".jpg",
        "n" * 250 + ".cls",
        "p/" * 60 + "q.a.b.c",
        "é" * 60 + ".jpg",
        b"raw\xff\xfe.jpg".decode(errors="surrogateescape"),
        "./dot/slash.jpg",
        "dir.with.dots/x.jpg",
        "hidden/.name.jpg",
        "dir.dots/.hidden",
        ".top.jpg",
        "a//.b",
        "end.",
        "x..y",
        "/absolute.jpg",
        "__meta.jpg",
        "__a__/b.jpg",
        "UPPER.JPG",
    ]
    path = write_tar(
        tmp_path / "a.tar", [(name, name.encode(errors="surrogateescape")) for name in names], FORMATS[format]
    )
    found = assert_same(path)
    assert found.key(0) == "n" * 250 and len(found) == 13


def test_headers_by_hand_are_equal_to_webdataset(tmp_path: pathlib.Path) -> None:
    old = b"\0" * 8
    data = [
        member(b"old.jpg", b"old", kind=b"\0", magic=old),
        member(b"folder/", b"", kind=b"\0", magic=old),
        member(b"contiguous.jpg", b"7", kind=b"7"),
        member(b"b.jpg", b"prefixed", prefix=b"pre/fix"),
        tar_files.header(b"large.jpg", tar_files.base256(600)) + padded(b"z" * 600),
        tar_files.header(b"spaces.jpg", b"          3 ") + padded(b"abc"),
        pax({"comment": "all of them"}, kind=b"g") + member(b"global.jpg", b"1"),
        pax({"mtime": "1.5", "path": "renamed/by/pax.jpg"}) + member(b"short", b"22"),
        pax({"size": "700"}) + tar_files.header(b"resized.jpg", 0) + padded(b"s" * 700),
        tar_files.gnu_long_name(b"g" * 300 + b".jpg") + member(b"g" * 99, b"gnu", magic=b"ustar  \0"),
        pax({"path": "both.jpg"}) + tar_files.gnu_long_name(b"k" * 300) + member(b"x", b"both"),
        member(b"link.jpg", b"", kind=b"2"),
        member(b"unknown.jpg", b"skipped data", kind=b"V"),
        member(b"last.jpg", b"end"),
    ]
    path = write_bytes(tmp_path / "hand.tar", *data, END)
    with pytest.warns(UserWarning, match="1 links are skipped"):
        found = assert_same(path)
    assert [found.key(i) for i in (2, 6, 8)] == ["pre/fix/b", "renamed/by/pax", "g" * 300]
    assert found.report()["skipped"] == {"folders": 1, "links": 1, "others": 1, "without_field": 0, "metadata": 0}


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs the program tar")
@pytest.mark.parametrize("format", ["v7", "oldgnu", "gnu", "ustar", "posix"])
def test_files_of_the_program_tar_are_equal_to_webdataset(tmp_path: pathlib.Path, format: str) -> None:
    folder = tmp_path / "data" / ("d" * (20 if format == "v7" else 90))
    folder.mkdir(parents=True)
    for number in range(20):
        (folder / f"{number:03d}.bin").write_bytes(b"x" * number * 100)
        (folder / f"{number:03d}.txt").write_text(f"text {number}")
    path = tmp_path / "a.tar"
    command = ["tar", f"--format={format}", "--sort=name", "-cf", str(path), "-C", str(tmp_path), "data"]
    subprocess.run(command, check=True, capture_output=True)
    assert len(assert_same(str(path))) == 20


def test_joined_files_end_where_webdatasets_end(tmp_path: pathlib.Path) -> None:
    one = pathlib.Path(write_samples(tmp_path / "1.tar", 3)).read_bytes()
    two = pathlib.Path(write_samples(tmp_path / "2.tar", 4, 3)).read_bytes()
    path = write_bytes(tmp_path / "joined.tar", one, two)
    with pytest.warns(UserWarning, match="bytes behind the end of an archive are not read"):
        assert len(assert_same(path)) == 3


def test_members_beyond_four_gigabytes(tmp_path: pathlib.Path) -> None:
    """The file is sparse: it takes no room on the disk."""
    size = 9 << 30
    path = tmp_path / "a.tar"
    write_bytes(path, tar_files.header(b"0.bin", tar_files.base256(size)))
    with path.open("r+b") as file:
        file.seek(512 + size)
        file.write(member(b"0.cls", b"3") + member(b"1.cls", b"4") + END)
    found = sources.Tar(path, fields="cls")
    assert [*found] == [(3,), (4,)]
    assert found.report()["bytes"] == size + 2
    assert f"cls (1 bytes) at {size + 512:,}" in found.where(0)


INTERLEAVED = [("0.a", b"1"), ("1.a", b"2"), ("0.b", b"3"), ("1.b", b"4")]


def test_key_that_comes_again_is_an_error(tmp_path: pathlib.Path) -> None:
    """webdataset gives each part as a sample."""
    path = write_tar(tmp_path / "a.tar", INTERLEAVED)
    for damaged in ("error", "skip"):
        with pytest.raises(
            ValueError, match=r"a\.tar has the key '0' at offset 0 and again at offset 2048.*2 such samples"
        ):
            sources.Tar(path, damaged=damaged)
    good = write_tar(tmp_path / "b.tar", [("0.a", b"1"), ("0.b", b"2"), ("1.a", b"3"), ("1.b", b"4")])
    with pytest.raises(ValueError, match=r"a\.tar has the key '0'"):
        sources.Tar([good, path, good])
    assert sources.Tar([good, good])[0]["__key__"] == "0"


def test_fields_are_asked_of_each_part_of_a_sample(tmp_path: pathlib.Path) -> None:
    path = write_tar(tmp_path / "a.tar", INTERLEAVED)
    with pytest.raises(ValueError, match=r"(?s)4 of 4 samples lack a field.*side by side.*'0' has 'a', and lacks 'b'"):
        sources.Tar(path, fields=("a", "b"))
    found = sources.Tar(path, fields="a;b", decode=None)
    assert [*found] == [(b"1",), (b"2",), (b"3",), (b"4",)] and found.report()["repeated_keys"] == 2


def test_key_of_a_truncated_sample_does_not_count(tmp_path: pathlib.Path) -> None:
    """The part that comes again is at the damage, and is left out with it."""
    path = write_tar(tmp_path / "a.tar", [*INTERLEAVED[:2], ("0.b", b"x" * 5000)])
    os.truncate(path, 3072)
    with pytest.warns(UserWarning, match="not read to their end"):
        found = sources.Tar(path, damaged="skip", decode=None)
    assert len(found) == 2 and found.report()["repeated_keys"] == 0


@pytest.mark.parametrize(
    ("members", "words"),
    [([], "no members"), ([("readme", b"1"), ("d/x", b"2")], "2 without a field"), ([special("a", b"5")], "1 folders")],
)
def test_file_without_samples_is_a_warning(tmp_path: pathlib.Path, members: list[Any], words: str) -> None:
    path = write_tar(tmp_path / "a.tar", members)
    with pytest.warns(UserWarning, match=rf"1 of 1 files have no sample, such as .*a\.tar, which has {words}"):
        assert len(sources.Tar(path)) == 0


def test_same_key_in_two_files_is_two_samples(tmp_path: pathlib.Path) -> None:
    paths = [write_tar(tmp_path / f"{field}.tar", [(f"1.{field}", b"x")]) for field in "ab"]
    assert len(assert_same(*paths)) == 2


def test_empty_archive_and_many_empty_members(tmp_path: pathlib.Path) -> None:
    empty = write_bytes(tmp_path / "empty.tar", b"\0" * 10240)
    many = write_bytes(tmp_path / "many.tar", *(member(b"%05d.txt" % i, b"") for i in range(20_000)), END)
    assert len(assert_same(empty)) == 0
    found = sources.Tar([empty, many, empty])
    assert len(found) == 20_000 and found[-1] == {"__key__": "19999", "txt": ""}
    with pytest.raises(IndexError, match="index 20000 is out of range"):
        found[20_000]


# ---- decoding ----


def test_auto_decodes_by_the_last_part_of_the_field(tmp_path: pathlib.Path) -> None:
    array = io.BytesIO()
    np.save(array, np.arange(3))
    members = [
        ("k.cls", b" 7\n"),
        ("k.txt", "é".encode()),
        ("k.meta.json", json.dumps({"a": [1]}).encode()),
        ("k.x.npy", array.getvalue()),
        ("k.pkl", pickle.dumps(1)),
        ("k.bin", b"\0\1"),
    ]
    found = sources.Tar(write_tar(tmp_path / "a.tar", members))[0]
    assert found["cls"] == 7 and found["txt"] == "é" and found["meta.json"] == {"a": [1]}
    assert found["x.npy"].tolist() == [0, 1, 2] and found["pkl"] == pickle.dumps(1) and found["bin"] == b"\0\1"


def test_npy_with_pickles_is_refused(tmp_path: pathlib.Path) -> None:
    array = io.BytesIO()
    np.save(array, np.array([{}], dtype=object))
    found = sources.Tar(write_tar(tmp_path / "a.tar", [("k.npy", array.getvalue())]))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        found[0]


def test_own_decoders_and_transforms(tmp_path: pathlib.Path) -> None:
    path = write_samples(tmp_path / "a.tar", 3)
    own = sources.Tar(path, fields=("cls", "bin"), decode={"BIN": len, "cls": lambda data: data})
    assert own[1] == (b"1", 200)
    each = sources.Tar(path, fields=("bin", "cls"), transform={"cls": lambda number: number + 10})
    assert each[2] == (b"2 " * 100, 12)
    whole = sources.Tar(path, transform=lambda found: found["cls"])
    assert [*whole] == [0, 1, 2]


def test_error_of_a_decoder_names_file_and_offset(tmp_path: pathlib.Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("1.cls", b"1"), ("2.cls", b"two")])
    found = sources.Tar(path)
    with pytest.raises(ValueError, match="two") as caught:
        found[1]
    assert f"{path}: cls (3 bytes) at 1,024" in "".join(
        getattr(caught.value, "__notes__", [f"{path}: cls (3 bytes) at 1,024"])
    )


# ---- fields ----


def test_fields_are_a_tuple_in_their_order(tmp_path: pathlib.Path) -> None:
    members = [("1.jpg", b"j"), ("1.cls", b"1"), ("1.x", b"?"), ("2.cls", b"2"), ("2.png", b"p"), ("3.png", b"P"),
               ("3.jpg", b"J"), ("3.cls", b"3")]  # fmt: skip
    path = write_tar(tmp_path / "a.tar", members)
    found = sources.Tar(path, fields=("cls", "__key__", "PNG;jpg"), decode={"png": lambda d: d, "jpg": lambda d: d * 2})
    assert [*found] == [(1, "1", b"jj"), (2, "2", b"p"), (3, "3", b"P")]
    assert [*sources.Tar(path, fields="cls")] == [(1,), (2,), (3,)]


def test_samples_that_lack_a_field_are_counted_or_left_out(tmp_path: pathlib.Path) -> None:
    members = [(f"{i}.{field}", b"1") for i in range(10) for field in (("cls", "jpg") if i % 3 else ("cls",))]
    path = write_tar(tmp_path / "a.tar", members)
    with pytest.raises(
        ValueError, match=r"(?s)4 of 10 samples lack a field.*offset 0: key '0' has .*lacks 'jpg'.*key '3'.*key '6'"
    ):
        sources.Tar(path, fields=("jpg", "cls"))
    with pytest.warns(UserWarning, match=r"4 samples that lack a field and 0 .* are left out of 10"):
        found = sources.Tar(path, fields=("cls", "jpg"), missing="skip", decode=None)
    assert len(found) == 6 and found.key(0) == "1" and found.key(-1) == "8" and found.report()["missing"] == 4


def test_field_twice_in_a_sample_is_an_error(tmp_path: pathlib.Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("1.a", b"1"), ("1.A", b"2"), ("2.a", b"3")])
    with pytest.raises(ValueError, match="duplicate file name"):
        tar_files.by_webdataset(path)
    with pytest.raises(ValueError, match=r"(?s)1 of 2 samples have a field twice.*key '1'"):
        sources.Tar(path)
    with pytest.warns(UserWarning, match="1 that have one twice are left out of 2"):
        found = sources.Tar(path, damaged="skip")
    assert [*found] == [{"__key__": "2", "a": b"3"}] and found.report()["repeated"] == 1


@pytest.mark.parametrize("names", [("1.__key__", "1.bin"), ("1.\u00c9", "1.\u00e9")])
def test_fields_of_the_same_name_are_never_lost(tmp_path: pathlib.Path, names: tuple[str, str]) -> None:
    """webdataset refuses them, too: a field that is named as the key, and names whose lower case is the same."""
    path = write_tar(tmp_path / "a.tar", [(name, b"%d" % i) for i, name in enumerate(names)])
    with pytest.raises(ValueError, match="duplicate"):
        tar_files.by_webdataset(path)
    with pytest.raises(ValueError, match="has a field twice"):
        sources.Tar(path, decode=None)[0]


def test_functions_for_one_of_several_fields(tmp_path: pathlib.Path) -> None:
    """ "jpg;png" means the same in `fields`, `decode` and `transform`, also without `fields`."""
    path = write_tar(tmp_path / "a.tar", [("1.jpg", b"1"), ("2.png", b"2")])
    found = sources.Tar(path, fields="jpg;png", decode={"jpg;PNG": int}, transform={"jpg;png": str})
    assert [*found] == [("1",), ("2",)]
    found = sources.Tar(path, decode={"jpg;png": int}, transform={"jpg;PNG": str})
    assert [*found] == [{"__key__": "1", "jpg": "1"}, {"__key__": "2", "png": "2"}]


def test_transform_of_a_field_that_no_sample_has_is_a_warning(tmp_path: pathlib.Path) -> None:
    path = write_samples(tmp_path / "a.tar", 2)
    with pytest.warns(UserWarning, match=r"transform has functions for \['bni', 'x'\], which no sample has"):
        sources.Tar(path, transform={"bni;x": len, "cls": str})


def test_wrong_options_are_refused(tmp_path: pathlib.Path) -> None:
    path = write_samples(tmp_path / "a.tar", 1)
    for options in (
        {"fields": ()},
        {"fields": ("cls", "CLS")},
        {"fields": ("jpg;",)},
        {"fields": ("__key__",)},
        {"missing": "ignore"},
        {"damaged": None},
        {"decode": "pil"},
        {"fields": ("cls",), "transform": {"jpg": int}},
    ):
        with pytest.raises(ValueError, match="Tar: "):
            sources.Tar(path, **options)
    with pytest.raises(TypeError, match="transform should be a function"):
        sources.Tar(path, transform=3)
    with pytest.raises(FileNotFoundError, match="no file matches"):
        sources.Tar(tmp_path / "none-*.tar")


def test_repr_where_and_report_describe_the_files(tmp_path: pathlib.Path) -> None:
    paths = [write_samples(tmp_path / f"{i}.tar", 5, 5 * i) for i in range(2)]
    found = sources.Tar(f"{tmp_path}/*.tar", fields=("bin", "cls"))
    assert repr(found) == f"sources.Tar(2 files from {paths[0]!r} on, fields=('bin', 'cls'), 10 samples)"
    assert found.where(5) == f"{paths[1]}: bin (200 bytes) at 0, cls (1 bytes) at 1,024"
    report = found.report()
    assert report["members"] == 20 and report["fields"] == ["bin", "cls"] and report["files"][1]["samples"] == 5
    assert found.lengths is None


def test_pickle_is_a_handle(tmp_path: pathlib.Path) -> None:
    path = write_bytes(tmp_path / "a.tar", *(member(b"%06d.cls" % i, b"%d" % i) for i in range(70_000)), END)
    found = sources.Tar(path, fields=("cls",))
    handle = pickle.dumps(found)
    assert len(handle) < 4000 and [*pickle.loads(handle)] == [*found]

# SPDX-License-Identifier: Apache-2.0
"""Tests of tools/wheels: what `make wheels` does besides compiling. What it builds is tested in tests/wheels."""

import ast
import configparser
import dataclasses
import json
import zipfile
from pathlib import Path

import pytest
from wheels import build, debian, headers, libraries, pack, sbom
from wheels.headers import Headers
from wheels.libraries import LIBRARIES, Library
from wheels.target import Target

FILES = {
    "p/__init__.py": b"",
    "p/_core.so": b"\x7fELF",
    "p-1.data/scripts/p": b"#!",
    "p-1.dist-info/WHEEL": b"Tag: x\n",
}
METADATA = (
    "Name: p\nLicense-Expression: Apache-2.0\nLicense-File: LICENSE\nKeywords: a\n\nText: License-File: LICENSE\n"
)

each_library = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target("x86_64", tmp_path)


def write_mark(prefix: Path, text: str) -> list[list[str]]:
    """Commands that install a library whose only file is a text; they fail if that is there already."""
    return [["mkdir", "-p", str(prefix)], ["sh", "-c", f"set -C; printf {text} >'{prefix}/mark'"]]


def write_commands(folder: Path, *options: str) -> None:
    commands = [
        {"file": "../python/headrace/_core/module.c", "command": f"cc {option} -c module.c"} for option in options
    ]
    (folder / "compile_commands.json").write_text(json.dumps(commands))


def test_same_files_give_the_same_wheel(tmp_path: Path) -> None:
    wheels = [tmp_path / "first.whl", tmp_path / "second.whl"]
    pack.pack(wheels[0], FILES, 1_700_000_000)
    pack.pack(wheels[1], dict(reversed(FILES.items())), 1_700_000_000)
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
    assert zipfile.ZipFile(wheels[0]).namelist()[-1] == "p-1.dist-info/RECORD"


def test_time_before_zip_files_is_their_first(tmp_path: Path) -> None:
    pack.pack(tmp_path / "old.whl", FILES, 0)
    assert {entry.date_time for entry in zipfile.ZipFile(tmp_path / "old.whl").infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_programs_and_libraries_are_executable(tmp_path: Path) -> None:
    pack.pack(tmp_path / "p.whl", FILES, 0)
    modes = {
        entry.filename: entry.external_attr >> 16 & 0o777 for entry in zipfile.ZipFile(tmp_path / "p.whl").infolist()
    }
    assert {name for name in modes if modes[name] == 0o755} == {"p/_core.so", "p-1.data/scripts/p"}


def test_licences_are_added_to_the_header_only() -> None:
    header, _, text = pack.add_licences(METADATA, ["licenses/other/COPYING"]).partition("\n\n")
    assert header.split("\n")[1:4] == [
        f"License-Expression: {sbom.WHEEL_LICENCE}",
        "License-File: LICENSE",
        "License-File: other/COPYING",
    ]
    assert text == "Text: License-File: LICENSE\n"


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    with pytest.raises(ValueError, match="no place in a wheel"):
        pack.collect(tmp_path, "p-1.dist-info", "p-1.data")


@pytest.mark.parametrize("option", ["-I", "-isystem"])
def test_headers_of_the_same_python_pass(tmp_path: Path, option: str) -> None:
    write_commands(tmp_path, f"{option}/include/python3.12")
    build.check_headers(tmp_path, Headers("3.12", (Path("/include/python3.12"),)))


@pytest.mark.parametrize("options", [["-I/include/python3.11"], ["-I/include/python3.12", "-I/include/python3.1"], []])
def test_headers_of_another_python_are_refused(tmp_path: Path, options: list[str]) -> None:
    write_commands(tmp_path, *options)
    with pytest.raises(SystemExit, match=r"does not use the headers in /include/python3\.12"):
        build.check_headers(tmp_path, Headers("3.12", (Path("/include/python3.12"),)))


def test_build_of_other_sources_is_removed(tmp_path: Path) -> None:
    source, folder = tmp_path / "source", tmp_path / "build"
    source.mkdir()
    (source / "a.c").write_text("int a;")
    for text, kept in (("int a;", False), ("int a;", True), ("int b;", False)):
        (source / "a.c").write_text(text)
        build.forget_other_sources(source, folder)
        assert (folder / "a.o").exists() == kept
        (folder / "a.o").touch()


def test_stand_in_answers_as_the_interpreter(target: Target) -> None:
    (target.folder / "bin").mkdir()
    headers.stand_in(Headers("3.15", (Path("/include/python3.15"), Path("/include"))), target)
    answer = json.loads((target.folder / "python.json").read_text())
    assert (answer["version"], answer["suffix"]) == ("3.15", ".cpython-315-x86_64-linux-gnu.so")
    assert answer["paths"] == {"include": "/include/python3.15", "platinclude": "/include"}
    assert not answer["link_libpython"]


@each_library
def test_source_with_another_digest_is_refused(tmp_path: Path, library: Library) -> None:
    here = debian.Debian(tmp_path)
    here.files.mkdir()
    (here.files / library.archive).write_bytes(b"another file")
    with pytest.raises(SystemExit, match="remove it, so that it is loaded again"):
        libraries.get_source(library, here, tmp_path / "source")


@each_library
def test_missing_source_says_where_to_put_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Library) -> None:
    monkeypatch.setattr(debian, "find_mirror", lambda: "")
    with pytest.raises(SystemExit, match=f"put a copy with sha256 {library.sha256} at "):
        libraries.get_source(library, debian.Debian(tmp_path), tmp_path / "source")


def test_library_is_built_again_if_its_commands_change(target: Target) -> None:
    for text in ("a", "a", "b"):
        library = dataclasses.replace(
            LIBRARIES[0], list_commands=lambda _, __, prefix, text=text: write_mark(prefix, text)
        )
        libraries.build(library, target, target.folder)
        assert (target.prefix(library.name) / "mark").read_text() == text


def test_meson_finds_each_library(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wheels.target.find_zig", lambda: Path("/zig"))
    target.prepare(["first", "second"])
    cross = configparser.ConfigParser()
    cross.read(target.cross_file)
    folders = ast.literal_eval(cross["properties"]["pkg_config_libdir"])
    assert folders == [str(target.prefix(name) / "lib/pkgconfig") for name in ("first", "second")]


def test_licences_of_a_wheel_are_named_once() -> None:
    assert sbom.WHEEL_LICENCE == "Apache-2.0 AND IJG AND BSD-3-Clause AND Zlib"


@each_library
def test_list_names_each_library(library: Library) -> None:
    found = sbom.describe_library(library)
    assert (found["name"], found["version"]) == (library.name, library.version)
    reference = found["externalReferences"][0]
    assert (reference["url"], reference["hashes"][0]["content"]) == (library.archive, library.sha256)

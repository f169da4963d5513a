# SPDX-License-Identifier: Apache-2.0
"""Reads each wheel that `make wheels` built. The checks are those of auditwheel's policy, and more."""

from __future__ import annotations

import base64
import csv
import email
import hashlib
import io
import json
import zipfile
from pathlib import Path

import pytest
import wheel_files
from wheel_files import ROOT, Wheel

WHEELS = wheel_files.list_wheels()
pytestmark = pytest.mark.skipif(not WHEELS, reason=wheel_files.WHY_MISSING)
MOST_BYTES = 1_500_000  # the goal is 1.3 MB: docs/wheels.md
GLIBC = (2, 17)
LIBC = {"libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1", "libutil.so.1"}
LIBC |= {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
LICENCES = ["LICENSE", "libjpeg-turbo/LICENSE.md", "libjpeg-turbo/README.ijg", "zlib/LICENSE"]
LIBRARIES = {"libjpeg-turbo": ("3.1.3", "IJG AND BSD-3-Clause AND Zlib"), "zlib": ("1.3.1", "Zlib")}

FROM_C_LIBRARY = {"headrace/_ranks/what_ended.py": ROOT / "src/launch/what_ended.py"}


@pytest.fixture(params=WHEELS, ids=lambda wheel: f"{wheel.python}-{wheel.machine}")
def wheel(request: pytest.FixtureRequest) -> Wheel:
    found: Wheel = request.param
    return found


@pytest.fixture
def binaries(wheel: Wheel, tmp_path: Path) -> list[Path]:
    with zipfile.ZipFile(wheel.path) as archive:
        return [Path(archive.extract(name, tmp_path)) for name in (wheel.extension, wheel.program)]


def test_wheel_is_small(wheel: Wheel) -> None:
    assert wheel.path.stat().st_size <= MOST_BYTES


def test_tag_is_that_of_the_file_name(wheel: Wheel) -> None:
    said = email.message_from_bytes(wheel.read()[f"{wheel.info}/WHEEL"])
    python = f"cp{wheel.python.replace('.', '')}"
    assert said.get_all("Tag") == [f"{python}-{python}-manylinux_2_17_{wheel.machine}"]
    assert said["Root-Is-Purelib"] == "false"


def test_binaries_are_for_the_machine(wheel: Wheel, binaries: list[Path]) -> None:
    assert [wheel_files.find_machine(file) for file in binaries] == [wheel.machine] * 2


def test_only_libraries_of_libc_are_needed(binaries: list[Path]) -> None:
    for file in binaries:
        assert wheel_files.list_needed(file) <= LIBC


def test_symbols_are_those_of_old_glibc(binaries: list[Path]) -> None:
    for file in binaries:
        versions = wheel_files.list_glibc_versions(file)
        assert versions and max(versions) <= GLIBC


def test_one_symbol_is_exported(binaries: list[Path]) -> None:
    extension, program = binaries
    assert wheel_files.list_exported(extension) == ["PyInit__core"]
    assert wheel_files.list_exported(program) == []


def test_no_search_path_is_left(binaries: list[Path]) -> None:
    for file in binaries:
        assert wheel_files.list_search_paths(file) == []


def test_no_debug_section_is_left(binaries: list[Path]) -> None:
    for file in binaries:
        sections = wheel_files.list_sections(file)
        assert ".text" in sections
        assert [name for name in sections if name.startswith((".debug", ".zdebug", ".symtab"))] == []


def test_no_path_of_the_builder_is_left(wheel: Wheel) -> None:
    paths = [str(ROOT), str(Path.home()), "zig-cache", "wheel-tools", "site-packages/ziglang"]
    content = wheel.read()
    for name in (wheel.extension, wheel.program, f"{wheel.info}/sboms/headrace.cdx.json", f"{wheel.info}/RECORD"):
        assert [path for path in paths if path.encode() in content[name]] == []


def test_files_are_those_of_the_package(wheel: Wheel) -> None:
    content = wheel.read()
    package = ROOT / "python"
    paths = [package / "headrace/py.typed"]
    paths += [path for path in package.rglob("*.py*") if path.suffix in (".py", ".pyi")]
    paths += (package / "headrace/_help").glob("*.md")
    sources = {path.relative_to(package).as_posix(): path for path in paths} | FROM_C_LIBRARY
    assert {name for name in content if name.startswith("headrace/")} == {*sources, wheel.extension}
    for name, path in sources.items():
        assert content[name] == path.read_bytes(), f"make wheels again: {name} has changed since"
    assert {name for name in content if ".data/" in name} == {wheel.program}


def test_licences_are_inside(wheel: Wheel) -> None:
    content = wheel.read()
    metadata = email.message_from_bytes(content[f"{wheel.info}/METADATA"])
    assert metadata.get_all("License-File") == LICENCES
    assert metadata["License-Expression"] == "Apache-2.0 AND IJG AND BSD-3-Clause AND Zlib"
    texts = [content[f"{wheel.info}/licenses/{name}"] for name in LICENCES]
    assert texts[0] == (ROOT / "LICENSE").read_bytes()
    assert b"Modified (3-clause) BSD License" in texts[1]
    assert b"Independent JPEG Group" in texts[2]
    assert b"Jean-loup Gailly and Mark Adler" in texts[3]


def test_metadata_is_that_of_the_sdist(wheel: Wheel) -> None:
    metadata = email.message_from_bytes(wheel.read()[f"{wheel.info}/METADATA"])
    assert (metadata["Name"], metadata["Version"]) == ("headrace", wheel.version)
    assert metadata["Requires-Python"] == ">=3.10"
    assert sorted(metadata.get_all("Provides-Extra") or []) == ["numpy", "torch"]
    assert metadata.get_payload() == "\n".join((ROOT / "README.md").read_text().splitlines()) + "\n"


def test_bill_names_what_is_linked(wheel: Wheel) -> None:
    bill = json.loads(wheel.read()[f"{wheel.info}/sboms/headrace.cdx.json"])
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["version"] == wheel.version
    inside = {part["name"]: part for part in bill["components"]}
    for name, known in LIBRARIES.items():
        library = inside[name]
        assert (library["version"], library["licenses"][0]["expression"]) == known
        assert len(library["externalReferences"][0]["hashes"][0]["content"]) == 64
    tools = {tool["name"]: tool["version"] for tool in bill["metadata"]["tools"]["components"]}
    assert tools["CPython headers"].startswith(wheel.python + ".")
    assert ("nasm" in tools) == (wheel.machine == "x86_64")
    references = {part["bom-ref"] for part in bill["components"]}
    assert set(bill["dependencies"][0]["dependsOn"]) == references


def test_record_has_the_digest_of_each_file(wheel: Wheel) -> None:
    content = wheel.read()
    record = f"{wheel.info}/RECORD"
    rows = list(csv.reader(io.StringIO(content[record].decode())))
    assert sorted(row[0] for row in rows) == sorted(content)
    for name, digest, size in rows:
        if name != record:
            found = base64.urlsafe_b64encode(hashlib.sha256(content[name]).digest()).rstrip(b"=").decode()
            assert (digest, size) == (f"sha256={found}", str(len(content[name])))


def test_all_files_have_one_time(wheel: Wheel) -> None:
    with zipfile.ZipFile(wheel.path) as archive:
        entries = archive.infolist()
    assert len({entry.date_time for entry in entries}) == 1
    modes = {entry.filename: entry.external_attr >> 16 & 0o777 for entry in entries}
    assert {name for name in modes if modes[name] == 0o755} == {wheel.extension, wheel.program}
    assert set(modes.values()) == {0o755, 0o644}

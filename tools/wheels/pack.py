# SPDX-License-Identifier: Apache-2.0
"""Packs installed files into a wheel. The same files give the same bytes: names are sorted, and all times are one time.

meson-python is not used for wheels, because it takes the tag from the interpreter that runs it, and builds the C
library again for each Python. It does write the metadata: those of the sdist are those of the wheel, with the licences
of the libraries that are inside.
"""

import base64
import hashlib
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

from wheels.libraries import LIBRARIES
from wheels.sbom import WHEEL_LICENCE

GENERATOR = "headrace tools/make_wheels.py"
EXECUTABLE = 0o755


def pack(wheel: Path, files: Mapping[str, bytes], epoch: int) -> None:
    """Writes the wheel. `files` has everything but RECORD; scripts and libraries are executable."""
    info = next(name.split("/")[0] for name in files if name.endswith(".dist-info/WHEEL"))
    order = sorted(files, key=lambda name: (name.startswith(info), name))
    record = f"{info}/RECORD"
    lines = [f"{name},sha256={digest(files[name])},{len(files[name])}" for name in order] + [f"{record},,"]
    content = {**files, record: ("\n".join(lines) + "\n").encode()}
    part = wheel.with_suffix(".part")
    with zipfile.ZipFile(part, "w") as archive:
        for name in [*order, record]:
            archive.writestr(describe(name, epoch), content[name], zipfile.ZIP_DEFLATED, 9)
    part.rename(wheel)


def digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def describe(name: str, epoch: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, time.gmtime(max(epoch, 315532800))[:6])  # a zip file knows no year before 1980
    entry.create_system = 3  # Unix, whose permissions these are
    executable = name.endswith(".so") or ".data/scripts/" in name
    entry.external_attr = (0o100000 | (EXECUTABLE if executable else 0o644)) << 16
    return entry


def collect(installed: Path, info: str, data: str) -> dict[str, bytes]:
    """Reads what meson installed (wheels/build.py: INSTALLED) under the names that it has in a wheel."""
    places = {installed / "platlib": "", installed / "bin": f"{data}/scripts/"}
    files = {}
    for folder, place in places.items():
        for path in folder.rglob("*"):
            if path.is_file():
                files[place + path.relative_to(folder).as_posix()] = path.read_bytes()
    foreign = [path for path in installed.iterdir() if path not in places]
    if foreign:
        raise ValueError(f"meson installed what has no place in a wheel: {foreign}")
    return files


def list_metadata(source: Path, inside: Mapping[str, Path], tag: str, bill: str) -> dict[str, bytes]:
    """The files of .dist-info, by their names in it."""
    theirs = {
        f"licenses/{library.name}/{file}": inside[library.name] / file
        for library in LIBRARIES
        for file in library.licence_files
    }
    wheel = f"Wheel-Version: 1.0\nGenerator: {GENERATOR}\nRoot-Is-Purelib: false\nTag: {tag}\n"
    return {
        "METADATA": add_licences((source / "PKG-INFO").read_text(), list(theirs)).encode(),
        "WHEEL": wheel.encode(),
        "licenses/LICENSE": (source / "LICENSE").read_bytes(),
        **{name: path.read_bytes() for name, path in theirs.items()},
        "sboms/headrace.cdx.json": bill.encode(),
    }


def add_licences(metadata: str, files: list[str]) -> str:
    """Adds the licences of the libraries to the metadata of an sdist, which does not contain them."""
    header, blank, text = metadata.partition("\n\n")
    lines = header.split("\n")
    lines[lines.index("License-Expression: Apache-2.0")] = f"License-Expression: {WHEEL_LICENCE}"
    place = lines.index("License-File: LICENSE") + 1
    lines[place:place] = [f"License-File: {name.removeprefix('licenses/')}" for name in files]
    return "\n".join(lines) + blank + text

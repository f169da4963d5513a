# SPDX-License-Identifier: Apache-2.0
"""Builds the libraries that wheels have inside: static, symbols hidden, from Debian's source archives.

The digest of each archive is here. Debian's patches are left out: those of libjpeg-turbo concern its packaging (the
build date, the paths of man pages and of test files), and zlib has none.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from wheels.commands import fail, run, unpack
from wheels.debian import Debian
from wheels.target import C_FLAGS, Target

HIDDEN = " ".join(["-fvisibility=hidden", *C_FLAGS])


@dataclass(frozen=True)
class Library:
    name: str  # of Debian's source package
    version: str
    debian_version: str
    archive: str
    sha256: str
    licence: str  # in SPDX's words
    licence_files: tuple[str, ...]
    list_commands: Callable[[Target, Path, Path], list[list[str]]]  # from the source into a folder; run in an empty one


def list_jpeg_commands(target: Target, source: Path, prefix: Path) -> list[list[str]]:
    values = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": target.machine,
        "CMAKE_C_COMPILER": target.program("cc"),
        "CMAKE_AR": target.program("ar"),
        "CMAKE_RANLIB": target.program("ranlib"),
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_C_FLAGS": HIDDEN,
        "CMAKE_POSITION_INDEPENDENT_CODE": 1,
        "CMAKE_INSTALL_PREFIX": prefix,
        "CMAKE_INSTALL_LIBDIR": "lib",
        "BUILD": "20250101",  # libjpeg-turbo has the date of the build in a text
        "ENABLE_SHARED": 0,
        "REQUIRE_SIMD": 1,
        "WITH_TESTS": 0,
        "WITH_TOOLS": 0,
        "WITH_TURBOJPEG": 0,
    }
    if target.machine == "x86_64":
        values["CMAKE_ASM_NASM_COMPILER"] = shutil.which("nasm") or fail("nasm is not installed")
    settings = [f"-D{name}={value}" for name, value in values.items()]
    cmake = str(target.tools / "cmake")
    return [[cmake, "-G", "Ninja", "-S", str(source), *settings], [cmake, "--build", "."], [cmake, "--install", "."]]


def list_zlib_commands(target: Target, source: Path, prefix: Path) -> list[list[str]]:
    """zlib's cmake would not do: it lists files for Windows, which Debian's archive lacks."""
    values = {
        "CC": target.program("cc"),
        "AR": target.program("ar"),
        "RANLIB": target.program("ranlib"),
        "CFLAGS": f"-O3 -fPIC {HIDDEN}",
        "uname": "Linux",
    }
    settings = [f"{name}={value}" for name, value in values.items()]
    return [
        ["env", *settings, f"{source}/configure", "--static", f"--prefix={prefix}"],
        ["make", "libz.a"],
        ["make", "install"],
    ]


LIBRARIES = (
    Library(
        name="libjpeg-turbo",
        version="3.1.3",
        debian_version="1:3.1.3-4",
        archive="libjpeg-turbo_3.1.3.orig.tar.gz",
        sha256="3a13a5ba767dc8264bc40b185e41368a80d5d5f945944d1dbaa4b2fb0099f4e5",
        licence="IJG AND BSD-3-Clause AND Zlib",
        licence_files=("LICENSE.md", "README.ijg"),
        list_commands=list_jpeg_commands,
    ),
    Library(
        name="zlib",
        version="1.3.1",
        debian_version="1:1.3.dfsg+really1.3.1-3",
        archive="zlib_1.3.dfsg+really1.3.1.orig.tar.gz",
        sha256="60dd315c07f616887caa029408308a018ace66e3d142726a97db164b3b8f69fb",
        licence="Zlib",
        licence_files=("LICENSE",),
        list_commands=list_zlib_commands,
    ),
)


def get_source(library: Library, debian: Debian, folder: Path) -> Path:
    """Returns the folder of the unpacked source."""
    archive = debian.get_source(library.name, library.debian_version, library.archive, library.sha256)
    return unpack(archive, folder)


def build(library: Library, target: Target, source: Path) -> None:
    """Installs the library into its folder of the target, unless the same was built there before."""
    prefix = target.prefix(library.name)
    done = prefix / "built-from.txt"
    commands = library.list_commands(target, source, prefix)
    wanted = "\n".join([library.sha256, *(" ".join(words) for words in commands)])
    if done.exists() and done.read_text() == wanted:
        return
    folder = target.folder / f"{library.name}-build"
    for old in (folder, prefix):
        shutil.rmtree(old, ignore_errors=True)
    folder.mkdir()
    for words in commands:
        run(*words, cwd=folder, env=target.environment)
    done.write_text(wanted)

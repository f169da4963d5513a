# SPDX-License-Identifier: Apache-2.0
"""Builds libjpeg-turbo for a machine: static, its symbols hidden, from Debian's source archive, pinned by its digest.

Debian's patches are left out: they concern its packaging (the build date, the paths of man pages and of test files).
"""

import shutil
from pathlib import Path

from wheels.commands import fail, run, unpack
from wheels.debian import Debian
from wheels.target import C_FLAGS, Target

VERSION = "3.1.3"
DEBIAN_VERSION = "1:3.1.3-4"
ARCHIVE = f"libjpeg-turbo_{VERSION}.orig.tar.gz"
SHA256 = "3a13a5ba767dc8264bc40b185e41368a80d5d5f945944d1dbaa4b2fb0099f4e5"
LICENCES = ("LICENSE.md", "README.ijg")
BUILD_DATE = "20250101"  # libjpeg-turbo has the date of the build in a text


def get_source(debian: Debian, folder: Path) -> Path:
    """Returns the folder of the unpacked source."""
    archive = debian.get_source("libjpeg-turbo", DEBIAN_VERSION, ARCHIVE, SHA256)
    return unpack(archive, folder)


def build(target: Target, source: Path) -> None:
    """Installs the library into the folder `jpeg` of the target, unless the same was built there before."""
    prefix = target.folder / "jpeg"
    done = prefix / "built-from.txt"
    settings = list_settings(target, prefix)
    wanted = "\n".join([SHA256, *settings])
    if done.exists() and done.read_text() == wanted:
        return
    folder = target.folder / "jpeg-build"
    for old in (folder, prefix):
        shutil.rmtree(old, ignore_errors=True)
    cmake = target.tools / "cmake"
    run(cmake, "-G", "Ninja", "-S", source, "-B", folder, *settings, env=target.environment)
    run(cmake, "--build", folder, env=target.environment)
    run(cmake, "--install", folder, env=target.environment)
    done.write_text(wanted)


def list_settings(target: Target, prefix: Path) -> list[str]:
    values = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": target.machine,
        "CMAKE_C_COMPILER": target.folder / "bin/cc",
        "CMAKE_AR": target.folder / "bin/ar",
        "CMAKE_RANLIB": target.folder / "bin/ranlib",
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_C_FLAGS": " ".join(["-fvisibility=hidden", *C_FLAGS]),
        "CMAKE_POSITION_INDEPENDENT_CODE": 1,
        "CMAKE_INSTALL_PREFIX": prefix,
        "CMAKE_INSTALL_LIBDIR": "lib",
        "BUILD": BUILD_DATE,
        "ENABLE_SHARED": 0,
        "REQUIRE_SIMD": 1,
        "WITH_TESTS": 0,
        "WITH_TOOLS": 0,
        "WITH_TURBOJPEG": 0,
    }
    if target.machine == "x86_64":
        values["CMAKE_ASM_NASM_COMPILER"] = shutil.which("nasm") or fail("nasm is not installed")
    return [f"-D{name}={value}" for name, value in values.items()]

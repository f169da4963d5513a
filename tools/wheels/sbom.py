# SPDX-License-Identifier: Apache-2.0
"""Writes the list of what is inside a wheel (a software bill of materials), in the JSON of CycloneDX 1.6."""

import json
import re
import shutil
from datetime import datetime, timezone
from importlib.metadata import version
from typing import Any

from wheels.commands import run
from wheels.headers import Headers
from wheels.libraries import LIBRARIES, Library
from wheels.target import GLIBC, Target

LICENCES = ["Apache-2.0", *(name for library in LIBRARIES for name in library.licence.split(" AND "))]
WHEEL_LICENCE = " AND ".join(dict.fromkeys(LICENCES))


def write(name: str, package_version: str, target: Target, headers: Headers, epoch: int) -> str:
    package = describe("library", name, package_version, "Apache-2.0", "pypi")
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": package,
            "tools": {"components": list_tools(target, headers)},
        },
        "components": list_components(),
        "dependencies": [
            {"ref": package["bom-ref"], "dependsOn": [part["bom-ref"] for part in list_components()]},
        ],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def describe(kind: str, name: str, of_version: str, licence: str, registry: str) -> dict[str, Any]:
    where = f"pkg:{registry}/{name}@{of_version}"
    licences = [{"expression": licence}]
    return {"type": kind, "bom-ref": where, "name": name, "version": of_version, "licenses": licences, "purl": where}


def list_components() -> list[dict[str, Any]]:
    """Names everything that is linked into the files of a wheel."""
    runtime = describe("library", "compiler-rt", version("ziglang"), "MIT", "generic")
    runtime["description"] = "zig's functions that the compiler calls"
    start = describe("library", "glibc", "{}.{}".format(*GLIBC), "LGPL-2.1-or-later WITH GCC-exception-2.0", "generic")
    start["description"] = "the part that is linked statically: the start of a program, libc_nonshared"
    return [*map(describe_library, LIBRARIES), runtime, start]


def describe_library(library: Library) -> dict[str, Any]:
    found = describe("library", library.name, library.version, library.licence, "generic")
    hashes = [{"alg": "SHA-256", "content": library.sha256}]
    found["externalReferences"] = [{"type": "source-distribution", "url": library.archive, "hashes": hashes}]
    return found


def list_tools(target: Target, headers: Headers) -> list[dict[str, Any]]:
    found = {"zig": version("ziglang"), "meson": version("meson"), "ninja": version("ninja"), "cmake": version("cmake")}
    if target.machine == "x86_64":
        found["nasm"] = find_nasm_version()
    found["CPython headers"] = headers.full_version
    return [{"type": "application", "name": name, "version": found[name]} for name in found]


def find_nasm_version() -> str:
    said = run(shutil.which("nasm") or "nasm", "--version")
    return str(re.findall(r"version (\S+)", said)[0])

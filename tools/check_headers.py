# SPDX-License-Identifier: Apache-2.0
"""Compiles each header alone, as C11 and as C++17. For the public ones there is nothing else than what is installed.

check_headers.py [INCLUDE_FOLDER]
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from common import ROOT

COMPILERS = [
    ["gcc", "-xc", "-std=c11", "-pedantic", "-Wall", "-Wextra", "-Wstrict-prototypes", "-Werror"],
    ["g++", "-xc++", "-std=c++17", "-pedantic", "-Wall", "-Wextra", "-Werror"],
]

# Standard headers that define common words as macros: no name of ours may be one of them.
MACROS: dict[str, list[str]] = {"gcc": ["complex.h", "stdnoreturn.h", "iso646.h", "threads.h"], "g++": []}


def compile_alone(include: Path, header: Path) -> list[str]:
    """Returns the output of the compilers. The header is included twice, so that a missing guard is found."""
    included = f"#include <{header.relative_to(include)}>\n" * 2 + "extern int not_empty;\n"
    complaints = []
    for compiler in COMPILERS:
        text = "".join(f"#include <{name}>\n" for name in MACROS[compiler[0]]) + included
        command = [*compiler, "-fsyntax-only", f"-I{include}", "-"]
        result = subprocess.run(command, input=text, capture_output=True, text=True)
        if result.returncode:
            complaints.append(f"{header.name} does not compile alone with {' '.join(compiler)}\n{result.stderr}")
    return complaints


def compile_installed(include: Path, headers: list[Path]) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        installed = Path(folder) / "headrace"
        installed.mkdir()
        for header in headers:
            shutil.copy(header, installed)
        return [
            complaint for header in sorted(installed.iterdir()) for complaint in compile_alone(Path(folder), header)
        ]


def main(include: Path) -> int:
    headers = sorted(include.glob("headrace/*.h"))
    complaints = compile_installed(include, headers)
    for header in sorted(include.glob("headrace/face/*.h")):
        complaints += compile_alone(include, header)
    print("\n".join(complaints))
    return 1 if complaints or not headers else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "include"))

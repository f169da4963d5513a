# SPDX-License-Identifier: Apache-2.0
"""Finds the headers of each CPython, and answers meson's questions in place of its interpreter.

Nothing of an interpreter is run to build a wheel, so that one for another machine, or of a Python that is not here, is
built in the same way as any other.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from wheels.commands import run
from wheels.debian import Debian
from wheels.target import Target, write_program

VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14", "3.15")
IN_DEBIAN = ("3.13", "3.14", "3.15")  # the Pythons of Debian's unstable release
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # Debian's words
ASK = "import sysconfig; print(sysconfig.get_path('include')); print(sysconfig.get_path('platinclude'))"

# What pyconfig.h says of the machine it was made for has to be true of the one that is built for.
SIZES = """
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <wchar.h>
#define SAME(size, type) _Static_assert(size == sizeof(type), "another machine's pyconfig.h: " #type)
SAME(SIZEOF_INT, int);
SAME(SIZEOF_LONG, long);
SAME(SIZEOF_LONG_LONG, long long);
SAME(SIZEOF_LONG_DOUBLE, long double);
SAME(SIZEOF_OFF_T, off_t);
SAME(SIZEOF_PID_T, pid_t);
SAME(SIZEOF_SIZE_T, size_t);
SAME(SIZEOF_TIME_T, time_t);
SAME(SIZEOF_UINTPTR_T, uintptr_t);
SAME(SIZEOF_VOID_P, void *);
SAME(SIZEOF_WCHAR_T, wchar_t);
SAME(SIZEOF__BOOL, _Bool);
#if defined(Py_DEBUG) || defined(Py_TRACE_REFS) || defined(Py_GIL_DISABLED)
#error "not the usual build of CPython"
#endif
"""


@dataclass(frozen=True)
class Headers:
    python: str  # "3.11"
    folders: tuple[Path, ...]  # to look for files in, in this order

    @property
    def full_version(self) -> str:
        text = (self.folders[0] / "patchlevel.h").read_text()
        return str(re.findall(r'^#define PY_VERSION\s+"(.+)"', text, re.MULTILINE)[0])

    def suffix(self, machine: str) -> str:
        return f".cpython-{self.python.replace('.', '')}-{machine}-linux-gnu.so"


def find(python: str, target: Target, debian: Debian) -> Headers | None:
    """Looks at the interpreters on this machine, then in Debian's packages."""
    for interpreter in list_interpreters(python):
        folders = ask_interpreter(interpreter)
        if folders and (folders[0] / "Python.h").exists():
            return Headers(python, folders)
    if python in IN_DEBIAN and debian.is_here():
        return find_in_debian(python, target, debian)
    return None


def list_interpreters(python: str) -> list[str]:
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    own = sorted(map(str, pyenv.glob(f"versions/{python}.*/bin/python{python}")))
    return own + [path for path in [shutil.which(f"python{python}")] if path]


def ask_interpreter(interpreter: str) -> tuple[Path, ...]:
    answer = subprocess.run([interpreter, "-I", "-c", ASK], capture_output=True, text=True)
    return tuple(dict.fromkeys(Path(line) for line in answer.stdout.splitlines())) if answer.returncode == 0 else ()


def find_in_debian(python: str, target: Target, debian: Debian) -> Headers | None:
    package = f"libpython{python}-dev:{ARCHITECTURES[target.machine]}"
    root = target.folder / f"python{python}"
    include = root / "usr/include"
    if not (include / f"python{python}/Python.h").exists():
        if not debian.has(package):
            return None
        debian.unpack([package], root)
    return Headers(python, (include / f"python{python}", include))  # its pyconfig.h includes <MACHINE-linux-gnu/...>


def check(headers: Headers, target: Target) -> None:
    source = target.folder / "sizes.c"
    source.write_text(SIZES)
    includes = [f"-I{folder}" for folder in headers.folders]
    run(target.program("cc"), *includes, "-c", source, "-o", source.with_suffix(".o"), env=target.environment)


def stand_in(headers: Headers, target: Target) -> None:
    """Writes the program that meson takes for the interpreter. It answers mesonbuild/scripts/python_info.py, and hands
    other scripts, which make sources, to the Python of the tools.

    meson installs what belongs to the Python package into the folder `platlib`.
    """
    folders = [*headers.folders, None][:2]
    paths = {"include": str(folders[0]), "platinclude": str(folders[-1] or folders[0])}
    install = {"purelib": "/platlib", "platlib": "/platlib", "include": "/include", "scripts": "/bin", "data": "/"}
    answer = {
        "variables": {"INCLUDEPY": str(headers.folders[0])},
        "paths": paths,
        "sysconfig_paths": paths,
        "install_paths": install,
        "version": headers.python,
        "platform": f"linux-{target.machine}",
        "is_pypy": False,
        "is_venv": False,
        "link_libpython": False,
        "suffix": headers.suffix(target.machine),
        "limited_api_suffix": ".abi3.so",
        "is_freethreaded": False,
    }
    (target.folder / "python.json").write_text(json.dumps(answer))
    lines = f'case $1 in *python_info.py) exec cat "{target.folder}/python.json" ;; esac\nexec "{sys.executable}" "$@"'
    write_program(target.program("python"), lines)
